"""Where fused GPU kernels (``_triton``) take the place of the reference (``_potential``).

They are off: SIMPLEXCAL_TRITON=1 in the environment, when simplexcal is imported, switches them on.
Switched on, they are used for float32 on a CUDA device. The gradients of value and slope,
derivatives of derivatives, ``torch.func`` and derivatives in forward mode are left to the
reference, and so is ``torch.export``, whose graph shall run wherever torch does. Value and slope of
very many classes are the reference's too: its float64 products are more exact. Switched off,
neither triton nor the operators are imported.
"""

import os
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

VARIABLE = "SIMPLEXCAL_TRITON"
IS_ON = os.environ.get(VARIABLE) == "1"
# The tests set it to "cpu", for the interpreter.
DEVICE_TYPE = "cuda"
# The backward kernel of the likelihood holds so many labels of a row.
MOST_LABELS = 4
# With 21841 classes the float32 sums of the kernels leave an error of 2.3e-5 in the slope.
MOST_CLASSES_WITH_SLOPE = 1024


def applies(logits: Tensor, temperature: Tensor) -> bool:
    """Whether fused kernels compute the moments of these distributions.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
    """
    if not IS_ON or logits.device.type != DEVICE_TYPE:
        return False
    if logits.dtype != torch.float32 or temperature.dtype != torch.float32:
        return False
    if torch.compiler.is_compiling():
        return not _is_exporting()
    return not torch._C._are_functorch_transforms_active() and forward_ad._current_level < 0


def applies_with_slope(logits: Tensor, temperature: Tensor) -> bool:
    """Whether fused kernels compute value and slope of the potential too.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
    """
    return logits.shape[1] <= MOST_CLASSES_WITH_SLOPE and applies(logits, temperature)


def applies_with_reference_gradient(logits: Tensor, temperature: Tensor) -> bool:
    """Whether a fused kernel applies whose gradient is the reference's.

    torch.compile cannot trace such a gradient.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
    """
    if not applies(logits, temperature):
        return False
    needs_gradient = logits.requires_grad or temperature.requires_grad
    return not (torch.compiler.is_compiling() and torch.is_grad_enabled() and needs_gradient)


def applies_to_labels(logits: Tensor, temperature: Tensor, labels: Tensor) -> bool:
    """Whether a fused kernel computes the likelihoods of these labels.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
        labels: M classes y of each row, (N, M).
    """
    if not IS_ON:
        return False
    if labels.shape[1] > MOST_LABELS:
        return applies_with_reference_gradient(logits, temperature)
    return applies(logits, temperature)


def operators() -> Any:
    """Return the module of the operators, which imports triton."""
    from simplexcal.concrete import _fused_operators

    return _fused_operators


def _is_exporting() -> bool:
    """Whether a graph is made to be saved, with operators of torch alone.

    Older versions of torch do not tell an export from another compilation.
    """
    is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
    return bool(is_exporting())
