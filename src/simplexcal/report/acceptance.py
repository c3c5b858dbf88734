"""The thresholds of the report: what each promises, and what it accepts of the report's data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from simplexcal.report._format import SPACE, percent
from simplexcal.thresholds import Threshold, score_values
from simplexcal.types import Prediction

Thresholds = Mapping[str, Sequence[Threshold]]


@dataclass(frozen=True)
class AcceptanceRow:
    """One threshold of a method, or all of them together.

    Args:
        name: Name of the method.
        rule: Which inputs are accepted.
        promise: What was promised for new inputs.
        share: Share of the report's inputs that is accepted.
        accuracy: Their accuracy.
    """

    name: str
    rule: str
    promise: str
    share: str
    accuracy: str


def acceptance_table(
    thresholds: Thresholds, predictions: Mapping[str, Prediction], labels: Tensor
) -> list[AcceptanceRow]:
    """Return a row for each threshold, and one for all of a method's where there are several.

    Args:
        thresholds: Thresholds by the name of their method.
        predictions: Predictions by the name of their method.
        labels: The class of each input, (N,).
    """
    rows = []
    for name, stored in thresholds.items():
        prediction = predictions[name]
        correct = prediction.label == labels
        each = [t.accepts(score_values(prediction, t.score)) for t in stored]
        for threshold, accepted in zip(stored, each, strict=True):
            promise = describe_promise(threshold)
            rows.append(_row(name, threshold.rule, promise, accepted, correct))
        if len(stored) > 1:
            together = torch.stack(each).all(0)
            rows.append(_row(name, "Accept where all do.", "", together, correct))
    return rows


def check_thresholds(thresholds: Thresholds | None, predictions: Mapping[str, object]) -> None:
    """Raise ValueError if thresholds belong to a method that is not in the report.

    Args:
        thresholds: Thresholds by the name of their method, or None.
        predictions: Predictions by the name of their method.
    """
    for name in thresholds or {}:
        if name not in predictions:
            raise ValueError(
                "`thresholds` must be of methods in `predictions`: "
                f"{', '.join(predictions)}; got {name!r}."
            )


def describe_promise(threshold: Threshold) -> str:
    """Return a promise in a few words.

    Args:
        threshold: The threshold.
    """
    level = _exact_percent(threshold.level)
    if threshold.promise == "coverage":
        return f"at least {level} accepted"
    if threshold.promise == "false_alarm":
        return f"at most {level} false alarms"
    sure = _exact_percent(1 - (threshold.delta or 0))
    return f"accuracy of at least {level}, with {sure} certainty"


def _exact_percent(share: float) -> str:
    """Return a promised share with all its digits: 99.95 % is not 100 %."""
    return f"{100 * share:.6g}{SPACE}%"


def _row(name: str, rule: str, promise: str, accepted: Tensor, correct: Tensor) -> AcceptanceRow:
    accuracy = correct[accepted].double().mean().item()
    printed = "–"
    if not math.isnan(accuracy):
        printed = percent(accuracy, 2)
    return AcceptanceRow(name, rule, promise, percent(accepted.double().mean().item()), printed)
