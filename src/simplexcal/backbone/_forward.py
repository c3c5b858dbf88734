"""One forward pass of a frozen network, with the calls of some of its layers recorded."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from threading import Lock, RLock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from simplexcal._arrays import as_tensor, frame_to_array, list_to_array
from simplexcal.types import SMALLEST, restore_argmax

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
CONVOLVING = (nn.functional.conv1d, nn.functional.conv2d, nn.functional.conv3d)
MAX_PARTS = 4  # of a result that are named in an error

MAX_KEPT = 2**26  # bytes of copies of buffers that are kept from call to call

_stance_lock = RLock()


class Call(NamedTuple):
    """One call of a layer.

    Attributes:
        name: Name of the layer in the network.
        features: Its input, (N, D), or (N, T, D) for T tokens or places of a map.
        output: Its output, (N, K) or (N, T, K).
        made: The tensor that the layer returned; None where it is not known.
        version: How often that had been changed in place then.
    """

    name: str
    features: Tensor
    output: Tensor
    made: Tensor | None = None
    version: int = 0

    def gives(self, result: Tensor) -> bool:
        """Return whether logits are the tensor itself that the layer made of rows of features.

        Args:
            result: What the network returned.
        """
        if self.made is not result or self.features.dim() != 2:
            return False
        return not result.is_inference() and result._version == self.version


@dataclass
class Watched:
    """What is known of a network's buffers: which values they had in a call that changed none.

    Comparing the values takes long, on a GPU above all. Where a call has changed nothing, later
    calls compare the versions of the tensors, which torch counts.

    Args:
        lock: Whoever has it has the network.
        buffers: The buffers of that call; None before it.
        versions: Their versions.
        copies: Their values.
    """

    lock: Any = field(default_factory=RLock)
    buffers: list[Tensor] | None = None
    versions: list[int] = field(default_factory=list)
    copies: list[Tensor | None] = field(default_factory=list)

    def knows(self, buffers: list[Tensor]) -> bool:
        """Return whether these are the buffers of that call, unchanged since.

        Args:
            buffers: The network's buffers.
        """
        if self.buffers is None or len(buffers) != len(self.buffers):
            return False
        same = all(a is b for a, b in zip(buffers, self.buffers, strict=True))
        return same and _versions(buffers) == self.versions

    def keep(self, buffers: list[Tensor], copies: list[Tensor | None]) -> None:
        """Remember the buffers of a call that has changed none.

        Args:
            buffers: The network's buffers.
            copies: Their values; None where they cannot change.
        """
        size = sum(copy.nbytes for copy in copies if copy is not None)
        if size > MAX_KEPT or any(buffer.is_inference() for buffer in buffers):
            return
        self.buffers = buffers
        self.versions = _versions(buffers)
        self.copies = copies


def _versions(buffers: list[Tensor]) -> list[int]:
    return [buffer._version for buffer in buffers]


_watched: "WeakKeyDictionary[nn.Module, Watched]" = WeakKeyDictionary()  # one for each network
_watched_guard = Lock()


def call_of_rows(call: Call) -> Call:
    """Return the call of a layer on tokens or places as one on the rows of all of them.

    Args:
        call: The call.
    """
    return Call(call.name, call.features.flatten(0, -2), call.output.flatten(0, -2))


@contextmanager
def frozen(net: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode without gradients; then restore modes and buffers.

    One thread at a time has the network; others wait. Parts that are compiled run uncompiled, since
    compiled code skips hooks that come later.

    Args:
        net: The network.
    """
    watched = _watched_of(net)
    modules = _modules_of(net)
    with watched.lock, _buffers_restored(modules, watched), _uncompiled(modules):
        in_training = [module for module in modules if module.training]
        try:
            for module in in_training:
                # Module.eval() may do more: LoRA layers merge their weights in it.
                module.training = False
            # Tensors made in inference mode could not be trained on.
            with torch.inference_mode(False), torch.no_grad():
                yield
        finally:
            for module in modules:
                if module.training:
                    module.training = False
            for module in in_training:
                module.training = True


def _modules_of(net: nn.Module) -> list[nn.Module]:
    """Return all modules of a network, each once; net.modules() is a generator inside another."""
    found = {net: None}
    left = [net]
    while left:
        for child in left.pop()._modules.values():
            if child is not None and child not in found:
                found[child] = None
                left.append(child)
    return list(found)


@contextmanager
def batch_normalised(net: nn.Module) -> Iterator[None]:
    """Freeze a network, but let its batch-norm layers use the statistics of each batch.

    Without running statistics a batch-norm layer takes those of the batch, also in evaluation
    mode. So the layers are without them here, and nothing counts or moves them.

    Args:
        net: The network.
    """
    with frozen(net):
        layers = [module for module in net.modules() if isinstance(module, _BatchNorm)]
        kept = [(layer, layer.running_mean, layer.running_var) for layer in layers]
        try:
            for layer in layers:
                layer.running_mean = None
                layer.running_var = None
            yield
        finally:
            for layer, mean, var in kept:
                layer.running_mean = mean
                layer.running_var = var


@contextmanager
def _buffers_restored(modules: list[nn.Module], watched: Watched) -> Iterator[None]:
    """Give each buffer its value again, whether the network changed, replaced or added it."""
    kept = [(module._buffers, dict(module._buffers)) for module in modules if module._buffers]
    without = [module._buffers for module in modules if not module._buffers]
    present = [x for _, buffers in kept for x in buffers.values() if x is not None]
    with torch.inference_mode(False), torch.no_grad():
        is_known = watched.knows(present)
        copies = watched.copies
        if not is_known:
            copies = [_copy(buffer) for buffer in present]
        try:
            yield
        finally:
            for now, before in kept:
                _put_back(now, before)
            for added in without:
                added.clear()
            if not (is_known and watched.knows(present)):
                _restore(present, copies, watched)


def _restore(present: list[Tensor], copies: list[Tensor | None], watched: Watched) -> None:
    """Give buffers the values of their copies, and remember whether that changed any."""
    watched.buffers = None
    changed = False
    for buffer, copy in zip(present, copies, strict=True):
        # Not every change raises the version of a tensor, so the values are compared.
        if copy is not None and not _equal(buffer, copy):
            buffer.copy_(copy)
            changed = True
    if not changed and not any(map(is_lazy, present)):
        watched.keep(present, copies)


def _put_back(now: dict[str, Tensor | None], before: dict[str, Tensor | None]) -> None:
    """Make the buffers of a module those that it had before."""
    if list(map(id, now.values())) != list(map(id, before.values())):
        now.clear()
        now.update(before)


def _copy(buffer: Tensor) -> Tensor | None:
    """Return a copy of a buffer, or None where it cannot change."""
    if is_lazy(buffer) or buffer.is_inference():
        return None
    return buffer.detach().clone()


def _equal(buffer: Tensor, copy: Tensor) -> bool:
    """Return whether two tensors are the same; those that torch cannot compare are not."""
    try:
        return torch.equal(buffer, copy)
    except (RuntimeError, NotImplementedError):
        return False


@contextmanager
def _uncompiled(modules: list[nn.Module]) -> Iterator[None]:
    """Let the compiled ones of some modules, if any, run as they were written."""
    has_compiled = any(map(_is_compiled, modules))
    # Earlier versions of torch than 2.6 cannot do it.
    if not has_compiled or not hasattr(torch.compiler, "set_stance"):
        yield
        return
    # The stance is one for all threads.
    with _stance_lock, torch.compiler.set_stance("force_eager"):
        yield


def _is_compiled(module: nn.Module) -> bool:
    return "_orig_mod" in module._modules or module._compiled_call_impl is not None


def _watched_of(net: nn.Module) -> Watched:
    """Return what is known of a network; it is kept outside so that the network can be pickled."""
    with _watched_guard:
        found = _watched.get(net)
        if found is None:
            found = Watched()
            _watched[net] = found
        return found


@contextmanager
def recorded(layers: Mapping[str, nn.Module]) -> Iterator[dict[str | int, Call]]:
    """Record the calls of layers that map one tensor to another, in their order.

    Of calls on tokens, the last one for each output width is kept, since all may not fit.

    Args:
        layers: The layers by name.
    """
    calls: dict[str | int, Call] = {}

    def record(
        name: str, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        features = next(iter((*args, *kwargs.values())), None)
        if not isinstance(features, Tensor) or not isinstance(output, Tensor):
            return
        if isinstance(layer, CONVOLUTIONS):
            features = _places(features)
            output = _places(output)
        # The network may change both in place later. Features of all tokens may not fit twice.
        if output.dim() <= 2:
            version = 0
            if not output.is_inference():
                version = output._version
            calls[name] = Call(name, features.clone(), output.clone(), output, version)
        else:
            calls[output.shape[-1]] = Call(name, features, output.clone())

    with ExitStack() as stack:
        for name, layer in layers.items():
            # Ours comes before the user's hooks, which may change the output.
            hook = partial(record, name)
            handle = layer.register_forward_hook(hook, prepend=True, with_kwargs=True)
            stack.enter_context(handle)
        yield calls


def _places(maps: Tensor) -> Tensor:
    """Return maps (N, C, ...) as rows of channels, (N, T, C)."""
    return maps.flatten(2).transpose(1, 2)


class RecordedCalls(TorchFunctionMode):
    """Records the calls of one layer where a network is traced, which no hook survives.

    Args:
        layer: A linear layer or a convolution.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.weight = layer.weight
        self.calls: list[Call] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call the function; it is the layer's if it applies the layer's weight.

        Args:
            func: The function.
            types: Unused; the interface of torch has it.
            args: Its arguments by position.
            kwargs: Its arguments by name.
        """
        output = func(*args, **(kwargs or {}))
        if func is nn.functional.linear and args[1] is self.weight:
            self.calls.append(Call("", args[0].clone(), output.clone()))
        elif func in CONVOLVING and args[1] is self.weight:
            self.calls.append(Call("", _places(args[0]).clone(), _places(output).clone()))
        return output


def features_of_logits(call: Call, logits: Tensor, *, pooled: bool = False) -> Tensor:
    """Return a layer's input (N, D); of all tokens, that of the one whose logits were picked.

    Args:
        call: The call of the layer.
        logits: The network's logits, (N, K).
        pooled: The network takes the mean over all tokens instead.
    """
    if call.output.dim() == 2:
        return call.features
    if pooled:
        return call.features.flatten(1, -2).mean(1)
    of_tokens = call.output.log_softmax(-1)
    picked = logits.log_softmax(-1).unsqueeze(1)
    token = (of_tokens - picked).abs().amax(-1).argmin(1)
    index = token.reshape(-1, 1, 1).expand(-1, 1, call.features.shape[-1])
    return call.features.gather(1, index).squeeze(1)


def logits_of(net: nn.Module, x: Any) -> Any:
    """Call a network and return its logits: of several results, the first tensor.

    Args:
        net: The network.
        x: Its inputs; a dict is passed by name, a list by position.

    Raises:
        TypeError: If the result holds no logits.
    """
    result = call(net, x)
    if isinstance(result, Mapping):
        found = result.get("logits", result.get("out"))  # torchvision's segmentation has "out"
    else:
        found = getattr(result, "logits", result)
    if isinstance(found, tuple | list):
        tensors = (part for part in found if isinstance(part, Tensor))
        found = next(tensors, None)
    if isinstance(found, Tensor) and found is result and _is_one_row(x, found):
        return found.reshape(1)
    if not isinstance(found, Tensor) or found.dim() == 0:
        raise TypeError(
            "`net` must return logits (N, K): as a tensor, as the first tensor of a tuple, or "
            f"under the name 'logits' or 'out'; it returned {_describe_result(result)}. Wrap it so "
            "that it returns them alone."
        )
    return found


def _is_one_row(x: Any, found: Tensor) -> bool:
    """Return whether a binary network has squeezed the result (1, 1) for one input."""
    return found.dim() == 0 and isinstance(x, Tensor | np.ndarray) and x.shape[:1] == (1,)


def of_two_classes(logits: Tensor) -> Tensor:
    """Return the one logit z of a binary network, (N,) or (N, 1), as the logits (0, z).

    Any other tensor is returned as it is.

    Args:
        logits: What a network returns.
    """
    if not has_one_logit(logits):
        return logits
    z = logits.flatten()
    return torch.stack([torch.zeros_like(z), z], -1)


def has_one_logit(logits: Tensor) -> bool:
    """Return whether a network returns one number for each input.

    Args:
        logits: What it returns.
    """
    return logits.dim() == 1 or (logits.dim() == 2 and logits.shape[1] == 1)


def log_probs(probs: Tensor) -> Tensor:
    """Return probabilities (N, K) as logits, as ``Outputs.from_probs`` does without its checks.

    Args:
        probs: Rows of probabilities; or those of class 1 alone, (N,) or (N, 1).
    """
    probs = of_all_classes(probs)
    return restore_argmax(probs.argmax(-1), probs.clamp_min(SMALLEST).log())


def of_all_classes(probs: Tensor) -> Tensor:
    """Return the probability p of class 1, (N,) or (N, 1), as the probabilities (1 - p, p).

    Any other tensor is returned as it is.

    Args:
        probs: What a network returns.
    """
    if not has_one_logit(probs):
        return probs
    p = probs.flatten()
    return torch.stack([1 - p, p], -1)


def _describe_result(result: Any) -> str:
    """Say what a network returned: its type, and the names or types of its parts."""
    if isinstance(result, Tensor):
        return f"a {type(result).__name__} of shape {tuple(result.shape)}"
    kind = f"a {type(result).__name__}"
    if isinstance(result, tuple | list):
        if len(result) > MAX_PARTS:
            first = _describe_result(result[0]).removeprefix("a ")
            return f"{kind} of {len(result)}: {first}, and so on"
        parts = [_describe_result(part).removeprefix("a ") for part in result]
        return f"{kind} of {', '.join(parts)}"
    names = list(getattr(result, "__dict__", {}))
    if isinstance(result, Mapping):
        names = list(result)
    if not names:
        return kind
    return f"{kind} with {', '.join(repr(name) for name in names)}"


def call(net: nn.Module, x: Any) -> Any:
    """Call a network.

    Args:
        net: The network.
        x: Its inputs; a dict is passed by name, a list by position.
    """
    if isinstance(x, dict):
        return net(**x)
    if isinstance(x, list):
        return net(*x)
    return net(x)


def network_inputs(net: nn.Module, x: Any) -> Any:
    """Return inputs as the network takes them: tensors on its device.

    Args:
        net: The network.
        x: A tensor, an array or a list of numbers, or a mapping or a sequence of them.
    """
    x = list_to_array(x)
    anchor = next(chain(net.parameters(), net.buffers()), torch.empty(0))

    def own_tensor(part: Tensor | np.ndarray) -> Tensor:
        tensor = input_tensor(net, part).to(anchor.device)
        if tensor is part:
            # The network may change it in place.
            return tensor.clone()
        return tensor

    return map_tensors(own_tensor, x)


def input_tensor(net: nn.Module, x: Tensor | np.ndarray) -> Tensor:
    """Return a tensor as it is, and an array as a tensor, floats in the dtype of the network.

    Args:
        net: The network.
        x: The tensor or array.
    """
    tensor = as_tensor(x)
    if tensor is x or not tensor.is_floating_point():
        return tensor
    for parameter in net.parameters():
        if parameter.is_floating_point():
            return tensor.to(parameter.dtype)
    return tensor


def map_tensors(function: Callable[[Any], Any], x: Any) -> Any:
    """Apply a function to every tensor and array in nested mappings and sequences.

    Args:
        function: Takes a tensor or an array.
        x: What holds them; mappings become dicts, sequences lists. A data frame is an array.
    """
    x = frame_to_array(x)
    if isinstance(x, Mapping):
        return {name: map_tensors(function, part) for name, part in x.items()}
    if isinstance(x, tuple | list):
        return [map_tensors(function, part) for part in x]
    if isinstance(x, Tensor | np.ndarray):
        return function(x)
    return x
