"""The location of the Concrete distribution that has a given mean.

For every λ the mean map is one-to-one (docs/theory.md). Given the distribution Φ of the maximum
(``_potential``), the mean of a class is a function f of its own location alone, the same for all
classes. So one iteration takes one Newton step towards ln f(a_k) = ln p_k for every class, and
computes Φ anew. Φ depends little on the locations once their maximum is fixed: the error falls by a
factor of about 100 in each iteration. No system of equations is solved.

ρ stays fixed meanwhile, so the kernel at ρ is computed once. With many classes, the iteration runs
on a few points instead: the location is a smooth function of ln p, and a weighted sum over the
points is the sum over the classes.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.polynomial.chebyshev import chebpts2, chebvander
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from simplexcal.concrete import _fused, _potential, _turned, _turned_inversion
from simplexcal.concrete._chebyshev import (
    BEND,
    FADING,
    TOP,
    Classes,
    Resolution,
    as_tensors,
    log_weight,
    matrix_dtype,
    signs,
    sum_over_classes,
    value_at_classes,
)
from simplexcal.concrete._kernel import Kernel, kernel_for, without_autocast
from simplexcal.concrete._potential import Integrals, Moments, Potential
from simplexcal.concrete._turned_inversion import Means

# After so many iterations the error of the mean is that of rounding, for every K and λ.
N_STEPS = {torch.float32: 3, torch.float64: 6}
# A class with probability 0 is so far below the largest, in units of max(1, λ).
MASKED = -1e4


class Points(NamedTuple):
    """Where the iteration runs: at the classes, or at points between which a is smooth in ln p.

    Args:
        log_mean: ln p, less that of the largest class, (N, J).
        multiplicity: How many classes a point stands for, (N, J) or (N, 1).
    """

    log_mean: Tensor
    multiplicity: Tensor


class Mean(NamedTuple):
    """The mean f(a) of a class at each point, (N, J).

    Args:
        log_mean: ln f(a).
        log_slope: d ln f / da for fixed Φ.
    """

    log_mean: Tensor
    log_slope: Tensor


class Inverse(NamedTuple):
    """Locations with a given mean, and the potential there.

    Args:
        a: Shifted logits, (N, K).
        value: m, (N,).
        slope: ∂m/∂ρ, (N,).
    """

    a: Tensor
    value: Tensor
    slope: Tensor


def location(log_mean: Tensor, temperature: Tensor) -> Tensor:
    """Return the logits (N, K), the largest 0, with this mean; differentiable in both arguments.

    Args:
        log_mean: ln p with Σ_k p_k = 1, (N, K).
        temperature: λ, (N,).
    """
    a = invert(log_mean.detach(), temperature.detach()).a
    if torch.is_grad_enabled() and (log_mean.requires_grad or temperature.requires_grad):
        a = _attach(a, log_mean, temperature)
    return a * _potential.scale(temperature).unsqueeze(-1)


def moments(probs: Tensor, log_mean: Tensor, temperature: Tensor) -> Moments:
    """Return the moments of the distribution with this mean.

    Args:
        probs: The mean p, (N, K).
        log_mean: ln p, (N, K).
        temperature: λ, (N,).
    """
    a, value, slope = invert(log_mean, temperature)
    return _potential.moments_at(a, Potential(value, probs, slope), temperature)


def invert(log_mean: Tensor, temperature: Tensor) -> Inverse:
    """Return the shifted logits with this mean, and the potential there; without derivatives.

    Args:
        log_mean: ln p with Σ_k p_k = 1, (N, K).
        temperature: λ, (N,).
    """
    if _fused.applies_with_slope(log_mean, temperature):
        return _invert_fused(log_mean, temperature)
    return invert_in_torch(log_mean, temperature)


@torch.no_grad()
def _invert_fused(log_mean: Tensor, temperature: Tensor) -> Inverse:
    a, value, slope = _fused.operators().invert(log_mean, temperature)
    return Inverse(a, value, slope)


@torch.no_grad()
@without_autocast
def invert_in_torch(log_mean: Tensor, temperature: Tensor) -> Inverse:
    """Return the shifted logits and the potential by operators of torch.

    Args:
        log_mean: ln p with Σ_k p_k = 1, (N, K).
        temperature: λ, (N,).
    """
    kernel = kernel_for(log_mean)
    largest = log_mean.amax(-1, keepdim=True)
    below = (log_mean - largest).clamp_min(MASKED)
    points = _points(below, kernel.resolution)
    if _turned.applies(log_mean, temperature):
        ratio = _potential.ratio(temperature)
        solution = _turned_inversion.solve(kernel, _turn(points, largest), ratio)
        a = _at_classes(solution.a.T - points.log_mean, below, kernel.resolution)
        return Inverse(a, solution.value, solution.slope)
    series = _potential.ratio_series(kernel, temperature)
    matrices = _potential.at_ratio(kernel, series @ kernel.ratio_functions)
    a = _start(points.log_mean, temperature)
    for _ in range(N_STEPS[log_mean.dtype]):
        polynomials = Polynomials(kernel, a)
        integrals = _integrate(kernel, matrices, points.multiplicity, polynomials)
        found = _mean(kernel, matrices, integrals, polynomials)
        residual = points.log_mean + largest - found.log_mean
        a = a + residual / found.log_slope
        a = a - a.amax(-1, keepdim=True)
    last = _integrate(kernel, matrices, points.multiplicity, Polynomials(kernel, a))
    value = _potential.potential_value(kernel, last)
    slope = _potential.potential_slope(kernel, series, last)
    a = _at_classes(a - points.log_mean, below, kernel.resolution)
    return Inverse(a, value.to(a), slope.to(a))


def _turn(points: Points, log_largest: Tensor) -> Means:
    """Return the means at the points with the samples as the last axis."""
    log_mean = points.log_mean.T.contiguous()
    multiplicity = None
    if points.multiplicity.shape == points.log_mean.shape:
        multiplicity = points.multiplicity.T.contiguous()
    return Means(log_mean, log_largest.squeeze(-1), multiplicity)


def _start(log_mean: Tensor, temperature: Tensor) -> Tensor:
    """Return a first approximation of a, off by about 0.1.

    It has the limits: a = ln p for ρ = 0, a constant below it for deep classes, and a logarithm for
    ρ = 1. Two constants are fitted to exact locations.
    """
    ratio = _potential.ratio(temperature).unsqueeze(-1)
    slowness = (1 - ratio).clamp_min(1e-3)
    depth = -torch.expm1(0.72 * slowness * log_mean) / slowness
    return log_mean - torch.log1p(1.04 * ratio * ratio * depth)


class Polynomials:
    """The polynomials of the kernel at some locations: their sums and their values.

    A graph that is compiled or exported has few large operations: one array of all polynomials, in
    float64. Otherwise a loop over the polynomials is faster.

    Args:
        kernel: The kernel.
        a: Shifted logits, (N, J).
    """

    def __init__(self, kernel: Kernel, a: Tensor) -> None:
        self.a = a
        self.resolution = kernel.resolution
        self.log_weight = log_weight(a, kernel.resolution, kernel.fading)
        near = a.clamp_min(-kernel.resolution.depth)
        self.classes = Classes(a, self.log_weight.exp(), kernel.resolution.variable(near))
        self.matrix: Tensor | None = None
        if torch.compiler.is_compiling():
            self.matrix = _interpolate(kernel, self.classes.u.to(kernel.curve))

    def sums(self, factor: Tensor, n: int) -> Tensor:
        """Return Σ_j f_j w_j s_p(u_j) for p < n, (N, n).

        Args:
            factor: f, (N, J) or (N, 1).
            n: Number of polynomials.
        """
        if self.matrix is None:
            return sum_over_classes(factor, *self.classes, self.resolution, n)
        weight = (factor * self.classes.weight).to(self.matrix)
        return _potential.apply(weight, self.matrix)[:, :n]

    def values(self, coefficients: Tensor) -> Tensor:
        """Return Σ_p c_p s_p(u_j), (N, J), without the weights, so that nothing underflows.

        Args:
            coefficients: c, (N, n).
        """
        if self.matrix is None:
            ones = torch.ones_like(self.a)
            classes = self.classes._replace(weight=ones)
            return value_at_classes(coefficients.to(self.a), *classes, self.resolution)
        n = coefficients.shape[1]
        terms = self.matrix[..., :n] * coefficients.unsqueeze(1)
        return terms.sum(-1).to(self.a)


def _interpolate(kernel: Kernel, u: Tensor) -> Tensor:
    """Return the polynomials s_p(u) along a new last axis, from their values at fixed points.

    This is the barycentric formula, which is stable, and few operations for all polynomials.
    """
    distance = u.unsqueeze(-1) - kernel.points
    distance = torch.where(distance == 0, torch.finfo(u.dtype).tiny, distance)
    share = kernel.point_weights / distance
    polynomials: Tensor = (share / share.sum(-1, keepdim=True)) @ kernel.at_points
    return polynomials


def _integrate(
    kernel: Kernel,
    matrices: Tensor,
    multiplicity: Tensor,
    polynomials: Polynomials,
) -> Integrals:
    found = polynomials.sums(multiplicity, len(kernel.collect))
    return _potential.integrate(kernel, matrices, found)


def _mean(
    kernel: Kernel,
    matrices: Tensor,
    integrals: Integrals,
    polynomials: Polynomials,
) -> Mean:
    adjoint = _potential.adjoint(matrices, integrals.projected)
    tilted = polynomials.values(adjoint @ kernel.share)
    curve = polynomials.values(adjoint @ kernel.curve)
    log_mean = tilted.log() + polynomials.log_weight + math.log(kernel.spacing)
    return Mean(log_mean, curve / tilted)


def _points(below: Tensor, r: Resolution) -> Points:
    """Return the classes themselves, or Chebyshev points where these are fewer."""
    n_points = r.degree + 2
    if below.shape[-1] <= n_points:
        return Points(below, torch.ones_like(below[:, :1]))
    log_mean, to_multiplicity, _ = _chebyshev_points(r, below.dtype, below.device)
    weight = log_weight(below, r, below.new_tensor(FADING)).exp()
    ones = torch.ones_like(below[:, :1])
    x = _variable(below, r)
    polynomials = sum_over_classes(ones, below, weight, x, r, n_points)
    multiplicity = (polynomials.to(to_multiplicity) @ to_multiplicity).to(below)
    return Points(log_mean.expand(below.shape[0], -1), multiplicity)


def _at_classes(change: Tensor, below: Tensor, r: Resolution) -> Tensor:
    """Return the locations of the classes, given a - ln p at the points."""
    if change.shape == below.shape:
        return below + change
    _, _, to_coefficients = _chebyshev_points(r, below.dtype, below.device)
    coefficients = (change.to(to_coefficients) @ to_coefficients).to(below)
    x = _variable(below, r)
    a = below + value_at_classes(coefficients, below, torch.ones_like(below), x, r)
    return a - a.amax(-1, keepdim=True)


def _variable(below: Tensor, r: Resolution) -> Tensor:
    """Return u of the classes, stretched so that it is 1 for ln p = 0 and -1 at the last point."""
    last = _last_point(r)
    lowest = r.variable(last)
    u = r.variable(below.clamp_min(last))
    return 2 / (TOP - lowest) * (u - lowest) - 1


def _last_point(r: Resolution) -> float:
    """Return ln p of the last point; a class there is still above the depth of the kernel."""
    return 4.0 - r.depth


@cache
def _chebyshev_points(
    r: Resolution, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ln p at the points (J,), and the matrices to multiplicities and to coefficients."""
    n_points = r.degree + 2
    x = chebpts2(n_points)
    lowest = r.variable(_last_point(r))
    u = lowest + (x + 1) / 2 * (TOP - lowest)
    t = (u - TOP) / r.stretch
    log_mean = BEND * t / (1 + t)
    inverse = np.linalg.inv(chebvander(x, n_points - 1) * signs(n_points))
    to_multiplicity = inverse * np.exp((FADING - 1) * log_mean)
    (points,) = as_tensors(device, dtype, log_mean)
    matrices = as_tensors(device, matrix_dtype(device), to_multiplicity, inverse.T)
    return points, matrices[0], matrices[1]


def _attach(a: Tensor, log_mean: Tensor, temperature: Tensor) -> Tensor:
    """Return a with its derivatives in both arguments, by the implicit function theorem."""
    logits = a * _potential.scale(temperature).unsqueeze(-1)
    every_class = torch.arange(a.shape[-1], device=a.device).expand(a.shape)
    found = _potential.log_mean_at(logits, temperature, every_class)
    return attach_derivatives(log_mean - found, a, temperature.detach())


class _Implicit(Function):
    """a as a function of the residual ln p - ln f(a), which is 0: da = H^-1 (p · d residual).

    H = ∂²m/∂a² = D - W, where D is diagonal, the slope of f for fixed Φ, and W_kj = ∫ Φ h_k′ h_j′.
    The backward pass solves H x = grad by D x = grad + W x, which converges as the inversion does.
    """

    @staticmethod
    def forward(
        ctx: Any,
        residual: Tensor,
        a: Tensor,
        temperature: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(a, temperature)
        return a.clone()

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, temperature = ctx.saved_tensors
        kernel = kernel_for(a)
        r = kernel.resolution
        series = _potential.ratio_series(kernel, temperature)
        matrices = _potential.at_ratio(kernel, series @ kernel.ratio_functions)
        polynomials = Polynomials(kernel, a)
        integrals = _integrate(kernel, matrices, torch.ones_like(a[:, :1]), polynomials)
        at = _mean(kernel, matrices, integrals, polynomials)
        classes = polynomials.classes
        # x e^a φ(a) = p x / f(a) · e^a φ(a), in which nothing underflows.
        per_mean = classes._replace(weight=(polynomials.log_weight - at.log_mean).exp())
        # The largest a is 0 whatever the arguments are.
        at_largest = (a == 0) / (a == 0).sum(-1, keepdim=True)
        grad = grad - at_largest * grad.sum(-1, keepdim=True)
        x = grad / at.log_slope  # p x
        for _ in range(N_STEPS[a.dtype]):
            sums = sum_over_classes(x, *per_mean, r, kernel.share.shape[1])
            moved = _potential.apply(sums.to(kernel.share) @ kernel.share.T, matrices)
            by_node = integrals.cdf * (moved @ kernel.node_functions)
            adjoint = _potential.adjoint(matrices, by_node @ kernel.node_functions.T)
            coefficients = (adjoint @ kernel.share).to(a)
            product = kernel.spacing * value_at_classes(coefficients, *classes, r)  # W x
            x = (grad + product) / at.log_slope
        return x, None, None


attach_derivatives: Callable[[Tensor, Tensor, Tensor], Tensor] = _Implicit.apply
