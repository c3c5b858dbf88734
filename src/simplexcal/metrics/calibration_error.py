"""Calibration errors: functions of (confidence, correct)."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from simplexcal._validation import check_count, check_confidence_and_correct
from simplexcal.metrics._binning import Sums, equal_mass, equal_width, sums, unbiased_square

GRID = 2**12  # steps in [0, 1]: by chance alone σ is about 0.3 n^(-1/3), ten steps at n = 10⁶


class Bins(NamedTuple):
    """A reliability diagram's data. Bin b is (edges[b], edges[b+1]], the first bin closed on both sides.

    ``edges`` (B+1,); ``count`` (B,); ``confidence`` and ``accuracy`` (B,) are means, NaN in an empty bin.
    """

    edges: Tensor
    count: Tensor  # type: ignore[assignment]  # tuples have a method of that name
    confidence: Tensor
    accuracy: Tensor


def reliability(confidence: Tensor, correct: Tensor, n_bins: int = 10) -> Bins:
    """Return count, mean confidence and accuracy in the ``n_bins`` bins of equal width that ``ece`` uses."""
    confidence, correct = check_confidence_and_correct(confidence, correct)
    inner = equal_width(confidence, check_count("n_bins", n_bins))
    return _bins(confidence, correct, torch.cat([inner.new_zeros(1), inner, inner.new_ones(1)]))


def equal_mass_reliability(confidence: Tensor, correct: Tensor, n_bins: int = 10) -> Bins:
    """Return the same for the bins of ``adaptive_ece``; they span the confidences that occur."""
    confidence, correct = check_confidence_and_correct(confidence, correct)
    inner = equal_mass(confidence, check_count("n_bins", n_bins))
    return _bins(
        confidence, correct, torch.cat([confidence.min().view(1), inner, confidence.max().view(1)])
    )


def ece(confidence: Tensor, correct: Tensor, n_bins: int = 10) -> Tensor:
    """Return the expected calibration error Σ_b |Σ_(i in b) (correct_i - confidence_i)| / n.

    Guo et al. (2017), Eq. (3). Bins have equal width and are closed on the right, ((b-1)/n_bins, b/n_bins]:
    a confidence of exactly 1 lies in the last bin, one of exactly 0 in the first.
    """
    return _l1(_equal_width_sums(confidence, correct, n_bins)).to(_dtype(confidence))


def adaptive_ece(confidence: Tensor, correct: Tensor, n_bins: int = 10) -> Tensor:
    """Return the ECE over bins of equal mass: n / n_bins predictions in each, except where confidences are equal.

    Nguyen & O'Connor (2015); AdaECE of Mukhoti et al. (2020). Equal confidences are never parted.
    """
    confidence, correct = check_confidence_and_correct(confidence, correct)
    return _l1(sums(confidence, correct, equal_mass(confidence, check_count("n_bins", n_bins)))).to(
        confidence.dtype
    )


def maximum_ce(confidence: Tensor, correct: Tensor, n_bins: int = 10) -> Tensor:
    """Return the largest |accuracy - confidence| of the bins of ``ece`` that are not empty, however few are in it.

    Guo et al. (2017), Eq. (5).
    """
    s = _equal_width_sums(confidence, correct, n_bins)
    return (s.excess.abs() / s.n.clamp_min(1)).max().to(_dtype(confidence))


def debiased_ece(confidence: Tensor, correct: Tensor, n_bins: int = 10) -> Tensor:
    """Return the root of an unbiased estimate of the squared error Σ_b P(b) (E[correct - confidence | b])².

    Bröcker (2012); Kumar et al. (2019), with the variance of correct - confidence in the place of that of
    correct. The bins are those of ``ece``. The square has no bias; it may be negative, and its root is then 0. A bin
    with a single prediction says nothing about its own noise and counts as 0. Being a root mean square, the error
    weighs large deviations more than the ECE does, and without noise it is never smaller.
    """
    return _squared_ce(confidence, correct, n_bins).clamp_min(0).sqrt().to(_dtype(confidence))


def smooth_ece(confidence: Tensor, correct: Tensor) -> Tensor:
    """Return the smooth calibration error: the σ at which ∫_0^1 |r_σ(t)| dt = σ. It has no bins.

    r_σ(t) = Σ_i K_σ(t, confidence_i) (correct_i - confidence_i) / n

    K_σ is the Gaussian kernel of width σ reflected at 0 and 1; Błasiok & Nakkiran (2023). Reflected, it acts on
    the k-th cosine coefficient of the residuals as the factor exp(-(πkσ)² / 2).
    """
    confidence, correct = check_confidence_and_correct(confidence, correct)
    spectrum = torch.fft.rfft(_mirrored(confidence.detach().double(), correct.double()))
    low, high = 0.0, 1.0
    for _ in range(32):  # the integral falls as σ grows, from at most 1
        sigma = (low + high) / 2
        low, high = (sigma, high) if _smoothed(spectrum, sigma) > sigma else (low, sigma)
    return confidence.new_tensor(low)


def _squared_ce(confidence: Tensor, correct: Tensor, n_bins: int = 10) -> Tensor:
    """Return the unbiased estimate itself, with its sign."""
    s = _equal_width_sums(confidence, correct, n_bins)
    return (s.n * unbiased_square(s.n, s.excess, s.square)).sum() / s.n.sum()


def _mirrored(confidence: Tensor, correct: Tensor) -> Tensor:
    """Put the residuals on a grid of [-1, 1), each at ±confidence and shared by its two neighbours."""
    residual, place = (correct - confidence) / len(confidence), confidence * GRID
    left = place.floor()
    right_share = residual * (place - left)
    grid, index = residual.new_zeros(2 * GRID), left.long()
    for at, value in ((index, residual - right_share), (index + 1, right_share)):
        grid.index_add_(0, at % (2 * GRID), value).index_add_(0, -at % (2 * GRID), value)
    return grid


def _smoothed(spectrum: Tensor, sigma: float) -> float:
    k = torch.arange(len(spectrum), device=spectrum.device, dtype=torch.float64)
    smooth = torch.fft.irfft(spectrum * torch.exp(-(math.pi * sigma * k).square() / 2), n=2 * GRID)
    return float(smooth.abs().sum() / 2)


def _equal_width_sums(confidence: Tensor, correct: Tensor, n_bins: int) -> Sums:
    confidence, correct = check_confidence_and_correct(confidence, correct)
    return sums(confidence, correct, equal_width(confidence, check_count("n_bins", n_bins)))


def _l1(s: Sums) -> Tensor:
    return s.excess.abs().sum() / s.n.sum()


def _bins(confidence: Tensor, correct: Tensor, edges: Tensor) -> Bins:
    s = sums(confidence, correct, edges[1:-1])
    means = [(total / s.n).to(confidence.dtype) for total in (s.confidence, s.correct)]
    return Bins(edges, s.n.long(), *means)


def _dtype(confidence: Tensor) -> torch.dtype:
    return torch.promote_types(confidence.dtype, torch.float32)
