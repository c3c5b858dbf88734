"""Polynomials at many classes: Σ_k f_k w_k s_p(u_k) for every p, and w_k Σ_p c_p s_p(u_k) for every k.

``_kernel`` says what u and s are, and w = e^(a - FADING a). Each is a short loop over p with a few arrays as large as
the classes, so nothing larger exists, also in a backward pass: the derivatives of the one are the other, with
polynomials of one degree more.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from simplexcal.concrete._kernel import FADING, Resolution, tangent


class Classes(NamedTuple):
    """Where the classes lie. Derivatives are taken in ``gap``; the other two are what the polynomials need of it."""

    gap: Tensor  # a
    weight: Tensor  # e^(a - FADING a)
    u: Tensor  # u(a)


@torch.no_grad()
def place(gap: Tensor, resolution: Resolution) -> Classes:
    """Return where classes at a = ``gap`` lie; beyond the depth e^(-FADING a) and u stay what they are there."""
    near = gap.clamp_min(-resolution.depth)
    return Classes(gap, torch.sub(gap, near, alpha=FADING).exp(), resolution.variable(near))


class _Sums(Function):
    """Σ_k f_k w_k s_p(u_k) for p < n, (N, n), given f (N, K) or (N, 1)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        factor: Tensor, gap: Tensor, weight: Tensor, u: Tensor, r: Resolution, n: int
    ) -> Tensor:
        last = factor * weight
        this = last * u
        sums = [last.sum(-1), this.sum(-1)]
        for p in range(2, n):
            last, this = this, torch.addcmul(last, u, this, value=2 if p % 2 else -2)
            sums.append(this.sum(-1))
        return torch.stack(sums, -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:4])
        ctx.save_for_forward(*inputs[:4])
        ctx.resolution, ctx.n = inputs[4:]

    @staticmethod
    def jvp(ctx: Any, d_factor: Tensor, d_gap: Tensor, *_: Any) -> Tensor:
        factor, *classes = ctx.saved_tensors
        matrix = tangent(ctx.resolution, ctx.n, factor.device)
        moved = sum_over_classes(factor * d_gap, *classes, ctx.resolution, ctx.n + 1)
        return sum_over_classes(d_factor, *classes, ctx.resolution, ctx.n) + (
            moved.to(matrix) @ matrix.T
        ).to(moved)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        factor, *classes = ctx.saved_tensors
        d_factor = (
            value_at_classes(grad, *classes, ctx.resolution) if ctx.needs_input_grad[0] else None
        )
        slope = value_at_classes(_slopes(grad, ctx.resolution), *classes, ctx.resolution)
        return d_factor, factor * slope, None, None, None, None


class _Values(Function):
    """w_k Σ_p c_p s_p(u_k), (N, K), given c (N, n), by Clenshaw's rule."""

    generate_vmap_rule = True

    @staticmethod
    def forward(c: Tensor, gap: Tensor, weight: Tensor, u: Tensor, r: Resolution) -> Tensor:
        columns = c.split(1, -1)
        p = len(columns) - 2
        last, this = (
            columns[p + 1],
            torch.addcmul(columns[p], u, columns[p + 1], value=-2 if p % 2 else 2),
        )
        while p > 1:
            p -= 1
            last, this = this, torch.addcmul(columns[p] + last, u, this, value=-2 if p % 2 else 2)
        return weight * torch.addcmul(columns[0] + last, u, this)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:4])
        ctx.save_for_forward(*inputs[:4])
        ctx.resolution = inputs[4]

    @staticmethod
    def jvp(ctx: Any, d_c: Tensor, d_gap: Tensor, *_: Any) -> Tensor:
        c, *classes = ctx.saved_tensors
        slope = value_at_classes(_slopes(c, ctx.resolution), *classes, ctx.resolution)
        return value_at_classes(d_c, *classes, ctx.resolution) + d_gap * slope

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        c, *classes = ctx.saved_tensors
        d_c = (
            sum_over_classes(grad, *classes, ctx.resolution, c.shape[-1])
            if ctx.needs_input_grad[0]
            else None
        )
        slope = value_at_classes(_slopes(c, ctx.resolution), *classes, ctx.resolution)
        return d_c, grad * slope, None, None, None


def _slopes(c: Tensor, resolution: Resolution) -> Tensor:
    """Return the coefficients of d/da, one more than there are."""
    matrix = tangent(resolution, c.shape[-1], c.device)
    return (c.to(matrix) @ matrix).to(c)


sum_over_classes: Callable[..., Tensor] = _Sums.apply  # (f, *classes, resolution, n)
value_at_classes: Callable[..., Tensor] = _Values.apply  # (c, *classes, resolution)
