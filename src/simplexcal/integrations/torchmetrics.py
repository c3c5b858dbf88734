"""torchmetrics: the expected calibration error as a metric, with its noise floor and interval."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from simplexcal import metrics
from simplexcal._validation import check_count, check_probs_and_labels
from simplexcal.metrics._binning import N_BINS


class CalibrationErrorWithFloor(Metric):
    """The ECE over all batches, and how much of it chance explains.

    `compute` returns scalars by name: "ece"; "ece_floor" and "ece_floor_95", the mean and the 95 %
    quantile of the ECE of a perfectly calibrated model with the same confidences; "ece_low" and
    "ece_high", the ends of a 95 % interval for the true error. They are those of
    `simplexcal.evaluate`. Two numbers are kept for each input.

    Args:
        n_bins: Number of bins.
        **settings: Arguments of ``torchmetrics.Metric``.
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    confidence: list[Tensor]
    correct: list[Tensor]

    def __init__(self, n_bins: int = N_BINS, **settings: Any) -> None:
        super().__init__(**settings)
        self.n_bins = check_count("n_bins", n_bins)
        self.add_state("confidence", default=[], dist_reduce_fx="cat")
        self.add_state("correct", default=[], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch.

        Args:
            preds: Probabilities, (N, K); of equal ones, the first is the predicted class.
            target: The class of each input, (N,).

        Raises:
            ValueError: If these are no probabilities, or no classes of them.
        """
        probs, labels = check_probs_and_labels(preds, target)
        confidence, label = probs.max(-1)
        self.confidence.append(confidence)
        self.correct.append(label == labels.to(label.device))

    @torch.no_grad()
    def compute(self) -> dict[str, Tensor]:
        """Return the ECE, its noise floor and its interval."""
        confidence = dim_zero_cat(self.confidence)
        correct = dim_zero_cat(self.correct)
        floor = metrics.noise_floor(confidence, self.n_bins)
        interval = metrics.ece_interval(confidence, correct, self.n_bins)
        return {
            "ece": metrics.ece(confidence, correct, self.n_bins),
            "ece_floor": floor.mean,
            "ece_floor_95": floor.upper,
            "ece_low": interval.low,
            "ece_high": interval.high,
        }
