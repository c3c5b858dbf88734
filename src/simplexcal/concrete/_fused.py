"""Where the fused GPU kernel (``_triton``) is used, and how torch sees it: as custom operators.

It is used for float32 on a CUDA device, where triton is installed and SIMPLEXCAL_TRITON is not 0.
Derivatives of derivatives, ``torch.func`` and derivatives in forward mode are left to the reference
(``_potential``), and so is ``torch.export``, whose graph shall run wherever torch does.
"""

import importlib.util
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

VARIABLE = "SIMPLEXCAL_TRITON"
# The backward kernel of the likelihood visits the labels of a row one after the other.
MOST_LABELS = 4


@cache
def is_installed() -> bool:
    """Whether triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def applies(logits: Tensor, temperature: Tensor) -> bool:
    """Whether the fused kernel computes the moments of these distributions.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
    """
    if logits.device.type != "cuda" or os.environ.get(VARIABLE) == "0":
        return False
    if logits.dtype != torch.float32 or temperature.dtype != torch.float32:
        return False
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    if torch.compiler.is_compiling() and _needs_gradient(logits, temperature):
        return False
    return is_installed() and not _is_exporting()


def _needs_gradient(logits: Tensor, temperature: Tensor) -> bool:
    return torch.is_grad_enabled() and (logits.requires_grad or temperature.requires_grad)


def _is_exporting() -> bool:
    """Whether a graph is made to be saved, with operators of torch alone."""
    compiler: Any = torch.compiler
    return hasattr(compiler, "is_exporting") and compiler.is_exporting()


@torch.library.custom_op("simplexcal::mean", mutates_args=())
def mean(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return ∂m/∂a (N, K), as ``_potential.mean`` does.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
    """
    from simplexcal.concrete import _triton

    return _triton.moments(logits, temperature, with_slope=False)[0]


@torch.library.custom_op("simplexcal::potential", mutates_args=())
def potential(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return m (N,), ∂m/∂a (N, K) and ∂m/∂ρ (N,), as ``_potential.potential`` does.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
    """
    from simplexcal.concrete import _triton

    found, value, slope = _triton.moments(logits, temperature, with_slope=True)
    return value, found, slope


@torch.library.custom_op("simplexcal::log_mean_at", mutates_args=())
def log_mean_at(logits: Tensor, temperature: Tensor, labels: Tensor) -> Tensor:
    """Return ln ∂m/∂a_y (N, M), as ``_potential.log_mean_at`` does.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
        labels: M classes y of each row, (N, M).
    """
    from simplexcal.concrete import _triton

    return _triton.log_mean_at(logits, temperature, labels)


@mean.register_fake
def _(logits: Tensor, temperature: Tensor) -> Tensor:
    return logits.new_empty(logits.shape)


@potential.register_fake
def _(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n = logits.shape[:1]
    return logits.new_empty(n), logits.new_empty(logits.shape), logits.new_empty(n)


@log_mean_at.register_fake
def _(logits: Tensor, temperature: Tensor, labels: Tensor) -> Tensor:
    return logits.new_empty(labels.shape)


# --- backward -------------------------------------------------------------------------------------


def _torch() -> Any:
    """Return the module of the reference, which imports this one."""
    from simplexcal.concrete import _potential

    return _potential


def _gradients(
    function: Callable[..., Any],
    at: tuple[Tensor, ...],
    others: tuple[Tensor, ...],
    grads: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:
    """Return the gradients of the reference, themselves without gradient."""
    with torch.enable_grad():
        inputs = [tensor.detach().requires_grad_() for tensor in at]
        outputs = function(*inputs, *others)
    return torch.autograd.grad(outputs, inputs, grads)


def _differentiable_gradients(
    function: Callable[..., Any],
    at: tuple[Tensor, ...],
    others: tuple[Tensor, ...],
    grads: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:
    """Return the gradients of the reference, for derivatives of derivatives."""
    inputs = [_with_gradient(tensor) for tensor in at]
    outputs = function(*inputs, *others)
    return torch.autograd.grad(outputs, inputs, grads, create_graph=True)


def _with_gradient(tensor: Tensor) -> Tensor:
    """Return a tensor whose own gradient can be asked for, connected to the given one."""
    if tensor.requires_grad:
        return tensor.view_as(tensor)
    return tensor.detach().requires_grad_()


def _save_inputs(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _backward_of_mean(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
    if torch.is_grad_enabled():
        return _differentiable_gradients(_torch().mean_in_torch, ctx.saved_tensors, (), (grad,))
    return _gradients(_torch().mean_in_torch, ctx.saved_tensors, (), (grad,))


def _backward_of_potential(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
    if torch.is_grad_enabled():
        reference = _torch().potential_in_torch
        return _differentiable_gradients(reference, ctx.saved_tensors, (), grads)
    return _gradients(_torch().potential_in_torch, ctx.saved_tensors, (), grads)


def _backward_of_log_mean(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    logits, temperature, labels = ctx.saved_tensors
    reference = _torch().log_mean_at_in_torch
    at = (logits, temperature)
    if torch.is_grad_enabled():
        return *_differentiable_gradients(reference, at, (labels,), (grad,)), None
    return *_gradients(reference, at, (labels,), (grad,)), None


mean.register_autograd(_backward_of_mean, setup_context=_save_inputs)
potential.register_autograd(_backward_of_potential, setup_context=_save_inputs)
log_mean_at.register_autograd(_backward_of_log_mean, setup_context=_save_inputs)
