"""How well a number tells two classes apart: functions of (score, positive), and of (confidence, correct).

Equal scores are treated as one threshold, so no result depends on the order of the rows.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from simplexcal._validation import check_fraction, check_confidence_and_correct, check_score_and_positive


class RiskCoverage(NamedTuple):
    """The error rate (N,) among the most confident fraction ``coverage`` (N,) of the inputs."""

    coverage: Tensor
    risk: Tensor


def auroc(score: Tensor, positive: Tensor) -> Tensor:
    """Return the area under the ROC curve: P(score⁺ > score⁻) + P(score⁺ = score⁻) / 2."""
    true, false = _above(score, positive)
    return torch.trapezoid(true / true[-1], false / false[-1]).to(_dtype(score))


def aupr(score: Tensor, positive: Tensor) -> Tensor:
    """Return the average precision Σ_j (recall_j - recall_(j-1)) precision_j over the distinct thresholds.

    A sum of rectangles, as scikit-learn's ``average_precision_score``; joining the points by straight lines instead
    is optimistic (Davis & Goadrich 2006).
    """
    true, false = _above(score, positive)
    precision = true[1:] / (true[1:] + false[1:])
    return ((true.diff() / true[-1]) * precision).sum().to(_dtype(score))


def fpr_at_tpr(score: Tensor, positive: Tensor, tpr: float = 0.95) -> Tensor:
    """Return the smallest false-positive rate of a threshold whose true-positive rate is at least ``tpr``."""
    check_fraction("tpr", tpr)
    true, false = _above(score, positive)
    return (false[true / true[-1] >= tpr][0] / false[-1]).to(_dtype(score))


def risk_coverage(confidence: Tensor, correct: Tensor) -> RiskCoverage:
    """Return the error rate among the i most confident inputs, for i = 1..N.

    Inputs of equal confidence are taken in random order, and the risk is its expectation over these orders.
    """
    confidence, correct = check_confidence_and_correct(confidence, correct)
    _, group, size = torch.unique(-confidence, return_inverse=True, return_counts=True)
    errors = torch.bincount(group, weights=(~correct).double())
    taken = torch.arange(1, len(confidence) + 1, device=confidence.device, dtype=torch.float64)
    risk = torch.repeat_interleave(errors / size, size).cumsum(0) / taken
    return RiskCoverage((taken / len(taken)).to(confidence.dtype), risk.to(confidence.dtype))


def aurc(confidence: Tensor, correct: Tensor) -> Tensor:
    """Return the area under the risk-coverage curve, Σ_i risk_i / N (Geifman et al. 2019); smaller is better.

    The area of the steps. A perfect ranking has about e + (1 - e) ln(1 - e) at error rate e, and a random one e.
    """
    return risk_coverage(confidence, correct).risk.double().mean().to(_dtype(confidence))


def _above(score: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """Count positives and negatives with a score at or above each distinct value, from none to all of them."""
    score, positive = check_score_and_positive(score, positive)
    _, group = torch.unique(-score, return_inverse=True)
    counts = [
        torch.bincount(group, weights=which.double()).cumsum(0) for which in (positive, ~positive)
    ]
    true, false = (torch.cat([count.new_zeros(1), count]) for count in counts)
    return true, false


def _dtype(value: Tensor) -> torch.dtype:
    return torch.promote_types(value.dtype, torch.float32)
