"""The page: checks what it is given, brings the parts together and writes the file."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import date
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Generator, Tensor

import simplexcal
from simplexcal._validation import check_probs_and_labels, check_probs
from simplexcal.evaluation import Evaluation, evaluate
from simplexcal.io._atomic import atomic_write
from simplexcal.report import chart_data
from simplexcal.report.mistakes import Images, check_images, most_confident_mistakes
from simplexcal.report.table import meaning, method_title, score_table
from simplexcal.report.verdict import Verdict, count, judge, nll_change, percent
from simplexcal.types import Prediction

START = 0.9  # where the threshold stands at first

Predictions = dict[str, Prediction]
Evaluations = Mapping[str, Evaluation]
Context = dict[str, Any]


def write_report(
    path: str | Path,
    predictions: Mapping[str, Prediction],
    labels: Tensor,
    *,
    images: Images | None = None,
    class_names: Sequence[str] | None = None,
    title: str = "Calibration report",
    focus: str | None = None,
    n_bins: int = 10,
    generator: Generator | None = None,
) -> Path:
    """Write one HTML file, which needs no network, on how well ``predictions`` by several methods fit the ``labels``.

    The verdict is about the method ``focus`` (default: the last), compared with "none", the uncalibrated network, where
    there is one. ``images``, bytes or floats in 0..1, of shape (N, H, W), (N, H, W, C) or (N, C, H, W), show the inputs
    that were most confidently wrong. Simulations and the sample of points shown use ``generator``, or
    else a fixed seed, as ``evaluate`` does.
    """
    predictions = _checked(predictions)
    probs, labels = check_probs_and_labels(next(iter(predictions.values())).probs, labels)
    (n, k), labels = probs.shape, labels.cpu()
    focus, names = _focus(focus, predictions), _class_names(class_names, k)
    check_images(images, n)
    _check_extra()
    evaluations = {name: evaluate(p, labels, n_bins, generator) for name, p in predictions.items()}
    context = {
        "title": title,
        "facts": [f"{count(n)} inputs", f"{count(k)} classes", date.today().isoformat()],
        "focus": focus,
        "verdict": _verdict(predictions, labels, evaluations, focus),
        "summary": _summary(evaluations, focus),
        "table": score_table(evaluations),
        "mistakes": most_confident_mistakes(
            predictions[focus], labels, predictions.get("none"), names, images
        ),
        "n_steps": chart_data.N_STEPS,
        "start": round(START * chart_data.N_STEPS),
        "n_wrong": int((predictions[focus].label != labels).sum()),
        "version": simplexcal.__version__,
        **_charts(
            predictions, labels, names, focus, n_bins, generator or Generator().manual_seed(0)
        ),
    }
    atomic_write(Path(path), _render(context).encode())
    return Path(path)


def _checked(predictions: Mapping[str, Prediction]) -> Predictions:
    """Return the predictions on the CPU if there are any, all about the same inputs."""
    if not predictions:
        raise ValueError(
            "`predictions` is empty; pass a mapping from each method's name to its Prediction."
        )
    first, shape = next((name, p.probs.shape) for name, p in predictions.items())
    for name, p in predictions.items():
        if p.probs.shape != shape:
            raise ValueError(
                f"`predictions` must be about the same inputs and classes; {first!r} has probs of shape "
                f"{tuple(shape)}, {name!r} of {tuple(p.probs.shape)}. Predict the same test set by every method."
            )
    return {name: _on_cpu(p) for name, p in predictions.items()}


def _on_cpu(prediction: Prediction) -> Prediction:
    values = {field.name: getattr(prediction, field.name) for field in fields(Prediction)}
    moved: dict[str, Any] = {
        name: None if x is None else x.detach().cpu() for name, x in values.items()
    }
    return Prediction(**moved | {"probs": check_probs(moved["probs"])})


def _focus(focus: str | None, predictions: Predictions) -> str:
    if focus is None:
        return list(predictions)[-1]
    if focus not in predictions:
        raise ValueError(
            f"`focus` must be one of the methods in `predictions`: {', '.join(predictions)}; got {focus!r}."
        )
    return focus


def _class_names(class_names: Sequence[str] | None, k: int) -> list[str]:
    if class_names is None:
        return [f"class {i}" for i in range(k)]
    if len(class_names) != k:
        raise ValueError(
            f"`class_names` must name all {k} classes, in the order of `probs`; got {len(class_names)}."
        )
    return [str(name) for name in class_names]


def _check_extra() -> None:
    missing = [
        name for name in ("altair", "jinja2", "PIL", "vl_convert") if find_spec(name) is None
    ]
    if missing:
        raise ModuleNotFoundError(
            f'write_report needs {missing[0]}, which is not installed. Run pip install "simplexcal[report]".'
        )


def _verdict(
    predictions: Predictions, labels: Tensor, evaluations: Evaluations, focus: str
) -> Verdict:
    if focus == "none":
        return judge(evaluations[focus], None)
    name = method_title(focus)
    if "none" not in predictions:
        return judge(evaluations[focus], name)
    change = nll_change(predictions["none"], predictions[focus], labels)
    return judge(evaluations[focus], name, evaluations["none"], change)


def _summary(evaluations: Evaluations, focus: str) -> list[Context]:
    """Return what is said and what is right, before calibration and in focus."""
    name = method_title(focus)
    shown = (
        {focus: name}
        if "none" not in evaluations or focus == "none"
        else {"none": "Before", focus: f"After {name}"}
    )
    return [
        {"title": title, "says": evaluations[name].confidence, "right": evaluations[name].accuracy}
        for name, title in shown.items()
    ]


def _charts(
    predictions: Predictions,
    labels: Tensor,
    names: list[str],
    focus: str,
    n_bins: int,
    generator: Generator,
) -> Context:
    from simplexcal.report import chart_specs

    correct = {name: p.label == labels for name, p in predictions.items()}
    bins = {
        name: chart_data.bin_rows(name, p, correct[name], n_bins) for name, p in predictions.items()
    }
    curves = {
        name: chart_data.curve_rows(name, p, correct[name]) for name, p in predictions.items()
    }
    methods = {
        name: {
            "title": method_title(name),
            "levels": chart_data.levels(p, correct[name]),
            "reliability": chart_data.describe_bins(bins[name], method_title(name)),
            "histogram": chart_data.describe_counts(bins[name], method_title(name)),
            "curve": chart_data.describe_curve(curves[name], method_title(name)),
        }
        for name, p in predictions.items()
    }
    source, points = _points(predictions, labels, names, focus, generator)
    tables = {
        "bins": list(chain(*bins.values())),
        "curves": list(chain(*curves.values())),
        "points": points,
    }
    specs = {
        "reliability": chart_specs.reliability_spec(focus),
        "histogram": chart_specs.histogram_spec(focus),
        "curve": chart_specs.curve_spec(focus, max(row["risk"] for row in tables["curves"])),
        **({"scatter": chart_specs.scatter_spec()} if points else {}),
    }
    scatter = {
        "method": source,
        "n": len(points),
        "alt": chart_data.describe_points(points, method_title(source)),
    }
    return {
        "data": {"specs": specs, "tables": tables, "methods": methods, "n": len(labels)},
        "scatter": scatter if points else None,
    }


def _points(
    predictions: Predictions, labels: Tensor, names: list[str], focus: str, generator: Generator
) -> tuple[str, chart_data.Rows]:
    """Return the method whose uncertainties are drawn, in focus or else the last that has some, and its points."""
    for name in (focus, *reversed(predictions)):
        points = chart_data.point_rows(predictions[name], labels, names, generator)
        if points:
            return name, points
    return focus, []


def _render(context: Context) -> str:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters |= {
        "percent": percent,
        "count": count,
        "method_title": method_title,
        "meaning": meaning,
    }
    template = environment.from_string(
        Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8")
    )
    return template.render(context, vega=_vega())


@cache
def _vega() -> str:
    """Return the scripts that draw the charts; "</script" would end the element that holds them."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace(
        "</script", "<\\/script"
    )
