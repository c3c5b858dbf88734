"""The table of the report: the scores of each method as printed, and the best of each column."""

from collections.abc import Mapping
from dataclasses import dataclass

from simplexcal.evaluation import Evaluation
from simplexcal.report._format import percent
from simplexcal.report.verdict import AnyEvaluation, is_within_chance

# Those of tokens and pixels are without the last two.
BEST = {"accuracy": max, "ece": min, "nll": min, "brier": min, "smooth_ece": min, "aurc": min}


@dataclass(frozen=True)
class TableRow:
    """One row of the table.

    Args:
        name: Name of the method.
        printed: The scores as text, by column.
        best: The columns in which no other method is better.
        within_chance: Whether the ECE is within the noise floor.
        within_tolerance: Whether the ECE is at most the tolerance.
    """

    name: str
    printed: dict[str, str]
    best: frozenset[str]
    within_chance: bool
    within_tolerance: bool


def score_table(evaluations: Mapping[str, AnyEvaluation], tolerance: float) -> list[TableRow]:
    """Return a row for each method, in their order.

    Args:
        evaluations: Evaluations by the name of their method.
        tolerance: An ECE up to this does not matter in practice.
    """
    printed = {name: _printed(evaluation) for name, evaluation in evaluations.items()}
    columns = [column for column in BEST if all(column in cells for cells in printed.values())]
    best = {column: _best(evaluations, printed, column) for column in columns}
    rows = []
    for name, evaluation in evaluations.items():
        row = TableRow(
            name=name,
            printed=printed[name],
            best=frozenset(column for column in columns if printed[name][column] == best[column]),
            within_chance=is_within_chance(evaluation),
            within_tolerance=round(evaluation.ece, 4) <= tolerance,
        )
        rows.append(row)
    return rows


def _printed(e: AnyEvaluation) -> dict[str, str]:
    cells = {
        "accuracy": percent(e.accuracy, 2),
        "confidence": percent(e.confidence, 2),
        "ece": percent(e.ece, 2),
        "interval": f"{100 * e.ece_low:.2f} to {100 * e.ece_high:.2f}",
        "floor": percent(e.ece_floor_95, 2),
        "nll": f"{e.nll:.3f}",
        "brier": f"{e.brier:.3f}",
    }
    if isinstance(e, Evaluation):
        cells["smooth_ece"] = percent(e.smooth_ece, 2)
        cells["aurc"] = percent(e.aurc, 2)
    return cells


def _best(
    evaluations: Mapping[str, AnyEvaluation], printed: Mapping[str, Mapping[str, str]], column: str
) -> str | None:
    """Return the best value of a column as printed, or None where no method is better.

    That is where all values are equal, and for ECEs where one is within the noise floor.
    """
    if column == "ece" and any(map(is_within_chance, evaluations.values())):
        return None
    values = {name: float(getattr(e, column)) for name, e in evaluations.items()}
    best = BEST[column](values, key=values.__getitem__)
    distinct = {cells[column] for cells in printed.values()}
    if len(distinct) == 1:
        return None
    return printed[best][column]
