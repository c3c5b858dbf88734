"""The classes of the report: how well each is calibrated, and which are confused."""

from dataclasses import dataclass

import torch
from torch import Tensor

from simplexcal.metrics._binning import sum_class_bins
from simplexcal.report._format import count, percent
from simplexcal.types import Prediction

N_CLASSES = 200  # rows of the table; nobody reads more
N_PAIRS = 10


@dataclass(frozen=True)
class ClassRow:
    """One class, as printed.

    Args:
        name: Its name.
        n: Number of inputs of this class.
        n_predicted: Number of inputs that are predicted as this class.
        accuracy: Share of those predicted that are of this class.
        confidence: Their mean confidence.
        ece: Class-wise ECE: that of the probability of this class, over all inputs.
    """

    name: str
    n: str
    n_predicted: str
    accuracy: str
    confidence: str
    ece: str


@dataclass(frozen=True)
class ConfusedPair:
    """Inputs of one class that are predicted as another, as printed.

    Args:
        label: Name of the true class.
        prediction: Name of the predicted class.
        n: Number of such inputs.
        share: Their share of the inputs of the true class.
        confidence: Their mean confidence.
    """

    label: str
    prediction: str
    n: str
    share: str
    confidence: str


def class_table(
    prediction: Prediction, labels: Tensor, class_names: list[str], n_bins: int
) -> list[ClassRow]:
    """Return at most ``N_CLASSES`` classes, those with the largest class-wise ECE first.

    Args:
        prediction: Predictions of a method for N inputs.
        labels: The class of each input, (N,).
        class_names: The names of the classes.
        n_bins: Number of bins of each class.
    """
    k = len(class_names)
    errors = class_errors(prediction, labels, n_bins)
    n_true = labels.bincount(minlength=k)
    n_predicted = prediction.label.bincount(minlength=k)
    n_hits = labels[prediction.label == labels].bincount(minlength=k)
    total = prediction.label.bincount(prediction.confidence.double(), minlength=k)
    rows = []
    for i in errors.argsort(descending=True, stable=True)[:N_CLASSES].tolist():
        answered = int(n_predicted[i])
        row = ClassRow(
            name=class_names[i],
            n=count(int(n_true[i])),
            n_predicted=count(answered),
            accuracy=share(n_hits[i].item(), answered),
            confidence=share(total[i].item(), answered),
            ece=percent(errors[i].item(), 2),
        )
        rows.append(row)
    return rows


def class_errors(prediction: Prediction, labels: Tensor, n_bins: int) -> Tensor:
    """Return the class-wise ECE of each class, (K,).

    Args:
        prediction: Predictions of a method for N inputs.
        labels: The class of each input, (N,).
        n_bins: Number of bins of each class.
    """
    excess = sum_class_bins(prediction.probs, labels, n_bins).excess
    return excess.abs().sum(-1) / len(labels)


def confused_pairs(
    prediction: Prediction, labels: Tensor, class_names: list[str]
) -> list[ConfusedPair]:
    """Return the ``N_PAIRS`` pairs of a true and another predicted class with the most inputs.

    Args:
        prediction: Predictions of a method for N inputs.
        labels: The class of each input, (N,).
        class_names: The names of the classes.
    """
    k = len(class_names)
    wrong = prediction.label != labels
    pairs, index, counts = torch.unique(
        labels[wrong] * k + prediction.label[wrong], return_inverse=True, return_counts=True
    )
    total = index.bincount(prediction.confidence[wrong].double(), minlength=len(pairs))
    n_true = labels.bincount(minlength=k)
    rows = []
    for i in counts.argsort(descending=True, stable=True)[:N_PAIRS].tolist():
        label, predicted = divmod(int(pairs[i]), k)
        n = int(counts[i])
        row = ConfusedPair(
            label=class_names[label],
            prediction=class_names[predicted],
            n=count(n),
            share=share(n, int(n_true[label])),
            confidence=share(total[i].item(), n),
        )
        rows.append(row)
    return rows


def share(total: float, n: int) -> str:
    """Return total / n as a percentage, and a dash for n = 0.

    Args:
        total: The numerator.
        n: The denominator.
    """
    if n == 0:
        return "–"
    return percent(total / n)
