import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers
from scipy.stats import mannwhitneyu
from sklearn.metrics import (
    auc,
    average_precision_score,
    precision_recall_curve,
    roc_auc_score,
    roc_curve,
)
from torch import Tensor

from simplexcal.metrics import aupr, aurc, auroc, fpr_at_tpr, risk_coverage


def scored(seed: int, n: int, values: int) -> tuple[Tensor, Tensor]:
    """Return scores with ties, and both classes."""
    generator = torch.Generator().manual_seed(seed)
    positive = torch.rand(n, generator=generator) < 0.4
    positive[:2] = torch.tensor([True, False])
    score = torch.randint(values, (n,), generator=generator).double()
    return score + positive * 0.5 * values, positive


@given(seed=integers(0, 2**31), n=integers(2, 60), values=integers(1, 30))
def test_rankings_agree_with_scipy_and_scikit_learn_also_with_ties(
    seed: int, n: int, values: int
) -> None:
    score, positive = scored(seed, n, values)
    u = mannwhitneyu(
        score[positive], score[~positive], method="asymptotic", use_continuity=False
    ).statistic
    pairs = positive.sum().item() * (~positive).sum().item()
    assert auroc(score, positive).item() == pytest.approx(u / pairs, abs=1e-12)
    assert auroc(score, positive).item() == pytest.approx(roc_auc_score(positive, score), abs=1e-12)
    assert aupr(score, positive).item() == pytest.approx(
        average_precision_score(positive, score), abs=1e-12
    )
    false, true, _ = roc_curve(positive, score, drop_intermediate=False)
    for tpr in (0.5, 0.95):
        assert fpr_at_tpr(score, positive, tpr).item() == pytest.approx(
            false[true >= tpr].min(), abs=1e-12
        )


def test_rankings_by_hand() -> None:
    score = torch.tensor([4.0, 3.0, 3.0, 1.0])
    positive = torch.tensor([True, True, False, False])
    # pairs: 4 > 3, 4 > 1, 3 = 3, 3 > 1
    assert auroc(score, positive).item() == pytest.approx(3.5 / 4)
    # recall 1/2 at precision 1, then recall 1 at precision 2/3
    assert aupr(score, positive).item() == pytest.approx(1 / 2 + 1 / 3)
    assert fpr_at_tpr(score, positive).item() == pytest.approx(1 / 2)
    assert fpr_at_tpr(score, positive, tpr=0.5) == 0


def test_19_of_20_are_95_percent() -> None:
    score = torch.cat([torch.arange(20.0), torch.tensor([0.5])])
    positive = torch.tensor([True] * 20 + [False])
    # The threshold 1 keeps 19 of 20 and lies above the negative one.
    assert fpr_at_tpr(score, positive) == 0


def test_a_roc_curve_without_its_intermediate_points_overstates_the_false_positives() -> None:
    score = torch.tensor([3.0] * 18 + [2.0, 2.0, 1.0, 1.0])
    positive = torch.tensor([True] * 18 + [True, False] * 2)
    # (FPR, TPR) = (0, 0.9), (0.5, 0.95), (1, 1) lie on one line.
    # scikit-learn drops the point in the middle.
    assert fpr_at_tpr(score, positive) == 0.5
    false, true, _ = roc_curve(positive, score)
    assert false[true >= 0.95].min() == 1


def test_joining_precision_and_recall_by_lines_gives_more() -> None:
    score, positive = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([True, False, True])
    assert aupr(score, positive).item() == pytest.approx(1 / 2 + 1 / 3)  # precision 1 and 2/3
    precision, recall, _ = precision_recall_curve(positive, score)
    # from (1/2, 1/2) to (1, 2/3): the mean precision 7/12 over half of the recall
    assert auc(recall, precision) == pytest.approx(1 / 2 + 7 / 24)


def test_infinite_scores_have_a_rank() -> None:
    score = torch.tensor([-math.inf, 0.0, math.inf])
    assert auroc(score, torch.tensor([False, False, True])) == 1


def test_risk_and_coverage_by_hand() -> None:
    confidence = torch.tensor([0.6, 0.9, 0.8, 0.7])
    curve = risk_coverage(confidence, torch.tensor([False, True, False, True]))
    torch.testing.assert_close(curve.coverage, torch.tensor([0.25, 0.5, 0.75, 1.0]))
    torch.testing.assert_close(curve.risk, torch.tensor([0.0, 1 / 2, 1 / 3, 1 / 2]))
    assert aurc(confidence, torch.tensor([False, True, False, True])).item() == pytest.approx(
        (1 / 2 + 1 / 3 + 1 / 2) / 4
    )


def test_equal_confidences_are_taken_in_every_order() -> None:
    confidence = torch.tensor([0.9, 0.7, 0.7, 0.7, 0.5, 0.5], dtype=torch.float64)
    correct = torch.tensor([True, False, True, True, False, True])
    risks = []
    for order in itertools.permutations(range(6)):
        if list(confidence[list(order)]) == sorted(confidence, reverse=True):
            wrong = (~correct[list(order)]).double()
            risks.append(wrong.cumsum(0) / torch.arange(1, 7))
    torch.testing.assert_close(risk_coverage(confidence, correct).risk, torch.stack(risks).mean(0))
    torch.testing.assert_close(aurc(confidence, correct), torch.stack(risks).mean())


def test_the_area_is_that_of_the_steps_and_not_of_the_trapezoids() -> None:
    confidence, correct = torch.tensor([0.9, 0.8, 0.7]), torch.tensor([True, False, True])
    curve = risk_coverage(confidence, correct)
    assert aurc(confidence, correct).item() == pytest.approx((1 / 2 + 1 / 3) / 3)
    assert np.trapezoid(curve.risk, curve.coverage) == pytest.approx((1 / 4 + 5 / 12) / 3)


def test_a_perfect_ranking_has_the_area_of_the_docstring() -> None:
    correct = torch.arange(10_000) >= 2_000
    area = aurc(torch.linspace(0, 1, 10_000, dtype=torch.float64), correct).item()
    assert area == pytest.approx(0.2 + 0.8 * math.log(0.8), abs=1e-4)
    assert aurc(torch.full((10_000,), 0.5, dtype=torch.float64), correct).item() == pytest.approx(
        0.2
    )


@pytest.mark.parametrize("metric", [auroc, aupr, fpr_at_tpr])
@pytest.mark.parametrize(
    ("score", "positive", "message"),
    [
        ([0.5, math.nan], [1, 0], r"`score` must be numbers; found nan at position 1\."),
        ([0.5, 0.6], [1, 1], r"`positive` must hold both classes; all 2 are True\."),
        ([0.5, 0.6], [0, 0], r"`positive` must hold both classes; all 2 are False\."),
        (
            [0.5, 0.6],
            [0],
            r"`positive` must have shape \(2,\), one value for each input; got \(1,\)\.",
        ),
    ],
)
def test_bad_values_are_named(
    metric: Callable[[Tensor, Tensor], object],
    score: list[float],
    positive: list[int],
    message: str,
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        metric(torch.tensor(score), torch.tensor(positive))


def test_a_rate_in_percent_is_rejected() -> None:
    with pytest.raises(
        ValueError, match=r"^`tpr` must be between 0 and 1; got 95\. Write 95 % as 0\.95\.$"
    ):
        fpr_at_tpr(torch.tensor([1.0, 0.0]), torch.tensor([1, 0]), tpr=95)
