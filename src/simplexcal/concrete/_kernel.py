"""The kernel of the potential's integral, factorised: one small set of matrices for each dtype.

With h(x) = -ln F_ρ(x) for the distribution of ``_gumbel_sum``, a class at a ≤ 0 enters the integral
at z as h(z - a). This function of (ρ, z, a) is smooth, so it has low numerical rank, for every ρ at
once:

    h(z - a) = e^(a - z) Σ_r φ_r(a) ψ_r(ρ, z)     with 16 terms for float32, 34 for float64.

φ is e^(-a/10) times a polynomial of u(a) (``_chebyshev``). ψ is kept on the nodes z and as a
Chebyshev series in ρ. Both come from one singular value decomposition of the tabulated
distribution, which takes some milliseconds on first use.

ψ in turn has low rank in ρ and in z (Tucker's decomposition): for one ρ it is a small matrix (R, Z)
times Z functions of z. A sample has one ρ, so it has one matrix, whatever is computed with it.
"""

import math
from collections.abc import Callable
from functools import cache, wraps
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from simplexcal.concrete import _chebyshev, _gumbel_sum
from simplexcal.concrete._chebyshev import FADING, Resolution
from simplexcal.concrete._gumbel_sum import SPACING, Array

P = ParamSpec("P")
T = TypeVar("T")

LAST_NODE = 46.0
RESOLUTIONS = {
    torch.float32: Resolution(
        stride=5,
        first_node=-5.0,
        reach=19.0,
        tail=11.5,
        depth=24,
        degree=18,
        rank=16,
        terms=24,
        ratio_rank=16,
        node_rank=15,
    ),
    torch.float64: Resolution(
        stride=2,
        first_node=-7.5,
        reach=36.0,
        tail=20.0,
        depth=30,
        degree=38,
        rank=34,
        terms=48,
        ratio_rank=34,
        node_rank=40,
    ),
}


class Kernel(NamedTuple):
    """The factors of h(z - a) for Q nodes, P polynomials, rank R and T terms in ρ, on one device.

    Args:
        resolution: How finely the integral is computed.
        spacing: Distance between two nodes.
        fading: FADING in the dtype of the logits, ().
        newton_zeros: Twice the zeros of Newton's form, in the dtype of the logits, (N_ZEROS,).
        unit_step: [z > 0], one half at 0, (Q,).
        collect: φ_r(a) = e^(-FADING a) Σ_p s_p(u) collect_pr, (P, R).
        share: e^-a d(e^a φ_r)/da likewise, (R, P+1).
        curve: e^-a d²(e^a φ_r)/da² like share, (R, P+2).
        points: Chebyshev points, (P+3,).
        point_weights: Their barycentric weights, (P+3,).
        at_points: The polynomials s_p there, (P+3, P+2).
        ratio_functions: The M functions of ρ as coefficients of T_t(ρ), (T, M).
        d_ratio_functions: Their derivatives likewise, (T, M).
        core: The factors of e^-z ψ_r for each function of ρ and each function of z, (M, R·Z).
        node_functions: The Z functions of z at the nodes, (Z, Q).
        tail: Their sums over the rest of the lattice, where Φ is 1 and S is small, (Z,).
        newton_collect: ``collect`` for the polynomials n_p of Newton's form, (P, R).
        newton_share: ``share`` for them, (R, P+1).
        newton_curve: ``curve`` for them, for half of the polynomials, (R, P/2).
    """

    resolution: Resolution
    spacing: float
    fading: Tensor
    newton_zeros: Tensor
    unit_step: Tensor
    collect: Tensor
    share: Tensor
    curve: Tensor
    points: Tensor
    point_weights: Tensor
    at_points: Tensor
    ratio_functions: Tensor
    d_ratio_functions: Tensor
    core: Tensor
    node_functions: Tensor
    tail: Tensor
    newton_collect: Tensor
    newton_share: Tensor
    newton_curve: Tensor


def kernel_for(
    logits: Tensor, products: torch.dtype | None = None, resolution: Resolution | None = None
) -> Kernel:
    """Return the kernel for the dtype, the device and the number of classes of some logits.

    Args:
        logits: (..., K).
        products: Dtype of the products of matrices; by default ``product_dtype``.
        resolution: How finely the integral is computed; by default that of the dtype.
    """
    if products is None:
        products = product_dtype(logits)
    r = resolution or RESOLUTIONS[logits.dtype]
    log_k = math.log(logits.shape[-1])
    n_nodes = _n_nodes(r, log_k + r.tail)
    n_lattice = _n_nodes(r, min(log_k + r.reach, LAST_NODE))
    return _constant_kernel(r, logits.dtype, n_nodes, n_lattice, logits.device, products)


def _n_nodes(r: Resolution, last: float) -> int:
    return math.ceil((last - r.first_node) / (r.stride * SPACING)) + 1


def row_width(logits: Tensor) -> int:
    """Return how many numbers the moments, or the inversion, hold for a row.

    Args:
        logits: (..., K).
    """
    r = RESOLUTIONS[logits.dtype]
    n_classes = logits.shape[-1]
    n_held = 4 * n_classes
    if logits.device.type == "cpu":
        # ``_turned`` holds eight arrays of many classes, or all polynomials of few.
        n_held = max(2 * n_held, (r.degree + 2) * min(n_classes, r.degree + 2))
    return r.rank * r.node_rank + n_held


def product_dtype(logits: Tensor) -> torch.dtype:
    """Return the dtype of the products of matrices, which nothing may round to fewer digits.

    PyTorch has switches that lower the precision of float32 products. Those of float64 are out of
    reach, but take twice the time on a CPU. So float32 logits have float32 products where no switch
    lowers their precision: on the CPU, by MKL. A graph may run anywhere.

    Args:
        logits: (..., K).
    """
    if logits.dtype == torch.float32 and logits.device.type == "cpu" and _float32_is_exact():
        return torch.float32
    return _chebyshev.matrix_dtype(logits.device)


def _float32_is_exact() -> bool:
    """Whether products of float32 matrices on the CPU have 24 bits, outside of autocast."""
    if torch.compiler.is_compiling() or not torch.backends.mkl.is_available():
        return False
    settings = getattr(torch.backends.mkldnn, "matmul", None)
    if settings is None:  # PyTorch before 2.9 has one switch alone.
        return torch.get_float32_matmul_precision() == "highest"
    # This one follows all others.
    precision: str = settings.fp32_precision
    return precision in ("none", "ieee")


def without_autocast(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function, with autocast on the CPU switched off meanwhile.

    Args:
        function: It multiplies matrices.
    """

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_compiling() or not torch.is_autocast_enabled("cpu"):
            return function(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            return function(*args, **kwargs)

    return wrapped


def _constant_kernel(
    r: Resolution,
    dtype: torch.dtype,
    n_nodes: int,
    n_lattice: int,
    device: torch.device,
    products: torch.dtype,
) -> Kernel:
    """Return the kernel, which torch.compile takes as it is and does not trace."""
    return _kernel(r, dtype, n_nodes, n_lattice, device, products)


# torch.compiler.assume_constant_result does this, and imports the whole compiler for it.
_constant_kernel._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _kernel(
    r: Resolution,
    dtype: torch.dtype,
    n_nodes: int,
    n_lattice: int,
    device: torch.device,
    products: torch.dtype,
) -> Kernel:
    spacing = r.stride * SPACING
    nodes = r.first_node + spacing * np.arange(n_lattice, dtype=np.float64)
    phi, psi = _factors(r, nodes)
    share = phi.T @ _chebyshev.tangent_array(r, len(phi))
    curve = share @ _chebyshev.tangent_array(r, len(phi) + 1)
    ratio_functions, core, node_functions = _compress(r, nodes, psi)
    fading, zeros = _chebyshev.as_tensors(
        device, dtype, np.array(FADING), 2 * _chebyshev.newton_zeros()
    )
    matrices = _chebyshev.as_tensors(
        device,
        products,
        np.heaviside(nodes[:n_nodes], 0.5),
        phi,
        share,
        curve,
        *_chebyshev.barycentric(curve.shape[1]),
        ratio_functions,
        _chebyshev.slope_in_ratio(r.terms) @ ratio_functions,
        core,
        node_functions[:, :n_nodes],
        node_functions[:, n_nodes:].sum(1),
        *_newton(phi, share, curve),
    )
    return Kernel(r, spacing, fading, zeros, *matrices)


def _newton(phi: Array, share: Array, curve: Array) -> list[Array]:
    """Return the matrices from and to Newton's form, the last for half of the polynomials."""
    n = len(phi)
    half = n // 2
    return [
        _chebyshev.newton_matrix(n).T @ phi,
        share @ _chebyshev.newton_matrix(n + 1),
        curve[:, :half] @ _chebyshev.newton_matrix(half),
    ]


def _factors(r: Resolution, nodes: Array) -> tuple[Array, Array]:
    """Return φ (P, R), as coefficients, and e^-z ψ (ρ, R, Q), best in weighted least squares.

    The weights are 1 / (1 + h(z)), small where the integrand vanishes, and e^(2 FADING a), small
    for classes far below the largest.
    """
    excess = _gumbel_sum.load()
    abscissae = _gumbel_sum.abscissae()
    steps = np.arange(-_chebyshev.margin(r), int(r.depth / SPACING) + 1)
    at_nodes = np.searchsorted(abscissae, nodes)
    nearness = np.exp(-2 * FADING * SPACING * steps)
    relevance = _relevance(nodes)
    polynomials = _chebyshev.polynomials(r, -SPACING * steps.astype(np.float64))
    basis, change = np.linalg.qr(nearness[:, None] * polynomials)
    tilted = np.exp(-excess[:, at_nodes[:, None] + steps])  # e^(z - a) h(z - a) at (ρ, z, a)
    fitted = (tilted * nearness) @ basis
    weighted = (relevance[..., None] * fitted).reshape(-1, len(change))
    _, _, directions = np.linalg.svd(weighted, full_matrices=False)
    axes = directions[: r.rank].T
    psi = np.exp(-nodes)[:, None] * (fitted @ axes)
    return np.linalg.solve(change, axes), psi.transpose(0, 2, 1)


def _relevance(nodes: Array) -> Array:
    """Return 1 / (1 + h(z)) at each tabulated ρ and each node, (ρ, Q)."""
    at_nodes = np.searchsorted(_gumbel_sum.abscissae(), nodes)
    excess = _gumbel_sum.load()[:, at_nodes]
    return np.asarray(1 / (1 + np.exp(-excess - nodes)), np.float64)


def _compress(r: Resolution, nodes: Array, psi: Array) -> tuple[Array, Array, Array]:
    """Return functions of ρ (T, M), core (M, R·Z) and functions of z (Z, Q).

    Their product is e^-z ψ, (ρ, R, Q) at the tabulated ρ: Tucker's decomposition, in least squares.
    An error at z counts e^z-fold, up to the number of classes, since as many classes share it. An
    error of the derivative in ρ counts too: the expected entropy is made of it.
    """
    n = len(psi)
    n_classes = np.exp(nodes[-1] - r.reach)
    weight = 1 / (np.exp(-nodes) + 1 / n_classes)
    weighted = psi * weight
    by_node = weighted.transpose(2, 0, 1).reshape(len(weight), -1)
    of_node = np.linalg.svd(by_node, full_matrices=False)[0][:, : r.node_rank]
    by_ratio = _chebyshev.series_in_ratio((weighted @ of_node).reshape(n, -1))[: r.terms]
    norm = _chebyshev.norm_in_ratio(r.terms)
    of_ratio = np.linalg.svd(norm @ by_ratio, full_matrices=False)[0][:, : r.ratio_rank]
    core = of_ratio.T @ norm @ by_ratio
    return np.linalg.solve(norm, of_ratio), core, (of_node / weight[:, None]).T
