"""The kernel of the potential's integral, factorised: one small set of matrices for each dtype.

With h(x) = -ln F_ρ(x) for the noise law of ``_noise``, a class at a ≤ 0 enters the integral at z as h(z - a). This
function of (ρ, z, a) is smooth, so it is numerically of low rank, for every ρ at once:

    h(z - a) = e^(a - z) Σ_r φ_r(a) ψ_r(ρ, z)     with 14 terms for float32, 34 for float64.

φ is kept on a lattice of a, ψ on the nodes z and as a Chebyshev series in ρ. Both come from one singular value
decomposition of the tabulated law, which takes some milliseconds on first use.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.polynomial.chebyshev import chebder
from torch import Tensor

from simplexcal import _noise
from simplexcal._noise import LAST_RATIO, SPACING, Array

HALF_WIDTH = 7  # of the central difference that gives dφ/da: order 14, error below 1e-14
LAST_NODE = 46.0


class Resolution(NamedTuple):
    """How finely the integral is computed: chosen so that the error is about the rounding of the dtype."""

    stride: int  # node spacing, in units of SPACING
    first_node: float
    reach: float  # the last node is this far beyond ln K
    depth: int  # classes further than this below the largest share one φ: they weigh e^-depth
    order: int  # points of the interpolation in a
    rank: int
    terms: int  # of the Chebyshev series in ρ

    @property
    def padding(self) -> int:
        """Lattice points beyond either end of [-depth, 0]."""
        return HALF_WIDTH + self.order // 2

    @property
    def n_steps(self) -> int:
        """Lattice steps from 0 to -depth."""
        return int(self.depth / SPACING)


RESOLUTIONS = {
    torch.float32: Resolution(stride=5, first_node=-5.0, reach=19.0, depth=24, order=4, rank=14, terms=24),
    torch.float64: Resolution(stride=2, first_node=-7.5, reach=36.0, depth=30, order=12, rank=34, terms=48),
}


class Kernel(NamedTuple):
    """The factors of h(z - a) for Q nodes, B lattice points, rank R and T Chebyshev terms, on one device."""

    resolution: Resolution
    spacing: float  # of the nodes
    unit_step: Tensor  # (Q,)     [z > 0], one half at 0
    spread: Tensor  # (B, R)      φ_r(a_b)
    read: Tensor  # (R, B)        e^-a d(e^a φ_r)/da at a_b
    nodes: Tensor  # (T·R, Q)     e^-z ψ_r(ρ, z), the coefficients of T_t(ρ)
    derivative: Tensor  # (T, T)  of the Chebyshev polynomials: dT/dρ = T @ derivative


def kernel_for(logits: Tensor) -> Kernel:
    """Return the kernel that serves the dtype, the device and the number of classes of ``logits``."""
    r = RESOLUTIONS[logits.dtype]
    last = min(r.reach + math.log(logits.shape[-1]), LAST_NODE)
    n_nodes = math.ceil((last - r.first_node) / (r.stride * SPACING)) + 1
    return _kernel(r, n_nodes, logits.device)


@cache
def _kernel(r: Resolution, n_nodes: int, device: torch.device) -> Kernel:
    nodes = r.first_node + r.stride * SPACING * np.arange(n_nodes, dtype=np.float64)
    phi, psi = _factors(r, nodes)
    series = _noise.coefficients(psi.reshape(len(psi), -1))[: r.terms].reshape(-1, n_nodes)
    derivative = 2 / LAST_RATIO * np.pad(chebder(np.eye(r.terms)), ((0, 1), (0, 0)))
    arrays = (np.heaviside(nodes, 0.5), phi, (phi + _derivative(phi)).T, series, derivative)
    dtype = _lattice_dtype(device)
    with torch.inference_mode(False):  # the cached tensors must serve training too
        tensors = [torch.from_numpy(np.ascontiguousarray(x)).to(dtype).to(device) for x in arrays]
    return Kernel(r, r.stride * SPACING, *tensors)


def _lattice_dtype(device: torch.device) -> torch.dtype:
    """Return float64, out of reach of autocast and TF32; MPS has none."""
    return torch.float32 if device.type == "mps" else torch.float64


def _factors(r: Resolution, nodes: Array) -> tuple[Array, Array]:
    """Return φ (B, R) and e^-z ψ (ρ, R, Q), the best of their rank in the weighted least-squares sense.

    Weights: 1 / (1 + h(z)) where the integrand vanishes, and e^(a/5) for classes that are far below the largest.
    """
    excess, x = _noise.load(), _noise.abscissae()
    steps = np.arange(-r.padding, r.n_steps + r.padding + 1)
    at = np.searchsorted(x, nodes)
    tilted = np.exp(-excess[:, at[:, None] + steps])  # e^(z - a) h(z - a) at (ρ, z, a)
    relevance = 1 / (1 + np.exp(-excess[:, at] - nodes))
    nearness = np.exp(-steps * SPACING / 5)
    weighted = (relevance[..., None] * tilted * nearness).reshape(-1, len(steps))
    axes = np.linalg.svd(weighted, full_matrices=False)[2][: r.rank].T
    psi = np.exp(-nodes)[:, None] * (tilted @ (nearness[:, None] * axes))
    return axes / nearness[:, None], psi.transpose(0, 2, 1)


def _derivative(phi: Array) -> Array:
    """Return dφ/da along the lattice (a falls by SPACING a step) by central differences; zero in the padding."""
    n, out = HALF_WIDTH, np.zeros_like(phi)
    for j in range(1, n + 1):
        weight = (-1) ** (j + 1) * math.factorial(n) ** 2 / (j * math.factorial(n - j) * math.factorial(n + j))
        out[n:-n] -= weight / SPACING * (phi[n + j : len(phi) - n + j] - phi[n - j : len(phi) - n - j])
    return out
