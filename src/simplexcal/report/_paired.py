"""Paired tests: how a score of the same inputs changes from one prediction to another."""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from simplexcal.metrics import reliability
from simplexcal.metrics._binning import label_probability
from simplexcal.types import Prediction

SIGNIFICANT = 1.96  # standard errors: a two-sided test at a level of 5 %
N_DRAWS = 2000  # the standard error is then exact to 2 %


@dataclass(frozen=True)
class Change:
    """The change of a mean over inputs, after minus before.

    Args:
        mean: The mean change.
        standard_error: Its standard error, from the differences of single inputs.
    """

    mean: float
    standard_error: float

    @property
    def is_clear(self) -> bool:
        """Whether a paired z-test at a level of 5 % tells the change from none."""
        return abs(self.mean) > SIGNIFICANT * self.standard_error

    @property
    def p_value(self) -> float:
        """Probability of a change at least as large by chance, by the same test."""
        if self.standard_error == 0:  # of no change at all, or of a single input
            return 1.0
        return math.erfc(abs(self.mean / self.standard_error) / math.sqrt(2))

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        return self.mean - SIGNIFICANT * self.standard_error

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self.mean + SIGNIFICANT * self.standard_error


def nll_change(before: Prediction, after: Prediction, labels: Tensor) -> Change:
    """Return the change of the mean of -ln p(label).

    Args:
        before: Predictions before calibration.
        after: Predictions after calibration.
        labels: The class of each input, (N,).
    """
    return _mean_change(_log_likelihood(before, labels) - _log_likelihood(after, labels))


def brier_change(before: Prediction, after: Prediction, labels: Tensor) -> Change:
    """Return the change of the mean Brier score.

    Args:
        before: Predictions before calibration.
        after: Predictions after calibration.
        labels: The class of each input, (N,).
    """
    return _mean_change(_brier_scores(after, labels) - _brier_scores(before, labels))


def ece_change(before: Prediction, after: Prediction, labels: Tensor, n_bins: int) -> Change:
    """Return the change of the ECE, with the standard error of a paired bootstrap.

    The sums of confidence - correct in the bins of both predictions are nearly normal. They are
    sampled with the covariance that they have on the same inputs, which takes no longer for a
    million inputs. The smaller ECE is biased upward more than the larger, so that the test errs
    towards no change.

    Args:
        before: Predictions before calibration.
        after: Predictions after calibration.
        labels: The class of each input, (N,).
        n_bins: Number of bins.
    """
    excess = torch.stack([_excess(p, labels) for p in (before, after)])
    bins = torch.stack([_bin_numbers(before, n_bins), _bin_numbers(after, n_bins) + n_bins])
    mean, covariance = _moments(excess, bins, 2 * n_bins)
    variances, axes = torch.linalg.eigh(covariance / excess.shape[1])
    factor = axes * variances.clamp_min(0).sqrt()
    generator = Generator().manual_seed(0)
    noise = torch.randn(N_DRAWS, 2 * n_bins, dtype=torch.float64, generator=generator)
    spread = _difference(mean + noise @ factor.T, n_bins).std()
    return Change(_difference(mean, n_bins).item(), spread.item())


def _mean_change(differences: Tensor) -> Change:
    error = differences.std(correction=0) / math.sqrt(len(differences))
    return Change(differences.mean().item(), error.item())


def _log_likelihood(prediction: Prediction, labels: Tensor) -> Tensor:
    columns = labels.unsqueeze(-1)
    return prediction.probs.double().gather(-1, columns).clamp_min(1e-300).log()


def _brier_scores(prediction: Prediction, labels: Tensor) -> Tensor:
    """Return Σ_k (p_k - [k = label])² of each input, (N,)."""
    p_label = label_probability(prediction.probs, labels).double()
    squares: Tensor = prediction.probs.double().square().sum(-1)
    return squares + 1 - 2 * p_label


def _excess(prediction: Prediction, labels: Tensor) -> Tensor:
    correct = prediction.label == labels
    return prediction.confidence.double() - correct.double()


def _bin_numbers(prediction: Prediction, n_bins: int) -> Tensor:
    """Return the bin of each input, (N,), closed on the right as the ECE's bins."""
    confidence = prediction.confidence
    edges = reliability(confidence, torch.ones_like(confidence, dtype=torch.bool), n_bins).edges
    return torch.bucketize(confidence, edges[1:-1].contiguous())


def _moments(excess: Tensor, bins: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of the vectors with an input's excess at its two bins."""
    n = excess.shape[1]
    mean = torch.zeros(size, dtype=torch.float64)
    mean.index_add_(0, bins.flatten(), excess.flatten())
    mean /= n
    second = torch.zeros(size * size, dtype=torch.float64)
    for i in range(2):
        for j in range(2):
            second.index_add_(0, bins[i] * size + bins[j], excess[i] * excess[j])
    return mean, second.view(size, size) / n - torch.outer(mean, mean)


def _difference(sums: Tensor, n_bins: int) -> Tensor:
    """Return the ECE after minus the ECE before."""
    eces: Tensor = sums.abs().unflatten(-1, (2, n_bins)).sum(-1)
    return eces[..., 1] - eces[..., 0]
