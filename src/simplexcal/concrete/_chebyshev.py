"""The polynomials of the kernel: their sums over many classes, and their values at each class.

A class at a ≤ 0 has the variable u(a), in which the far tail is no harder than the rest, and the
weight w = e^(a - FADING a). The polynomials are s_p = ±T_p, with signs + + - - + + …, for which
Chebyshev's recurrence has no difference and is one operation in torch, s_p = s_(p-2) ± 2u s_(p-1).

    Σ_k f_k w_k s_p(u_k) for every p     and     w_k Σ_p c_p s_p(u_k) for every k

are each a short loop over p with a few arrays as large as the classes, so nothing larger exists,
also in a backward pass: the derivative of the one is the other, with polynomials of one degree
more.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.polynomial.chebyshev import chebder, chebmul, chebpts1, chebvander, poly2cheb
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import Function

from simplexcal.concrete._gumbel_sum import LAST_RATIO, N_RATIOS, SPACING, Array

# u is nearly straight for |a| well below BEND, and nearly level well beyond.
BEND = 12.0
# u of the largest class lies inside [-1, 1]: at the ends a fitted polynomial's derivative is worst.
TOP = 0.75
# φ may grow like e^(-FADING a), and its error like the square of that.
FADING = 0.1
# Newton's form of a polynomial has so many different factors, in an order in which all products
# stay small.
N_ZEROS = 4
NEWTON_ORDER = [0, 3, 1, 2]
# How much the error of a derivative in ρ weighs beside that of the function.
SLOPE_WEIGHT = 0.2

# With at most so many classes, arrays are turned, so that memory runs along the rows: long loops.
NARROW = 32

Real = TypeVar("Real", Tensor, Array, float)


@dataclass(frozen=True)
class Resolution:
    """How finely the integral is computed: its error is about the rounding of the dtype.

    Not a tuple, which torch.func would take apart where it is an argument of a Function.

    Args:
        stride: Spacing of the nodes, in units of SPACING.
        first_node: The first node.
        reach: Distance of the end of the lattice beyond ln K.
        tail: Distance of the last node beyond ln K: from there on the integrals are linear in S.
        depth: Classes further than this below the largest share one φ: they weigh e^-depth.
        degree: Degree of the polynomials of u.
        rank: Number of terms r.
        terms: Number of terms of the Chebyshev series in ρ.
        ratio_rank: Number of functions of ρ, M.
        node_rank: Number of functions of z, Z.
    """

    stride: int
    first_node: float
    reach: float
    tail: float
    depth: int
    degree: int
    rank: int
    terms: int
    ratio_rank: int
    node_rank: int

    @property
    def stretch(self) -> float:
        """The factor that makes u(-depth) = -1."""
        return (1 + TOP) * (BEND + self.depth) / self.depth

    def variable(self, a: Real) -> Real:
        """Return u(a), with all digits of a where a is small.

        Args:
            a: Shifted logits.
        """
        return a / (BEND - a) * self.stretch + TOP


class Classes(NamedTuple):
    """Where the classes lie.

    Args:
        a: Shifted logits, in which derivatives are taken.
        weight: e^(a - FADING a).
        u: u(a), the variable of the polynomials.
    """

    a: Tensor
    weight: Tensor
    u: Tensor


@torch.no_grad()
def locate(a: Tensor, r: Resolution, fading: Tensor) -> Classes:
    """Return where classes lie; beyond the depth e^(-FADING a) and u are those there.

    Args:
        a: Shifted logits, (N, K).
        r: How finely the integral is computed.
        fading: FADING in their dtype, ().
    """
    near = a.clamp_min(-r.depth)
    return Classes(a, log_weight(a, r, fading).exp(), r.variable(near))


def log_weight(a: Tensor, r: Resolution, fading: Tensor) -> Tensor:
    """Return the logarithm of the weight of classes, a - FADING a.

    Args:
        a: Shifted logits, (N, K).
        r: How finely the integral is computed.
        fading: FADING in their dtype, ().
    """
    near = a.clamp_min(-r.depth)
    # The factor is a tensor: in an exported graph a Python number is rounded to float32.
    return torch.addcmul(a, near, fading, value=-1)


def polynomials(r: Resolution, a: Array) -> Array:
    """Return e^(-FADING a) s_p(u(a)) along a new last axis.

    Args:
        r: How finely the integral is computed.
        a: Shifted logits.
    """
    s = chebvander(r.variable(a), r.degree)
    return np.exp(-FADING * a)[:, None] * s * signs(r.degree + 1)


def barycentric(n: int) -> tuple[Array, Array, Array]:
    """Return Chebyshev points, their barycentric weights, and n polynomials s_p at them.

    Args:
        n: Number of polynomials.
    """
    n_points = n + 1
    points = chebpts1(n_points)
    angles = (2 * np.arange(n_points) + 1) * (np.pi / (2 * n_points))
    weights = np.resize([1.0, -1.0], n_points) * np.sin(angles)
    return points, weights, chebvander(points, n - 1) * signs(n)


def series_in_ratio(values: Array) -> Array:
    """Return the Chebyshev coefficients of functions of ρ.

    Args:
        values: Along axis 0, values at each tabulated ρ.
    """
    points = chebvander(chebpts1(N_RATIOS), N_RATIOS - 1)
    return np.asarray(np.linalg.solve(points, values), np.float64)


def slope_in_ratio(terms: int) -> Array:
    """Return d/dρ on the Chebyshev coefficients of functions of ρ, along axis 0, (T, T).

    Args:
        terms: Number of coefficients, T.
    """
    slope = chebder(np.eye(terms), scl=2 / LAST_RATIO)
    return np.asarray(np.pad(slope, ((0, 1), (0, 0))), np.float64)


def norm_in_ratio(terms: int) -> Array:
    """Return a matrix that makes the norm of Chebyshev coefficients that of function and slope.

    Args:
        terms: Number of coefficients, T.
    """
    values = chebvander(chebpts1(terms), terms - 1)
    slopes = SLOPE_WEIGHT * values @ slope_in_ratio(terms)
    return np.asarray(np.linalg.qr(np.concatenate([values, slopes]), mode="r"), np.float64)


def margin(r: Resolution) -> int:
    """Return how many steps of the lattice lie between a = 0 and u = 1.

    Args:
        r: How finely the integral is computed.
    """
    t = (1 - TOP) / r.stretch  # a / (BEND - a)
    return int(BEND * t / (1 + t) / SPACING)


def newton_zeros() -> Array:
    """Return the zeros of the factors in Newton's form of a polynomial, which come in turns.

    They are the Chebyshev points of the interval of u. So the product of one turn is a Chebyshev
    polynomial of this interval, and few of its powers are needed: the form is stable.
    """
    half = (1 + TOP) / 2
    return np.asarray(half * chebpts1(N_ZEROS)[NEWTON_ORDER] + (TOP - half), np.float64)


def newton_polynomials(u: Array, n: int) -> Array:
    """Return n_p = Π_(i < p) 2 (u - x_(i mod N_ZEROS)) for p < n along a new last axis.

    Args:
        u: Where to evaluate them.
        n: Number of polynomials.
    """
    factors = 2 * (u[:, None] - np.resize(newton_zeros(), n - 1))
    return np.cumprod(np.concatenate([np.ones((len(u), 1)), factors], axis=1), axis=1)


def newton_matrix(n: int) -> Array:
    """Return B with s_p = Σ_q B_pq n_q for p, q < n.

    Args:
        n: Number of polynomials.
    """
    points = chebpts1(n)
    values = chebvander(points, n - 1) * signs(n)
    return np.asarray(np.linalg.solve(newton_polynomials(points, n), values).T, np.float64)


def signs(n: int) -> Array:
    """Return the signs of s_p = ±T_p.

    Args:
        n: Number of polynomials.
    """
    return np.resize([1.0, 1.0, -1.0, -1.0], n)


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
    return as_tensors(device, matrix_dtype(device), tangent_array(r, n))[0]


def tangent_array(r: Resolution, n: int) -> Array:
    """Return (1 - FADING) c + du/da dc/du for each c = s_p.

    du/da = (u + stretch - TOP)² / (BEND · stretch).

    Args:
        r: How finely the integral is computed.
        n: Number of coefficients.
    """
    offset = r.stretch - TOP
    sign = signs(n + 1)
    speed = poly2cheb([offset**2, 2 * offset, 1.0]) / (BEND * r.stretch)
    slopes = [chebmul(speed, chebder(row)) for row in np.diag(sign[:n])]
    padded = np.stack([np.pad(row, (0, n + 1 - len(row))) for row in slopes])
    return np.asarray((1 - FADING) * np.eye(n, n + 1) + sign * padded, np.float64)


def as_tensors(
    device: torch.device,
    dtype: torch.dtype,
    *arrays: NDArray[Any],
) -> list[Tensor]:
    """Return the arrays as tensors, made in another thread.

    They are cached, so they must not belong to the inference mode or the ``torch.func`` transform
    in which they are first asked for; both are of this thread.

    Args:
        device: Where the tensors are to be.
        dtype: Their dtype.
        arrays: What they hold.
    """

    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.tensor(array, dtype=dtype).to(device)

    with ThreadPoolExecutor(1) as other_thread:
        return list(other_thread.map(tensor, arrays))


def matrix_dtype(device: torch.device) -> torch.dtype:
    """Return float64, out of reach of autocast and TF32; MPS has none.

    Args:
        device: Where the matrices are to be.
    """
    if device.type == "mps":
        return torch.float32
    return torch.float64


class _Sums(Function):
    """Σ_k f_k w_k s_p(u_k) for p < n, (N, n), given f (N, K) or (N, 1)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        factor: Tensor,
        a: Tensor,
        weight: Tensor,
        u: Tensor,
        r: Resolution,
        n: int,
    ) -> Tensor:
        twice = u + u
        before = factor * weight
        this = before * u
        sums = [before.sum(-1, keepdim=True), this.sum(-1, keepdim=True)]
        for p in range(2, n):
            after = _advanced(before, twice, this, -sign(p))
            before = this
            this = after
            sums.append(this.sum(-1, keepdim=True))
        return torch.cat(sums, -1)

    @staticmethod
    def setup_context(
        ctx: Any,
        inputs: tuple[Any, ...],
        output: Tensor,
    ) -> None:
        *tensors, resolution, n = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.resolution = resolution
        ctx.n = n

    @staticmethod
    def jvp(
        ctx: Any,
        d_factor: Tensor,
        d_a: Tensor,
        *_: Any,
    ) -> Tensor:
        factor, *classes = ctx.saved_tensors
        matrix = tangent(ctx.resolution, ctx.n, factor.device)
        moved = sum_over_classes(factor * d_a, *classes, ctx.resolution, ctx.n + 1)
        d_sums = (moved.to(matrix) @ matrix.T).to(moved)
        return sum_over_classes(d_factor, *classes, ctx.resolution, ctx.n) + d_sums

    @staticmethod
    def backward(
        ctx: Any,
        grad: Tensor,
    ) -> tuple[Tensor | None, ...]:
        factor, *classes = ctx.saved_tensors
        d_factor = None
        if ctx.needs_input_grad[0]:
            d_factor = value_at_classes(grad, *classes, ctx.resolution)
        slope = value_at_classes(_slopes(grad, ctx.resolution), *classes, ctx.resolution)
        return d_factor, factor * slope, None, None, None, None


class _Values(Function):
    """w_k Σ_p c_p s_p(u_k), (N, K), given c (N, n), by Clenshaw's rule."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        c: Tensor,
        a: Tensor,
        weight: Tensor,
        u: Tensor,
        r: Resolution,
    ) -> Tensor:
        columns = c.split(1, -1)
        narrow = weight.shape[-1] <= NARROW
        if narrow:
            columns = c.mT.contiguous().split(1)
            u = u.mT.contiguous()
        twice = u + u
        last = len(columns) - 1
        before = columns[last] + torch.zeros_like(u)
        this = torch.addcmul(columns[last - 1], twice, columns[last], value=sign(last - 1))
        for p in range(last - 2, 0, -1):
            after = _advanced(_raised(before, columns[p]), twice, this, sign(p))
            before = this
            this = after
        values = _advanced(_raised(before, columns[0]), u, this, 1)
        if narrow:
            values = values.mT
        return weight * values

    @staticmethod
    def setup_context(
        ctx: Any,
        inputs: tuple[Any, ...],
        output: Tensor,
    ) -> None:
        *tensors, resolution = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.resolution = resolution

    @staticmethod
    def jvp(
        ctx: Any,
        d_c: Tensor,
        d_a: Tensor,
        *_: Any,
    ) -> Tensor:
        c, *classes = ctx.saved_tensors
        slope = value_at_classes(_slopes(c, ctx.resolution), *classes, ctx.resolution)
        return value_at_classes(d_c, *classes, ctx.resolution) + d_a * slope

    @staticmethod
    def backward(
        ctx: Any,
        grad: Tensor,
    ) -> tuple[Tensor | None, ...]:
        c, *classes = ctx.saved_tensors
        d_c = None
        if ctx.needs_input_grad[0]:
            d_c = sum_over_classes(grad, *classes, ctx.resolution, c.shape[-1])
        slope = value_at_classes(_slopes(c, ctx.resolution), *classes, ctx.resolution)
        return d_c, grad * slope, None, None, None


def _advanced(before: Tensor, u: Tensor, this: Tensor, value: int) -> Tensor:
    """Return before ± u · this, into the memory of ``before`` where that can be."""
    if _keeps_memory():
        return torch.addcmul(before, u, this, value=value)
    return before.addcmul_(u, this, value=value)


def _raised(before: Tensor, column: Tensor) -> Tensor:
    """Return before + column, into the memory of ``before`` where that can be."""
    if _keeps_memory():
        return before + column
    return before.add_(column)


def _keeps_memory() -> bool:
    """Whether a transform or a graph wants results in new memory.

    Otherwise two arrays are enough for a recurrence, and they stay in a cache.
    """
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def sign(p: int) -> int:
    """Return the sign of 2u in Clenshaw's recurrence at p; that of s_p has the other one.

    Args:
        p: Degree.
    """
    if p % 2:
        return -1
    return 1


def _slopes(c: Tensor, resolution: Resolution) -> Tensor:
    """Return the coefficients of d/da, one more than there are."""
    matrix = tangent(resolution, c.shape[-1], c.device)
    return (c.to(matrix) @ matrix).to(c)


sum_over_classes: Callable[..., Tensor] = _Sums.apply  # (f, *classes, resolution, n)
value_at_classes: Callable[..., Tensor] = _Values.apply  # (c, *classes, resolution)
