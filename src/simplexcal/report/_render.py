"""What both kinds of reports share: checks of arguments, and the page as a file."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import simplexcal
from simplexcal._validation import check_class_names
from simplexcal.io._atomic import atomic_write
from simplexcal.report._format import count, percent
from simplexcal.report.chart_data import N_STEPS
from simplexcal.types import Prediction

if TYPE_CHECKING:
    import jinja2

START = 0.9  # the threshold at first
N_ROWS = 12  # a longer table of the classes scrolls
PACKAGES = ("altair", "jinja2", "PIL", "vl_convert")

Context = dict[str, Any]


def render_to(path: str | Path, context: Context) -> Path:
    """Write the page, whole or not at all, and return its path.

    Args:
        path: The file.
        context: What the template shows.
    """
    atomic_write(Path(path), _render(context).encode())
    return Path(path)


def check_same_inputs(predictions: Mapping[str, Prediction]) -> None:
    """Raise ValueError unless there are predictions, all about the same inputs.

    Args:
        predictions: Predictions by the name of their method.
    """
    if not predictions:
        raise ValueError(
            "`predictions` is empty; pass a mapping from each method's name to its Prediction."
        )
    shapes = {name: tuple(p.probs.shape) for name, p in predictions.items()}
    first = next(iter(shapes))
    for name, shape in shapes.items():
        if shape != shapes[first]:
            raise ValueError(
                "`predictions` must be about the same inputs and classes; "
                f"{first!r} has probs of shape {shapes[first]}, {name!r} of {shape}. "
                "Predict the same test set by every method."
            )


def checked_focus(focus: str | None, predictions: Mapping[str, Prediction]) -> str:
    """Return the method that the verdict is about, the last by default.

    Args:
        focus: The argument of `write_report`.
        predictions: Predictions by the name of their method.
    """
    if focus is None:
        return list(predictions)[-1]
    if focus not in predictions:
        raise ValueError(
            f"`focus` must be one of the methods in `predictions`: {', '.join(predictions)}; "
            f"got {focus!r}."
        )
    return focus


def checked_class_names(class_names: Sequence[str] | None, k: int) -> list[str]:
    """Return a name for each class.

    Args:
        class_names: The argument of `write_report`.
        k: Number of classes.
    """
    if class_names is None:
        return [f"class {i}" for i in range(k)]
    return check_class_names(class_names, k)


def check_extra_is_installed(packages: Sequence[str] = PACKAGES) -> None:
    """Raise ModuleNotFoundError if a package that draws the page is missing.

    Args:
        packages: What the page needs.
    """
    for name in packages:
        if find_spec(name) is None:
            raise ModuleNotFoundError(
                f"write_report needs {name}, which is not installed. "
                'Run pip install "simplexcal[report]".'
            )


def render_page(template: str, context: Context) -> str:
    """Return a page.

    Args:
        template: Name of the template's file.
        context: What the template shows.
    """
    return (
        _jinja_environment().get_template(template).render(context, version=simplexcal.__version__)
    )


def _render(context: Context) -> str:
    controls = {
        "n_steps": N_STEPS,
        "n_rows": N_ROWS,
        "start": round(START * N_STEPS),
        "vega": _vega(),
    }
    return render_page("report.html.j2", context | controls)


def _jinja_environment() -> "jinja2.Environment":
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters["percent"] = percent
    environment.filters["count"] = count
    return environment


@cache
def _vega() -> str:
    """Return the scripts that draw the charts; "</script" would end the element that holds them."""
    import vl_convert

    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script")
