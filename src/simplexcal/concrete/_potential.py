"""The potential m(a, ρ) = E max_i (a_i + ε_i) and its gradient, by one integral, for any number of classes.

ε_i are i.i.d. with the law of ``_gumbel_sum``, h(x) = -ln F_ρ(x), and a is shifted so that max_i a_i = 0:

    S(z) = Σ_i h(z - a_i)     Φ(z) = P(max ≤ z) = exp(-S(z))
    m = ∫ ([z > 0] - Φ(z)) dz     ∂m/∂a_k = ∫ Φ(z) ∂h(z - a_k)/∂a_k dz     ∂m/∂ρ = ∫ Φ(z) ∂S(z)/∂ρ dz

The integrands are analytic, so the trapezoid rule on a few dozen nodes is exact to rounding. The kernel h(z - a) is
of low rank (``_kernel``), with factors that are polynomials of a variable u(a): the classes of a sample are reduced to
P sums, and the mean is one polynomial, the same for all classes of a sample. No array of samples × classes × nodes
exists. Every product of matrices is float64 whatever the logits are, so that neither autocast nor TF32 can touch it.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from simplexcal import _chunking
from simplexcal.concrete._chebyshev import Classes, place, sum_over_classes, value_at_classes
from simplexcal.concrete._gumbel_sum import LAST_RATIO
from simplexcal.concrete._kernel import Kernel, kernel_for


class Potential(NamedTuple):
    """m(a, ρ) with a = (logits - max) / max(1, λ) and ρ = min(λ, 1/λ), and its derivatives in a and ρ."""

    value: Tensor
    mean: Tensor
    slope: Tensor


class Integrand(NamedTuple):
    """What the three integrals are made of, for N samples. S = (series ⊗ sums) @ nodes."""

    classes: Classes  # (N, K)
    sums: Tensor  # (N, R)        Σ_i e^a_i φ_r(a_i)
    series: Tensor  # (N, T)      T_t(ρ), the Chebyshev polynomials
    cdf: Tensor  # (N, Q)         Φ(z)
    adjoint: Tensor  # (N, T, R)  Σ_q Φ(z_q) ∂S(z_q)/∂(series ⊗ sums)


def scale(temperature: Tensor) -> Tensor:
    """Return s = max(1, λ): divided by it, the larger of the two Gumbel terms has unit scale."""
    return temperature.clamp_min(1.0)


def ratio(temperature: Tensor) -> Tensor:
    """Return ρ = min(λ, 1/λ), with finite derivatives for every λ."""
    return temperature / scale(temperature) / scale(temperature)


def gaps(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return a = (logits - max) / s ≤ 0."""
    return (logits - logits.amax(-1, keepdim=True)) / scale(temperature).unsqueeze(-1)


def in_chunks(
    function: Callable[..., tuple[Tensor, ...]], logits: Tensor, *others: Tensor
) -> tuple[Tensor, ...]:
    """Apply ``function`` to as many rows of all its arguments at a time as memory likes, and join the results."""
    width = 2 * len(kernel_for(logits).nodes) + 4 * logits.shape[-1]
    return _chunking.in_chunks(function, logits, *others, width=width)


def mean(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return ∂m/∂a for logits (N, K) and temperature (N,): the mean of the Concrete distribution."""
    kernel = kernel_for(logits)
    return _mean(kernel, _integrand(kernel, logits, temperature), logits)


def log_mean_at(logits: Tensor, temperature: Tensor, labels: Tensor) -> Tensor:
    """Return ln ∂m/∂a_y (N, M) for M classes y of each row, ``labels``: in log space, without reading the others."""
    kernel = kernel_for(logits)
    at = _integrand(kernel, logits, temperature)
    gap = gaps(logits, temperature).gather(1, labels)
    near = gap.clamp_min(
        -kernel.resolution.depth
    )  # at most e^depth times too large, so that it cannot underflow
    log_mass = _read(kernel, at, place(near, kernel.resolution)).log() + (gap - near)
    return log_mass + math.log(kernel.spacing)


def potential(logits: Tensor, temperature: Tensor) -> Potential:
    """Return m and both its derivatives for logits (N, K) and temperature (N,)."""
    kernel = kernel_for(logits)
    at = _integrand(kernel, logits, temperature)
    value = kernel.spacing * (kernel.unit_step - at.cdf).sum(-1)
    slope = kernel.spacing * (_contract(at.series @ kernel.derivative, at.adjoint) * at.sums).sum(
        -1
    )
    return Potential(value.to(logits), _mean(kernel, at, logits), slope.to(logits))


def _integrand(kernel: Kernel, logits: Tensor, temperature: Tensor) -> Integrand:
    classes = place(gaps(logits, temperature), kernel.resolution)
    n_terms, one = len(kernel.collect), logits.new_ones(len(logits), 1)
    sums = (
        sum_over_classes(one, *classes, kernel.resolution, n_terms).to(kernel.collect)
        @ kernel.collect
    )
    series = _chebyshev(ratio(temperature).to(sums) * (2 / LAST_RATIO) - 1, kernel.resolution.terms)
    total = (series.unsqueeze(-1) * sums.unsqueeze(-2)).flatten(1) @ kernel.nodes  # S
    cdf = torch.exp(-total)
    adjoint = (cdf @ kernel.nodes.T).unflatten(1, (series.shape[1], sums.shape[1]))
    return Integrand(classes, sums, series, cdf, adjoint)


def _mean(kernel: Kernel, at: Integrand, logits: Tensor) -> Tensor:
    mass = _read(kernel, at, at.classes)
    return _keep_order(mass / mass.sum(-1, keepdim=True), logits)


def _read(kernel: Kernel, at: Integrand, classes: Classes) -> Tensor:
    """Return ∂m/∂a / spacing."""
    coefficients = (_contract(at.series, at.adjoint) @ kernel.share).to(classes.u)
    return value_at_classes(coefficients, *classes, kernel.resolution)


def _keep_order(probs: Tensor, logits: Tensor) -> Tensor:
    """Give the largest logit the strictly largest entry, which rounding alone could deny it."""
    found, logits = (
        probs.detach(),
        logits.detach(),
    )  # no_grad() would let derivatives in forward mode through
    best = found.amax(-1, keepdim=True)
    at_best = (
        1 + (logits - logits.amax(-1, keepdim=True)).sign()
    )  # 1 or 0; cheaper than a comparison
    below = torch.minimum(found, best * (1 - torch.finfo(found.dtype).eps))
    return probs + (torch.maximum(below, at_best * best) - found)


def _chebyshev(x: Tensor, terms: int) -> Tensor:
    """Return T_0(x) … T_(terms-1)(x) along a new last axis, doubled by T_(k+j) = 2 T_k T_j - T_(k-j)."""
    t = torch.stack([torch.ones_like(x), x], -1)
    while t.shape[-1] < terms:
        t = torch.cat([t, 2 * t[..., -1:] * t[..., 1:] - t[..., :-1].flip(-1)], -1)
    return t[..., :terms]


def _contract(series: Tensor, adjoint: Tensor) -> Tensor:
    return (series.unsqueeze(1) @ adjoint).squeeze(1)
