"""The potential m(a, ρ) = E max_i (a_i + ε_i) and its gradient, by one integral, for any number of classes.

ε_i are i.i.d. with the law of ``_noise``, h(x) = -ln F_ρ(x), and a is shifted so that max_i a_i = 0:

    S(z) = Σ_i h(z - a_i)     Φ(z) = P(max ≤ z) = exp(-S(z))
    m = ∫ ([z > 0] - Φ(z)) dz     ∂m/∂a_k = ∫ Φ(z) ∂h(z - a_k)/∂a_k dz     ∂m/∂ρ = ∫ Φ(z) ∂S(z)/∂ρ dz

The integrands are analytic, so the trapezoid rule on a few dozen nodes is exact to rounding. The kernel h(z - a) is
of low rank (``_kernel``): every class is spread onto a lattice, the lattice is reduced to R sums for a sample, and
the mean is read back from the lattice at each class. No array of samples × classes × nodes exists. Sums over classes
and all work on the lattice are float64 whatever the logits are, so that neither autocast nor TF32 can touch them.
"""

import functools
import math
from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from simplexcal._kernel import HALF_WIDTH, Kernel, Resolution, kernel_for
from simplexcal._noise import LAST_RATIO, SPACING

CHUNK = {"cpu": 2**20, "cuda": 2**27}  # numbers held at once: what fits a cache, what fills a GPU


class Potential(NamedTuple):
    """m(a, ρ) with a = (logits - max) / max(1, λ) and ρ = min(λ, 1/λ), and its derivatives in a and ρ."""

    value: Tensor
    mean: Tensor
    slope: Tensor


class Places(NamedTuple):
    """Where the classes lie on the lattice: a share ``weights[p]`` of each belongs to the point ``first + p``."""

    first: Tensor
    weights: list[Tensor]
    height: Tensor  # e^a


class Integrand(NamedTuple):
    """What the three integrals are made of, for N samples. S = (series ⊗ sums) @ nodes."""

    places: Places
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


def in_chunks(function: Callable[..., tuple[Tensor, ...]], logits: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Apply ``function`` to as many rows of all its arguments at a time as memory likes, and join the results."""
    kernel = kernel_for(logits)
    n_numbers = 2 * len(kernel.nodes) + kernel.resolution.order * logits.shape[-1]
    size = max(1, CHUNK.get(logits.device.type, CHUNK["cpu"]) // n_numbers)
    parts = [function(*rows) for rows in zip(*(x.split(size) for x in (logits, *others)), strict=True)]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def mean(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return ∂m/∂a for logits (N, K) and temperature (N,): the mean of the Concrete distribution."""
    kernel = kernel_for(logits)
    return _mean(kernel, _integrand(kernel, logits, temperature), logits)


def log_mean_at(logits: Tensor, temperature: Tensor, labels: Tensor) -> Tensor:
    """Return ln ∂m/∂a_y for one class y a row: in log space, and without reading the other classes."""
    kernel = kernel_for(logits)
    at = _integrand(kernel, logits, temperature)
    gap = gaps(logits, temperature).gather(1, labels.unsqueeze(1))
    places = _place(kernel.resolution, gap)
    return (gap + _read(kernel, at, places, logits).log()).squeeze(1) + math.log(kernel.spacing)


def potential(logits: Tensor, temperature: Tensor) -> Potential:
    """Return m and both its derivatives for logits (N, K) and temperature (N,)."""
    kernel = kernel_for(logits)
    at = _integrand(kernel, logits, temperature)
    value = kernel.spacing * (kernel.unit_step - at.cdf).sum(-1)
    slope = kernel.spacing * (_contract(at.series @ kernel.derivative, at.adjoint) * at.sums).sum(-1)
    return Potential(value.to(logits), _mean(kernel, at, logits), slope.to(logits))


def _integrand(kernel: Kernel, logits: Tensor, temperature: Tensor) -> Integrand:
    places = _place(kernel.resolution, gaps(logits, temperature))
    lattice = kernel.spread.new_zeros(len(logits), len(kernel.spread))
    for p, weight in enumerate(places.weights):
        lattice.scatter_add_(1, places.first + p, (places.height * weight).to(lattice))
    sums = lattice @ kernel.spread
    series = _chebyshev(ratio(temperature).to(sums) * (2 / LAST_RATIO) - 1, kernel.resolution.terms)
    total = (series.unsqueeze(-1) * sums.unsqueeze(-2)).flatten(1) @ kernel.nodes  # S
    cdf = torch.exp(-total)
    adjoint = (cdf @ kernel.nodes.T).unflatten(1, (series.shape[1], sums.shape[1]))
    return Integrand(places, sums, series, cdf, adjoint)


def _mean(kernel: Kernel, at: Integrand, logits: Tensor) -> Tensor:
    mass = at.places.height * _read(kernel, at, at.places, logits)
    return _keep_order(mass / mass.sum(-1, keepdim=True), logits)


def _read(kernel: Kernel, at: Integrand, places: Places, logits: Tensor) -> Tensor:
    """Return e^-a ∂m/∂a / spacing at ``places``."""
    lattice = (_contract(at.series, at.adjoint) @ kernel.read).to(logits)
    read = [weight * lattice.gather(1, places.first + p) for p, weight in enumerate(places.weights)]
    return functools.reduce(torch.add, read)


def _keep_order(probs: Tensor, logits: Tensor) -> Tensor:
    """Give the largest logit the strictly largest entry, which rounding alone could deny it."""
    with torch.no_grad():
        best = probs.gather(-1, logits.argmax(-1, keepdim=True))
        below = torch.minimum(probs, best * (1 - torch.finfo(probs.dtype).eps))
        correction = torch.where(logits == logits.amax(-1, keepdim=True), best, below) - probs
    return probs + correction


def _chebyshev(x: Tensor, terms: int) -> Tensor:
    """Return T_0(x) … T_(terms-1)(x) along a new last axis, doubled by T_(k+j) = 2 T_k T_j - T_(k-j)."""
    t = torch.stack([torch.ones_like(x), x], -1)
    while t.shape[-1] < terms:
        t = torch.cat([t, 2 * t[..., -1:] * t[..., 1:] - t[..., :-1].flip(-1)], -1)
    return t[..., :terms]


def _contract(series: Tensor, adjoint: Tensor) -> Tensor:
    return (series.unsqueeze(1) @ adjoint).squeeze(1)


def _place(resolution: Resolution, gap: Tensor) -> Places:
    position = (gap * (-1 / SPACING)).clamp_max(resolution.n_steps)
    index = position.detach().long().clamp(0, resolution.n_steps)  # in range also for NaN
    return Places(index + (HALF_WIDTH + 1), _lagrange(position - index, resolution.order), gap.exp())


def _lagrange(x: Tensor, order: int) -> list[Tensor]:
    """Return the Lagrange cardinal polynomials of the ``order`` nodes 1 - order/2 … order/2 at 0 ≤ x < 1."""
    nodes = range(1 - order // 2, 1 + order // 2)
    factors = [x - node for node in nodes]
    below = list(accumulate(factors[:-1], torch.mul))
    above = list(accumulate(factors[:0:-1], torch.mul))[::-1]
    products = [above[0], *map(torch.mul, below, above[1:]), below[-1]]
    norms = [math.prod(node - other for other in nodes if other != node) for node in nodes]
    return [product / norm for product, norm in zip(products, norms, strict=True)]
