"""Bins that are closed on the right, and sums over them: of confidences, and of each class.

The excess of a prediction is correct - confidence; that of a class k is [label = k] - probs_k.
"""

from typing import NamedTuple

import torch
from torch import Tensor

# As in Guo et al. (2017) and in torchmetrics. The paper of STS has 10.
N_BINS = 15
CHUNK = 2**22  # entries of `probs` that are held in float64 at a time


class BinSums(NamedTuple):
    """Sums over the predictions of each bin, (B,) in float64.

    Attributes:
        n: Number of predictions.
        confidence: Σ confidence.
        correct: Σ correct.
        excess: Σ (correct - confidence).
        square: Σ (correct - confidence)².
    """

    n: Tensor
    confidence: Tensor
    correct: Tensor
    excess: Tensor
    square: Tensor


class ClassBinSums(NamedTuple):
    """Sums over the predictions of each class and bin, (K, B) in float64.

    Attributes:
        n: Number of predictions.
        excess: Σ x of x = [label = k] - probs_k.
        square: Σ x².
    """

    n: Tensor
    excess: Tensor
    square: Tensor


def equal_width_edges(values: Tensor, n_bins: int) -> Tensor:
    """Return the n_bins - 1 inner edges b / n_bins.

    Args:
        values: What is binned; the edges have its dtype and device.
        n_bins: Number of bins.
    """
    b = torch.arange(1, n_bins, device=values.device, dtype=values.dtype)
    return b / n_bins


def equal_mass_edges(confidence: Tensor, n_bins: int) -> Tensor:
    """Return the n_bins - 1 inner edges: the ⌈b n / n_bins⌉-th smallest confidences.

    Equal confidences share a bin, so the order of the rows does not matter. Some bins may then be
    empty.

    Args:
        confidence: What is binned, (N,).
        n_bins: Number of bins.
    """
    b = torch.arange(1, n_bins, device=confidence.device)
    rank = (b * len(confidence) + n_bins - 1) // n_bins
    return confidence.sort().values[rank - 1]


def sum_bins(confidence: Tensor, correct: Tensor, inner_edges: Tensor) -> BinSums:
    """Return the sums over the bins with these inner edges.

    Args:
        confidence: Confidence of each prediction, (N,).
        correct: Whether each prediction is correct, (N,).
        inner_edges: The edges between the bins, (B - 1,), ascending.
    """
    p = confidence.double()
    y = correct.double()
    square = (y - p).square()
    values = torch.stack([torch.ones_like(y), p, y, square])
    bins = torch.bucketize(confidence, inner_edges)
    totals = values.new_zeros(len(values), len(inner_edges) + 1)
    n, p_sum, y_sum, square_sum = totals.index_add_(1, bins, values)
    return BinSums(n, p_sum, y_sum, y_sum - p_sum, square_sum)


def sum_class_bins(probs: Tensor, labels: Tensor, n_bins: int) -> ClassBinSums:
    """Return the sums over bins of equal width for each class.

    Args:
        probs: Rows of probabilities, (N, K).
        labels: The class of each input, (N,).
        n_bins: Number of bins of each class.
    """
    n, p_sum, p_square = _sum_probabilities(probs, n_bins)
    p_label = label_probability(probs, labels)
    bins = _flat_bins(p_label, labels, n_bins)
    # x² is p² without the label, and p² + 1 - 2p with it.
    change = 1 - 2 * p_label.double()
    values = torch.stack([torch.ones_like(change), change])
    totals = values.new_zeros(2, p_sum.numel())
    totals.index_add_(1, bins, values)
    y_sum, y_square = totals.view(2, *p_sum.shape)
    return ClassBinSums(n, y_sum - p_sum, p_square + y_square)


def label_probability(probs: Tensor, labels: Tensor) -> Tensor:
    """Return the probability of each label, (N,).

    Args:
        probs: Rows of probabilities, (N, K).
        labels: The class of each input, (N,).
    """
    columns = labels.unsqueeze(-1)
    return probs.gather(-1, columns).squeeze(-1)


def row_chunks(probs: Tensor) -> tuple[Tensor, ...]:
    """Return the rows in chunks of at most ``CHUNK`` entries.

    Args:
        probs: Rows of probabilities, (N, K).
    """
    n_rows = max(1, CHUNK // probs.shape[1])
    chunks: tuple[Tensor, ...] = probs.split(n_rows)
    return chunks


def unbiased_square(n: Tensor, total: Tensor, square: Tensor) -> Tensor:
    """Return an unbiased estimate of (E[x])²; 0 where the sample has one member.

    Σ_(i≠j) x_i x_j / (n (n-1)) = ((Σx)² - Σx²) / (n (n-1)): the products of different members have
    no noise in the mean.

    Args:
        n: Sizes of the samples.
        total: Σ x of each sample.
        square: Σ x² of each sample.
    """
    pairs = n * (n - 1)
    mean_product = (total.square() - square) / pairs.clamp_min(1)
    return torch.where(pairs > 0, mean_product, 0.0)


def _sum_probabilities(probs: Tensor, n_bins: int) -> Tensor:
    """Return the number of inputs, Σ p and Σ p² for each class and bin, (3, K, B).

    A row of probabilities has fewer than n_bins entries above 1 / n_bins. These few are binned one
    by one; what is left of the total of each class lies in its first bin.
    """
    k = probs.shape[1]
    total = probs.new_zeros(3, k, dtype=torch.float64)
    upper = probs.new_zeros(3, k * n_bins, dtype=torch.float64)
    first_edge = torch.ones_like(probs[0, 0]) / n_bins
    for chunk in row_chunks(probs):
        double = chunk.double()
        total[0] += len(chunk)
        total[1] += double.sum(0)
        total[2] += double.square().sum(0)
        row, column = torch.nonzero(chunk > first_edge, as_tuple=True)
        p = double[row, column]
        bins = _flat_bins(chunk[row, column], column, n_bins)
        values = torch.stack([torch.ones_like(p), p, p.square()])
        upper.index_add_(1, bins, values)
    sums = upper.view(3, k, n_bins)
    sums[..., 0] = total - sums[..., 1:].sum(-1)
    return sums


def _flat_bins(p: Tensor, classes: Tensor, n_bins: int) -> Tensor:
    """Return the index of each probability's bin in a flattened (K, B) array."""
    return classes * n_bins + torch.bucketize(p, equal_width_edges(p, n_bins))
