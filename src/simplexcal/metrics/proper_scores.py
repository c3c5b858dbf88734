"""Proper scores and classwise errors: functions of (probs, labels)."""

from typing import NamedTuple

import torch
from torch import Tensor

from simplexcal._validation import check_probs_and_labels, check_count
from simplexcal.metrics._binning import equal_width, unbiased_square

CHUNK = 2**22  # entries of `probs` that are worked on at a time, in float64


class BrierSplit(NamedTuple):
    """The two parts of the Brier score; their sum is the score."""

    calibration: Tensor
    refinement: Tensor


def accuracy(probs: Tensor, labels: Tensor) -> Tensor:
    """Return the fraction of inputs whose largest probability is that of the label; of equal ones the first counts."""
    probs, labels = check_probs_and_labels(probs, labels)
    return (probs.argmax(-1) == labels).to(probs.dtype).mean()


def nll(probs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean negative log-likelihood -ln probs[i, labels_i], in nats.

    A probability of 0 counts as the smallest normal number of its dtype: 87 nats in float32, 708 in float64.
    """
    probs, labels = check_probs_and_labels(probs, labels)
    return (
        -_own(probs, labels)
        .clamp_min(torch.finfo(probs.dtype).tiny)
        .double()
        .log()
        .mean()
        .to(probs.dtype)
    )


def brier(probs: Tensor, labels: Tensor) -> Tensor:
    """Return the Brier score Σ_k (probs[i, k] - [k = labels_i])², averaged over the inputs.

    Brier (1950): all K classes count and it lies in [0, 2]. For K = 2 it is twice the score of the positive class
    alone, which is what scikit-learn and others report for binary problems.
    """
    probs, labels = check_probs_and_labels(probs, labels)
    return _brier(probs, labels).to(probs.dtype)


def brier_split(probs: Tensor, labels: Tensor, n_bins: int = 10) -> BrierSplit:
    """Split the Brier score into a calibration part, which recalibration can remove, and refinement, the rest.

    calibration = Σ_k Σ_b P(b) (E[[k = label] - probs_k | b])²    refinement = brier - calibration

    The bins are those of ``classwise_ece``, and the square is estimated without bias (Bröcker 2012): a perfectly
    calibrated model has a calibration part of 0 on average, and so at times a negative one. What varies inside a bin
    counts as refinement (Stephenson et al. 2008).
    """
    probs, labels = check_probs_and_labels(probs, labels)
    count, excess, square = _class_sums(probs, labels, check_count("n_bins", n_bins))
    calibration = (count * unbiased_square(count, excess, square)).sum() / len(probs)
    return BrierSplit(
        calibration.to(probs.dtype), (_brier(probs, labels) - calibration).to(probs.dtype)
    )


def classwise_ece(probs: Tensor, labels: Tensor, n_bins: int = 10) -> Tensor:
    """Return the mean over all K classes of the ECE of probs[:, k] as a prediction of [label = k].

    Kull et al. (2019). Bins have equal width and are closed on the right; classes without a label count too.
    """
    probs, labels = check_probs_and_labels(probs, labels)
    _, excess, _ = _class_sums(probs, labels, check_count("n_bins", n_bins))
    return (excess.abs().sum() / probs.numel()).to(probs.dtype)


def _own(probs: Tensor, labels: Tensor) -> Tensor:
    return probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def _chunks(probs: Tensor) -> tuple[Tensor, ...]:
    rows: tuple[Tensor, ...] = probs.split(max(1, CHUNK // probs.shape[1]))
    return rows


def _brier(probs: Tensor, labels: Tensor) -> Tensor:
    """Σ_k (p_k - y_k)² = 1 - 2 p_label + Σ_k p_k²."""
    squares = torch.stack([part.double().square().sum() for part in _chunks(probs)]).sum()
    return 1 + (squares - 2 * _own(probs, labels).double().sum()) / len(probs)


def _class_sums(probs: Tensor, labels: Tensor, n_bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return how many, Σ x and Σ x² of x = [k = label] - probs_k for each class and bin, (K, B) in float64."""
    count, p, p_square = _probability_sums(probs, n_bins)
    own = _own(probs, labels)
    hits = torch.stack([torch.ones_like(own, dtype=torch.float64), 1 - 2 * own.double()])
    y, y_square = (
        hits.new_zeros(2, p.numel())
        .index_add_(1, _flat_bins(own, labels, n_bins), hits)
        .view(2, *p.shape)
    )
    return count, y - p, p_square + y_square  # x² = p² without the label, p² + 1 - 2p with it


def _probability_sums(probs: Tensor, n_bins: int) -> Tensor:
    """Return how many, Σ p and Σ p² for each class and bin, (3, K, B).

    A row of probabilities has fewer than n_bins entries above 1 / n_bins: these few are binned one by one, and what is
    left of each class's total lies in its first bin.
    """
    k = probs.shape[1]
    total = probs.new_zeros(3, k, dtype=torch.float64)
    upper = probs.new_zeros(3, k * n_bins, dtype=torch.float64)
    first_edge = torch.ones_like(probs[0, 0]) / n_bins
    for part in _chunks(probs):
        double = part.double()
        total += torch.stack(
            [torch.full_like(total[0], len(part)), double.sum(0), double.square().sum(0)]
        )
        row, column = torch.nonzero(part > first_edge, as_tuple=True)
        p = double[row, column]
        at = _flat_bins(part[row, column], column, n_bins)
        upper.index_add_(1, at, torch.stack([torch.ones_like(p), p, p.square()]))
    upper = upper.view(3, k, n_bins)
    upper[..., 0] = total - upper.sum(-1)
    return upper


def _flat_bins(p: Tensor, column: Tensor, n_bins: int) -> Tensor:
    return column * n_bins + torch.bucketize(p, equal_width(p, n_bins))
