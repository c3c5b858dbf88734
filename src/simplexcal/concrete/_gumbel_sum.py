"""The distribution of the Gumbel sum ε = G + ρ(G′ - γ), G, G′ independent standard Gumbel, 0 ≤ ρ.

Only this distribution enters the moments of the Concrete distribution (docs/theory.md). It has no
closed form, but its log-log distribution function y_ρ(x) = -ln(-ln F_ρ(x)) is smooth and close to
x. So it is tabulated once, as y_ρ(x) - x, and shipped. ``python -m
simplexcal.concrete._gumbel_sum`` writes the table again.
"""

from functools import cache
from pathlib import Path

import numpy as np
from numpy.polynomial.chebyshev import chebpts1
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

Array = NDArray[np.float64]

TABLE = Path(__file__).with_name("_gumbel_sum.safetensors")
# The quadrature's nodes and the grid of classes lie on the lattice of the abscissae.
SPACING = 0.125
# The widest quadrature asks for these abscissae.
FIRST = -9.25
LAST = 77.75
# Between so many Chebyshev points in ρ the distribution is reproduced to 1e-13 where it has weight.
N_RATIOS = 48
# Somewhat beyond 1, so that a derivative at ρ = 1 is not taken at the end of the interval.
LAST_RATIO = 1.1


def ratios() -> Array:
    """Return the tabulated values of ρ: the Chebyshev points of [0, LAST_RATIO]."""
    return np.asarray((chebpts1(N_RATIOS) + 1) * (LAST_RATIO / 2), np.float64)


def abscissae() -> Array:
    """Return the tabulated values of x."""
    return np.arange(FIRST, LAST + SPACING, SPACING, dtype=np.float64)


def excess(ratio: float, x: Array) -> Array:
    """Return y_ρ(x) - x, to about 1e-15.

    F_ρ(x) = ∫ exp(-e^-(x - ρ(t-γ))) e^(-t - e^-t) dt, by the trapezoid rule: the integrand is
    analytic and decays at least like e^-t, so the rule converges spectrally. Left of the median
    -ln F is the logarithm of that sum; right of it, of one minus the sum of the complements. So
    neither side cancels.

    Args:
        ratio: ρ.
        x: Where to evaluate it.
    """
    step = 0.05
    t = np.arange(-7.0, x.max() + 50, step)
    log_weight = -t - np.exp(-t) + np.log(step)
    rate = np.exp(ratio * (t - np.euler_gamma) - x[:, None])
    log_cdf = np.logaddexp.reduce(log_weight - rate, axis=1)
    survival = -np.expm1(-rate) @ np.exp(log_weight)
    right = -np.log1p(-np.minimum(survival, 0.5))
    hazard = np.where(survival < 0.5, right, -log_cdf)
    return np.asarray(-np.log(hazard) - x, np.float64)


def build() -> Array:
    """Compute the whole table anew, in a few seconds; row m is for ρ = ``ratios()[m]``."""
    return np.stack([excess(ratio, abscissae()) for ratio in ratios()])


@cache
def load() -> Array:
    """Read the shipped table."""
    table: Array = load_file(TABLE)["excess"]
    return table


if __name__ == "__main__":
    save_file({"excess": build()}, TABLE)
