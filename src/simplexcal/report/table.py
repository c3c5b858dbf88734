"""The report's table: the numbers of each method as they are printed, and which of them lead."""

from collections.abc import Mapping
from dataclasses import dataclass

from simplexcal.evaluation import Evaluation
from simplexcal.report.verdict import is_within_chance, percent

TITLES = {
    "none": ("Uncalibrated", "the network as it is"),
    "ts": ("TS", "temperature scaling"),
    "ets": ("ETS", "ensemble temperature scaling"),
    "pts": ("PTS", "parameterized temperature scaling"),
    "adats": ("AdaTS", "adaptive temperature scaling"),
    "dirichlet": ("Dirichlet TS", "Dirichlet temperature scaling"),
    "sts": ("STS", "simplex temperature scaling"),
}
LEADS_BY = {"accuracy": max, "ece": min, "nll": min, "brier": min, "smooth_ece": min}


@dataclass(frozen=True)
class Score:
    """One row of the table."""

    name: str
    printed: dict[str, str]
    leads: frozenset[str]  # the columns in which no other method is better
    within_chance: bool


def method_title(name: str) -> str:
    """Return what a method is called on the page."""
    return TITLES.get(name, (name, ""))[0]


def meaning(name: str) -> str:
    """Return what the title stands for, where the method is one of the library's."""
    return TITLES.get(name, (name, ""))[1]


def score_table(evaluations: Mapping[str, Evaluation]) -> list[Score]:
    """Return a row for each method, in their order."""
    printed = {name: _printed(e) for name, e in evaluations.items()}
    best = {key: _best(evaluations, printed, key) for key in LEADS_BY}
    return [
        Score(
            name,
            p,
            frozenset(key for key in best if p[key] == best[key]),
            is_within_chance(evaluations[name]),
        )
        for name, p in printed.items()
    ]


def _printed(e: Evaluation) -> dict[str, str]:
    return {
        "accuracy": percent(e.accuracy, 2),
        "confidence": percent(e.confidence, 2),
        "ece": percent(e.ece, 2),
        "interval": f"{100 * e.ece_low:.2f} to {100 * e.ece_high:.2f}",
        "chance": percent(e.ece_floor_95, 2),
        "smooth_ece": percent(e.smooth_ece, 2),
        "nll": f"{e.nll:.3f}",
        "brier": f"{e.brier:.3f}",
    }


def _best(
    evaluations: Mapping[str, Evaluation], printed: Mapping[str, Mapping[str, str]], key: str
) -> str | None:
    """Return a column's best value as printed; None where all are the same, or ECEs within chance of being so."""
    if key == "ece" and any(map(is_within_chance, evaluations.values())):
        return None
    leader = LEADS_BY[key](evaluations, key=lambda name: float(getattr(evaluations[name], key)))
    alike = len({p[key] for p in printed.values()}) == 1
    return None if alike else printed[leader][key]
