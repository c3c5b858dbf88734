"""Exact counts behind the report on tokens or pixels, and the rows of its charts."""

import torch
from torch import Tensor

from simplexcal.dense_evaluation import ImageSums
from simplexcal.report._classes import N_CLASSES, N_PAIRS, ClassRow, ConfusedPair, share
from simplexcal.report._format import count, percent
from simplexcal.report._paired import SIGNIFICANT
from simplexcal.report.chart_data import N_CURVE, N_STEPS, Rows, bin_state
from simplexcal.types import Prediction

LEVELS_PER_STEP = 50  # each threshold of the page is a level
N_LEVELS = LEVELS_PER_STEP * N_STEPS  # of confidence below 1, which is one more


class DenseCounts:
    """Counts of the predictions of one method by confidence, predicted class and mistake.

    Args:
        n_classes: Number of classes, K.
    """

    def __init__(self, n_classes: int) -> None:
        self.n_classes = n_classes
        # Number of predictions, Σ confidence and Σ correct of each level or predicted class.
        self.by_level = torch.zeros(3, N_LEVELS + 1, dtype=torch.float64)
        self.by_class = torch.zeros(3, n_classes, dtype=torch.float64)
        # A mistake is label · K + predicted class.
        self._mistakes = torch.zeros(0, dtype=torch.int64)
        self._mistake_sums = torch.zeros(2, 0, dtype=torch.float64)

    def add(self, prediction: Prediction, labels: Tensor) -> None:
        """Add predictions for rows.

        Args:
            prediction: One prediction for each position.
            labels: The class of each position, (R,).
        """
        confidence = prediction.confidence.double()
        is_correct = prediction.label == labels
        values = torch.stack([torch.ones_like(confidence), confidence, is_correct.double()])
        edges = torch.arange(1, N_LEVELS + 1, dtype=torch.float64) / N_LEVELS
        levels = torch.bucketize(confidence, edges, right=True)
        self.by_level.index_add_(1, levels, values)
        self.by_class.index_add_(1, prediction.label, values)
        mistakes = (labels * self.n_classes + prediction.label)[~is_correct]
        self._mistakes, index = torch.cat([self._mistakes, mistakes]).unique(return_inverse=True)
        sums = torch.cat([self._mistake_sums, values[:2, ~is_correct]], 1)
        self._mistake_sums = sums.new_zeros(2, len(self._mistakes)).index_add_(1, index, sums)

    def threshold_levels(self) -> dict[str, list[float | None]]:
        """Return, for each threshold, how many predictions reach it, and their means."""
        above = self.by_level.flip(1).cumsum(1).flip(1)[:, ::LEVELS_PER_STEP]
        kept = above[0].int().tolist()
        return {
            "kept": kept,
            "confidence": _means(above[1], above[0]),
            "accuracy": _means(above[2], above[0]),
        }

    def curve_rows(self, name: str) -> Rows:
        """Return at most ``N_CURVE`` points of the risk-coverage curve; the last is for all.

        Args:
            name: Name of the method.
        """
        n, _, correct = self.by_level.flip(1).cumsum(1)
        filled = (self.by_level[0].flip(0) > 0).nonzero().squeeze(1)
        coverage = n[filled] / n[-1]
        risk = 1 - correct[filled] / n[filled]
        wanted = torch.linspace(1 / N_CURVE, 1, N_CURVE, dtype=torch.float64)
        shown = torch.searchsorted(coverage, wanted).clamp_max(len(coverage) - 1).unique()
        points = zip(coverage[shown].tolist(), risk[shown].tolist(), strict=True)
        return [{"method": name, "coverage": round(c, 4), "risk": round(r, 4)} for c, r in points]

    def aurc(self) -> float:
        """Return the area under the risk-coverage curve; predictions of one level are ties.

        The mean of (E + e i / m) / (T + i) over all predictions i = 1..m of a level, T of them and
        E errors being above it, is a difference of digamma functions.
        """
        n, _, correct = self.by_level.flip(1)
        wrong = n - correct
        taken = n.cumsum(0)
        n_above = taken - n
        wrong_above = wrong.cumsum(0) - wrong
        reciprocals = torch.digamma(taken + 1) - torch.digamma(n_above + 1)
        rate = wrong / n.clamp_min(1)
        total = wrong_above * reciprocals + rate * (n - n_above * reciprocals)
        return float(total.sum() / taken[-1])

    def class_rows(self, n_label: Tensor, errors: Tensor, names: list[str]) -> list[ClassRow]:
        """Return at most ``N_CLASSES`` classes, those with the largest class-wise ECE first.

        Args:
            n_label: Number of positions of each class, (K,).
            errors: Class-wise ECE of each class, (K,).
            names: The names of the classes.
        """
        rows = []
        for i in errors.argsort(descending=True, stable=True)[:N_CLASSES].tolist():
            n_predicted, confidence, correct = self.by_class[:, i].tolist()
            row = ClassRow(
                name=names[i],
                n=count(int(n_label[i])),
                n_predicted=count(int(n_predicted)),
                accuracy=share(correct, int(n_predicted)),
                confidence=share(confidence, int(n_predicted)),
                ece=percent(float(errors[i]), 2),
            )
            rows.append(row)
        return rows

    def confused_pairs(self, n_label: Tensor, names: list[str]) -> list[ConfusedPair]:
        """Return the ``N_PAIRS`` pairs of a true and another predicted class with most positions.

        Args:
            n_label: Number of positions of each class, (K,).
            names: The names of the classes.
        """
        rows = []
        order = self._mistake_sums[0].argsort(descending=True, stable=True)
        for i in order[:N_PAIRS].tolist():
            label, predicted = divmod(int(self._mistakes[i]), self.n_classes)
            n, confidence = self._mistake_sums[:, i].tolist()
            row = ConfusedPair(
                label=names[label],
                prediction=names[predicted],
                n=count(int(n)),
                share=share(n, int(n_label[label])),
                confidence=share(confidence, int(n)),
            )
            rows.append(row)
        return rows


def dense_bin_rows(name: str, sums: ImageSums, n_bins: int) -> Rows:
    """Return a row for each bin that is not empty: confidence, accuracy and its 95 % interval.

    The interval takes the inputs for independent, not their positions.

    Args:
        name: Name of the method.
        sums: Sums of each input.
        n_bins: Number of bins.
    """
    n = sums.n.sum(0)
    accuracy = sums.correct.sum(0) / n
    confidence = sums.confidence.sum(0) / n
    residuals = sums.correct - accuracy * sums.n
    error = residuals.square().sum(0).sqrt() / n
    rows: Rows = []
    for b in n.nonzero().squeeze(1).tolist():
        width = SIGNIFICANT * float(error[b])
        if int((sums.n[:, b] > 0).sum()) < 2:
            width = 1.0  # A single input tells nothing of others.
        numbers = {
            "start": b / n_bins,
            "end": (b + 1) / n_bins,
            "confidence": float(confidence[b]),
            "accuracy": float(accuracy[b]),
            "low": max(0.0, float(accuracy[b]) - width),
            "high": min(1.0, float(accuracy[b]) + width),
        }
        state = bin_state(numbers["confidence"], numbers["low"], numbers["high"])
        rounded = {key: round(value, 4) for key, value in numbers.items()}
        rows.append({"method": name, **rounded, "count": int(n[b]), "state": state})
    return rows


def _means(total: Tensor, n: Tensor) -> list[float | None]:
    """Return total / n, and None for n = 0."""
    means: list[float | None] = []
    for mean, size in zip((total / n).tolist(), n.tolist(), strict=True):
        if size == 0:
            means.append(None)
        else:
            means.append(round(mean, 6))
    return means
