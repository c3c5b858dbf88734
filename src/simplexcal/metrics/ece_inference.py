"""What chance does to the ECE: its noise floor, an interval for the true value, and each bin's accuracy band."""

from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from simplexcal._validation import (
    check_confidence,
    check_count,
    check_fraction,
    check_generator,
    check_confidence_and_correct,
)
from simplexcal.metrics._binning import equal_width
from simplexcal.metrics._test_inversion import not_rejected, observe, simulated, truths
from simplexcal.metrics.calibration_error import Bins

CHUNK = 2**24  # uniform numbers drawn at a time


class Floor(NamedTuple):
    """The ECE of a perfectly calibrated model: its mean, and its 95 % quantile."""

    mean: Tensor
    upper: Tensor


class Interval(NamedTuple):
    """The ends of a confidence interval."""

    low: Tensor
    high: Tensor


def noise_floor(
    confidence: Tensor, n_bins: int = 10, n_trials: int = 1000, generator: Generator | None = None
) -> Floor:
    """Return the ECE that a perfectly calibrated model with these confidences has by chance: mean and 95 % quantile.

    correct_i ~ Bernoulli(confidence_i) is drawn ``n_trials`` times, and the ECE is that of ``ece``. Random numbers come
    from ``generator``, or else from one of this call with a fixed seed: the same input gives the same floor.
    """
    confidence, generator = check_confidence(confidence), _given(generator)
    error = _noise(confidence, n_bins, n_trials, generator).abs().sum(-1)
    return Floor(error.mean().to(confidence), error.quantile(0.95).to(confidence))


def ece_interval(
    confidence: Tensor,
    correct: Tensor,
    n_bins: int = 10,
    level: float = 0.95,
    n_trials: int = 1000,
    generator: Generator | None = None,
) -> Interval:
    """Return an interval for the true binned error Σ_b |Σ_(i in b) (P(correct_i) - confidence_i)| / n.

    By chance the ECE exceeds the true error, and resampling the data would add that excess once more. So this is the
    set of true errors t that are not rejected. Under each t the ECE is simulated and turned into an estimate of t, the
    true error whose median ECE it is; t stays if the estimate from the data is no farther from t than a fraction
    ``level`` of the simulated ones. At t = 0 this is the test of ``noise_floor``: at level 0.95, ``low`` is 0 as long
    as the ECE is within the floor. Random numbers as in ``noise_floor``.
    """
    confidence, correct = check_confidence_and_correct(confidence, correct)
    check_fraction("level", level)
    generator = _given(generator)
    noise = _noise(confidence, n_bins, n_trials, generator)
    normal = torch.randn(noise.shape, generator=generator, device=noise.device, dtype=noise.dtype)
    seen = observe(confidence.to(noise.device), correct.to(noise.device), n_bins)
    candidates = truths(seen)
    errors = simulated(seen, candidates, noise, normal)
    ends = not_rejected(candidates, errors, seen.excess.abs().sum(), level)
    return Interval(*(end.to(confidence) for end in ends))


def accuracy_band(bins: Bins, level: float = 0.95) -> tuple[Tensor, Tensor]:
    """Return the ends (B,) of the Wilson (1927) score interval of each bin's accuracy; NaN in an empty bin."""
    z = NormalDist().inv_cdf((1 + check_fraction("level", level)) / 2)
    n, accuracy = bins.count.to(bins.accuracy.dtype), bins.accuracy
    centre = (accuracy + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * (accuracy * (1 - accuracy) / n + z**2 / (4 * n**2)).sqrt()
    return (centre - half).clamp_min(0), (centre + half).clamp_max(1)


def _given(generator: Generator | None) -> Generator:
    check_generator(generator)
    return Generator().manual_seed(0) if generator is None else generator


def _noise(confidence: Tensor, n_bins: int, n_trials: int, generator: Generator) -> Tensor:
    """Draw Σ_(i in b) (correct_i - confidence_i) / n for correct_i ~ Bernoulli(confidence_i) and the bins in use.

    Of shape (n_trials, B).
    """
    check_count("n_trials", n_trials)
    confidence = confidence.to(generator.device)
    index, order = torch.bucketize(
        confidence, equal_width(confidence, check_count("n_bins", n_bins))
    ).sort()
    confidence, sizes = confidence[order], index.unique_consecutive(return_counts=True)[1].tolist()
    n, hits = len(confidence), []
    for part in torch.arange(n_trials).split(max(1, CHUNK // n)):
        uniform = torch.rand(len(part), n, generator=generator, device=generator.device)
        by_bin = (uniform < confidence.float()).split(sizes, -1)
        hits.append(torch.stack([correct.sum(-1) for correct in by_bin], -1))
    expected = torch.stack([part.sum() for part in confidence.double().split(sizes)])
    return (torch.cat(hits) - expected) / n
