"""The table that the examples print: a network uncalibrated, and with three methods."""

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

import simplexcal as sc
from simplexcal.evaluation import markdown_table

METHODS = ("none", "ts", "ets", "sts")
HEADER = ("method", "acc. %", "ECE %", "95 % interval", "floor %", "NLL", "Brier")

Fit = Callable[[str], sc.Prediction]


def print_table(title: str, predict: Fit, labels: Tensor) -> dict[str, sc.Prediction]:
    """Print how good each method is, and return its predictions.

    Args:
        title: What is above the table.
        predict: From the key of a method to its predictions for the test inputs.
        labels: The classes of the test inputs, (N,).
    """
    predictions = {key: predict(key) for key in METHODS}
    evaluations = {key: sc.evaluate(made, labels) for key, made in predictions.items()}
    label = predictions["none"].label
    changed = sum(int((made.label != label).sum()) for made in predictions.values())
    rows = [HEADER, *(row_of(key, evaluation) for key, evaluation in evaluations.items())]
    n_classes = predictions["none"].probs.shape[1]
    print(f"\n{title}: {len(labels)} test inputs, {n_classes} classes\n")
    print(markdown_table(rows))
    print(f"\nPredictions that a method changed: {changed}.")
    return predictions


def row_of(method: str, evaluation: sc.Evaluation) -> tuple[str, ...]:
    """Return a row of the table.

    Args:
        method: The key of the method.
        evaluation: How good its predictions are.
    """
    return (
        sc.CALIBRATORS[method].abbreviation,
        f"{100 * evaluation.accuracy:.2f}",
        f"{100 * evaluation.ece:.2f}",
        f"{100 * evaluation.ece_low:.2f} to {100 * evaluation.ece_high:.2f}",
        f"{100 * evaluation.ece_floor_95:.2f}",
        f"{evaluation.nll:.4f}",
        f"{evaluation.brier:.4f}",
    )


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
