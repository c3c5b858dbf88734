"""The frozen network: logits and penultimate features in one forward pass."""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from simplexcal._validation import check_float_tensor
from simplexcal.backbone._fingerprint import digest_network
from simplexcal.backbone._forward import (
    Call,
    RecordedCalls,
    features_of_logits,
    frozen,
    input_tensor,
    logits_of,
    network_inputs,
    recorded,
)
from simplexcal.types import Outputs, outputs_of_rows


class Backbone(nn.Module):
    """A frozen classifier. Called with inputs, it returns their Outputs.

    The logits are the network's own; the features are the input of its last linear layer, the
    head. Each call checks that they belong together, up to a constant in each row that softmax
    ignores (a final log_softmax). A network that scales its logits or returns probabilities is
    rejected. Where the head is applied to all tokens and the network picks one of them, the
    features are those of this token.

    The network stays as it is, bit for bit: weights, buffers, modes, flags and hooks. A buffer that
    the network updates itself has its value again after each call, and so have the inputs.

    Args:
        net: The classifier. It returns logits (N, K), alone or as the first tensor of a tuple, or
            under the name "logits".
        head: Name of the last linear layer, such as "classifier.6". None finds it in the first
            call: the last linear layer whose output the network returns.

    Raises:
        TypeError: If `net` is no torch.nn.Module.
        ValueError: If `head` names no linear layer.
    """

    net: nn.Module

    def __init__(self, net: nn.Module, head: str | None = None) -> None:
        super().__init__()
        self.eval()
        if not isinstance(net, nn.Module):
            raise TypeError(
                f"`net` must be a torch.nn.Module; got {type(net).__name__}. "
                "For logits, use Outputs."
            )
        # The network is no submodule, so that no optimiser, train(), requires_grad_() or
        # state_dict() reaches it through this object.
        self.__dict__["net"] = _unwrap(net)
        self._head_name = head
        names = list(_linear_layers(self.net))
        if head is not None and head not in names:
            raise ValueError(
                f"`head` must name a linear layer; got {head!r}. The last ones are {names[-5:]}."
            )

    @property
    def head(self) -> nn.Linear:
        """The last linear layer, known from the first call on."""
        if self._head_name is None:
            raise RuntimeError(
                "The head is found in the first forward pass. "
                "Call the backbone once, or pass head=..."
            )
        return _linear_layers(self.net)[self._head_name]

    def forward(self, x: Any) -> Outputs:
        """Return logits (N, K) and features (N, D), on the network's device.

        Args:
            x: A tensor or an array; or a mapping or a sequence of them, for ``net(**x)`` or
                ``net(*x)``.

        Raises:
            ValueError: If the logits are not the output of a linear layer.
        """
        if torch.compiler.is_compiling():
            return self._trace(x)
        if self._head_name is None:
            layers = _linear_layers(self.net)
        else:
            layers = {self._head_name: self.head}
        with frozen(self.net), recorded(layers) as calls:
            outputs = Outputs(logits_of(self.net, network_inputs(self.net, x)))
            for call in reversed(calls.values()):
                features = _features(call, outputs.logits)
                if features is not None:
                    self._head_name = call.name
                    return Outputs(outputs.logits, features)
        raise _no_head(list(calls.values()), outputs.n_classes)

    def _trace(self, x: Any) -> Outputs:
        """Return the outputs where torch.compile or torch.export trace them.

        A graph has no values to check, and no modes and hooks to restore.
        """
        if any(module.training for module in self.net.modules()):
            raise RuntimeError(
                "`net` must be in evaluation mode to be compiled or exported. Call net.eval()."
            )
        recorder = RecordedCalls(self.head)
        with recorder:
            logits = logits_of(self.net, x)
        if not recorder.calls:
            raise _no_head([], logits.shape[1])
        features = features_of_logits(recorder.calls[-1], logits)
        return outputs_of_rows(_full(logits), _full(features))

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode: batch-norm statistics are part of the frozen network.

        Args:
            mode: Ignored.
        """
        return super().train(False)

    def fingerprint(self) -> str:
        """Return a SHA-256 digest of the network's tensors: names, dtypes, shapes and bytes."""
        return digest_network(self.net)

    def as_input(self, x: Tensor | np.ndarray) -> Tensor:
        """Return a tensor as it is, and an array as a tensor, floats in the network's dtype.

        Args:
            x: The tensor or array.
        """
        return input_tensor(self.net, x)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Module.to() calls this method, so the network moves along.
        self.net._apply(fn, recurse)
        return self


def _unwrap(net: nn.Module) -> nn.Module:
    """Return the network inside of a compiled or parallel one.

    A compiled network skips hooks that come later. A parallel one runs copies, under other names.
    """
    if isinstance(net, nn.DataParallel | DistributedDataParallel):
        return _unwrap(net.module)
    compiled = getattr(net, "_orig_mod", None)
    if isinstance(compiled, nn.Module):
        return _unwrap(compiled)
    return net


def _linear_layers(net: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers that may be the head.

    Those in torch's encoder layers may not: a hook there would turn the fast path off.
    """
    inner: set[nn.Module] = set()
    for module in net.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            inner.update(module.modules())
    return {
        name: module
        for name, module in net.named_modules()
        if isinstance(module, nn.Linear) and module not in inner
    }


def _features(call: Call, logits: Tensor) -> Tensor | None:
    """Return the features (N, D) that a layer turned into the logits, or None.

    Each row of the logits must be, up to a constant and rounding, the layer's output for one of the
    row's T tokens; mostly T = 1.
    """
    n, k = logits.shape
    size = call.output.numel()
    n_tokens = max(1, size // max(1, n * k))
    if call.output.shape[-1] != k or size != n * n_tokens * k:
        return None
    output = call.output.reshape(n, n_tokens, k).to(logits)
    difference = _log_softmax(output) - _log_softmax(logits.unsqueeze(1))
    distance, token = difference.abs().amax(-1).min(1)
    largest = logits.nan_to_num(0, 0, 0).abs().amax(-1)
    eps = max(torch.finfo(call.output.dtype).eps, torch.finfo(logits.dtype).eps)
    if (distance > 4 * eps * (1 + largest)).any():
        return None
    features = call.features.reshape(n, n_tokens, call.features.shape[-1])
    return features[torch.arange(n, device=token.device), token]


def _full(tensor: Tensor) -> Tensor:
    """Return a tensor as Outputs hold it: without a graph, and not in half precision."""
    return check_float_tensor("net", tensor.detach())


def _log_softmax(logits: Tensor) -> Tensor:
    """Return the log-softmax, with NaN as a number that equals NaN only."""
    return logits.log_softmax(-1).nan_to_num(1e9)


def _no_head(calls: list[Call], k: int) -> ValueError:
    """Return the error for logits that no linear layer made."""
    candidates = [call.name for call in calls if call.output.shape[-1] == k]
    if candidates:
        found = f"those of {candidates[-1]!r} are changed after it"
    else:
        found = f"no linear layer with {k} outputs ran"
    return ValueError(
        f"`net` must return the output of a linear layer as its {k} logits; {found}. "
        "Wrap it so that it returns them before softmax, scaling or pooling; "
        "or go without features, by Outputs(logits) from a loop of your own."
    )
