"""How well the report's methods detect out-of-distribution (OOD) inputs."""

from collections.abc import Mapping
from dataclasses import dataclass

from simplexcal.evaluation import OOD_NUMBERS, OOD_SCORES, evaluate_ood
from simplexcal.report._format import percent
from simplexcal.types import Prediction


@dataclass(frozen=True)
class OODRow:
    """One score of one method.

    Args:
        name: Name of the method.
        score: What detects the inputs.
        auroc: Area under the ROC curve, as printed.
        aupr: Average precision, as printed.
        fpr_95: False-positive rate at a true-positive rate of 95 %, as printed.
        is_best: Whether no other row has a larger AUROC, as printed.
    """

    name: str
    score: str
    auroc: str
    aupr: str
    fpr_95: str
    is_best: bool


def ood_table(predictions: Mapping[str, Prediction], ood: Mapping[str, Prediction]) -> list[OODRow]:
    """Return a row for each score that a method has.

    Args:
        predictions: Predictions for in-distribution inputs, by the name of their method.
        ood: Predictions for OOD inputs, by the name of their method.
    """
    found = []
    for name, outside in ood.items():
        evaluation = evaluate_ood(predictions[name], outside.to("cpu"))
        numbers = evaluation.as_dict()
        for key, title in OOD_SCORES.items():
            values = [numbers[f"{key}_{number}"] for number in OOD_NUMBERS]
            if None not in values:
                found.append((name, title, values))
    best = max((_rounded(values[0]) for _, _, values in found), default=0.0)
    rows = []
    for name, score, values in found:
        auroc, aupr, fpr_95 = (percent(value or 0.0) for value in values)
        rows.append(OODRow(name, score, auroc, aupr, fpr_95, _rounded(values[0]) == best))
    return rows


def check_ood(ood: Mapping[str, Prediction] | None, predictions: Mapping[str, Prediction]) -> None:
    """Raise ValueError unless each OOD prediction belongs to a method and its classes.

    Args:
        ood: Predictions for OOD inputs, by the name of their method, or None.
        predictions: Predictions for in-distribution inputs, by the name of their method.
    """
    for name, outside in (ood or {}).items():
        if name not in predictions:
            raise ValueError(
                f"`ood` must be of methods in `predictions`: {', '.join(predictions)}; "
                f"got {name!r}."
            )
        k = predictions[name].probs.shape[1]
        if len(outside) == 0 or outside.probs.shape[1] != k:
            raise ValueError(
                f"`ood` must hold inputs with probabilities of {k} classes; {name!r} has shape "
                f"{tuple(outside.probs.shape)}."
            )


def _rounded(value: float | None) -> float:
    """Return a share as it is printed."""
    return round(value or 0.0, 3)
