"""How well a score ranks two classes: functions of (score, positive), and of (confidence, correct).

Equal scores are treated as one threshold, so no result depends on the order of the rows.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from simplexcal._arrays import ArrayLike
from simplexcal._validation import (
    check_confidence_and_correct,
    check_fraction,
    check_score_and_positive,
)


class RiskCoverage(NamedTuple):
    """A risk-coverage curve.

    Attributes:
        coverage: Fractions i / N of the inputs, (N,), the most confident first.
        risk: Error rate among them, (N,).
    """

    coverage: Tensor
    risk: Tensor


def auroc(score: ArrayLike, positive: ArrayLike) -> Tensor:
    """Return the area under the ROC curve: P(score⁺ > score⁻) + P(score⁺ = score⁻) / 2.

    Args:
        score: Score of each input, (N,); higher means positive.
        positive: Whether each input is positive, (N,).
    """
    score, positive = check_score_and_positive(score, positive)
    true, false = _count_above(score, positive)
    tpr = true / true[-1]
    fpr = false / false[-1]
    return torch.trapezoid(tpr, fpr).to(score.dtype)


def aupr(score: ArrayLike, positive: ArrayLike) -> Tensor:
    """Return the average precision Σ_j (recall_j - recall_(j-1)) precision_j over the thresholds.

    A sum of rectangles, as scikit-learn's ``average_precision_score``. Joining the points by
    straight lines instead is optimistic (Davis & Goadrich 2006).

    Args:
        score: Score of each input, (N,); higher means positive.
        positive: Whether each input is positive, (N,).
    """
    score, positive = check_score_and_positive(score, positive)
    true, false = _count_above(score, positive)
    above = (true + false)[1:]
    precision = true[1:] / above
    recall_step = true.diff() / true[-1]
    return (recall_step * precision).sum().to(score.dtype)


def fpr_at_tpr(score: ArrayLike, positive: ArrayLike, tpr: float = 0.95) -> Tensor:
    """Return the smallest false-positive rate at a true-positive rate of at least ``tpr``.

    Args:
        score: Score of each input, (N,); higher means positive.
        positive: Whether each input is positive, (N,).
        tpr: Required true-positive rate.
    """
    check_fraction("tpr", tpr)
    score, positive = check_score_and_positive(score, positive)
    true, false = _count_above(score, positive)
    enough = true / true[-1] >= tpr
    fewest = false[enough][0]
    return (fewest / false[-1]).to(score.dtype)


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> RiskCoverage:
    """Return the error rate among the i most confident inputs, for i = 1..N.

    Inputs of equal confidence are taken in random order, and the risk is its expectation over these
    orders.

    Args:
        confidence: Confidence of each prediction, (N,).
        correct: Whether each prediction is correct, (N,).
    """
    confidence, correct = check_confidence_and_correct(confidence, correct)
    _, group, size = torch.unique(-confidence, return_inverse=True, return_counts=True)
    wrong = (~correct).double()
    errors = torch.bincount(group, weights=wrong)
    taken = torch.ones_like(wrong).cumsum(0)
    expected_errors = torch.repeat_interleave(errors / size, size)
    risk = expected_errors.cumsum(0) / taken
    coverage = taken / len(taken)
    return RiskCoverage(coverage.to(confidence.dtype), risk.to(confidence.dtype))


def aurc(confidence: ArrayLike, correct: ArrayLike) -> Tensor:
    """Return the area under the risk-coverage curve, Σ_i risk_i / N; smaller is better.

    Geifman et al. (2019). The area is that of the steps. At error rate e, a perfect ranking has
    about e + (1 - e) ln(1 - e), and a random one e.

    Args:
        confidence: Confidence of each prediction, (N,).
        correct: Whether each prediction is correct, (N,).
    """
    risk = risk_coverage(confidence, correct).risk
    return risk.double().mean().to(risk.dtype)


def _count_above(score: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """Count positives and negatives at or above each distinct score, from none to all of them."""
    _, group = torch.unique(-score, return_inverse=True)
    total = torch.bincount(group).double().cumsum(0)
    true = torch.bincount(group, weights=positive.double()).cumsum(0)
    true = torch.cat([true.new_zeros(1), true])
    total = torch.cat([total.new_zeros(1), total])
    return true, total - true
