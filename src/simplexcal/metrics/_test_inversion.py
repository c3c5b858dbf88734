"""The inside of ``ece_interval``: which true calibration errors are compatible with the one observed.

All is in shares of the n predictions: a bin's excess is Σ_(i in b) (correct_i - confidence_i) / n, and the ECE is
Σ_b |excess_b|.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from simplexcal.metrics._binning import equal_width, sums

N_TRUTHS = 64
REACH = 6  # how far the truths go from the observed error, in standard errors added over the bins


class Observed(NamedTuple):
    """The number n of predictions and what is known of each bin that is not empty (B,), in float64."""

    n: int
    weight: Tensor
    expected: Tensor  # Σ confidence_i
    excess: Tensor
    standard_error: Tensor
    calibrated_variance: Tensor  # of the excess, if P(correct_i) = confidence_i


def observe(confidence: Tensor, correct: Tensor, n_bins: int) -> Observed:
    """Return what the truths and their noise are made from."""
    inner, n, p = equal_width(confidence, n_bins), len(confidence), confidence.double()
    s = sums(confidence, correct, inner)
    variance = (
        torch.zeros_like(s.n).index_add_(0, torch.bucketize(confidence, inner), p * (1 - p)) / n**2
    )
    rate = ((s.correct + s.confidence) / 2 + 1) / (
        s.n + 2
    )  # a bin without errors is not sure to have none
    standard_error = (s.n * rate * (1 - rate)).sqrt() / n
    every = (s.n / n, s.confidence / n, s.excess / n, standard_error, variance)
    return Observed(n, *(values[s.n > 0] for values in every))


def truths(seen: Observed) -> Tensor:
    """Return true excesses (M, B) whose total errors go in equal steps from 0, or nearly, to well above the observed.

    The square of each is excess_b² - κ standard_error_b², where that is positive. From large κ down, the deviations
    that are surest come first; at κ = 1 the squares are unbiased; below 0 every bin deviates more than was seen.
    """
    error, scale = float(seen.excess.abs().sum()), float(seen.standard_error.sum())
    lowest, highest = max(0.0, error - REACH * scale), error + REACH * scale
    total = torch.linspace(
        lowest, highest, N_TRUTHS, device=seen.excess.device, dtype=torch.float64
    ).unsqueeze(-1)
    none_left = (seen.excess / seen.standard_error).square().max() * (1 + 1e-9)
    low, high = torch.full_like(total, -((highest / scale) ** 2)), none_left.expand_as(total)
    for _ in range(60):
        kappa = (low + high) / 2
        enough = _size(seen, kappa).sum(-1, keepdim=True) >= total
        low, high = torch.where(enough, kappa, low), torch.where(enough, high, kappa)
    return _possible(seen, _size(seen, high))


def simulated(seen: Observed, truth: Tensor, noise: Tensor, normal: Tensor) -> Tensor:
    """Return the ECE (M, n_trials) under each truth.

    ``noise`` (n_trials, B) is the exact one of perfect calibration. Under a truth with less variance it is scaled down;
    under one with more, the rest is ``normal``.
    """
    change = _binomial_variance(seen, truth) - _binomial_variance(seen, torch.zeros_like(truth))
    variance = (seen.calibrated_variance + change).clamp_min(0)
    scale = (variance / seen.calibrated_variance.clamp_min(1e-300)).clamp_max(1).sqrt()
    rest = (variance - seen.calibrated_variance).clamp_min(0).sqrt()
    rows = zip(truth, scale, rest, strict=True)
    return torch.stack([(t + a * noise + b * normal).abs().sum(-1) for t, a, b in rows])


def not_rejected(
    truth: Tensor, simulated: Tensor, observed: Tensor, level: float
) -> tuple[Tensor, Tensor]:
    """Return the ends of the total errors of ``truth`` whose simulated ECE agrees with the observed one."""
    total = truth.abs().sum(-1)
    middle = simulated.median(-1).values.cummax(0).values
    distance = (
        (_interpolate(simulated, middle, total) - total.unsqueeze(-1)).abs().quantile(level, -1)
    )
    slack = distance - (_interpolate(observed, middle, total) - total).abs()
    kept = torch.nonzero(slack >= slack.max().clamp_max(0)).squeeze(-1)
    return _crossing(total, slack, int(kept[0]), -1), _crossing(total, slack, int(kept[-1]), 1)


def _size(seen: Observed, kappa: Tensor) -> Tensor:
    return (seen.excess.square() - kappa * seen.standard_error.square()).clamp_min(0).sqrt()


def _possible(seen: Observed, size: Tensor) -> Tensor:
    """Give each excess the sign that was seen, or the other one where only that leaves the accuracy in [0, 1]."""
    up, down = seen.weight - seen.expected, seen.expected
    rises = torch.where(seen.excess < 0, (size > down) & (up > down), (size <= up) | (up > down))
    return torch.where(rises, size.minimum(up), -size.minimum(down))


def _binomial_variance(seen: Observed, excess: Tensor) -> Tensor:
    """Return the variance of the excess if all members of a bin had the same probability."""
    correct = seen.expected + excess
    return correct * (1 - correct / seen.weight) / seen.n


def _interpolate(x: Tensor, known: Tensor, values: Tensor) -> Tensor:
    """Return the piecewise linear function with these values at ``known``, constant outside."""
    right = torch.searchsorted(known, x).clamp(1, len(known) - 1)
    share = (x - known[right - 1]) / (known[right] - known[right - 1]).clamp_min(1e-300)
    return torch.lerp(values[right - 1], values[right], share.clamp(0, 1))


def _crossing(total: Tensor, slack: Tensor, last: int, step: int) -> Tensor:
    """Return where ``slack`` becomes negative after the ``last`` error that is kept, going up or down."""
    if not 0 <= last + step < len(total):
        return total[last]
    share = slack[last] / (slack[last] - slack[last + step])
    return torch.lerp(total[last], total[last + step], share.clamp(0, 1))
