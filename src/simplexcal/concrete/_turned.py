"""The integrals on a CPU, without derivatives: what a prediction costs.

The formulas are those of ``_potential``, which stays the reference. Here every array is turned: the
samples are its last axis. So an operation is one long loop over memory, however few the classes and
the terms are, and the product of each sample with its own matrix is a few operations for all.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from simplexcal.concrete._chebyshev import NARROW, log_weight
from simplexcal.concrete._gumbel_sum import LAST_RATIO
from simplexcal.concrete._kernel import Kernel

# A class further down has the polynomials of this location, which do not underflow.
LOWEST = -60.0


class TurnedIntegrals(NamedTuple):
    """What the integrals are made of at some locations, for N samples.

    Args:
        sums: Σ_i e^a_i φ_r(a_i), (R, N).
        factors: Those of S(z), one for each function of z, (Z, N).
        cdf: Φ(z) at the nodes, (Q, N).
        projected: Σ_q Φ(z_q) times each function of z, over the whole lattice, (Z, N).
    """

    sums: Tensor
    factors: Tensor
    cdf: Tensor
    projected: Tensor


def applies(values: Tensor, temperature: Tensor) -> bool:
    """Whether these arguments are on a CPU, and no derivative and no graph is wanted.

    Args:
        values: Logits, or logarithms of probabilities, (N, K).
        temperature: λ, (N,).
    """
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    needs_gradient = values.requires_grad or temperature.requires_grad
    return not (torch.is_grad_enabled() and needs_gradient)


def along_memory(values: Tensor) -> Tensor:
    """Return the same values, with the samples along memory where there are few classes.

    Operations keep this layout, and most of them are several times as fast: a loop over ten classes
    is short.

    Args:
        values: (N, K).
    """
    if values.shape[1] > NARROW:
        return values
    return values.T.contiguous().T


def ratio_series(kernel: Kernel, ratio: Tensor) -> Tensor:
    """Return the Chebyshev polynomials T_t(ρ), (T, N).

    Args:
        kernel: The kernel.
        ratio: ρ, (N,).
    """
    x = ratio.to(kernel.collect) * (2 / LAST_RATIO) - 1
    t = torch.stack([torch.ones_like(x), x])
    terms = kernel.resolution.terms
    while len(t) < terms:  # T_(k+j) = 2 T_k T_j - T_(k-j)
        more = 2 * t[-1] * t[1:] - t[:-1].flip(0)
        t = torch.cat([t, more])
    return t[:terms]


def at_ratio(kernel: Kernel, functions: Tensor, series: Tensor) -> Tensor:
    """Return the kernel of each sample, matrices (R, Z, N).

    Args:
        kernel: The kernel.
        functions: Functions of ρ as coefficients of T_t(ρ), (T, M).
        series: The Chebyshev polynomials T_t(ρ), (T, N).
    """
    flat = kernel.core.T @ (functions.T @ series)
    return flat.view(kernel.collect.shape[1], kernel.node_functions.shape[0], -1)


def apply(rows: Tensor, matrices: Tensor) -> Tensor:
    """Return the product of each row with its own matrix, (Z, N).

    Args:
        rows: (R, N).
        matrices: (R, Z, N).
    """
    return weighted_sum(rows, matrices)


def adjoint(matrices: Tensor, columns: Tensor) -> Tensor:
    """Return the product of each matrix with its own column, (R, N).

    Args:
        matrices: (R, Z, N).
        columns: (Z, N).
    """
    return (matrices * columns).sum(1)


def weighted_sum(weights: Tensor, arrays: Tensor) -> Tensor:
    """Return Σ_p w_p x_p, (J, N), for the first arrays, as many as there are weights.

    These are two operations. A loop that holds no array of all products takes the same time alone,
    but twenty times as many operations, for each of which threads wait for Python's lock.

    Args:
        weights: w, (P, N).
        arrays: x, (P or more, J, N).
    """
    return (weights.unsqueeze(1) * arrays[: len(weights)]).sum(0)


def integrate(kernel: Kernel, matrices: Tensor, polynomials: Tensor) -> TurnedIntegrals:
    """Return the integrals at some locations.

    Args:
        kernel: The kernel.
        matrices: The kernel of each sample, (R, Z, N).
        polynomials: The sums of the polynomials over the classes, (P, N).
    """
    sums = kernel.newton_collect.T @ polynomials.to(kernel.collect)
    factors = apply(sums, matrices)
    cdf = (kernel.node_functions.T @ -factors).exp_()
    projected = torch.addmm(kernel.tail.unsqueeze(1), kernel.node_functions, cdf)
    return TurnedIntegrals(sums, factors, cdf, projected)


def potential_value(kernel: Kernel, integrals: TurnedIntegrals) -> Tensor:
    """Return m, (N,).

    Args:
        kernel: The kernel.
        integrals: The integrals at the locations.
    """
    below = (kernel.unit_step.unsqueeze(1) - integrals.cdf).sum(0)
    return kernel.spacing * (below + kernel.tail @ integrals.factors)


def potential_slope(kernel: Kernel, series: Tensor, integrals: TurnedIntegrals) -> Tensor:
    """Return ∂m/∂ρ, (N,).

    Args:
        kernel: The kernel.
        series: The Chebyshev polynomials T_t(ρ), (T, N).
        integrals: The integrals at the locations.
    """
    # One number for each function of ρ; no matrix of a sample is needed for a single product.
    products = integrals.sums.unsqueeze(1) * integrals.projected
    of_functions = kernel.core @ products.flatten(0, 1)
    slopes = kernel.d_ratio_functions.T @ series
    return kernel.spacing * (of_functions * slopes).sum(0)


def newton_factors(a: Tensor, kernel: Kernel) -> tuple[Tensor, ...]:
    """Return the factors 2 (u - x_i) of Newton's form, which come in turns.

    A polynomial n_p is the one before it times a factor, and a sum of them needs one operation for
    each (Horner's rule). Chebyshev's recurrence and Clenshaw's rule take up to twice as long.

    Args:
        a: Shifted logits, of any shape.
        kernel: The kernel.
    """
    r = kernel.resolution
    u = r.variable(a.clamp_min(-r.depth))
    zeros = kernel.newton_zeros.view(-1, *[1] * u.dim())
    return torch.sub(u + u, zeros).unbind(0)


def weighted_polynomials(a: Tensor, kernel: Kernel, n: int) -> Tensor:
    """Return w n_p(u) of each location for p < n, (n, J, N).

    Args:
        a: Shifted logits, none below LOWEST, (J, N).
        kernel: The kernel.
        n: Number of polynomials.
    """
    factors = newton_factors(a, kernel)
    # One array, so that a sum over the classes is one operation for all polynomials.
    polynomials = a.new_empty(n, *a.shape)
    each = polynomials.unbind(0)
    torch.exp(log_weight(a, kernel.resolution, kernel.fading), out=each[0])
    for p in range(1, n):
        torch.mul(each[p - 1], factors[(p - 1) % len(factors)], out=each[p])
    return polynomials


def sum_over_classes(weight: Tensor, factors: tuple[Tensor, ...], n: int) -> Tensor:
    """Return Σ_k w_k n_p(u_k) for p < n, (n, N), without an array of all polynomials.

    Args:
        weight: w, (N, K).
        factors: Those of Newton's form, (N, K) each.
        n: Number of polynomials.
    """
    sums = [weight.sum(-1)]
    polynomial = weight.clone()
    for p in range(1, n):
        polynomial.mul_(factors[(p - 1) % len(factors)])
        sums.append(polynomial.sum(-1))
    return torch.stack(sums)


def value_at_classes(weight: Tensor, factors: tuple[Tensor, ...], coefficients: Tensor) -> Tensor:
    """Return w_k Σ_p c_p n_p(u_k), (N, K), by Horner's rule.

    Args:
        weight: w, (N, K).
        factors: Those of Newton's form, (N, K) each.
        coefficients: c, (P, N).
    """
    columns = coefficients.unsqueeze(-1).unbind(0)
    value = columns[-1].expand_as(weight).clone()
    for p in range(len(columns) - 2, -1, -1):
        torch.addcmul(columns[p], factors[p % len(factors)], value, out=value)
    return value.mul_(weight)
