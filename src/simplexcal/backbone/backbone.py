"""The frozen network: logits and penultimate features in one forward pass, and nothing of the network changed."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from simplexcal.backbone._forward import Call, frozen, linear_layers, logits_of, recorded
from simplexcal.types import Outputs


class Backbone(nn.Module):
    """Any classifier, frozen whole: called with inputs, it returns their Outputs.

    ``x`` is a tensor, or a mapping or a tuple of them for ``net(**x)`` or ``net(*x)``. The head is the last linear
    layer whose output the network returns; the first call finds it, or ``head`` names it ("classifier.6"). Logits are
    the network's own; features are the head's input. They must belong together, up to a constant in each row that no
    softmax sees (a final log_softmax), and each call makes sure: a network that scales its logits or returns
    probabilities is an error. Where the head is applied to all tokens and one is picked, so are its features.
    """

    net: nn.Module

    def __init__(self, net: nn.Module, head: str | None = None) -> None:
        super().__init__()
        if not isinstance(net, nn.Module):
            raise TypeError(
                f"`net` must be a torch.nn.Module; got {type(net).__name__}. For logits, use Outputs."
            )
        # Not a submodule, so that no optimiser, train(), requires_grad_() or state_dict() reaches the network through
        # this object.
        self.__dict__["net"] = _unwrapped(net)
        self._head_name = head
        if head not in (None, *(names := list(linear_layers(self.net)))):
            raise ValueError(
                f"`head` must name a linear layer; got {head!r}. The last ones are {names[-5:]}."
            )
        self.eval()

    @property
    def head(self) -> nn.Linear:
        """The last linear layer, known from the first call on."""
        if self._head_name is None:
            raise RuntimeError(
                "The head is found in the first forward pass. Call the backbone once, or pass head=..."
            )
        return linear_layers(self.net)[self._head_name]

    def forward(self, x: Any) -> Outputs:
        """Return logits (N, K) and features (N, D), on the network's device."""
        layers = (
            linear_layers(self.net) if self._head_name is None else {self._head_name: self.head}
        )
        with frozen(self.net), recorded(layers) as calls:
            logits = Outputs(logits_of(self.net, map_tensors(self._tensor, x))).logits
            for call in reversed(calls.values()):
                if (features := _features(call, logits)) is not None:
                    self._head_name = call.name
                    return Outputs(logits, features)
        raise _no_head(
            [call.name for call in calls.values() if call.output.shape[-1] == logits.shape[1]],
            logits,
        )

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode: batch-norm statistics are part of the frozen model."""
        return super().train(False)

    def fingerprint(self) -> str:
        """Return a SHA-256 digest of the network's tensors: names, dtypes, shapes and bytes, on whatever device."""
        digest = hashlib.sha256()
        for name, value in sorted(self.net.state_dict().items()):
            if isinstance(value, Tensor):
                digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
                digest.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def as_input(self, x: Tensor | np.ndarray) -> Tensor:
        """Return a tensor as it is, and an array as a tensor, its floats in the dtype of the network."""
        tensor = as_tensor(x)
        if tensor is x or not tensor.is_floating_point():
            return tensor
        return tensor.to(
            next((p.dtype for p in self.net.parameters() if p.is_floating_point()), tensor.dtype)
        )

    def _tensor(self, x: Any) -> Tensor:
        anchor = next((t for t in (*self.net.parameters(), *self.net.buffers())), torch.empty(0))
        return self.as_input(x).to(anchor.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.net._apply(fn, recurse)  # what .to(device) calls: the network moves along
        return self


def _unwrapped(net: nn.Module) -> nn.Module:
    """Return the network itself: a compiled one skips later hooks, a parallel one runs copies and has other names."""
    parallel = nn.DataParallel, DistributedDataParallel
    inner = net.module if isinstance(net, parallel) else getattr(net, "_orig_mod", net)
    return net if inner is net else _unwrapped(inner)


def _features(call: Call, logits: Tensor) -> Tensor | None:
    """Return the features (N, D) that this layer turned into the logits, or None if they are not its output.

    Each row must be, up to a constant and rounding, the layer's output for one of the row's T tokens; mostly T = 1.
    """
    (n, k), numel = logits.shape, call.output.numel()
    t = max(1, numel // max(1, n * k))
    if call.output.shape[-1] != k or numel != n * t * k:
        return None
    output, eps = call.output.reshape(n, t, k).to(logits), torch.finfo(call.output.dtype).eps
    made, said = (
        z.log_softmax(-1).nan_to_num(1e9) for z in (output, logits.unsqueeze(1))
    )  # NaN is like NaN alone
    gap, token = (made - said).abs().amax(-1).min(1)
    size = logits.nan_to_num(0, 0, 0).abs().amax(-1)
    if (gap > 4 * max(eps, torch.finfo(logits.dtype).eps) * (1 + size)).any():
        return None
    return call.features.reshape(n, t, call.features.shape[-1])[
        torch.arange(n, device=token.device), token
    ]


def _no_head(names: list[str], logits: Tensor) -> ValueError:
    k = logits.shape[1]
    found = (
        f"those of {names[-1]!r} are changed after it"
        if names
        else f"no linear layer with {k} outputs ran"
    )
    return ValueError(
        f"`net` must return the output of a linear layer as its {k} logits; {found}. Wrap it so that it returns them "
        "before softmax, scaling or pooling; or go without features, by Outputs(logits) from a loop of your own."
    )


def map_tensors(fn: Callable[[Any], Any], x: Any) -> Any:
    """Apply ``fn`` to every tensor and array in ``x``."""
    if isinstance(x, Mapping):
        return {name: map_tensors(fn, part) for name, part in x.items()}
    if isinstance(x, tuple | list):
        return [map_tensors(fn, part) for part in x]
    return fn(x) if isinstance(x, Tensor | np.ndarray) else x


def as_tensor(x: Any) -> Tensor:
    """Return a tensor as it is, and an array as a tensor."""
    return (
        x if isinstance(x, Tensor) else torch.from_numpy(np.array(x))
    )  # a copy, since an array may be read-only
