"""Writes docs/results/ with its figures from the records.

No number of ours is typed: the prose is in templates, the numbers come from the records.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from experiments.config.methods import METHODS
from experiments.config.run_config import RESULTS
from experiments.config.settings import SETTINGS, TABLE1_SETTINGS
from experiments.config.studies import STUDIES
from experiments.page import (
    comparisons,
    figures,
    mixup,
    normalisation,
    ood,
    paper_items,
    provenance,
    rivals,
    table1,
)
from experiments.page.groups import Results, Table, read_results
from experiments.pretraining import lenet5_variants

ROOT = Path(__file__).parents[2]
PAGES_FOLDER = ROOT / "docs" / "results"
# Pages of that folder that other scripts write, or whose figures benchmarks/ print.
WRITTEN_BY_HAND = (
    "accuracy-and-speed.md",
    "any-classifier.md",
    "dense.md",
    "shift.md",
    "text.md",
    "third-party.md",
)
FIGURES_FOLDER = ROOT / "docs" / "figures"
TEMPLATES = Path(__file__).parent / "templates"


def index_context(results: Results) -> dict[str, object]:
    """Return what the template of the first page reads.

    Args:
        results: The records.
    """
    settings = results.settings("table1")
    missing_methods = []
    for name, group in settings.items():
        missing = [METHODS[m].title for m in table1.METHOD_ORDER if m not in group]
        if missing:
            missing_methods.append((SETTINGS[name].title, missing))
    missing_studies = []
    for name, study in STUDIES.items():
        if study.in_paper and name != "table1" and not results.studies[name]:
            missing_studies.append((name, study.title))
    missing_settings = [name for name in TABLE1_SETTINGS if name not in settings]
    return {
        "missing_settings": [SETTINGS[name].title for name in missing_settings],
        "missing_methods": missing_methods,
        "missing_studies": missing_studies,
    }


def lenet5_context() -> dict[str, object]:
    """Return what the template of the LeNet-5 variants reads, from their own file."""
    rows = []
    for name, evaluated in lenet5_variants.read().items():
        accuracies = [f"{100 * found.accuracy:.2f}" for found in evaluated]
        errors = [f"{100 * found.ece:.2f}" for found in evaluated]
        rows.append([name, ", ".join(accuracies), ", ".join(errors)])
    return {
        "paper_accuracy": lenet5_variants.PAPER_ACCURACY,
        "nearest": lenet5_variants.nearest_to_paper(),
        "table": Table(("variant", "accuracy %", "ECE %"), rows),
    }


Context = Callable[[Results], dict[str, object]]
PAGES: dict[str, Context] = {
    "index": index_context,
    "table1": table1.context,
    "table1-0.2": partial(table1.context, study="table1-0.2"),
    "paper": paper_items.context,
    "differences": provenance.context,
    "ood": ood.context,
    "mixup": mixup.context,
    "normalisation": lambda _: normalisation.context(),
    "rivals": lambda _: rivals.context(),
    "variants": comparisons.variants_context,
    "few-labels": comparisons.few_labels_context,
    "swapped": comparisons.swapped_context,
    "architectures": comparisons.architectures_context,
    "time": comparisons.time_context,
    "lenet5": lambda _: lenet5_context(),
}


# Pages that have the template of another.
TEMPLATE_OF = {"table1-0.2": "table1"}


def render_pages(folder: Path = RESULTS) -> dict[str, str]:
    """Return the text of each page, by the name of its file.

    Args:
        folder: The folder of the records.
    """
    results = read_results(folder)
    pages = {}
    for name, make_context in PAGES.items():
        template = TEMPLATE_OF.get(name, name)
        pages[f"{name}.md"] = _render(f"{template}.md.j2", make_context(results))
    return pages


def write() -> None:
    """Write pages and figures."""
    results = read_results()
    settings = results.settings("table1")
    for study, suffix in (("table1", ""), ("table1-0.2", "-0.2")):
        for name, group in results.settings(study).items():
            path = FIGURES_FOLDER / f"reliability-{name}{suffix}.svg"
            figures.draw_reliability(group, path)
    for name, group in results.settings("dirichlet").items():
        figures.draw_reliability(group, FIGURES_FOLDER / f"dirichlet-{name}.svg")
    searched = mixup.searched_betas(settings)
    if searched:
        figures.draw_sensitivity(searched, FIGURES_FOLDER / "beta.svg")
    figures.draw_densities(FIGURES_FOLDER / "densities.png")
    PAGES_FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in render_pages().items():
        (PAGES_FOLDER / name).write_text(text)


def _render(template: str, context: dict[str, object]) -> str:
    environment = Environment(  # The pages are Markdown, so nothing is escaped.
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template(template).render(context)
    return text.strip() + "\n"
