"""Isotonic regression: the pools are scikit-learn's, and no prediction changes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from
from sklearn.isotonic import IsotonicRegression
from torch import Generator, Tensor

from simplexcal import IsotonicCalibration, TemperatureScaling
from simplexcal.calibrators.isotonic import MIN_GAP, Pool, fit_pools, interpolate, join_pools


def simulate(n: int, k: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return logits, and labels that follow the softmax of an uneven function of them."""
    g = Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, k, generator=g, dtype=torch.float64)
    truth = logits.clamp_max(2) + 0.2 * logits.clamp_min(2)
    return logits, truth.softmax(-1).multinomial(1, generator=g).squeeze(1)


@settings(max_examples=30)
@given(seed=integers(0, 2**31), n=integers(1, 60))
def test_the_pools_are_scikit_learns(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 20, n) / 4  # with ties
    y = rng.integers(0, 2, n).astype(float)
    weights = rng.random(n) + 0.1
    pools = fit_pools(*map(torch.tensor, (x, y, weights)))
    theirs = IsotonicRegression().fit(
        np.r_[x.min(), x, x.max()], np.r_[1, y, 0], np.r_[0.5, weights, 0.5]
    )
    expected = np.unique(theirs.predict(x).round(12))
    found = [pool.share for pool in pools]
    np.testing.assert_allclose(np.unique(np.round(found, 12)), expected, atol=1e-11)
    assert found == sorted(found)
    assert 0 < found[0] <= found[-1] < 1
    assert sum(pool.weight for pool in pools) == pytest.approx(weights.sum() + 1)
    assert sum(pool.correct for pool in pools) == pytest.approx((weights * y).sum() + 0.5)


def test_pools_that_are_close_or_too_many_are_joined() -> None:
    means = [0.0, 0.5 * MIN_GAP, 1.0, 2.0, 3.0]
    pools = [Pool(2 * x, i + 0.5, 2.0) for i, x in enumerate(means)]
    joined = join_pools(pools, 10)
    assert joined == [Pool(MIN_GAP, 2.0, 4.0), *pools[2:]]
    assert join_pools(pools, 2) == [
        Pool(MIN_GAP + 2, 4.5, 6.0),
        Pool(10.0, 8.0, 4.0),
    ]
    assert len(join_pools(pools, 1)) == 1


@given(seed=integers(0, 2**31), n=integers(1, 40))
def test_between_the_knots_it_is_numpys_interpolation(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    knots = np.sort(rng.random(n))
    values = np.sort(rng.random(n))
    x = np.r_[rng.uniform(-1, 2, 50), knots]
    filled = [np.r_[a, np.full(5, a[-1])] for a in (knots, values)]
    found = interpolate(torch.tensor(x), *map(torch.tensor, filled))
    np.testing.assert_allclose(found, np.interp(x, knots, values), atol=1e-12)


@settings(max_examples=30)
@given(seed=integers(0, 2**31), k=sampled_from([2, 3, 10]), n=integers(5, 200))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_prediction_changes_and_the_other_classes_keep_their_ratios(
    seed: int, k: int, n: int
) -> None:
    logits, labels = simulate(n, k, seed)
    logits = logits.float().round(decimals=1)  # with ties
    labels[0] = (labels[1] + 1) % k  # two classes at least
    calibrator = IsotonicCalibration().fit(logits, labels)
    new = 5 * torch.randn(300, k, generator=Generator().manual_seed(seed))
    prediction = calibrator(new)
    assert torch.equal(prediction.label, new.argmax(-1))
    assert torch.equal(prediction.probs.argmax(-1), new.argmax(-1))
    scaled = (new / calibrator.log_temperature.exp()).softmax(-1)
    is_other = torch.nn.functional.one_hot(new.argmax(-1), k) == 0
    found = prediction.probs[is_other].view(300, k - 1)
    expected = scaled[is_other].view(300, k - 1)
    torch.testing.assert_close(
        found / found.sum(-1, keepdim=True), expected / expected.sum(-1, keepdim=True)
    )


def test_the_confidence_is_the_share_of_the_pool_where_no_other_class_is_above_it() -> None:
    # Half of 200 inputs have log-odds 0.5 and 60 % are right, the others 3 and 80 %.
    odds = torch.tensor([0.5, 3.0]).repeat_interleave(100)
    logits = torch.stack([odds, torch.zeros(200)], 1).double()
    labels = (torch.arange(200) % 100 >= torch.tensor([60, 80]).repeat_interleave(100)).long()
    calibrator = IsotonicCalibration().fit(logits, labels)
    confidence = calibrator(logits).confidence
    assert confidence[0].item() == pytest.approx(60.5 / 100.5, abs=1e-6)
    assert confidence[-1].item() == pytest.approx(80 / 100.5, abs=1e-6)


def test_a_confidence_is_not_lowered_below_that_of_another_class() -> None:
    # Half of 200 inputs have log-odds 0.5 and 30 % are right, the others 3 and 80 %.
    odds = torch.tensor([0.5, 3.0]).repeat_interleave(100)
    logits = torch.stack([odds, torch.zeros(200)], 1).double()
    labels = (torch.arange(200) % 100 >= torch.tensor([30, 80]).repeat_interleave(100)).long()
    prediction = IsotonicCalibration().fit(logits, labels)(logits)
    assert prediction.confidence[0].item() == pytest.approx(0.5)
    assert prediction.confidence[-1].item() == pytest.approx(80 / 100.5, abs=1e-6)
    assert (prediction.label == 0).all()


def test_it_is_better_than_temperature_scaling_where_the_truth_is_uneven() -> None:
    logits, labels = simulate(10_000, 5)
    losses = []
    for make in (TemperatureScaling, IsotonicCalibration):
        probs = make().fit(logits[:2000], labels[:2000])(logits[2000:]).probs
        losses.append(-probs.gather(1, labels[2000:, None]).log())
    gain = losses[0] - losses[1]
    assert gain.mean() > 5 * gain.std() / 8000**0.5


def test_a_number_of_pools_must_be_positive() -> None:
    with pytest.raises(ValueError, match="`max_pools` must be at least 1; got 0"):
        IsotonicCalibration(max_pools=0)
