"""The drift of a score: by hand, against scipy, and the coverage of its interval."""

import math
from statistics import NormalDist

import pytest
import torch
from scipy.special import kolmogi
from scipy.stats import ks_2samp

from simplexcal.drift import half_width, measure_drift, n_for_half_width


def test_by_hand() -> None:
    found = measure_drift("x", torch.tensor([3.0, 0, 1, 2]), torch.tensor([2.0, 5, 3, 4, 4]), 0.9)
    assert found.distance == pytest.approx(0.6)
    assert (found.value, found.reference_share) == (3, 1)
    assert found.batch_share == pytest.approx(0.4)
    assert found.reference_mean == 1.5
    assert found.batch_mean == pytest.approx(3.6)
    half = math.sqrt(math.log(2 / 0.1) / 2 * (1 / 4 + 1 / 5))
    assert found.low == pytest.approx(max(0, 0.6 - half))
    assert found.high == 1
    assert found.reference_percentiles[::50] == (0, 2, 3)
    assert (len(found.batch_percentiles), found.batch_percentiles[-1]) == (101, 5)


@pytest.mark.parametrize("seed", range(3))
def test_the_distance_is_that_of_kolmogorov_and_smirnov(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    reference = (5 * torch.randn(301, generator=generator)).round()  # many ties
    batch = 2 + (5 * torch.randn(70, generator=generator)).round()
    found = measure_drift("x", reference, batch, 0.95)
    assert found.distance == pytest.approx(ks_2samp(reference, batch).statistic)
    back = measure_drift("x", batch, reference, 0.95)
    assert (back.distance, back.interval) == (found.distance, found.interval)
    same_order = measure_drift("x", reference**3, batch**3, 0.95)
    assert same_order.interval == found.interval
    shares = [float((x.double() <= found.value).double().mean()) for x in (reference, batch)]
    assert abs(shares[0] - shares[1]) == pytest.approx(found.distance)


def test_the_half_width_is_the_quantile_of_smirnovs_limit() -> None:
    for alpha in (0.05, 0.01):
        found = half_width(1000, 1000, 1 - alpha) / math.sqrt(2 / 1000)
        assert found == pytest.approx(kolmogi(alpha), rel=1e-4)
    n = n_for_half_width(0.05, 0.99)
    assert half_width(n, n, 0.99) <= 0.05 < half_width(n - 1, n - 1, 0.99)


@pytest.mark.parametrize("shift", [0.0, 0.5, 2.0])
def test_the_interval_holds_the_distance_of_the_distributions(shift: float) -> None:
    truth = 2 * NormalDist().cdf(shift / 2) - 1
    generator = torch.Generator().manual_seed(0)
    draws = 400
    n_missed = 0
    for _ in range(draws):
        reference = torch.randn(300, generator=generator)
        batch = shift + torch.randn(100, generator=generator)
        low, high = measure_drift("x", reference, batch, 0.9).interval
        n_missed += not low <= truth <= high
    assert n_missed / draws <= 0.1 + 5 * math.sqrt(0.1 * 0.9 / draws)
