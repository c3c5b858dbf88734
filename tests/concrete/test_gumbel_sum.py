import numpy as np
import pytest
from scipy.special import gamma, kv

from simplexcal.concrete import _chebyshev, _gumbel_sum


def test_the_shipped_table_is_what_the_code_generates() -> None:
    rows = [0, 7, 23, 40, _gumbel_sum.N_RATIOS - 1]
    anew = np.stack(
        [_gumbel_sum.excess(_gumbel_sum.ratios()[m], _gumbel_sum.abscissae()) for m in rows]
    )
    np.testing.assert_allclose(_gumbel_sum.load()[rows], anew, rtol=0, atol=1e-13)


def test_the_shipped_table_is_small() -> None:
    assert _gumbel_sum.TABLE.stat().st_size < 300_000


def test_the_table_covers_its_declared_lattice() -> None:
    assert _gumbel_sum.load().shape == (_gumbel_sum.N_RATIOS, len(_gumbel_sum.abscissae()))
    assert _gumbel_sum.abscissae()[[0, -1]].tolist() == [_gumbel_sum.FIRST, _gumbel_sum.LAST]


def test_without_a_second_gumbel_the_law_is_gumbel() -> None:
    np.testing.assert_allclose(_gumbel_sum.excess(0.0, np.linspace(-5, 60, 14)), 0.0, atol=1e-14)


def test_two_equal_gumbels_follow_the_bessel_law() -> None:
    # G + G′ has F(x) = r K_1(r) with r = 2 e^(-x/2); here it is shifted by γ
    x = np.linspace(-5, 30, 36)
    r = 2 * np.exp(-(x + np.euler_gamma) / 2)
    hazard = -np.log(r * kv(1, r))
    with np.errstate(divide="ignore"):
        expected = -np.log(hazard) - x
    exact = x < 10  # right of it, 1 - r K_1(r) cancels in the reference
    np.testing.assert_allclose(_gumbel_sum.excess(1.0, x)[exact], expected[exact], atol=1e-11)


@pytest.mark.parametrize("ratio", [0.3, 0.75])
def test_the_right_tail_is_the_known_power_law(ratio: float) -> None:
    # 1 - F(x) ~ Γ(1-ρ) u + Γ(1-1/ρ) u^(1/ρ) - Γ(1-2ρ) u²/2 for u = e^(-x - ργ)
    x = np.array([12.0, 16.0, 20.0])
    u = np.exp(-x - ratio * np.euler_gamma)
    survival = (
        gamma(1 - ratio) * u
        + gamma(1 - 1 / ratio) * u ** (1 / ratio)
        - gamma(1 - 2 * ratio) * u**2 / 2
    )
    np.testing.assert_allclose(
        _gumbel_sum.excess(ratio, x), -np.log(-np.log1p(-survival)) - x, atol=1e-8
    )


@pytest.mark.parametrize("ratio", [1e-3, 0.2, 0.61, 1.0])
def test_the_chebyshev_series_gives_the_law_between_the_tabulated_ratios(ratio: float) -> None:
    x = _gumbel_sum.abscissae()
    series = np.polynomial.chebyshev.chebval(
        2 * ratio / _gumbel_sum.LAST_RATIO - 1, _chebyshev.series_in_ratio(_gumbel_sum.load())
    )
    exact = _gumbel_sum.excess(ratio, x)
    hazard = np.exp(-x - exact)
    weight = hazard * np.exp(-np.maximum(hazard, 1))  # how much y_ρ(x) counts in the integral
    assert np.max(weight * np.abs(np.asarray(series) - exact)) < 2e-13
