"""The kernel of the potential's integral, factorised: one small set of matrices for each dtype.

With h(x) = -ln F_ρ(x) for the distribution of ``_gumbel_sum``, a class at a ≤ 0 enters the integral
at z as h(z - a). This function of (ρ, z, a) is smooth, so it has low numerical rank, for every ρ at
once:

    h(z - a) = e^(a - z) Σ_r φ_r(a) ψ_r(ρ, z)     with 16 terms for float32, 34 for float64.

φ is e^(-a/10) times a polynomial of u(a), a variable in which the far tail is no harder than the
rest. ψ is kept on the nodes z and as a Chebyshev series in ρ. Both come from one singular value
decomposition of the tabulated distribution, which takes some milliseconds on first use.

The polynomials are written in s_p = ±T_p, with signs + + - - + + …, for which Chebyshev's
recurrence has no difference and is one operation in torch, s_p = s_(p-2) ± 2u s_(p-1).
"""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.polynomial.chebyshev import chebder, chebmul, chebvander, poly2cheb
from numpy.typing import NDArray
from torch import Tensor

from simplexcal.concrete import _gumbel_sum
from simplexcal.concrete._gumbel_sum import LAST_RATIO, SPACING, Array

LAST_NODE = 46.0
# u is nearly straight for |a| well below BEND, and nearly level well beyond.
BEND = 12.0
# u of the largest class lies inside [-1, 1]: at the ends a fitted polynomial's derivative is worst.
TOP = 0.75
# φ may grow like e^(-FADING a), and its error like the square of that.
FADING = 0.1

Real = TypeVar("Real", Tensor, Array)


@dataclass(frozen=True)
class Resolution:
    """How finely the integral is computed: its error is about the rounding of the dtype.

    Not a tuple, which torch.func would take apart where it is an argument of a Function.

    Args:
        stride: Spacing of the nodes, in units of SPACING.
        first_node: The first node.
        reach: Distance of the last node beyond ln K.
        depth: Classes further than this below the largest share one φ: they weigh e^-depth.
        degree: Degree of the polynomials of u.
        rank: Number of terms r.
        terms: Number of terms of the Chebyshev series in ρ.
    """

    stride: int
    first_node: float
    reach: float
    depth: int
    degree: int
    rank: int
    terms: int

    @property
    def stretch(self) -> float:
        """The factor that makes u(-depth) = -1."""
        return (1 + TOP) * (BEND + self.depth) / self.depth

    @property
    def spacing(self) -> float:
        """Distance between two nodes."""
        return self.stride * SPACING

    def variable(self, a: Real) -> Real:
        """Return u(a), with all digits of a where a is small.

        Args:
            a: Shifted logits.
        """
        return a / (BEND - a) * self.stretch + TOP


RESOLUTIONS = {
    torch.float32: Resolution(
        stride=5, first_node=-5.0, reach=19.0, depth=24, degree=18, rank=16, terms=24
    ),
    torch.float64: Resolution(
        stride=2, first_node=-7.5, reach=36.0, depth=30, degree=38, rank=34, terms=48
    ),
}


class Kernel(NamedTuple):
    """The factors of h(z - a) for Q nodes, P polynomials, rank R and T terms in ρ, on one device.

    Args:
        resolution: How finely the integral is computed.
        spacing: Distance between two nodes.
        fading: FADING in the dtype of the logits, ().
        unit_step: [z > 0], one half at 0, (Q,).
        collect: φ_r(a) = e^(-FADING a) Σ_p s_p(u) collect_pr, (P, R).
        share: e^-a d(e^a φ_r)/da likewise, (R, P+1).
        nodes: e^-z ψ_r(ρ, z) as coefficients of T_t(ρ), (T·R, Q).
        derivative: Of the Chebyshev polynomials, dT/dρ = T @ derivative, (T, T).
    """

    resolution: Resolution
    spacing: float
    fading: Tensor
    unit_step: Tensor
    collect: Tensor
    share: Tensor
    nodes: Tensor
    derivative: Tensor


def kernel_for(logits: Tensor) -> Kernel:
    """Return the kernel for the dtype, the device and the number of classes of some logits.

    Args:
        logits: (..., K).
    """
    r = RESOLUTIONS[logits.dtype]
    last = min(r.reach + math.log(logits.shape[-1]), LAST_NODE)
    n_nodes = math.ceil((last - r.first_node) / r.spacing) + 1
    return _kernel(logits.dtype, n_nodes, logits.device)


@cache
def tangent(
    r: Resolution,
    n: int,
    device: torch.device,
) -> Tensor:
    """Return d/da on coefficients, (n, n+1): of e^(a - FADING a) Σ_p c_p s_p(u) it is c @ tangent.

    Args:
        r: How finely the integral is computed.
        n: Number of coefficients.
        device: Where the matrix is to be.
    """
    return _tensors(device, _matrix_dtype(device), _tangent(r, n))[0]


@cache
def _kernel(
    dtype: torch.dtype,
    n_nodes: int,
    device: torch.device,
) -> Kernel:
    r = RESOLUTIONS[dtype]
    nodes = r.first_node + r.spacing * np.arange(n_nodes, dtype=np.float64)
    phi, psi = _factors(r, nodes)
    series = _gumbel_sum.coefficients(psi.reshape(len(psi), -1))[: r.terms]
    derivative = 2 / LAST_RATIO * np.pad(chebder(np.eye(r.terms)), ((0, 1), (0, 0)))
    matrices = _tensors(
        device,
        _matrix_dtype(device),
        np.heaviside(nodes, 0.5),
        phi,
        phi.T @ _tangent(r, len(phi)),
        series.reshape(-1, n_nodes),
        derivative,
    )
    (fading,) = _tensors(device, dtype, np.array(FADING))
    return Kernel(r, r.spacing, fading, *matrices)


def _tensors(
    device: torch.device,
    dtype: torch.dtype,
    *arrays: NDArray[Any],
) -> list[Tensor]:
    """Return the arrays as tensors, made in another thread.

    They are cached, so they must not belong to the inference mode or the ``torch.func`` transform
    in which they are first asked for; both are of this thread.
    """

    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.tensor(array, dtype=dtype).to(device)

    with ThreadPoolExecutor(1) as other_thread:
        return list(other_thread.map(tensor, arrays))


def _matrix_dtype(device: torch.device) -> torch.dtype:
    """Return float64, out of reach of autocast and TF32; MPS has none."""
    if device.type == "mps":
        return torch.float32
    return torch.float64


def _factors(
    r: Resolution,
    nodes: Array,
) -> tuple[Array, Array]:
    """Return φ (P, R), as coefficients, and e^-z ψ (ρ, R, Q), best in weighted least squares.

    The weights are 1 / (1 + h(z)), small where the integrand vanishes, and e^(2 FADING a), small
    for classes far below the largest.
    """
    excess = _gumbel_sum.load()
    steps = np.arange(-_margin(r), int(r.depth / SPACING) + 1)
    at_nodes = np.searchsorted(_gumbel_sum.abscissae(), nodes)
    nearness = np.exp(-2 * FADING * SPACING * steps)
    relevance = 1 / (1 + np.exp(-excess[:, at_nodes] - nodes))
    polynomials = _polynomials(r, -SPACING * steps.astype(np.float64))
    basis, change = np.linalg.qr(nearness[:, None] * polynomials)
    tilted = np.exp(-excess[:, at_nodes[:, None] + steps])  # e^(z - a) h(z - a) at (ρ, z, a)
    fitted = (tilted * nearness) @ basis
    weighted = (relevance[..., None] * fitted).reshape(-1, len(change))
    _, _, directions = np.linalg.svd(weighted, full_matrices=False)
    axes = directions[: r.rank].T
    psi = np.exp(-nodes)[:, None] * (fitted @ axes)
    return np.linalg.solve(change, axes), psi.transpose(0, 2, 1)


def _polynomials(r: Resolution, a: Array) -> Array:
    """Return e^(-FADING a) s_p(u(a)) along a new last axis."""
    s = chebvander(r.variable(a), r.degree)
    return np.exp(-FADING * a)[:, None] * s * _signs(r.degree + 1)


def _signs(n: int) -> Array:
    """Return the signs of s_p = ±T_p."""
    return np.resize([1.0, 1.0, -1.0, -1.0], n)


def _margin(r: Resolution) -> int:
    """Return how many lattice steps lie between a = 0 and u = 1."""
    t = (1 - TOP) / r.stretch  # a / (BEND - a)
    return int(BEND * t / (1 + t) / SPACING)


def _tangent(r: Resolution, n: int) -> Array:
    """Return (1 - FADING) c + du/da dc/du for each c = s_p.

    du/da = (u + stretch - TOP)² / (BEND · stretch).
    """
    offset = r.stretch - TOP
    signs = _signs(n + 1)
    speed = poly2cheb([offset**2, 2 * offset, 1.0]) / (BEND * r.stretch)
    slopes = [chebmul(speed, chebder(row)) for row in np.diag(signs[:n])]
    padded = np.stack([np.pad(row, (0, n + 1 - len(row))) for row in slopes])
    return np.asarray((1 - FADING) * np.eye(n, n + 1) + signs * padded, np.float64)
