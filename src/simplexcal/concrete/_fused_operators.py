"""The fused GPU kernels as custom operators of torch, with their gradients.

Mean and likelihood have gradients by fused kernels too; where a caller differentiates again, and
for value and slope, the gradient is the reference's.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from simplexcal.concrete import _potential, _triton
from simplexcal.concrete._fused import MOST_LABELS

# --- operators ------------------------------------------------------------------------------------


@torch.library.custom_op("simplexcal::mean", mutates_args=())
def mean(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return ∂m/∂a (N, K), as ``_potential.mean`` does.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
    """
    return _triton.moments(logits, temperature, with_slope=False)[0]


@torch.library.custom_op("simplexcal::potential", mutates_args=())
def potential(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return m (N,), ∂m/∂a (N, K) and ∂m/∂ρ (N,), as ``_potential.potential`` does.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
    """
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
    return _triton.log_mean_at(logits, temperature, labels)


@torch.library.custom_op("simplexcal::invert", mutates_args=())
def invert(log_mean: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a (N, K), m (N,) and ∂m/∂ρ (N,), as ``_inversion.invert`` does.

    Args:
        log_mean: ln p with Σ_k p_k = 1, (N, K).
        temperature: λ, (N,).
    """
    return _triton.invert(log_mean, temperature)


@torch.library.custom_op("simplexcal::mean_backward", mutates_args=())
def mean_backward(grad: Tensor, logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``mean`` in its arguments.

    Args:
        grad: That of the mean, (N, K).
        logits: Location, (N, K).
        temperature: λ, (N,).
    """
    return _triton.mean_backward(grad, logits, temperature)


@torch.library.custom_op("simplexcal::log_mean_backward", mutates_args=())
def log_mean_backward(
    grad: Tensor,
    logits: Tensor,
    temperature: Tensor,
    labels: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``log_mean_at`` in its first two arguments.

    Args:
        grad: That of the logarithms, (N, M).
        logits: Location, (N, K).
        temperature: λ, (N,).
        labels: M classes y of each row, (N, M).
    """
    return _triton.log_mean_backward(grad, logits, temperature, labels)


# What torch.compile needs to know: shapes.


@mean.register_fake
def _(logits: Tensor, _temperature: Tensor) -> Tensor:
    return logits.new_empty(logits.shape)


@potential.register_fake
def _(logits: Tensor, _temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n = logits.shape[:1]
    return logits.new_empty(n), logits.new_empty(logits.shape), logits.new_empty(n)


@log_mean_at.register_fake
def _(logits: Tensor, _temperature: Tensor, labels: Tensor) -> Tensor:
    return logits.new_empty(labels.shape)


@invert.register_fake
def _(log_mean: Tensor, _temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n = log_mean.shape[:1]
    return log_mean.new_empty(log_mean.shape), log_mean.new_empty(n), log_mean.new_empty(n)


@mean_backward.register_fake
def _(_grad: Tensor, logits: Tensor, _temperature: Tensor) -> tuple[Tensor, Tensor]:
    return logits.new_empty(logits.shape), logits.new_empty(logits.shape[:1])


@log_mean_backward.register_fake
def _(
    _grad: Tensor,
    logits: Tensor,
    _temperature: Tensor,
    _labels: Tensor,
) -> tuple[Tensor, Tensor]:
    return logits.new_empty(logits.shape), logits.new_empty(logits.shape[:1])


# --- derivatives ----------------------------------------------------------------------------------


def _save_inputs(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _backward_of_mean(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
    if torch.is_grad_enabled():
        return _gradients(_potential.mean_in_torch, ctx.saved_tensors, (), (grad,))
    found: tuple[Tensor, Tensor] = mean_backward(grad, *ctx.saved_tensors)
    return found


def _backward_of_potential(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
    return _gradients(_potential.potential_in_torch, ctx.saved_tensors, (), grads)


def _backward_of_log_mean(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    logits, temperature, labels = ctx.saved_tensors
    if torch.is_grad_enabled() or labels.shape[1] > MOST_LABELS:
        reference = _potential.log_mean_at_in_torch
        return *_gradients(reference, (logits, temperature), (labels,), (grad,)), None
    return *log_mean_backward(grad, logits, temperature, labels), None


def _gradients(
    function: Callable[..., Any],
    at: tuple[Tensor, ...],
    others: tuple[Tensor, ...],
    grads: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:
    """Return the gradients of the reference; differentiable, where the caller asks for that."""
    twice = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs = [_with_gradient(tensor, twice) for tensor in at]
        outputs = function(*inputs, *others)
    return torch.autograd.grad(outputs, inputs, grads, create_graph=twice)


def _with_gradient(tensor: Tensor, connected: bool) -> Tensor:
    """Return a tensor whose own gradient can be asked for."""
    if connected and tensor.requires_grad:
        return tensor.view_as(tensor)
    return tensor.detach().requires_grad_()


mean.register_autograd(_backward_of_mean, setup_context=_save_inputs)
potential.register_autograd(_backward_of_potential, setup_context=_save_inputs)
log_mean_at.register_autograd(_backward_of_log_mean, setup_context=_save_inputs)
