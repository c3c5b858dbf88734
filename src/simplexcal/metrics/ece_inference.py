"""Statistical inference for the ECE: its noise floor, and an interval for the true error."""

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from simplexcal._arrays import ArrayLike
from simplexcal._validation import (
    check_confidence,
    check_confidence_and_correct,
    check_count,
    check_fraction,
    check_generator,
)
from simplexcal.metrics._binning import N_BINS, equal_width_edges
from simplexcal.metrics._test_inversion import (
    accepted_range,
    candidate_excesses,
    observe,
    simulate_ece,
)

CHUNK = 2**24  # uniform numbers drawn at a time


class Floor(NamedTuple):
    """The noise floor: the ECE of a perfectly calibrated model.

    Attributes:
        mean: Its mean.
        upper: Its 95 % quantile.
    """

    mean: Tensor
    upper: Tensor


class Interval(NamedTuple):
    """A confidence interval.

    Attributes:
        low: Its lower end.
        high: Its upper end.
    """

    low: Tensor
    high: Tensor


def noise_floor(
    confidence: ArrayLike,
    n_bins: int = N_BINS,
    n_trials: int = 1000,
    generator: Generator | None = None,
) -> Floor:
    """Return the noise floor of the ECE: its mean and its 95 % quantile.

    The noise floor is the null distribution of the ECE of a calibrated model (consistency
    resampling, Bröcker and Smith 2007): on a finite sample even a perfectly calibrated model with
    these confidences has an ECE above 0. correct_i ~ Bernoulli(confidence_i) is sampled
    ``n_trials`` times, and the ECE is that of ``ece``.

    Args:
        confidence: Confidence of each prediction, (N,).
        n_bins: Number of bins.
        n_trials: Number of samples of the null distribution.
        generator: Source of the random numbers. None is one with a fixed seed: the same input gives
            the same floor.
    """
    confidence = check_confidence(confidence)
    noise = _sample_calibrated(confidence, n_bins, n_trials, _seeded_unless_given(generator))
    errors = noise.abs().sum(-1)
    mean = errors.mean()
    upper = errors.quantile(0.95)
    return Floor(mean.to(confidence), upper.to(confidence))


def ece_interval(
    confidence: ArrayLike,
    correct: ArrayLike,
    n_bins: int = N_BINS,
    level: float = 0.95,
    n_trials: int = 1000,
    generator: Generator | None = None,
) -> Interval:
    """Return an interval for the true error Σ_b |Σ_(i in b) (P(correct_i) - confidence_i)| / n.

    By chance the ECE exceeds the true error, and resampling the data would add that excess once
    more. So this is the set of true errors t that are not rejected. Under each t the ECE is
    simulated and turned into an estimate of t, the true error whose median ECE it is. t stays if
    the estimate from the data is no farther from t than a fraction ``level`` of the simulated ones.
    At t = 0 this is the test of ``noise_floor``: at level 0.95, ``low`` is 0 as long as the ECE is
    within the floor.

    Args:
        confidence: Confidence of each prediction, (N,).
        correct: Whether each prediction is correct, (N,).
        n_bins: Number of bins.
        level: Confidence level of the interval.
        n_trials: Number of simulated samples for each t.
        generator: Source of the random numbers. None is one with a fixed seed.
    """
    confidence, correct = check_confidence_and_correct(confidence, correct)
    check_fraction("level", level)
    generator = _seeded_unless_given(generator)
    noise = _sample_calibrated(confidence, n_bins, n_trials, generator)
    device = noise.device
    normal = torch.randn(noise.shape, generator=generator, device=device, dtype=noise.dtype)
    observed = observe(confidence.to(device), correct.to(device), n_bins)
    candidates = candidate_excesses(observed)
    simulated = simulate_ece(observed, candidates, noise, normal)
    observed_ece = observed.excess.abs().sum()
    low, high = accepted_range(candidates, simulated, observed_ece, level)
    return Interval(low.to(confidence), high.to(confidence))


def _seeded_unless_given(generator: Generator | None) -> Generator:
    check_generator(generator)
    if generator is None:
        return Generator().manual_seed(0)
    return generator


def _sample_calibrated(
    confidence: Tensor, n_bins: int, n_trials: int, generator: Generator
) -> Tensor:
    """Sample Σ_(i in b) (correct_i - confidence_i) / n of a calibrated model, (n_trials, B).

    correct_i ~ Bernoulli(confidence_i); b runs over the bins that are not empty.
    """
    check_count("n_trials", n_trials)
    check_count("n_bins", n_bins)
    confidence = confidence.to(generator.device)
    inner = equal_width_edges(confidence, n_bins)
    bins, order = torch.bucketize(confidence, inner).sort()
    confidence = confidence[order]
    _, counts = bins.unique_consecutive(return_counts=True)
    sizes = counts.tolist()
    n = len(confidence)
    n_at_a_time = max(1, CHUNK // n)
    hits = []
    for trials in torch.arange(n_trials).split(n_at_a_time):
        uniform = torch.rand(len(trials), n, generator=generator, device=generator.device)
        correct = uniform < confidence.float()
        hits.append(_sum_groups(correct, sizes))
    expected = _sum_groups(confidence.double(), sizes)
    return (torch.cat(hits) - expected) / n


def _sum_groups(values: Tensor, sizes: list[int]) -> Tensor:
    """Return the sums of consecutive groups along the last dimension."""
    groups = values.split(sizes, -1)
    return torch.stack([group.sum(-1) for group in groups], -1)
