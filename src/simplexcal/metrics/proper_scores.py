"""Accuracy and proper scores: functions of (probs, labels)."""

from typing import NamedTuple

import torch
from torch import Tensor

from simplexcal._arrays import ArrayLike
from simplexcal._validation import check_count, check_probs_and_labels
from simplexcal.metrics._binning import (
    N_BINS,
    label_probability,
    row_chunks,
    sum_class_bins,
    unbiased_square,
)


class BrierDecomposition(NamedTuple):
    """The two parts of the Brier score; their sum is the score.

    Attributes:
        calibration: What recalibration can remove.
        refinement: The rest.
    """

    calibration: Tensor
    refinement: Tensor


def accuracy(probs: ArrayLike, labels: ArrayLike) -> Tensor:
    """Return the fraction of inputs whose most probable class is the label.

    Of equal probabilities the first counts.

    Args:
        probs: Rows of probabilities, (N, K).
        labels: The class of each input, (N,).
    """
    probs, labels = check_probs_and_labels(probs, labels)
    correct = probs.argmax(-1) == labels
    return correct.to(probs.dtype).mean()


def nll(probs: ArrayLike, labels: ArrayLike) -> Tensor:
    """Return the mean negative log-likelihood -ln probs[i, labels_i], in nats.

    A probability of 0 counts as the smallest normal number of its dtype: 87 nats in float32, 708 in
    float64.

    Args:
        probs: Rows of probabilities, (N, K).
        labels: The class of each input, (N,).
    """
    probs, labels = check_probs_and_labels(probs, labels)
    smallest = torch.finfo(probs.dtype).tiny
    p_label = label_probability(probs, labels).clamp_min(smallest).double()
    return -p_label.log().mean().to(probs.dtype)


def brier(probs: ArrayLike, labels: ArrayLike) -> Tensor:
    """Return the Brier score Σ_k (probs[i, k] - [k = labels_i])², averaged over the inputs.

    Brier (1950): all K classes count, and the score lies in [0, 2]. For K = 2 it is twice the score
    of the positive class alone, which scikit-learn and others report for binary problems.

    Args:
        probs: Rows of probabilities, (N, K).
        labels: The class of each input, (N,).
    """
    probs, labels = check_probs_and_labels(probs, labels)
    return _brier(probs, labels).to(probs.dtype)


def brier_decomposition(
    probs: ArrayLike, labels: ArrayLike, n_bins: int = N_BINS
) -> BrierDecomposition:
    """Split the Brier score into calibration, which recalibration can remove, and refinement.

    calibration = Σ_k Σ_b P(b) (E[[k = label] - probs_k | b])²    refinement = brier - calibration

    The bins are those of ``classwise_ece``. The square is estimated without bias (Bröcker 2012): a
    perfectly calibrated model has a calibration part of 0 on average, and so at times a negative
    one. What varies inside a bin counts as refinement (Stephenson et al. 2008).

    Args:
        probs: Rows of probabilities, (N, K).
        labels: The class of each input, (N,).
        n_bins: Number of bins of each class.
    """
    probs, labels = check_probs_and_labels(probs, labels)
    check_count("n_bins", n_bins)
    sums = sum_class_bins(probs, labels, n_bins)
    squares = unbiased_square(sums.n, sums.excess, sums.square)
    calibration = (sums.n * squares).sum() / len(probs)
    refinement = _brier(probs, labels) - calibration
    return BrierDecomposition(calibration.to(probs.dtype), refinement.to(probs.dtype))


def _brier(probs: Tensor, labels: Tensor) -> Tensor:
    """Σ_k (p_k - y_k)² = 1 - 2 p_label + Σ_k p_k²."""
    squares = [chunk.double().square().sum() for chunk in row_chunks(probs)]
    p_label = label_probability(probs, labels).double()
    total = torch.stack(squares).sum() - 2 * p_label.sum()
    return 1 + total / len(probs)
