import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers
from scipy.optimize import brentq
from scipy.stats import binomtest
from sklearn.calibration import calibration_curve
from torch import Tensor
from torchmetrics.functional.classification import (
    binary_calibration_error,
    multiclass_calibration_error,
)

from simplexcal.metrics import (
    Bins,
    accuracy_band,
    adaptive_ece,
    classwise_ece,
    ece,
    equal_mass_reliability,
    mce,
    reliability,
    rms_ce,
    smooth_ece,
)
from simplexcal.metrics.calibration_error import GRID, _squared_ce

METRICS = [ece, adaptive_ece, mce, rms_ce, smooth_ece]


def sampled_predictions(n: int, seed: int, overconfident: float = 0.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    confidence = (1.5 + 2 * torch.randn(n, generator=generator, dtype=torch.float64)).sigmoid()
    return confidence, torch.rand(n, generator=generator) < confidence - overconfident


def test_ece_by_hand() -> None:
    confidence = torch.tensor([0.95, 1.0, 0.65, 0.70])  # bins (0.9, 1.0] and (0.6, 0.7]
    correct = torch.tensor([True, False, True, True])
    # |1 - 1.95| = 0.95 and |2 - 1.35| = 0.65, over n = 4
    torch.testing.assert_close(ece(confidence, correct, n_bins=10), torch.tensor(0.4))


def test_confidence_of_exactly_zero_and_one_have_a_bin() -> None:
    confidence = torch.tensor([0.0, 1.0])
    torch.testing.assert_close(ece(confidence, torch.tensor([True, True])), torch.tensor(0.5))


@pytest.mark.parametrize("n_bins", [1, 10, 15])
def test_ece_agrees_with_torchmetrics_away_from_the_edges(n_bins: int) -> None:
    logits = 2 * torch.randn(2000, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(5, (2000,), generator=torch.Generator().manual_seed(1))
    confidence, label = logits.softmax(-1).max(-1)
    for norm, ours in (("l1", ece), ("max", mce)):
        theirs = multiclass_calibration_error(logits.softmax(-1), labels, 5, n_bins, norm)  # type: ignore[arg-type]
        torch.testing.assert_close(
            ours(confidence, label == labels, n_bins), theirs, rtol=0, atol=1e-6
        )


def test_the_default_is_that_of_torchmetrics() -> None:
    confidence, correct = sampled_predictions(500, 0)
    theirs = binary_calibration_error(confidence, correct.int())
    assert ece(confidence, correct).item() == pytest.approx(theirs.item(), abs=1e-6)
    assert ece(confidence, correct, 10) != ece(confidence, correct)


def test_torchmetrics_gives_a_confidence_of_one_a_bin_of_its_own() -> None:
    confidence, correct = torch.tensor([0.95, 1.0]), torch.tensor([1, 0])
    # one bin (0.9, 1.0]: |1 - 1.95| / 2
    # theirs are [0.9, 1.0) and {1.0}: (|1 - 0.95| + |0 - 1|) / 2
    assert ece(confidence, correct).item() == pytest.approx(0.475)
    assert binary_calibration_error(confidence, correct, 10).item() == pytest.approx(0.525)


def test_torchmetrics_closes_its_bins_on_the_left() -> None:
    confidence, correct = torch.tensor([0.5, 0.55]), torch.tensor([0, 1])
    # ours (0.4, 0.5] and (0.5, 0.6]: (0.5 + 0.45) / 2; theirs [0.5, 0.6): |1 - 1.05| / 2
    assert ece(confidence, correct).item() == pytest.approx(0.475)
    assert binary_calibration_error(confidence, correct, 10).item() == pytest.approx(0.025)


def test_bins_by_hand() -> None:
    bins = reliability(
        torch.tensor([0.1, 0.2, 0.3, 0.75, 1.0]), torch.tensor([1, 0, 1, 1, 1]), n_bins=4
    )
    torch.testing.assert_close(bins.edges, torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
    assert bins.count.tolist() == [2, 1, 1, 1]
    torch.testing.assert_close(bins.confidence, torch.tensor([0.15, 0.3, 0.75, 1.0]))
    torch.testing.assert_close(bins.accuracy, torch.tensor([0.5, 1.0, 1.0, 1.0]))
    empty = reliability(torch.tensor([0.9]), torch.tensor([1]), n_bins=2)
    assert math.isnan(empty.accuracy[0])
    assert math.isnan(empty.confidence[0])


@pytest.mark.parametrize(
    ("ours", "strategy"), [(reliability, "uniform"), (equal_mass_reliability, "quantile")]
)
def test_bins_agree_with_scikit_learn(
    ours: Callable[[Tensor, Tensor, int], Bins], strategy: str
) -> None:
    confidence, correct = sampled_predictions(1000, 0)
    confidence[0] = 1.0
    bins = ours(confidence, correct, 10)
    accuracy, mean = calibration_curve(
        correct.numpy(), confidence.numpy(), n_bins=10, strategy=strategy
    )
    np.testing.assert_allclose(bins.accuracy, accuracy, rtol=0, atol=1e-12)
    np.testing.assert_allclose(bins.confidence, mean, rtol=0, atol=1e-12)


def test_scikit_learn_interpolates_its_quantiles() -> None:
    confidence = torch.arange(1, 11) / 20
    correct = torch.tensor([1, 0] * 5)
    # ours end at the ⌈10 b / 4⌉-th: 3, 5, 8; theirs at 1 + 9 b / 4: 3.25, 5.5, 7.75
    assert equal_mass_reliability(confidence, correct, 4).count.tolist() == [3, 2, 3, 2]
    assert equal_mass_reliability(confidence, correct, 4).accuracy.tolist() == pytest.approx(
        [2 / 3, 0.5, 1 / 3, 0.5]
    )
    theirs, _ = calibration_curve(
        correct.numpy(), confidence.numpy(), n_bins=4, strategy="quantile"
    )
    assert theirs.tolist() == pytest.approx([2 / 3, 0.5, 0.5, 1 / 3])  # 3, 2, 2, 3


def test_the_band_is_the_score_interval_of_scipy() -> None:
    bins = reliability(
        torch.tensor([0.15] * 7 + [0.95] * 50), torch.tensor([1, 0, 0, 0, 0, 0, 0] + [1] * 50), 10
    )
    low, high = accuracy_band(bins, level=0.9)
    for b, hits, n in ((1, 1, 7), (9, 50, 50)):
        exact = binomtest(hits, n).proportion_ci(0.9, "wilson")
        assert (low[b].item(), high[b].item()) == pytest.approx((exact.low, exact.high), abs=1e-6)
    assert low.isnan().tolist() == high.isnan().tolist() == [b not in (1, 9) for b in range(10)]


def test_the_level_of_the_band_is_checked() -> None:
    with pytest.raises(ValueError, match=r"^`level` must be between 0 and 1; got 1\."):
        accuracy_band(Bins(*torch.zeros(4, 1)), level=1)


def test_adaptive_ece_by_hand() -> None:
    confidence = torch.tensor([0.9, 0.5, 0.8, 0.6])  # bins {0.5, 0.6} and {0.8, 0.9}
    correct = torch.tensor([True, True, False, False])
    # |1 - 1.1| = 0.1 and |1 - 1.7| = 0.7, over n = 4
    torch.testing.assert_close(adaptive_ece(confidence, correct, n_bins=2), torch.tensor(0.2))


def test_equal_confidences_share_a_bin() -> None:
    confidence, correct = torch.tensor([0.5, 1.0, 1.0, 1.0]), torch.tensor([1, 0, 1, 1])
    bins = equal_mass_reliability(confidence, correct, n_bins=4)
    assert bins.count.tolist() == [1, 3, 0, 0]
    assert bins.edges.tolist() == [0.5, 0.5, 1.0, 1.0, 1.0]
    torch.testing.assert_close(adaptive_ece(confidence, correct, 4), torch.tensor((0.5 + 1) / 4))


@pytest.mark.parametrize(("k", "n_bins"), [(2, 10), (5, 15), (30, 10), (5, 1)])
def test_classwise_ece_is_the_mean_of_the_classes(k: int, n_bins: int) -> None:
    generator = torch.Generator().manual_seed(0)
    probs = (2 * torch.randn(400, k, generator=generator, dtype=torch.float64)).softmax(-1)
    labels = torch.multinomial(probs, 1, generator=generator).squeeze(-1)
    labels = labels.clamp_max(k - 2)  # one class has no label, and is not left out
    columns = [(probs[:, c].float(), (labels == c).long()) for c in range(k)]
    theirs = torch.stack([binary_calibration_error(p, y, n_bins) for p, y in columns]).mean()
    assert classwise_ece(probs, labels, n_bins).item() == pytest.approx(theirs.item(), abs=1e-6)


@given(seed=integers(0, 2**31), n=integers(1, 30), k=integers(2, 6), n_bins=integers(1, 12))
def test_bins_of_a_class_are_those_of_ece_also_at_the_edges(
    seed: int, n: int, k: int, n_bins: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(3, (n, k), generator=generator) * torch.tensor([1] + [0] * (k - 2) + [1])
    probs = (counts + torch.tensor([1] + [0] * (k - 1))).double()
    probs /= probs.sum(-1, keepdim=True)  # many zeros, ones, ties and values of 1/2
    labels = torch.randint(k, (n,), generator=generator)
    columns = [ece(probs[:, c], labels == c, n_bins) for c in range(k)]
    torch.testing.assert_close(
        classwise_ece(probs, labels, n_bins), torch.stack(columns).mean(), rtol=0, atol=1e-12
    )


def test_mce_by_hand() -> None:
    confidence = torch.tensor([0.95, 0.95, 0.65])
    assert mce(confidence, torch.tensor([1, 0, 1])).item() == pytest.approx(0.45)


def test_rms_ce_is_that_of_kumar_where_a_bin_has_one_confidence() -> None:
    confidence = torch.tensor([0.95] * 10 + [0.55] * 5)
    correct = torch.tensor([1] * 6 + [0] * 4 + [1] * 1 + [0] * 4)
    # Σ_b n_b / n · ((acc - conf)² - acc (1 - acc) / (n_b - 1))
    square = 10 / 15 * (0.35**2 - 0.24 / 9) + 5 / 15 * (0.35**2 - 0.16 / 4)
    assert rms_ce(confidence, correct).item() == pytest.approx(math.sqrt(square))


def test_rms_ce_is_never_below_zero_and_a_lone_prediction_counts_as_zero() -> None:
    assert rms_ce(torch.tensor([0.55, 0.55]), torch.tensor([1, 0])) == 0  # 0.45 · -0.55 < 0
    assert rms_ce(torch.tensor([0.95, 0.55]), torch.tensor([0, 0])) == 0


@pytest.mark.parametrize("overconfident", [0.0, 0.1])
def test_the_squared_error_has_no_bias_and_the_plain_one_has(overconfident: float) -> None:
    generator = torch.Generator().manual_seed(0)
    confidence = 0.3 + 0.7 * torch.rand(100, generator=generator, dtype=torch.float64)
    chance = confidence - overconfident
    correct = torch.rand(4000, 100, generator=generator) < chance
    drawn = torch.stack([_squared_ce(confidence, row, 10) for row in correct])
    assert drawn.mean().item() == pytest.approx(
        overconfident**2, abs=5 * drawn.std().item() / math.sqrt(4000)
    )
    plain = torch.stack([ece(confidence, row) for row in correct[:500]])
    assert plain.mean() > overconfident + 5 * plain.std() / math.sqrt(500)


def smooth_by_definition(confidence: Tensor, correct: Tensor) -> float:
    """Solve ∫|r_σ| = σ with the kernel written out.

    Every point has images at 2k ± confidence; the kernel is a sum over the points.
    """
    f, residual = confidence.numpy(), (correct.double() - confidence).numpy() / len(confidence)
    t = (np.arange(4000) + 0.5) / 4000

    def distance(sigma: float) -> float:
        images = [2 * k + sign * f for k in range(-3, 4) for sign in (-1, 1)]
        kernel = (
            sum(np.exp(-(((t[:, None] - x) / sigma) ** 2) / 2) for x in images)
            / math.sqrt(2 * math.pi)
            / sigma
        )
        return float(np.abs(kernel @ residual).mean()) - sigma

    return float(brentq(distance, 1e-3, 1.0, xtol=1e-9))


@pytest.mark.parametrize(
    ("n", "seed", "overconfident"), [(30, 0, 0.0), (200, 1, 0.0), (200, 2, 0.15), (300, 3, 0.02)]
)
def test_smooth_ece_is_its_definition(n: int, seed: int, overconfident: float) -> None:
    confidence, correct = sampled_predictions(n, seed, overconfident)
    assert smooth_ece(confidence, correct).item() == pytest.approx(
        smooth_by_definition(confidence, correct), abs=1e-5
    )


@given(seed=integers(0, 2**31), n=integers(1, 20))
def test_smooth_ece_of_one_confidence_is_the_difference(seed: int, n: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    confidence = torch.rand(1, generator=generator, dtype=torch.float64).expand(n)
    correct = torch.rand(n, generator=generator) < 0.5
    # Nothing cancels: ∫|r_σ| = |accuracy - confidence| for all σ.
    expected = (correct.double() - confidence).mean().abs()
    # A kernel narrower than two cells is only nearly resolved.
    atol = 1e-9 if expected > 2 / GRID else 2e-6
    torch.testing.assert_close(smooth_ece(confidence, correct), expected, rtol=0, atol=atol)


def test_smooth_ece_is_continuous_where_the_ece_jumps() -> None:
    correct = torch.tensor([1, 0])
    left, right = (torch.tensor([0.5, 0.5 + step], dtype=torch.float64) for step in (0.0, 1e-6))
    assert ece(left, correct, 10) == 0
    assert ece(right, correct, 10).item() == pytest.approx(0.5, abs=1e-6)
    assert smooth_ece(left, correct) == 0
    assert smooth_ece(right, correct) < 1e-3  # two opposite points 1e-6 apart


def test_smooth_ece_of_calibrated_predictions_vanishes_as_they_grow_in_number() -> None:
    errors = [smooth_ece(*sampled_predictions(n, 0)).item() for n in (100, 10_000, 1_000_000)]
    # The noise is of order (n σ)^(-1/2) = σ, so it falls by 100^(1/3) = 4.6 each time.
    assert errors[0] > 3 * errors[1] > 9 * errors[2]


@given(seed=integers(0, 2**31), n=integers(1, 50), n_bins=integers(1, 20))
def test_every_error_lies_in_0_1_and_does_not_see_the_order_of_the_rows(
    seed: int, n: int, n_bins: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    confidence = torch.randint(21, (n,), generator=generator).double() / 20  # ties, edges, 0 and 1
    correct = torch.rand(n, generator=generator) < 0.6
    order = torch.randperm(n, generator=generator)
    for metric in METRICS:
        bins = {} if metric is smooth_ece else {"n_bins": n_bins}
        error = metric(confidence, correct, **bins)
        assert 0 <= error <= 1
        torch.testing.assert_close(
            metric(confidence[order], correct[order], **bins), error, rtol=0, atol=1e-7
        )


def test_half_precision_gives_float32_and_other_dtypes_stay() -> None:
    confidence, correct = sampled_predictions(50, 0)
    for dtype, result in (
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64,) * 2,
    ):
        assert {metric(confidence.to(dtype), correct).dtype for metric in METRICS} == {result}


def test_a_confidence_that_exceeds_one_by_rounding_is_one() -> None:
    assert ece(torch.tensor([1 + 1e-7]), torch.tensor([True])) == 0


@pytest.mark.parametrize("metric", [*METRICS, reliability, equal_mass_reliability])
@pytest.mark.parametrize(
    ("confidence", "correct", "message"),
    [
        (
            torch.tensor([0.5, 1.2]),
            [1, 0],
            r"`confidence` must be between 0 and 1; found 1.2 at position 1\.",
        ),
        (
            torch.tensor([math.nan]),
            [1],
            r"`confidence` must be between 0 and 1; found nan at position 0\.",
        ),
        (
            torch.tensor([[0.5]]),
            [1],
            r"`confidence` must have shape \(N,\), one number for each input; got \(1, 1\)\.",
        ),
        (torch.tensor([]), [], r"`confidence` is empty; a metric needs at least one input\."),
        (
            torch.tensor([0.5]),
            [1, 0],
            r"`correct` must have shape \(1,\), one value for each input; got \(2,\)\.",
        ),
        (
            torch.tensor([0.5]),
            [3],
            r"`correct` must be True or False, or 1 or 0; found 3 at position 0\.",
        ),
    ],
)
def test_bad_values_are_named(
    metric: Callable[[Tensor, Tensor], object], confidence: Tensor, correct: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        metric(confidence, torch.tensor(correct))


def test_bad_types_and_bins_are_named() -> None:
    with pytest.raises(TypeError, match=r"^`confidence` must be floating-point; got torch.int64\."):
        ece(torch.tensor([1]), torch.tensor([1]))
    with pytest.raises(TypeError, match=r"^`correct` must be .* of numbers; got list\."):
        ece(torch.tensor([0.5]), ["yes"])
    with pytest.raises(ValueError, match=r"^`n_bins` must be at least 1; got 0\.$"):
        ece(torch.tensor([0.5]), torch.tensor([True]), n_bins=0)
