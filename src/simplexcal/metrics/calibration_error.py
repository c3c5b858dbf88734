"""Calibration errors and reliability diagrams: functions of (confidence, correct)."""

import math
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from simplexcal._arrays import ArrayLike
from simplexcal._validation import (
    check_confidence_and_correct,
    check_count,
    check_fraction,
    check_probs_and_labels,
)
from simplexcal.metrics._binning import (
    N_BINS,
    BinSums,
    equal_mass_edges,
    equal_width_edges,
    sum_bins,
    sum_class_bins,
    unbiased_square,
)

# Steps in [0, 1]. By chance alone σ is about 0.3 n^(-1/3): ten steps at n = 10⁶.
GRID = 2**12


class Bins(NamedTuple):
    """The data of a reliability diagram.

    Bin b is (edges[b], edges[b+1]]; the first bin is closed on both sides.

    Attributes:
        edges: Edges of the bins, (B+1,).
        count: Number of predictions in each bin, (B,).
        confidence: Mean confidence of each bin, (B,); NaN in an empty bin.
        accuracy: Accuracy of each bin, (B,); NaN in an empty bin.
    """

    edges: Tensor
    count: Tensor  # type: ignore[assignment]  # tuples have a method of that name
    confidence: Tensor
    accuracy: Tensor


def reliability(confidence: ArrayLike, correct: ArrayLike, n_bins: int = N_BINS) -> Bins:
    """Return count, mean confidence and accuracy in the bins of equal width that ``ece`` uses.

    Args:
        confidence: Confidence of each prediction, (N,).
        correct: Whether each prediction is correct, (N,).
        n_bins: Number of bins.
    """
    confidence, correct = check_confidence_and_correct(confidence, correct)
    check_count("n_bins", n_bins)
    inner = equal_width_edges(confidence, n_bins)
    zero = inner.new_zeros(1)
    one = inner.new_ones(1)
    edges = torch.cat([zero, inner, one])
    return _bins(confidence, correct, edges)


def equal_mass_reliability(confidence: ArrayLike, correct: ArrayLike, n_bins: int = N_BINS) -> Bins:
    """Return count, mean confidence and accuracy in the bins of ``adaptive_ece``.

    The bins span the confidences that occur.

    Args:
        confidence: Confidence of each prediction, (N,).
        correct: Whether each prediction is correct, (N,).
        n_bins: Number of bins.
    """
    confidence, correct = check_confidence_and_correct(confidence, correct)
    check_count("n_bins", n_bins)
    inner = equal_mass_edges(confidence, n_bins)
    smallest = confidence.min().view(1)
    largest = confidence.max().view(1)
    edges = torch.cat([smallest, inner, largest])
    return _bins(confidence, correct, edges)


def accuracy_band(bins: Bins, level: float = 0.95) -> tuple[Tensor, Tensor]:
    """Return the ends (B,) of the Wilson (1927) score interval of the accuracy of each bin.

    Args:
        bins: The data of a reliability diagram. An empty bin has NaN for both ends.
        level: Confidence level of the intervals.
    """
    check_fraction("level", level)
    z = NormalDist().inv_cdf((1 + level) / 2)
    accuracy = bins.accuracy
    n = bins.count.to(accuracy.dtype)
    scale = 1 + z**2 / n
    centre = (accuracy + z**2 / (2 * n)) / scale
    variance = accuracy * (1 - accuracy) / n + z**2 / (4 * n**2)
    half_width = z / scale * variance.sqrt()
    low = (centre - half_width).clamp_min(0)
    high = (centre + half_width).clamp_max(1)
    return low, high


def ece(confidence: ArrayLike, correct: ArrayLike, n_bins: int = N_BINS) -> Tensor:
    """Return the expected calibration error Σ_b |Σ_(i in b) (correct_i - confidence_i)| / n.

    Guo et al. (2017), Eq. (3). Bins have equal width and are closed on the right,
    ((b-1)/n_bins, b/n_bins]: a confidence of exactly 1 lies in the last bin, one of exactly 0 in
    the first.

    Args:
        confidence: Confidence of each prediction, (N,).
        correct: Whether each prediction is correct, (N,).
        n_bins: Number of bins.
    """
    confidence, correct = check_confidence_and_correct(confidence, correct)
    sums = _sum_equal_width(confidence, correct, n_bins)
    return _mean_absolute_excess(sums).to(confidence.dtype)


def adaptive_ece(confidence: ArrayLike, correct: ArrayLike, n_bins: int = N_BINS) -> Tensor:
    """Return the ECE over bins of equal mass, each with n / n_bins predictions.

    Nguyen & O'Connor (2015); AdaECE of Mukhoti et al. (2020). Equal confidences always share a bin,
    so that bins may differ in size.

    Args:
        confidence: Confidence of each prediction, (N,).
        correct: Whether each prediction is correct, (N,).
        n_bins: Number of bins.
    """
    confidence, correct = check_confidence_and_correct(confidence, correct)
    check_count("n_bins", n_bins)
    sums = sum_bins(confidence, correct, equal_mass_edges(confidence, n_bins))
    return _mean_absolute_excess(sums).to(confidence.dtype)


def classwise_ece(probs: ArrayLike, labels: ArrayLike, n_bins: int = N_BINS) -> Tensor:
    """Return the mean over all K classes of the ECE of probs[:, k] as a prediction of [label = k].

    Kull et al. (2019). Bins have equal width and are closed on the right. Classes without a label
    count too.

    Args:
        probs: Rows of probabilities, (N, K).
        labels: The class of each input, (N,).
        n_bins: Number of bins of each class.
    """
    probs, labels = check_probs_and_labels(probs, labels)
    check_count("n_bins", n_bins)
    sums = sum_class_bins(probs, labels, n_bins)
    total = sums.excess.abs().sum()
    return (total / probs.numel()).to(probs.dtype)


def mce(confidence: ArrayLike, correct: ArrayLike, n_bins: int = N_BINS) -> Tensor:
    """Return the largest |accuracy - confidence| of the bins of ``ece`` that are not empty.

    Guo et al. (2017), Eq. (5). A bin counts however few predictions it has.

    Args:
        confidence: Confidence of each prediction, (N,).
        correct: Whether each prediction is correct, (N,).
        n_bins: Number of bins.
    """
    confidence, correct = check_confidence_and_correct(confidence, correct)
    sums = _sum_equal_width(confidence, correct, n_bins)
    gaps = sums.excess.abs() / sums.n.clamp_min(1)
    return gaps.max().to(confidence.dtype)


def rms_ce(confidence: ArrayLike, correct: ArrayLike, n_bins: int = N_BINS) -> Tensor:
    """Return the root of an unbiased estimate of Σ_b P(b) (E[correct - confidence | b])².

    Bröcker (2012); Kumar et al. (2019), with the variance of correct - confidence in the place of
    that of correct. The bins are those of ``ece``. The square has no bias; it may be negative, and
    its root is then 0. A bin with a single prediction says nothing about its own noise and counts
    as 0. As a root mean square, the error weighs large deviations more than the ECE does. Without
    noise it is never smaller.

    Args:
        confidence: Confidence of each prediction, (N,).
        correct: Whether each prediction is correct, (N,).
        n_bins: Number of bins.
    """
    confidence, correct = check_confidence_and_correct(confidence, correct)
    square = _squared_ce(confidence, correct, n_bins)
    return square.clamp_min(0).sqrt().to(confidence.dtype)


def smooth_ece(confidence: ArrayLike, correct: ArrayLike) -> Tensor:
    """Return the smooth calibration error: the σ at which ∫_0^1 |r_σ(t)| dt = σ. It has no bins.

    r_σ(t) = Σ_i K_σ(t, confidence_i) (correct_i - confidence_i) / n

    Błasiok & Nakkiran (2023). K_σ is the Gaussian kernel of width σ reflected at 0 and 1.
    Reflected, it acts on the k-th cosine coefficient of the residuals as the factor
    exp(-(πkσ)² / 2).

    Args:
        confidence: Confidence of each prediction, (N,).
        correct: Whether each prediction is correct, (N,).
    """
    confidence, correct = check_confidence_and_correct(confidence, correct)
    residuals = _mirrored_residuals(confidence.detach().double(), correct.double())
    spectrum = torch.fft.rfft(residuals)
    low = 0.0
    high = 1.0
    for _ in range(32):  # the integral falls as σ grows, from at most 1
        sigma = (low + high) / 2
        if _smoothed_integral(spectrum, sigma) > sigma:
            low = sigma
        else:
            high = sigma
    return confidence.new_tensor(low)


def _bins(confidence: Tensor, correct: Tensor, edges: Tensor) -> Bins:
    sums = sum_bins(confidence, correct, edges[1:-1])
    mean_confidence = (sums.confidence / sums.n).to(confidence.dtype)
    accuracy = (sums.correct / sums.n).to(confidence.dtype)
    return Bins(edges, sums.n.long(), mean_confidence, accuracy)


def _sum_equal_width(confidence: Tensor, correct: Tensor, n_bins: int) -> BinSums:
    check_count("n_bins", n_bins)
    return sum_bins(confidence, correct, equal_width_edges(confidence, n_bins))


def _mean_absolute_excess(sums: BinSums) -> Tensor:
    return sums.excess.abs().sum() / sums.n.sum()


def _squared_ce(confidence: Tensor, correct: Tensor, n_bins: int) -> Tensor:
    """Return the unbiased estimate itself, with its sign."""
    sums = _sum_equal_width(confidence, correct, n_bins)
    squares = unbiased_square(sums.n, sums.excess, sums.square)
    return (sums.n * squares).sum() / sums.n.sum()


def _mirrored_residuals(confidence: Tensor, correct: Tensor) -> Tensor:
    """Put the residuals on a grid of [-1, 1), each at ±confidence and shared by its neighbours."""
    residual = (correct - confidence) / len(confidence)
    position = confidence * GRID
    left = position.floor()
    right_share = residual * (position - left)
    index = left.long()
    grid = residual.new_zeros(2 * GRID)
    for i in (index, -index):
        grid.index_add_(0, i % len(grid), residual - right_share)
    for i in (index + 1, -index - 1):
        grid.index_add_(0, i % len(grid), right_share)
    return grid


def _smoothed_integral(spectrum: Tensor, sigma: float) -> float:
    """Return ∫_0^1 |r_σ(t)| dt."""
    k = torch.arange(len(spectrum), device=spectrum.device, dtype=torch.float64)
    frequency = math.pi * sigma * k
    kernel = torch.exp(-frequency.square() / 2)
    smooth = torch.fft.irfft(spectrum * kernel, n=2 * GRID)
    return float(smooth.abs().sum() / 2)
