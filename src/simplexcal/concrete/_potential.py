"""The potential m(a, ρ) = E max_i (a_i + ε_i) and its gradient, for any number of classes.

ε_i are i.i.d. with the distribution of ``_gumbel_sum``, h(x) = -ln F_ρ(x), and a is shifted so that
max_i a_i = 0:

    S(z) = Σ_i h(z - a_i)     Φ(z) = P(max ≤ z) = exp(-S(z))
    m = ∫ ([z > 0] - Φ(z)) dz
    ∂m/∂a_k = ∫ Φ(z) ∂h(z - a_k)/∂a_k dz     ∂m/∂ρ = ∫ Φ(z) ∂S(z)/∂ρ dz

The integrands are analytic, so the trapezoid rule on a few dozen nodes is exact to rounding. The
kernel h(z - a) has low rank (``_kernel``), with factors that are polynomials of a variable u(a).
The classes of a sample are reduced to P sums, and the mean is one polynomial, the same for all classes
of a sample. No array of samples × classes × nodes exists. Every product of matrices is float64
whatever the logits are, so that neither autocast nor TF32 can touch it.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from simplexcal import _chunking
from simplexcal.concrete._chebyshev import Classes, locate, sum_over_classes, value_at_classes
from simplexcal.concrete._gumbel_sum import LAST_RATIO
from simplexcal.concrete._kernel import Kernel, kernel_for


class Potential(NamedTuple):
    """m(a, ρ) with a = (logits - max) / max(1, λ) and ρ = min(λ, 1/λ), and its derivatives.

    Args:
        value: m, (N,).
        mean: ∂m/∂a, (N, K).
        slope: ∂m/∂ρ, (N,).
    """

    value: Tensor
    mean: Tensor
    slope: Tensor


class Integrand(NamedTuple):
    """What the three integrals are made of, for N samples; S = (series ⊗ sums) @ nodes.

    Args:
        classes: Where the classes lie, (N, K).
        sums: Σ_i e^a_i φ_r(a_i), (N, R).
        series: The Chebyshev polynomials T_t(ρ), (N, T).
        cdf: Φ(z) at the nodes, (N, Q).
        adjoint: Σ_q Φ(z_q) ∂S(z_q)/∂(series ⊗ sums), (N, T, R).
    """

    classes: Classes
    sums: Tensor
    series: Tensor
    cdf: Tensor
    adjoint: Tensor


def scale(temperature: Tensor) -> Tensor:
    """Return s = max(1, λ): divided by it, the larger of the two Gumbel terms has unit scale.

    Args:
        temperature: λ.
    """
    return temperature.clamp_min(1.0)


def ratio(temperature: Tensor) -> Tensor:
    """Return ρ = min(λ, 1/λ), with finite derivatives for every λ.

    Args:
        temperature: λ.
    """
    s = scale(temperature)
    return temperature / s / s


def shifted_logits(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return a = (logits - max) / s ≤ 0.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
    """
    below = logits - logits.amax(-1, keepdim=True)
    return below / scale(temperature).unsqueeze(-1)


def in_chunks(
    function: Callable[..., tuple[Tensor, ...]],
    logits: Tensor,
    *others: Tensor,
) -> tuple[Tensor, ...]:
    """Apply a function to as many rows at a time as memory likes, and join the results.

    Args:
        function: Takes some rows of all arguments.
        logits: (N, K).
        others: Further arguments with N rows.
    """
    width = 2 * len(kernel_for(logits).nodes) + 4 * logits.shape[-1]
    return _chunking.in_chunks(function, logits, *others, width=width)


def mean(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return ∂m/∂a: the mean of the Concrete distribution.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
    """
    kernel = kernel_for(logits)
    return _mean(kernel, _integrand(kernel, logits, temperature), logits)


def log_mean_at(logits: Tensor, temperature: Tensor, labels: Tensor) -> Tensor:
    """Return ln ∂m/∂a_y (N, M) in log space, without computing it for the other classes.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
        labels: M classes y of each row, (N, M).
    """
    kernel = kernel_for(logits)
    integrand = _integrand(kernel, logits, temperature)
    a = shifted_logits(logits, temperature).gather(1, labels)
    # Cut off, the mass is at most e^depth times too large and cannot underflow.
    near = a.clamp_min(-kernel.resolution.depth)
    log_mass = _mass(kernel, integrand, locate(near, kernel)).log() + (a - near)
    return log_mass + math.log(kernel.spacing)


def potential(logits: Tensor, temperature: Tensor) -> Potential:
    """Return m and both its derivatives.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
    """
    kernel = kernel_for(logits)
    integrand = _integrand(kernel, logits, temperature)
    value = kernel.spacing * (kernel.unit_step - integrand.cdf).sum(-1)
    d_series = integrand.series @ kernel.derivative
    d_sums = _contract(d_series, integrand.adjoint) * integrand.sums
    slope = kernel.spacing * d_sums.sum(-1)
    return Potential(value.to(logits), _mean(kernel, integrand, logits), slope.to(logits))


def _integrand(kernel: Kernel, logits: Tensor, temperature: Tensor) -> Integrand:
    classes = locate(shifted_logits(logits, temperature), kernel)
    ones = torch.ones_like(logits[:, :1])
    polynomials = sum_over_classes(ones, *classes, kernel.resolution, len(kernel.collect))
    sums = polynomials.to(kernel.collect) @ kernel.collect
    series = _chebyshev_series(
        ratio(temperature).to(sums) * (2 / LAST_RATIO) - 1, kernel.resolution.terms
    )
    total = (series.unsqueeze(-1) * sums.unsqueeze(-2)).flatten(1) @ kernel.nodes  # S
    cdf = torch.exp(-total)
    adjoint = (cdf @ kernel.nodes.T).unflatten(1, (series.shape[1], sums.shape[1]))
    return Integrand(classes, sums, series, cdf, adjoint)


def _mean(kernel: Kernel, integrand: Integrand, logits: Tensor) -> Tensor:
    mass = _mass(kernel, integrand, integrand.classes)
    return _keep_order(mass / mass.sum(-1, keepdim=True), logits)


def _mass(kernel: Kernel, integrand: Integrand, classes: Classes) -> Tensor:
    """Return ∂m/∂a / spacing."""
    coefficients = _contract(integrand.series, integrand.adjoint) @ kernel.share
    return value_at_classes(coefficients.to(classes.u), *classes, kernel.resolution)


def _keep_order(probs: Tensor, logits: Tensor) -> Tensor:
    """Give the largest logit the strictly largest entry, which rounding alone could deny it."""
    # detach(), since no_grad() would let derivatives in forward mode through.
    found = probs.detach()
    logits = logits.detach()
    best = found.amax(-1, keepdim=True)
    # 1 or 0, cheaper than a comparison.
    at_best = 1 + (logits - logits.amax(-1, keepdim=True)).sign()
    below = torch.minimum(found, best * (1 - torch.finfo(found.dtype).eps))
    return probs + (torch.maximum(below, at_best * best) - found)


def _chebyshev_series(x: Tensor, terms: int) -> Tensor:
    """Return T_0(x) … T_(terms-1)(x) along a new last axis.

    Their number doubles in each round, by T_(k+j) = 2 T_k T_j - T_(k-j).
    """
    t = torch.stack([torch.ones_like(x), x], -1)
    while t.shape[-1] < terms:
        more = 2 * t[..., -1:] * t[..., 1:] - t[..., :-1].flip(-1)
        t = torch.cat([t, more], -1)
    return t[..., :terms]


def _contract(series: Tensor, adjoint: Tensor) -> Tensor:
    """Return Σ_t series_t adjoint_tr for each sample, (N, R)."""
    return (series.unsqueeze(1) @ adjoint).squeeze(1)
