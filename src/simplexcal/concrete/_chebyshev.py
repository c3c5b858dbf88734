"""Polynomials at many classes: their sums over the classes, and their values at each class.

    Σ_k f_k w_k s_p(u_k) for every p     and     w_k Σ_p c_p s_p(u_k) for every k

``_kernel`` says what u and s are, and w = e^(a - FADING a). Each is a short loop over p with a few
arrays as large as the classes, so nothing larger exists, also in a backward pass: the derivative of
the one is the other, with polynomials of one degree more.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from simplexcal.concrete._kernel import Kernel, Resolution, tangent


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
def locate(a: Tensor, kernel: Kernel) -> Classes:
    """Return where classes lie; beyond the kernel's depth e^(-FADING a) and u are those there.

    Args:
        a: Shifted logits, (N, K).
        kernel: The kernel for their dtype.
    """
    near = a.clamp_min(-kernel.resolution.depth)
    # The factor is a tensor: in an exported graph a Python number is rounded to float32.
    exponent = torch.addcmul(a, near, kernel.fading, value=-1)
    return Classes(a, exponent.exp(), kernel.resolution.variable(near))


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
        before = factor * weight
        this = before * u
        sums = [before.sum(-1), this.sum(-1)]
        for p in range(2, n):
            after = torch.addcmul(before, u, this, value=-_sign(p))
            before = this
            this = after
            sums.append(this.sum(-1))
        return torch.stack(sums, -1)

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
        p = len(columns) - 2
        before = columns[p + 1]
        this = torch.addcmul(columns[p], u, columns[p + 1], value=_sign(p))
        while p > 1:
            p -= 1
            after = torch.addcmul(columns[p] + before, u, this, value=_sign(p))
            before = this
            this = after
        return weight * torch.addcmul(columns[0] + before, u, this)

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


def _sign(p: int) -> int:
    """Return ±2, the factor of u in the recurrence of s at p."""
    return -2 if p % 2 else 2


def _slopes(c: Tensor, resolution: Resolution) -> Tensor:
    """Return the coefficients of d/da, one more than there are."""
    matrix = tangent(resolution, c.shape[-1], c.device)
    return (c.to(matrix) @ matrix).to(c)


sum_over_classes: Callable[..., Tensor] = _Sums.apply  # (f, *classes, resolution, n)
value_at_classes: Callable[..., Tensor] = _Values.apply  # (c, *classes, resolution)
