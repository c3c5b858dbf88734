"""The figures of the results pages, drawn from the records, and the paper's densities."""

import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch.distributions import Dirichlet

import simplexcal as sc
from experiments.config.methods import METHODS, PAPER_BETAS
from experiments.config.settings import SETTINGS
from experiments.page.groups import Group, deviation
from experiments.page.mixup import Searched, beta_errors
from experiments.running.records import Record
from simplexcal.plots import beta_sensitivity, simplex_density, simplex_grid

RELIABILITY_METHODS = ("none", "sts-paper", "sts", "dirichlet-ts")
LOGITS = (1.0, 0.5, 0.25)  # of the paper's Appendix D
TEMPERATURES = (0.2, 1.0, 2.0, 10.0, 20.0)
NO_NAMES = ("", "", "")
# With these settings the same records give the same file.
REPRODUCIBLE: Any = {"svg.hashsalt": "simplexcal", "svg.fonttype": "none", "font.size": 9}


def draw_reliability(group: Group, path: Path) -> None:
    """Draw accuracy against confidence: the mean of the seeds, and their deviation.

    Args:
        group: The records of a setting.
        path: The file to write.
    """
    methods = [method for method in RELIABILITY_METHODS if method in group]
    figure = Figure(figsize=(3.2 * len(methods), 3.2), layout="constrained")
    axes = figure.subplots(1, len(methods), squeeze=False)[0]
    for method, ax in zip(methods, axes, strict=True):
        _draw_bars(group[method], ax)
        ax.set_title(METHODS[method].title)
    _save(figure, path)


def _draw_bars(records: list[Record], ax: Axes) -> None:
    edges = records[0].bins.edges
    for i, left in enumerate(edges[:-1]):
        accuracies = [record.bins.accuracy[i] for record in records]
        found = [accuracy for accuracy in accuracies if accuracy is not None]
        if found:
            height = statistics.mean(found)
            width = edges[i + 1] - left
            ax.bar(left, height, width, yerr=deviation(found), align="edge", color="#A6CBE3")
    ax.plot([0, 1], [0, 1], "--", color="#333333", linewidth=1)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="Confidence", ylabel="Accuracy", aspect="equal")


def draw_densities(path: Path) -> None:
    """Draw the Dirichlet and the Concrete distribution for five temperatures (Appendix D).

    Args:
        path: The file to write.
    """
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    points = simplex_grid(120)
    logits = torch.tensor(LOGITS)
    axes = figure.subplots(2, len(TEMPERATURES)).T
    for t, (above, below) in zip(TEMPERATURES, axes, strict=True):
        dirichlet = Dirichlet((logits / t).exp())
        concrete = sc.Concrete(logits, t)
        for ax, density in ((above, dirichlet), (below, concrete)):
            log_prob = density.log_prob(points)
            simplex_density(log_prob, ax, log=True, class_names=NO_NAMES, colorbar=False)
        above.set_title(f"Dirichlet, t = {t:g}")
        below.set_title(f"Concrete, λ = {t:g}")
    _save(figure, path)


def draw_sensitivity(searched: Searched, path: Path) -> None:
    """Draw the test ECE against β: median and deviation over the seeds (Appendix C.3).

    Args:
        searched: Fits that tried several β, for each setting.
        path: The file to write.
    """
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    ax = figure.subplots()
    for name, records in searched.items():
        errors = {}
        for beta in PAPER_BETAS:
            found = beta_errors(records, beta, "test")
            if found:
                errors[beta] = found
        medians = [statistics.median(found) for found in errors.values()]
        spread = [deviation(found) for found in errors.values()]
        title = SETTINGS[name].title
        beta_sensitivity(list(errors), medians, ax, spread=spread, label=title)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    metadata = {"Software": None}
    if path.suffix == ".svg":
        metadata = {"Date": None}
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(REPRODUCIBLE):
        figure.savefig(path, dpi=110, metadata=metadata)
