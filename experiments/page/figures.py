"""The figures of the results page, drawn from the records, and the paper's densities on the simplex."""

import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch.distributions import Dirichlet

import simplexcal as sc
from experiments.config.methods import PAPER_BETAS, TITLES
from experiments.config.settings import ROWS
from experiments.page.numbers import Group, Record, spread
from experiments.page.others import Searched, errors
from simplexcal.plots import beta_sensitivity, simplex_density, simplex_grid

SHOWN = ("none", "sts-paper", "sts", "dirichlet")  # methods in a reliability figure
LOGITS, TEMPERATURES = (1.0, 0.5, 0.25), (0.2, 1.0, 2.0, 10.0, 20.0)  # of the paper's Appendix D
FIXED: Any = {
    "svg.hashsalt": "simplexcal",
    "svg.fonttype": "none",
    "font.size": 9,
}  # the same records, the same file


def reliability(group: Group, path: Path) -> None:
    """Draw accuracy against confidence as the paper does: the mean of the seeds, and their deviation."""
    methods = [method for method in SHOWN if method in group]
    figure = Figure(figsize=(3.2 * len(methods), 3.2), layout="constrained")
    for method, ax in zip(methods, figure.subplots(1, len(methods), squeeze=False)[0], strict=True):
        _bars(group[method], ax)
        ax.set_title(TITLES[method])
    _save(figure, path)


def _bars(records: list[Record], ax: Axes) -> None:
    edges = records[0]["bins"]["edges"]
    for i, left in enumerate(edges[:-1]):
        found = [r["bins"]["accuracy"][i] for r in records if r["bins"]["accuracy"][i] is not None]
        if found:
            height, width = statistics.mean(found), edges[i + 1] - left
            ax.bar(left, height, width, yerr=spread(found), align="edge", color="#A6CBE3")
    ax.plot([0, 1], [0, 1], "--", color="#333333", linewidth=1)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="Confidence", ylabel="Accuracy", aspect="equal")


def densities(path: Path) -> None:
    """Draw the Dirichlet and the Concrete law for logits (1, 0.5, 0.25) and five temperatures (Appendix D)."""
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    points, logits = simplex_grid(120), torch.tensor(LOGITS)
    for t, (above, below) in zip(TEMPERATURES, figure.subplots(2, 5).T, strict=True):
        for ax, name, law in (
            (above, f"Dirichlet, t = {t:g}", Dirichlet((logits / t).exp())),
            (below, f"Concrete, λ = {t:g}", sc.Concrete(logits, t)),
        ):
            simplex_density(
                law.log_prob(points), ax, log=True, class_names=("", "", ""), colorbar=False
            )
            ax.set_title(name)
    _save(figure, path)


def sensitivity(rows: Searched, path: Path) -> None:
    """Draw the test ECE against β: median and deviation over the seeds (Appendix C.3)."""
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    ax = figure.subplots()
    for row, records in rows.items():
        found = {b: found for b in PAPER_BETAS if (found := errors(records, b, "test"))}
        medians, spreads = (
            list(map(statistics.median, found.values())),
            list(map(spread, found.values())),
        )
        beta_sensitivity(list(found), medians, ax, spread=spreads, label=ROWS[row].title)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(FIXED):
        figure.savefig(
            path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else {"Software": None}
        )
