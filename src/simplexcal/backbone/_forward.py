"""A network's own call, watched: frozen, and what its linear layers were called with."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Lock, RLock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

_locks: "WeakKeyDictionary[nn.Module, Any]" = WeakKeyDictionary()  # one for each network
_guard = Lock()  # of this dictionary


class Call(NamedTuple):
    """A linear layer's name, what it was called with, and what it returned."""

    name: str
    features: Tensor
    output: Tensor


@contextmanager
def frozen(net: nn.Module) -> Iterator[None]:
    """Evaluate without gradients, then give each module its own mode back; one thread at a time, others wait."""
    with _lock_of(net):
        modes = [(module, module.training) for module in net.modules()]
        try:
            for module, _ in modes:
                module.training = False  # and no eval(), which may do more: LoRA merges its weights
            with (
                torch.inference_mode(False),
                torch.no_grad(),
            ):  # tensors of the inference mode cannot be trained on
                yield
        finally:
            for module, mode in modes:
                module.training = mode


def _lock_of(net: nn.Module) -> Any:
    """Return the network's own lock, which is not in the network, so that this can be copied and pickled."""
    with _guard:
        return _locks.setdefault(net, RLock())


@contextmanager
def recorded(layers: dict[str, nn.Linear]) -> Iterator[dict[str | int, Call]]:
    """Record calls of these layers, in order; of calls on tokens the last for each width, as all may not fit."""
    calls: dict[str | int, Call] = {}

    def record(
        name: str, layer: nn.Linear, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> None:
        features = (*args, *kwargs.values())[0]
        if output.dim() <= 2:  # both may be changed in place later
            calls[name] = Call(name, features.clone(), output.clone())
        else:  # features of all tokens may not fit twice
            calls[layer.out_features] = Call(name, features, output.clone())

    with ExitStack() as stack:
        for name, layer in layers.items():  # ahead of the user's hooks, which may change the output
            stack.enter_context(
                layer.register_forward_hook(partial(record, name), prepend=True, with_kwargs=True)
            )
        yield calls


def linear_layers(net: nn.Module) -> dict[str, nn.Linear]:
    """Return the layers that may be the head: none in torch's encoder layers, which a hook takes off the fast path."""
    inner = {
        part
        for m in net.modules()
        if isinstance(m, nn.TransformerEncoderLayer)
        for part in m.modules()
    }
    return {
        name: m for name, m in net.named_modules() if isinstance(m, nn.Linear) and m not in inner
    }


def logits_of(net: nn.Module, x: Any) -> Any:
    """Call the network, and return what it gives as its logits: of several results, the first tensor."""
    result = net(**x) if isinstance(x, dict) else net(*x) if isinstance(x, list) else net(x)
    result = (
        result.get("logits") if isinstance(result, Mapping) else getattr(result, "logits", result)
    )
    return (
        next((r for r in result if isinstance(r, Tensor)), None)
        if isinstance(result, tuple | list)
        else result
    )
