"""The potential m(a, ρ) = E max_i (a_i + ε_i) and its gradient, for any number of classes.

ε_i are i.i.d. with the distribution of ``_gumbel_sum``, h(x) = -ln F_ρ(x), and a is shifted so that
max_i a_i = 0:

    S(z) = Σ_i h(z - a_i)     Φ(z) = P(max ≤ z) = exp(-S(z))
    m = ∫ ([z > 0] - Φ(z)) dz
    ∂m/∂a_k = ∫ Φ(z) ∂h(z - a_k)/∂a_k dz     ∂m/∂ρ = ∫ Φ(z) ∂S(z)/∂ρ dz

The integrands are analytic, so the trapezoid rule on a few dozen nodes is exact to rounding. The
kernel h(z - a) has low rank (``_kernel``), with factors that are polynomials of a variable u(a).
The classes of a sample are reduced to P sums, and the mean is one polynomial, the same for all
classes of a sample. No array of samples × classes × nodes exists. No product of matrices is within
reach of autocast or TF32 (``product_dtype``).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from simplexcal.concrete import _fused, _turned
from simplexcal.concrete._chebyshev import (
    NARROW,
    Classes,
    locate,
    log_weight,
    matrix_dtype,
    sum_over_classes,
    value_at_classes,
)
from simplexcal.concrete._gumbel_sum import LAST_RATIO
from simplexcal.concrete._kernel import Kernel, kernel_for, without_autocast
from simplexcal.types import SMALLEST

EULER_GAMMA = 0.57721566490153286061


class Moments(NamedTuple):
    """Exact moments of Concrete distributions, computed together.

    Args:
        mean: E[π], (..., K).
        entropy: Differential entropy E[-ln p(π)], (...,).
        expected_entropy: E[-Σ_k π_k ln π_k], (...,).
        mutual_information: H(E[π]) - E[H(π)], (...,).
    """

    mean: Tensor
    entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor


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


class Integrals(NamedTuple):
    """What the integrals are made of at some locations, for N samples.

    Args:
        sums: Σ_i e^a_i φ_r(a_i), (N, R).
        factors: Those of S(z), one for each function of z, (N, Z).
        cdf: Φ(z) at the nodes, (N, Q).
        projected: Σ_q Φ(z_q) times each function of z, over the whole lattice, (N, Z).
    """

    sums: Tensor
    factors: Tensor
    cdf: Tensor
    projected: Tensor


class Integrand(NamedTuple):
    """The integrals of N samples, and how the mean of a class follows from them.

    Args:
        classes: Where the classes lie, (N, K).
        series: The Chebyshev polynomials T_t(ρ), (N, T).
        integrals: The integrals.
        coefficients: Of the polynomial whose values are ∂m/∂a / spacing, (N, P+1).
    """

    classes: Classes
    series: Tensor
    integrals: Integrals
    coefficients: Tensor


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


def moments(logits: Tensor, temperature: Tensor) -> Moments:
    """Return the moments of the Concrete distribution.

    With a = (g - max g)/s, s = max(1, λ), ρ = min(λ, 1/λ) and the potential
    m(a, ρ) = E max_i (a_i + G_i + ρ(G′_i - γ)):

        E[π]         = ∂m/∂a
        E[H(π)]      = ∂m/∂ρ                                     for λ ≤ 1
                     = m - γ - Σ_k a_k E[π_k] - ρ ∂m/∂ρ          for λ ≥ 1
        E[-ln p(π)]  = K h - ln Γ(K) - (K-1) ln λ + (Σ_k a_k - K (m - γ)) s/λ

    with h the (K-1)-th harmonic number. Derived in docs/theory.md.

    Args:
        logits: Location g, (N, K).
        temperature: λ, (N,).
    """
    found = potential(logits, temperature)
    return moments_at(shifted_logits(logits, temperature), found, temperature)


def moments_at(a: Tensor, potential: Potential, temperature: Tensor) -> Moments:
    """Return the moments, given the potential.

    Args:
        a: Shifted logits, (N, K).
        potential: The potential there.
        temperature: λ, (N,).
    """
    k = a.shape[-1]
    m, mean, slope = potential
    excess = m - EULER_GAMMA
    hot = excess - (a * mean).sum(-1) - ratio(temperature) * slope
    total = _entropy(mean)
    expected_entropy = torch.where(temperature >= 1, hot, slope).clamp_min(0)
    expected_entropy = torch.minimum(expected_entropy, total)
    shape_term = (a.sum(-1) - k * excess) * scale(temperature) / temperature
    # A tensor comes first: in an exported graph a leading Python number is rounded to float32.
    constant = k * _harmonic(k - 1) - math.lgamma(k)
    entropy = (1 - k) * temperature.log() + constant + shape_term
    return Moments(mean, entropy, expected_entropy, total - expected_entropy)


def mean(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return ∂m/∂a: the mean of the Concrete distribution.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
    """
    if _fused.applies(logits, temperature):
        found: Tensor = _fused.operators().mean(logits, temperature)
        return found
    return mean_in_torch(logits, temperature)


@without_autocast
def mean_in_torch(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return the mean by operators of torch.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
    """
    kernel = kernel_for(logits)
    if _turned.applies(logits, temperature):
        return _mean_turned(kernel, logits, temperature)
    integrand = _integrand(kernel, logits, temperature)
    mass = value_at_classes(integrand.coefficients, *integrand.classes, kernel.resolution)
    return _normalise(mass, logits)


def _mean_turned(kernel: Kernel, logits: Tensor, temperature: Tensor) -> Tensor:
    """Return the mean by arrays whose last axis are the samples.

    Many classes are long loops already, and are not turned.
    """
    n = len(kernel.collect)
    series = _turned.ratio_series(kernel, ratio(temperature))
    matrices = _turned.at_ratio(kernel, kernel.ratio_functions, series)
    if logits.shape[1] > NARROW:
        below = shifted_logits(logits, temperature)
        factors = _turned.newton_factors(below, kernel)
        weight = log_weight(below, kernel.resolution, kernel.fading).exp_()
        sums = _turned.sum_over_classes(weight, factors, n)
        coefficients = _turned_coefficients(kernel, matrices, sums).to(logits)
        mass = _turned.value_at_classes(weight, factors, coefficients)
        return _normalise(mass, logits)
    turned = logits.T.contiguous()
    below = (turned - turned.amax(0)) / scale(temperature)
    near = below.clamp_min(_turned.LOWEST)
    polynomials = _turned.weighted_polynomials(near, kernel, n + 1)
    sums = polynomials[:n].sum(1)
    coefficients = _turned_coefficients(kernel, matrices, sums).to(logits)
    mass = _turned.weighted_sum(coefficients, polynomials) * (below - near).exp()
    return _normalise(mass, turned, 0).T.contiguous()


def _turned_coefficients(kernel: Kernel, matrices: Tensor, sums: Tensor) -> Tensor:
    integrals = _turned.integrate(kernel, matrices, sums)
    return kernel.newton_share.T @ _turned.adjoint(matrices, integrals.projected)


def log_mean_at(logits: Tensor, temperature: Tensor, labels: Tensor) -> Tensor:
    """Return ln ∂m/∂a_y (N, M) in log space, without computing it for the other classes.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
        labels: M classes y of each row, (N, M).
    """
    if _fused.applies_to_labels(logits, temperature, labels):
        found: Tensor = _fused.operators().log_mean_at(logits, temperature, labels)
        return found
    return log_mean_at_in_torch(logits, temperature, labels)


@without_autocast
def log_mean_at_in_torch(logits: Tensor, temperature: Tensor, labels: Tensor) -> Tensor:
    """Return ln ∂m/∂a_y (N, M) by operators of torch.

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
    classes = locate(near, kernel.resolution, kernel.fading)
    mass = value_at_classes(integrand.coefficients, *classes, kernel.resolution)
    log_mass = mass.log() + (a - near)
    return log_mass + math.log(kernel.spacing)


def potential(logits: Tensor, temperature: Tensor) -> Potential:
    """Return m and both its derivatives.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
    """
    has_few_classes = logits.shape[1] <= _fused.MOST_CLASSES_WITH_SLOPE
    if has_few_classes and _fused.applies_with_reference_gradient(logits, temperature):
        return Potential(*_fused.operators().potential(logits, temperature))
    return potential_in_torch(logits, temperature)


@without_autocast
def potential_in_torch(logits: Tensor, temperature: Tensor) -> Potential:
    """Return m and both its derivatives by operators of torch.

    The products are float64: the differential entropy multiplies the error of m by K.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
    """
    kernel = kernel_for(logits, matrix_dtype(logits.device))
    classes, series, integrals, coefficients = _integrand(kernel, logits, temperature)
    mass = value_at_classes(coefficients, *classes, kernel.resolution)
    value = potential_value(kernel, integrals)
    slope = potential_slope(kernel, series, integrals)
    return Potential(value.to(logits), _normalise(mass, logits), slope.to(logits))


def potential_value(kernel: Kernel, integrals: Integrals) -> Tensor:
    """Return m, (N,).

    Args:
        kernel: The kernel.
        integrals: The integrals at the locations.
    """
    survival = (kernel.unit_step - integrals.cdf).sum(-1) + integrals.factors @ kernel.tail
    return kernel.spacing * survival


def potential_slope(kernel: Kernel, series: Tensor, integrals: Integrals) -> Tensor:
    """Return ∂m/∂ρ, (N,).

    Args:
        kernel: The kernel.
        series: The Chebyshev polynomials T_t(ρ), (N, T).
        integrals: The integrals at the locations.
    """
    moved = apply(integrals.sums, at_ratio(kernel, series @ kernel.d_ratio_functions))
    return kernel.spacing * (moved * integrals.projected).sum(-1)


def _integrand(kernel: Kernel, logits: Tensor, temperature: Tensor) -> Integrand:
    r = kernel.resolution
    series = ratio_series(kernel, temperature)
    classes = locate(shifted_logits(logits, temperature), r, kernel.fading)
    ones = torch.ones_like(logits[:, :1])
    polynomials = sum_over_classes(ones, *classes, r, len(kernel.collect))
    matrices = at_ratio(kernel, series @ kernel.ratio_functions)
    integrals = integrate(kernel, matrices, polynomials)
    coefficients = mean_coefficients(kernel, matrices, integrals)
    return Integrand(classes, series, integrals, coefficients.to(classes.u))


def at_ratio(kernel: Kernel, functions: Tensor) -> Tensor:
    """Return the kernel of each sample, matrices (N, R, Z).

    Args:
        kernel: The kernel.
        functions: Its functions of ρ, (N, M).
    """
    flat: Tensor = functions @ kernel.core
    return flat.view(-1, kernel.collect.shape[1], kernel.node_functions.shape[0])


def apply(rows: Tensor, matrices: Tensor) -> Tensor:
    """Return the product of each row with its own matrix, (N, Z).

    Args:
        rows: (N, R).
        matrices: (N, R, Z).
    """
    if torch.compiler.is_compiling():
        return (rows.unsqueeze(-1) * matrices).sum(1)
    product = rows.unsqueeze(1) @ matrices
    return product.squeeze(1)


def integrate(kernel: Kernel, matrices: Tensor, polynomials: Tensor) -> Integrals:
    """Return the integrals at some locations.

    Args:
        kernel: The kernel.
        matrices: The kernel of each sample, (N, R, Z).
        polynomials: The sums of the polynomials over the classes, (N, P).
    """
    sums = polynomials.to(kernel.collect) @ kernel.collect
    factors = apply(sums, matrices)
    cdf = torch.exp(factors @ -kernel.node_functions)
    projected = cdf @ kernel.node_functions.T + kernel.tail
    return Integrals(sums, factors, cdf, projected)


def mean_coefficients(kernel: Kernel, matrices: Tensor, integrals: Integrals) -> Tensor:
    """Return the coefficients of the polynomial whose values are ∂m/∂a / spacing, (N, P+1).

    Args:
        kernel: The kernel.
        matrices: The kernel of each sample, (N, R, Z).
        integrals: The integrals at the locations.
    """
    return adjoint(matrices, integrals.projected) @ kernel.share


def adjoint(matrices: Tensor, columns: Tensor) -> Tensor:
    """Return the product of each matrix with its own column, (N, R).

    Args:
        matrices: (N, R, Z).
        columns: (N, Z).
    """
    product: Tensor = matrices @ columns.unsqueeze(-1)
    return product.squeeze(-1)


def ratio_series(kernel: Kernel, temperature: Tensor) -> Tensor:
    """Return the Chebyshev polynomials T_t(ρ), (N, T).

    Args:
        kernel: The kernel.
        temperature: λ, (N,).
    """
    x = ratio(temperature).to(kernel.collect) * (2 / LAST_RATIO) - 1
    return chebyshev_series(x, kernel.resolution.terms)


def _normalise(mass: Tensor, logits: Tensor, dim: int = -1) -> Tensor:
    """Return the mass divided by its sum, with the strictly largest entry at the largest logit.

    Rounding alone could deny it that.
    """
    probs = mass / mass.sum(dim, keepdim=True)
    # detach(), since no_grad() would let derivatives in forward mode through.
    found = probs.detach()
    logits = logits.detach()
    best = found.amax(dim, keepdim=True)
    # 1 or 0, cheaper than a comparison.
    at_best = 1 + (logits - logits.amax(dim, keepdim=True)).sign()
    # In an exported graph a factor of 1 - ε is rounded to 1.
    below = torch.minimum(found, best - best * torch.finfo(found.dtype).eps)
    return probs + (torch.maximum(below, at_best * best) - found)


def chebyshev_series(x: Tensor, terms: int) -> Tensor:
    """Return T_0(x) … T_(terms-1)(x) along a new last axis.

    Their number doubles in each round, by T_(k+j) = 2 T_k T_j - T_(k-j).

    Args:
        x: Where to evaluate them.
        terms: Number of polynomials.
    """
    t = torch.stack([torch.ones_like(x), x], -1)
    while t.shape[-1] < terms:
        more = 2 * t[..., -1:] * t[..., 1:] - t[..., :-1].flip(-1)
        t = torch.cat([t, more], -1)
    return t[..., :terms]


def _harmonic(n: int) -> float:
    """Return Σ_(i ≤ n) 1/i."""
    return float(torch.digamma(torch.tensor(n + 1.0, dtype=torch.float64))) + EULER_GAMMA


def _entropy(probs: Tensor) -> Tensor:
    """Return -Σ_k p_k ln p_k, with a finite derivative where p_k underflows to 0."""
    # The smallest number of float64 would be 0 in an exported graph, whose constants are float32.
    positive = probs.clamp_min(SMALLEST)
    return -(probs * positive.log()).sum(-1)
