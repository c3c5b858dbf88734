"""The comparison that the examples make: a network uncalibrated, and with three methods."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from _record import Record
from torch import Generator, Tensor

import simplexcal as sc

METHODS = ("none", "ts", "ets", "sts")
SCORES = ("accuracy", "ece", "ece_low", "ece_high", "ece_floor_95", "nll", "brier")
IGNORED = -100  # the label of tokens that do not count

Fit = Callable[[str], sc.Prediction]


def compare_methods(
    record: Record, title: str, predict: Fit, labels: Tensor
) -> dict[str, sc.Prediction]:
    """Add a table of how good each method is to a record, and return the predictions.

    Args:
        record: Where the table goes.
        title: What is above the table.
        predict: From the key of a method to its predictions for the test inputs.
        labels: The classes of the test inputs, (N,), or of their tokens, (N, T).
    """
    predictions = {key: predict(key) for key in METHODS}
    label = predictions["none"].label
    counted = labels != IGNORED
    rows: dict[str, dict[str, Any]] = {}
    for key, made in predictions.items():
        evaluation = evaluate(made, labels)
        rows[key] = {name: getattr(evaluation, name) for name in SCORES}
        rows[key]["nll_above_sts"] = nll_difference(made, predictions["sts"], labels)
    changed = sum(int(((made.label != label) & counted).sum()) for made in predictions.values())
    record.add({"kind": "methods", "title": title, "rows": rows, "changed": changed})
    return predictions


def evaluate(prediction: sc.Prediction, labels: Tensor) -> Any:
    """Return how good a prediction is, of inputs or of their tokens.

    Args:
        prediction: The prediction for all test inputs.
        labels: Labels (N,) or (N, T).
    """
    if labels.dim() == 1:
        return sc.evaluate(prediction, labels)
    return sc.evaluate_dense(prediction, labels, ignore_index=IGNORED)


def nll_difference(
    first: sc.Prediction, second: sc.Prediction, labels: Tensor
) -> tuple[float, float]:
    """Return the NLL of one prediction minus that of another, and its standard error.

    The tokens of one input are not independent: the standard error is over inputs.

    Args:
        first: A prediction for all test inputs.
        second: Another one for the same inputs.
        labels: Labels (N,) or (N, T).
    """
    counted = (labels != IGNORED).double()
    ratios = log_probability(second, labels) - log_probability(first, labels)
    differences = (ratios * counted).reshape(len(labels), -1).sum(1)
    sizes = counted.reshape(len(labels), -1).sum(1)
    mean = differences.sum() / sizes.sum()
    n = len(labels)
    squares = (differences - mean * sizes).square().sum()
    return mean.item(), ((squares * n / (n - 1)).sqrt() / sizes.sum()).item()


def log_probability(prediction: sc.Prediction, labels: Tensor) -> Tensor:
    """Return ln p of each label, as the NLL has it.

    Args:
        prediction: A prediction.
        labels: Labels (N,) or (N, T).
    """
    probs = prediction.probs.gather(-1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).double().log()


def predict_by_folds(
    outputs: sc.Outputs, labels: Tensor, groups: Sequence[str], n_folds: int = 5
) -> Fit:
    """Return a function that predicts each input with a calibrator that has not seen its group.

    The groups, in the order of their names, are dealt out to the folds in turn. A calibrator is
    fitted to all folds but one and predicts that one, so that each input is predicted once.

    Args:
        outputs: Those of the network for all inputs.
        labels: The class of each input, (N,).
        groups: Where each input comes from; inputs of one group may resemble each other.
        n_folds: Number of folds.
    """
    number = {name: i for i, name in enumerate(sorted(set(groups)))}
    fold = torch.tensor([number[name] % n_folds for name in groups])

    def predict(method: str) -> sc.Prediction:
        parts = []
        for i in range(n_folds):
            calibrator = sc.CALIBRATORS[method]()
            rest = outputs[fold != i]
            generator = Generator().manual_seed(0)
            calibrator.fit(rest, labels[fold != i], generator=generator)
            with torch.no_grad():
                parts.append(calibrator(outputs[fold == i]))
        in_order = torch.cat([(fold == i).nonzero()[:, 0] for i in range(n_folds)]).argsort()
        return sc.Prediction.cat(parts)[in_order]

    return predict
