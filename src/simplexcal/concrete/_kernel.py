"""The kernel of the potential's integral, factorised: one small set of matrices for each dtype.

With h(x) = -ln F_ρ(x) for the noise law of ``_gumbel_sum``, a class at a ≤ 0 enters the integral at z as h(z - a). This
function of (ρ, z, a) is smooth, so it is numerically of low rank, for every ρ at once:

    h(z - a) = e^(a - z) Σ_r φ_r(a) ψ_r(ρ, z)     with 16 terms for float32, 34 for float64.

φ is e^(-a/10) times a polynomial of u(a), a variable in which the far tail is no harder than the rest; ψ is kept on the
nodes z and as a Chebyshev series in ρ. Both come from one singular value decomposition of the tabulated law, which
takes some milliseconds on first use.

The polynomials are written in s_p = ±T_p, with signs + + - - + + …, for which Chebyshev's recurrence has no difference
and is one operation in torch, s_p = s_(p-2) ± 2u s_(p-1).
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
BEND = 12.0  # u is nearly straight for |a| well below this, and nearly level well beyond
TOP = 0.75  # u of the largest class: inside [-1, 1], since at the ends a fitted polynomial's derivative is worst
FADING = 0.1  # φ may grow like e^(-FADING a); its error, like the square of that

Real = TypeVar("Real", Tensor, Array)


@dataclass(frozen=True)
class Resolution:
    """How finely the integral is computed: chosen so that the error is about the rounding of the dtype."""

    # No tuple, which torch.func would take apart where it is an argument of a Function.

    stride: int  # node spacing, in units of SPACING
    first_node: float
    reach: float  # the last node is this far beyond ln K
    depth: int  # classes further than this below the largest share one φ: they weigh e^-depth
    degree: int  # of the polynomials of u
    rank: int
    terms: int  # of the Chebyshev series in ρ

    @property
    def stretch(self) -> float:
        """What makes u(-depth) = -1."""
        return (1 + TOP) * (BEND + self.depth) / self.depth

    def variable(self, a: Real) -> Real:
        """Return u(a), with all digits of a where a is small."""
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
    """The factors of h(z - a) for Q nodes, P polynomials, rank R and T Chebyshev terms in ρ, on one device."""

    resolution: Resolution
    spacing: float  # of the nodes
    unit_step: Tensor  # (Q,)     [z > 0], one half at 0
    collect: Tensor  # (P, R)     φ_r(a) = e^(-FADING a) Σ_p s_p(u) collect_pr
    share: Tensor  # (R, P+1)     e^-a d(e^a φ_r)/da likewise
    nodes: Tensor  # (T·R, Q)     e^-z ψ_r(ρ, z), the coefficients of T_t(ρ)
    derivative: Tensor  # (T, T)  of the Chebyshev polynomials: dT/dρ = T @ derivative


def kernel_for(logits: Tensor) -> Kernel:
    """Return the kernel that serves the dtype, the device and the number of classes of ``logits``."""
    r = RESOLUTIONS[logits.dtype]
    last = min(r.reach + math.log(logits.shape[-1]), LAST_NODE)
    n_nodes = math.ceil((last - r.first_node) / (r.stride * SPACING)) + 1
    return _kernel(r, n_nodes, logits.device)


@cache
def tangent(r: Resolution, n: int, device: torch.device) -> Tensor:
    """Return d/da on coefficients, (n, n+1): of e^(a - FADING a) Σ_p c_p s_p(u) they become c @ tangent."""
    return _tensors(device, _tangent(r, n))[0]


@cache
def _kernel(r: Resolution, n_nodes: int, device: torch.device) -> Kernel:
    nodes = r.first_node + r.stride * SPACING * np.arange(n_nodes, dtype=np.float64)
    phi, psi = _factors(r, nodes)
    series = _gumbel_sum.coefficients(psi.reshape(len(psi), -1))[: r.terms].reshape(-1, n_nodes)
    derivative = 2 / LAST_RATIO * np.pad(chebder(np.eye(r.terms)), ((0, 1), (0, 0)))
    arrays = (np.heaviside(nodes, 0.5), phi, phi.T @ _tangent(r, len(phi)), series, derivative)
    return Kernel(r, r.stride * SPACING, *_tensors(device, *arrays))


def _tensors(device: torch.device, *arrays: NDArray[Any]) -> list[Tensor]:
    """Return the arrays as tensors, made in another thread.

    They are cached, so they must not belong to the inference mode or the ``torch.func`` transform in which they are
    first asked for; both are of this thread.
    """
    dtype = _matrix_dtype(device)
    with ThreadPoolExecutor(1) as elsewhere:
        return list(
            elsewhere.map(
                lambda x: torch.from_numpy(np.ascontiguousarray(x)).to(dtype).to(device), arrays
            )
        )


def _matrix_dtype(device: torch.device) -> torch.dtype:
    """Return float64, out of reach of autocast and TF32; MPS has none."""
    return torch.float32 if device.type == "mps" else torch.float64


def _factors(r: Resolution, nodes: Array) -> tuple[Array, Array]:
    """Return φ (P, R), as coefficients, and e^-z ψ (ρ, R, Q): the best of their rank, in weighted least squares.

    Weights: 1 / (1 + h(z)) where the integrand vanishes, and e^(2 FADING a) for classes that are far below the largest.
    """
    excess, x = _gumbel_sum.load(), _gumbel_sum.abscissae()
    steps = np.arange(-_margin(r), int(r.depth / SPACING) + 1)
    at, nearness = np.searchsorted(x, nodes), np.exp(-2 * FADING * SPACING * steps)
    relevance = 1 / (1 + np.exp(-excess[:, at] - nodes))
    basis, change = np.linalg.qr(
        nearness[:, None] * _polynomials(r, -SPACING * steps.astype(np.float64))
    )
    tilted = np.exp(-excess[:, at[:, None] + steps])  # e^(z - a) h(z - a) at (ρ, z, a)
    fitted = (tilted * nearness) @ basis
    axes = np.linalg.svd(
        (relevance[..., None] * fitted).reshape(-1, len(change)), full_matrices=False
    )[2][: r.rank].T
    psi = np.exp(-nodes)[:, None] * (fitted @ axes)
    return np.linalg.solve(change, axes), psi.transpose(0, 2, 1)


def _polynomials(r: Resolution, a: Array) -> Array:
    """Return e^(-FADING a) s_p(u(a)) along a new last axis."""
    return np.exp(-FADING * a)[:, None] * chebvander(r.variable(a), r.degree) * _signs(r.degree + 1)


def _signs(n: int) -> Array:
    return np.resize([1.0, 1.0, -1.0, -1.0], n)


def _margin(r: Resolution) -> int:
    """Return how many lattice steps lie between a = 0 and u = 1."""
    t = (1 - TOP) / r.stretch  # a / (BEND - a)
    return int(BEND * t / (1 + t) / SPACING)


def _tangent(r: Resolution, n: int) -> Array:
    """Return (1 - FADING) c + du/da dc/du for each c = s_p, where du/da = (u + stretch - TOP)² / (BEND · stretch)."""
    offset, signs = r.stretch - TOP, _signs(n + 1)
    speed = poly2cheb([offset**2, 2 * offset, 1.0]) / (BEND * r.stretch)
    slopes = [chebmul(speed, chebder(row)) for row in np.diag(signs[:n])]
    padded = np.stack([np.pad(row, (0, n + 1 - len(row))) for row in slopes])
    return np.asarray((1 - FADING) * np.eye(n, n + 1) + signs * padded, np.float64)
