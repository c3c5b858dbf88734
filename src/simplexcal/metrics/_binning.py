"""Bins of confidence, closed on the right, and what is summed in them."""

from typing import NamedTuple

import torch
from torch import Tensor


class Sums(NamedTuple):
    """For each bin (B,), in float64: number of predictions, Σ confidence, Σ correct, Σ (correct - confidence)²."""

    n: Tensor
    confidence: Tensor
    correct: Tensor
    square: Tensor

    @property
    def excess(self) -> Tensor:
        """Σ (correct - confidence)."""
        return self.correct - self.confidence


def equal_width(confidence: Tensor, n_bins: int) -> Tensor:
    """Return the n_bins - 1 inner edges b / n_bins."""
    return torch.arange(1, n_bins, device=confidence.device, dtype=confidence.dtype) / n_bins


def equal_mass(confidence: Tensor, n_bins: int) -> Tensor:
    """Return the n_bins - 1 inner edges that are order statistics, the ⌈b n / n_bins⌉-th smallest confidences.

    Equal confidences share a bin, so the order of the rows does not matter; some bins may then be empty.
    """
    rank = (
        torch.arange(1, n_bins, device=confidence.device) * len(confidence) + n_bins - 1
    ) // n_bins
    return confidence.sort().values[rank - 1]


def sums(confidence: Tensor, correct: Tensor, inner: Tensor) -> Sums:
    """Sum over the bins with these inner edges."""
    confidence_, correct_ = confidence.double(), correct.double()
    values = torch.stack(
        [torch.ones_like(correct_), confidence_, correct_, (correct_ - confidence_).square()]
    )
    total = values.new_zeros(len(values), len(inner) + 1)
    return Sums(*total.index_add_(1, torch.bucketize(confidence, inner), values))


def unbiased_square(count: Tensor, excess: Tensor, square: Tensor) -> Tensor:
    """Return an unbiased estimate of (E[x])² from a sample's size, Σx and Σx²; 0 where the sample has one member.

    Σ_(i≠j) x_i x_j / (m (m-1)) = ((Σx)² - Σx²) / (m (m-1)): products of different members have no noise in the mean.
    """
    pairs = count * (count - 1)
    return torch.where(pairs > 0, (excess.square() - square) / pairs.clamp_min(1), 0.0)
