"""The iteration of the inversion on a CPU, without derivatives, with the samples as the last axis.

It is that of ``_inversion``, by the integrals of ``_turned``. It starts closer to the solution, so
that it ends sooner.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from simplexcal.concrete import _turned
from simplexcal.concrete._kernel import Kernel

# After so many iterations the error of the mean is that of rounding, for every K and λ.
N_STEPS = {torch.float32: 2, torch.float64: 5}
# ln of both constants of ``start`` is Σ_ij c_ij T_i(2ρ - 1) T_j(2 / (1 - ln p_max) - 1).
LOG_CONSTANTS = (
    ((-1.150, 2.014, -0.621), (0.091, -0.396, 0.074), (0.070, 0.162, -0.074)),
    ((0.242, -0.320, 0.105), (-0.038, -0.561, 0.290), (-0.150, 0.286, -0.094)),
)


class Means(NamedTuple):
    """What is asked for, at the classes or at points for which several classes stand.

    Args:
        log_mean: ln p, less that of the largest class, (J, N).
        log_largest: ln p of the largest class, (N,).
        multiplicity: How many classes a point stands for, (J, N); None: one.
    """

    log_mean: Tensor
    log_largest: Tensor
    multiplicity: Tensor | None


class Solution(NamedTuple):
    """Locations with the means, and the potential there.

    Args:
        a: Shifted logits, (J, N).
        value: m, (N,).
        slope: ∂m/∂ρ, (N,).
    """

    a: Tensor
    value: Tensor
    slope: Tensor


def solve(kernel: Kernel, means: Means, ratio: Tensor) -> Solution:
    """Return the locations with these means.

    Args:
        kernel: The kernel.
        means: What is asked for.
        ratio: ρ, (N,).
    """
    series = _turned.ratio_series(kernel, ratio)
    matrices = _turned.at_ratio(kernel, kernel.ratio_functions, series)
    a = start(means, ratio)
    for _ in range(N_STEPS[a.dtype]):
        a = _step(kernel, matrices, means, a)
    near = a.clamp_min(_turned.LOWEST)
    polynomials = _turned.weighted_polynomials(near, kernel, len(kernel.collect))
    integrals = _integrate(kernel, matrices, means, polynomials)
    value = _turned.potential_value(kernel, integrals)
    slope = _turned.potential_slope(kernel, series, integrals)
    return Solution(a, value.to(a), slope.to(a))


def start(means: Means, ratio: Tensor) -> Tensor:
    """Return a first approximation of a, off by 0.002 as a rule and by 0.15 at most.

    It has the limits of ``_inversion._start``. Its two constants, fitted to exact locations, depend
    on ρ and on the largest probability: where no class dominates, all are in the tail of the
    maximum, and a = ln p nearly.

    Args:
        means: What is asked for.
        ratio: ρ, (N,).
    """
    log_mean = means.log_mean
    of_ratio = _first_polynomials(2 * ratio - 1)
    of_largest = _first_polynomials(2 / (1 - means.log_largest) - 1)
    products = (of_ratio.unsqueeze(1) * of_largest).flatten(0, 1)
    constants = log_mean.new_tensor(LOG_CONSTANTS).flatten(1)
    height, rate = torch.stack([(products * c.unsqueeze(1)).sum(0) for c in constants]).exp_()
    slowness = (1 - ratio).clamp_min(1e-3)
    depth = -(log_mean * (rate * slowness)).expm1_() / slowness
    return log_mean - torch.log1p(height * ratio * ratio * depth)


def _first_polynomials(x: Tensor) -> Tensor:
    """Return T_0, T_1, T_2 (3, N)."""
    return torch.stack([torch.ones_like(x), x, 2 * x * x - 1])


def _step(kernel: Kernel, matrices: Tensor, means: Means, a: Tensor) -> Tensor:
    """Return the locations after one step of Newton's method for every class, for a fixed Φ."""
    near = a.clamp_min(_turned.LOWEST)
    polynomials = _turned.weighted_polynomials(near, kernel, kernel.share.shape[1])
    integrals = _integrate(kernel, matrices, means, polynomials)
    adjoint = _turned.adjoint(matrices, integrals.projected)
    mean = _turned.weighted_sum((kernel.newton_share.T @ adjoint).to(a), polynomials)
    # A step needs only some digits of the slope, which half of the polynomials give.
    slope = _turned.weighted_sum((kernel.newton_curve.T @ adjoint).to(a), polynomials)
    target = means.log_mean + (means.log_largest - math.log(kernel.spacing))
    residual = target - mean.log() - (a - near)
    a = a.addcmul(residual, mean.div_(slope))
    return a - a.amax(0)


def _integrate(
    kernel: Kernel, matrices: Tensor, means: Means, polynomials: Tensor
) -> _turned.TurnedIntegrals:
    needed = polynomials[: len(kernel.collect)]
    if means.multiplicity is not None:
        needed = needed * means.multiplicity
    return _turned.integrate(kernel, matrices, needed.sum(1))
