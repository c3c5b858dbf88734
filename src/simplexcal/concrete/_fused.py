"""Where fused GPU kernels take the place of the reference, operators of torch.

They are used for float32 on CUDA devices from compute capability 8.0 on, where triton is installed,
as PyTorch's CUDA builds do, and PyTorch is 2.8 or newer: the triton of older ones cannot compile
them. SIMPLEXCAL_TRITON=0 in the environment, when simplexcal is imported,
switches them off. The gradients of value and slope, derivatives of derivatives, ``torch.func`` and
derivatives in forward mode are left to the reference, and so is ``torch.export``, whose graph shall
run wherever torch does (but for ``strict=True``, which torch does not tell from ``torch.compile``).
Value and slope of very many classes are the reference's too: its float64 products are more exact.
Where no fused kernel applies, neither triton nor the operators are imported.
"""

import os
import sys
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

VARIABLE = "SIMPLEXCAL_TRITON"
LEAST_TORCH = (2, 8)


def is_new_enough(torch_version: str) -> bool:
    """Return whether the triton of a version of PyTorch can compile the kernels.

    Args:
        torch_version: Such as "2.13.0+cu130".
    """
    major, minor = torch_version.split(".")[:2]
    return (int(major), int(minor)) >= LEAST_TORCH


IS_ON = (
    os.environ.get(VARIABLE) != "0"
    and find_spec("triton") is not None
    and is_new_enough(torch.__version__)
)
# The tests set it to "cpu", for the interpreter.
DEVICE_TYPE = "cuda"
LEAST_CAPABILITY = (8, 0)
# From so many rows on, a thread of the GPU may hold a row: fewer would leave most of it idle.
# By default none does: the tests of those kernels have not run on a device in their present form.
MANY_ROWS = sys.maxsize
if os.environ.get(VARIABLE) == "rows":
    MANY_ROWS = 2**13
# The backward kernel of the likelihood holds so many labels of a row.
MOST_LABELS = 4
# With 21841 classes the float32 sums of the kernels leave an error of 2.3e-5 in the slope.
MOST_CLASSES_WITH_SLOPE = 1024


def applies(*tensors: Tensor) -> bool:
    """Whether fused kernels compute something of these tensors.

    Args:
        tensors: Such as logits (N, K) and λ (N,), on one device.
    """
    device = tensors[0].device
    if not IS_ON or device.type != DEVICE_TYPE:
        return False
    if any(tensor.dtype != torch.float32 for tensor in tensors):
        return False
    if torch.compiler.is_compiling():
        # torch.export, unless it is strict, is another compilation.
        return torch.compiler.is_dynamo_compiling()
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY


def applies_without_gradient(*tensors: Tensor) -> bool:
    """Whether fused kernels apply that have no gradient, and that no compilation can trace.

    Args:
        tensors: Tensors on one device.
    """
    if torch.compiler.is_compiling() or not applies(*tensors):
        return False
    return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))


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
