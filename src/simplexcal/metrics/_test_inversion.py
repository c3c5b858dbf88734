"""The inside of ``ece_interval``: which true calibration errors agree with the one observed.

All is in fractions of the n predictions: the excess of a bin is
Σ_(i in b) (correct_i - confidence_i) / n, and the ECE is Σ_b |excess_b|.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from simplexcal.metrics._binning import BinSums, equal_width_edges, sum_bins

N_CANDIDATES = 64
REACH = 6  # distance of the last candidate from the observed error, in summed standard errors
SMALLEST = 1e-300


class Observed(NamedTuple):
    """What is observed of each bin that is not empty, (B,) in float64.

    Attributes:
        n: Number of predictions in all bins.
        weight: Fraction of the predictions.
        expected: Σ confidence / n.
        excess: Σ (correct - confidence) / n.
        standard_error: Standard error of the excess.
        calibrated_variance: Variance of the excess if P(correct_i) = confidence_i.
    """

    n: int
    weight: Tensor
    expected: Tensor
    excess: Tensor
    standard_error: Tensor
    calibrated_variance: Tensor


def observe(confidence: Tensor, correct: Tensor, n_bins: int) -> Observed:
    """Return what the candidates and their noise are made from.

    Args:
        confidence: Confidence of each prediction, (N,).
        correct: Whether each prediction is correct, (N,).
        n_bins: Number of bins.
    """
    inner = equal_width_edges(confidence, n_bins)
    n = len(confidence)
    sums = sum_bins(confidence, correct, inner)
    p = confidence.double()
    bins = torch.bucketize(confidence, inner)
    variance = torch.zeros_like(sums.n)
    variance.index_add_(0, bins, p * (1 - p))
    filled = sums.n > 0
    return Observed(
        n=n,
        weight=(sums.n / n)[filled],
        expected=(sums.confidence / n)[filled],
        excess=(sums.excess / n)[filled],
        standard_error=(_standard_deviation(sums) / n)[filled],
        calibrated_variance=(variance / n**2)[filled],
    )


def candidate_excesses(observed: Observed) -> Tensor:
    """Return candidates (M, B) for the true excesses of the bins.

    Their total errors go in equal steps from 0, or nearly, to well above the observed one. The
    square of each excess is excess_b² - κ standard_error_b², where that is positive. From large κ
    down, the most significant deviations come first; at κ = 1 the squares are unbiased; below 0
    every bin deviates more than was observed.

    Args:
        observed: What is observed of each bin.
    """
    error = float(observed.excess.abs().sum())
    scale = float(observed.standard_error.sum())
    lowest = max(0.0, error - REACH * scale)
    highest = error + REACH * scale
    device = observed.excess.device
    total = torch.linspace(lowest, highest, N_CANDIDATES, device=device, dtype=torch.float64)
    total = total.unsqueeze(-1)
    significance = (observed.excess / observed.standard_error).square()
    none_left = significance.max() * (1 + 1e-9)
    low = torch.full_like(total, -((highest / scale) ** 2))
    high = none_left.expand_as(total)
    for _ in range(60):
        kappa = (low + high) / 2
        size = _shrunk_size(observed, kappa)
        enough = size.sum(-1, keepdim=True) >= total
        low = torch.where(enough, kappa, low)
        high = torch.where(enough, high, kappa)
    return _with_possible_sign(observed, _shrunk_size(observed, high))


def simulate_ece(observed: Observed, candidates: Tensor, noise: Tensor, normal: Tensor) -> Tensor:
    """Return the simulated ECE (M, n_trials) under each candidate.

    The noise of a calibrated model is exact. Under a candidate with less variance it is scaled
    down; under one with more, the rest is normal.

    Args:
        observed: What is observed of each bin.
        candidates: True excesses of the bins, (M, B).
        noise: Excesses of a calibrated model, (n_trials, B).
        normal: Standard normal numbers, (n_trials, B).
    """
    calibrated = torch.zeros_like(candidates)
    change = _binomial_variance(observed, candidates) - _binomial_variance(observed, calibrated)
    variance = (observed.calibrated_variance + change).clamp_min(0)
    ratio = variance / observed.calibrated_variance.clamp_min(SMALLEST)
    scale = ratio.clamp_max(1).sqrt()
    rest = (variance - observed.calibrated_variance).clamp_min(0).sqrt()
    errors = []
    for i, candidate in enumerate(candidates):
        excess = candidate + scale[i] * noise + rest[i] * normal
        errors.append(excess.abs().sum(-1))
    return torch.stack(errors)


def accepted_range(
    candidates: Tensor, simulated: Tensor, observed_ece: Tensor, level: float
) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest total error of the candidates that are not rejected.

    Args:
        candidates: True excesses of the bins, (M, B).
        simulated: Simulated ECE under each candidate, (M, n_trials).
        observed_ece: ECE of the data.
        level: Confidence level.
    """
    total = candidates.abs().sum(-1)
    median = simulated.median(-1).values.cummax(0).values
    simulated_estimate = _interpolate(simulated, median, total)
    observed_estimate = _interpolate(observed_ece, median, total)
    deviation = (simulated_estimate - total.unsqueeze(-1)).abs()
    slack = deviation.quantile(level, -1) - (observed_estimate - total).abs()
    # Where all are rejected, the least rejected one is kept.
    is_accepted = slack >= slack.max().clamp_max(0)
    accepted = is_accepted.nonzero().squeeze(-1).tolist()
    low = _crossing(total, slack, accepted[0], -1)
    high = _crossing(total, slack, accepted[-1], 1)
    return low, high


def _standard_deviation(sums: BinSums) -> Tensor:
    """Return the standard deviation of Σ correct, with two pseudo-counts.

    With them a bin without errors is not certain to have none.
    """
    hits = (sums.correct + sums.confidence) / 2
    rate = (hits + 1) / (sums.n + 2)
    return (sums.n * rate * (1 - rate)).sqrt()


def _shrunk_size(observed: Observed, kappa: Tensor) -> Tensor:
    noise = kappa * observed.standard_error.square()
    square = observed.excess.square() - noise
    return square.clamp_min(0).sqrt()


def _with_possible_sign(observed: Observed, size: Tensor) -> Tensor:
    """Give each excess the observed sign, or the other where only that keeps accuracy in [0, 1]."""
    up = observed.weight - observed.expected
    down = observed.expected
    must_rise = (size > down) & (up > down)
    may_rise = (size <= up) | (up > down)
    rises = torch.where(observed.excess < 0, must_rise, may_rise)
    rise = size.minimum(up)
    fall = size.minimum(down)
    return torch.where(rises, rise, -fall)


def _binomial_variance(observed: Observed, excess: Tensor) -> Tensor:
    """Return the variance of the excess if all members of a bin had the same probability."""
    correct = observed.expected + excess
    return correct * (1 - correct / observed.weight) / observed.n


def _interpolate(x: Tensor, known: Tensor, values: Tensor) -> Tensor:
    """Return the piecewise linear function with these values at ``known``, constant outside."""
    last = len(known) - 1
    right = torch.searchsorted(known, x).clamp(1, last)
    left = right - 1
    step = (known[right] - known[left]).clamp_min(SMALLEST)
    share = ((x - known[left]) / step).clamp(0, 1)
    return torch.lerp(values[left], values[right], share)


def _crossing(total: Tensor, slack: Tensor, last: int, step: int) -> Tensor:
    """Return where ``slack`` becomes negative after the last accepted error, going up or down."""
    following = last + step
    if not 0 <= following < len(total):
        return total[last]
    share = slack[last] / (slack[last] - slack[following])
    share = share.clamp(0, 1)
    return torch.lerp(total[last], total[following], share)
