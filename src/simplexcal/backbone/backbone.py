"""The frozen network: logits and penultimate features in one forward pass."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from simplexcal._arrays import as_tensor, frame_to_array, list_to_array
from simplexcal._validation import are_probs, check_float_tensor, warn_caller
from simplexcal.backbone._fingerprint import digest_network
from simplexcal.backbone._forward import (
    Call,
    RecordedCalls,
    call_of_rows,
    features_of_logits,
    frozen,
    has_one_logit,
    input_tensor,
    log_probs,
    logits_of,
    map_tensors,
    network_inputs,
    of_all_classes,
    of_two_classes,
    recorded,
)
from simplexcal.backbone._heads import (
    ENOUGH_ROWS,
    MAX_MISS,
    Head,
    Match,
    head_of,
    linear_layers,
    log_softmax,
    match,
    match_exactly,
    other_layers,
    usable_rows,
)
from simplexcal.dense import DenseOutputs, dense_outputs_of_rows, is_dense, label_shape, to_rows
from simplexcal.types import Outputs, class_dim, outputs_of_rows


class Backbone(nn.Module):
    """A frozen classifier. Called with inputs, it returns their Outputs.

    The logits are the network's own; the features are the input of its last layer, the head. Each
    call checks that the head turns them into the logits, up to a constant in each row that softmax
    ignores (a final log_softmax). The network may take the mean of the head's output over tokens or
    places, and multiply it by a number and add a bias, as long as both are the same for all inputs.
    Where it picks one token, the features are those of this token.

    Where no layer does that, there are logits alone, and one warning says so. One logit z for each
    input, (N,) or (N, 1), stands for the two logits (0, z): class 1 is predicted where z > 0.

    Of logits for each token, (N, T, K), or pixel, (N, K, H, W), the outputs are the rows of all
    positions, as ``simplexcal.dense.DenseOutputs``.

    The network stays as it is, bit for bit: weights, buffers, modes, flags and hooks. A buffer that
    the network updates itself has its value again after each call, and so have the inputs.

    Args:
        net: The classifier. It returns logits (N, K), alone or as the first tensor of a tuple, or
            under the name "logits" or "out". Any other callable gives logits alone: it is called
            with the inputs as they are, and returns a tensor or an array.
        head: Name of the layer that makes the logits, such as "classifier.6". None finds it in the
            first call; a scale, a bias or a mean after it needs a first call with 8 inputs.
        features: True raises an error where there are no features; False does not look for them.
        probs: Whether `net` returns probabilities, of which the logits are the logarithms; there
            are no features then. A single one, (N,) or (N, 1), is that of class 1.

    Raises:
        TypeError: If `net` is no torch.nn.Module and cannot be called.
        ValueError: If `head` names no layer of the network.
    """

    net: nn.Module

    def __init__(
        self,
        net: nn.Module | Callable[..., Any],
        head: str | None = None,
        *,
        features: bool | None = None,
        probs: bool = False,
    ) -> None:
        super().__init__()
        self.eval()
        # The network is no submodule, so that no optimiser, train(), requires_grad_() or
        # state_dict() reaches it through this object.
        self.__dict__["net"] = _as_module(net)
        self.features = features
        self.probs = probs
        self.one_logit: bool | None = None
        self.is_dense: bool | None = None  # like one_logit, known from the first call on
        self._head_name = head
        self._match: Match | None = None
        self._match_rows = 0
        self._is_alone = self.is_function or probs
        self._device = torch.device("cpu")
        names = list(linear_layers(self.net))
        if head is not None and head not in dict(self.net.named_modules()):
            raise ValueError(
                f"`head` must name a layer of the network; got {head!r}. The last linear ones are "
                f"{names[-5:]}."
            )
        if features and self._is_alone:
            raise ValueError(
                "`net` must be a torch.nn.Module that returns logits where features are needed; a "
                "function or a network of probabilities gives logits alone. Use a method that "
                'reads logits, such as "ts", or mixup="logits".'
            )

    @property
    def head(self) -> Any:
        """The layer that makes the logits, known from the first call on.

        It maps features (N, D) to logits (N, K). Where the network changes the layer's output, this
        is a module around the layer that does the same.
        """
        if self._head_name is None:
            if self._is_alone:
                raise RuntimeError("This network has no head that is known; it has logits alone.")
            raise RuntimeError(
                "The head is found in the first forward pass. "
                "Call the backbone once, or pass head=..."
            )
        layer = self.net.get_submodule(self._head_name)
        if self._match is None:
            return layer
        return head_of(layer, self._match, bool(self.one_logit))

    @property
    def head_name(self) -> str | None:
        """The name of the layer that gives features, or None where there are none, or not yet."""
        if self.features is False:
            return None
        return self._head_name

    @property
    def is_pooled(self) -> bool:
        """Whether the network takes the mean of the head's output over tokens or places."""
        return self._match is not None and self._match.pooled

    @property
    def is_function(self) -> bool:
        """Whether this is a callable that is no torch.nn.Module."""
        return isinstance(self.net, FunctionModule)

    @property
    def class_names(self) -> list[str] | None:
        """The names of the classes, if the network has a `config` with `id2label`, or None.

        Networks of Hugging Face have one; its placeholders LABEL_0, LABEL_1, … are no names.
        """
        id2label = getattr(getattr(self.net, "config", None), "id2label", None)
        if not isinstance(id2label, Mapping) or sorted(id2label) != list(range(len(id2label))):
            return None
        names = [str(id2label[i]) for i in range(len(id2label))]
        if names == [f"LABEL_{i}" for i in range(len(names))]:
            return None
        return names

    @property
    def device(self) -> torch.device:
        """The device of the head, or that of the last logits."""
        if self.head_name is not None:
            for parameter in self.net.get_submodule(self.head_name).parameters():
                return parameter.device
        return self._device

    def forward(self, x: Any) -> Outputs:
        """Return logits (N, K) and features (N, D) or None, on the network's device.

        A network of tokens or pixels gives DenseOutputs.

        Args:
            x: A tensor or an array; or a mapping or a sequence of them, for ``net(**x)`` or
                ``net(*x)``.

        Raises:
            ValueError: If there must be features, and no layer turns them into the logits.
        """
        if torch.compiler.is_compiling():
            return self._trace(x)
        # Tensors made in inference mode could not be trained on.
        with torch.inference_mode(False), torch.no_grad():
            return self._outputs(x)

    def _outputs(self, x: Any) -> Outputs:
        """Return the outputs, with features where the head is known, named or found."""
        if self.features is False or self._is_alone:
            outputs, _ = self._run(x, {})
            return outputs
        if self._head_name is not None:
            outputs, calls = self._run(x, {self._head_name: self._layer})
            if len(calls) == 1 and calls[0].gives(outputs.logits):
                return outputs_of_rows(outputs.logits, _full(calls[0].features))
            return self._with_features(outputs, calls)
        outputs, calls = self._run(x, linear_layers(self.net))
        for call in reversed(calls):
            found = match_exactly(call, outputs.logits, bool(self.one_logit))
            if found is not None:
                return self._known(outputs, found)
        return self._search(x, outputs, calls)

    def _run(self, x: Any, layers: Mapping[str, nn.Module]) -> tuple[Outputs, list[Call]]:
        """Return the logits, and the calls of layers."""
        if self.is_function:
            x = map_tensors(lambda part: part, list_to_array(x))
        else:
            x = network_inputs(self.net, x)
        with frozen(self.net), recorded(layers) as calls:
            found = logits_of(self.net, x)
            shape = label_shape(found)
            self.is_dense = is_dense(found)
            found_calls = list(calls.values())
            if self.is_dense:
                found = to_rows(found)
                found_calls = [call_of_rows(call) for call in found_calls]
            self.one_logit = has_one_logit(found)
            if self.probs:
                outputs = Outputs.from_probs(of_all_classes(found))
            else:
                outputs = Outputs(of_two_classes(found))
            if self.is_dense:
                outputs = DenseOutputs(outputs.logits, None, shape)
        self._device = outputs.logits.device
        return outputs, found_calls

    def _with_features(self, outputs: Outputs, calls: list[Call]) -> Outputs:
        """Return the outputs with the features of the layer that is known or named."""
        one_logit = bool(self.one_logit)
        is_exact = self._match is not None and self._match.is_exact
        for call in reversed(calls):
            if is_exact:
                found = match_exactly(call, outputs.logits, one_logit)
            else:
                found = match(call, outputs.logits, one_logit, trust=True)
            if found is not None:
                return self._known(outputs, found)
        raise _no_head(calls, outputs.n_classes, one_logit)

    def _search(self, x: Any, outputs: Outputs, linear_calls: list[Call]) -> Outputs:
        """Look for a head of another form, in a second pass."""
        one_logit = bool(self.one_logit)
        width = outputs.n_classes
        if one_logit:
            width = 1
        _, calls = self._run(x, other_layers(self.net, width))
        for call in reversed(calls):
            found = match(call, outputs.logits, one_logit, trust=bool(self.features))
            if found is not None and self._reproduces(outputs.logits, found):
                return self._known(outputs, found)
        error = _no_head(linear_calls, outputs.n_classes, one_logit)
        if self.features:
            raise error
        if len(outputs) >= ENOUGH_ROWS:
            check_are_logits(outputs, one_logit)
        self._is_alone = True
        warn_caller(
            "No layer of this network is known to turn features into its logits, so there are "
            "logits alone: λ(x) is learned from mixed logits instead of mixed features. Name the "
            "layer with `head` if there is one; to go without features, and without this warning, "
            'pass mixup="logits" to calibrate, or features=False to Backbone.'
        )
        return outputs

    def _reproduces(self, logits: Tensor, found: Match) -> bool:
        """Return whether the head gives the logits when it is called, the hooks of others too."""
        layer = self.net.get_submodule(found.name)
        with frozen(self.net):
            made = head_of(layer, found, bool(self.one_logit))(found.features)
        difference = log_softmax(made.to(logits)) - log_softmax(logits)
        largest = logits[usable_rows(logits)].abs().amax()
        return bool((difference.abs() <= MAX_MISS * (1 + largest)).all())

    def _known(self, outputs: Outputs, found: Match) -> Outputs:
        """Return the outputs with features; from now on the head is known."""
        self._head_name = found.name
        if self._match is None or not self._match.is_exact:
            # A scale and a bias are better known from more inputs.
            n_rows = int(usable_rows(outputs.logits).sum())
            if n_rows > self._match_rows:
                self._match_rows = n_rows
                self._match = found._replace(features=found.features[:0])
        return replace(outputs, features=found.features)

    @property
    def _layer(self) -> nn.Module:
        return self.net.get_submodule(self._head_name or "")

    def _trace(self, x: Any) -> Outputs:
        """Return the outputs where torch.compile or torch.export trace them.

        A graph has no values to check, and no modes and hooks to restore.
        """
        if any(module.training for module in self.net.modules()):
            raise RuntimeError(
                "`net` must be in evaluation mode to be compiled or exported. Call net.eval()."
            )
        if self.features is False or self._is_alone:
            return self.outputs_of_result(logits_of(self.net, x), None)
        layer = self.head
        if isinstance(layer, Head):
            layer = layer.layer
        recorder = RecordedCalls(layer)
        with recorder:
            found = logits_of(self.net, x)
        if not recorder.calls:
            raise _no_head([], found.shape[class_dim(found.dim() - 1)], False)
        return self.outputs_of_result(found, recorder.calls[-1])

    def outputs_of_result(self, found: Tensor, call: Call | None) -> Outputs:
        """Return outputs of what the network returns, as a graph makes them: without checks.

        Args:
            found: The network's logits or probabilities.
            call: The call of its head; None without features.
        """
        shape = label_shape(found)
        dense = is_dense(found)
        if dense:
            found = to_rows(found)
        logits = self.logits_of_result(found)
        features = None
        if call is not None and dense:
            features = _full(call_of_rows(call).features)
        elif call is not None:
            features = _full(features_of_logits(call, logits, pooled=self.is_pooled))
        if dense:
            return dense_outputs_of_rows(_full(logits), features, shape)
        return outputs_of_rows(_full(logits), features)

    def logits_of_result(self, found: Tensor) -> Tensor:
        """Return what the network returns as logits (N, K), without a check.

        Args:
            found: Its logits or probabilities.
        """
        if self.probs:
            return log_probs(found)
        return of_two_classes(found)

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


class FunctionModule(nn.Module):
    """A callable that is no module, as one without parameters.

    Args:
        function: From inputs to logits or probabilities.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the function returns, an array as a tensor.

        Args:
            *args: Inputs by position.
            **kwargs: Inputs by name.
        """
        result = frame_to_array(self.function(*args, **kwargs))
        if isinstance(result, np.ndarray):
            return as_tensor(result)
        return result


def _as_module(net: object) -> nn.Module:
    """Return a network without what wraps it, and another callable as a module."""
    if isinstance(net, nn.Module):
        return _unwrap(net)
    if callable(net) and not isinstance(net, type):
        return FunctionModule(net)
    raise TypeError(
        "`net` must be a torch.nn.Module, or a function from inputs to logits; got "
        f"{type(net).__name__}. For logits, use Outputs."
    )


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


def _full(tensor: Tensor) -> Tensor:
    """Return a tensor as Outputs hold it: without a graph, and not in half precision."""
    return check_float_tensor("net", tensor.detach())


def _no_head(calls: list[Call], k: int, one_logit: bool) -> ValueError:
    """Return the error for logits that no layer is known to make."""
    width = k
    if one_logit:
        width = 1
    candidates = [call.name for call in calls if call.output.shape[-1:] == (width,)]
    if candidates:
        found = f"those of {candidates[-1]!r} are changed after it"
    else:
        found = f"no linear layer with {_count(width, 'output')} ran"
    return ValueError(
        f"`net` must return the output of a linear layer as its {_count(width)}; {found}. "
        "Wrap it so that it returns them before softmax, scaling or pooling; or go without "
        'features: with a method that reads logits alone, or mixup="logits".'
    )


def _count(n: int, noun: str = "logit") -> str:
    if n == 1:
        return f"1 {noun}"
    return f"{n} {noun}s"


def check_are_logits(outputs: Outputs, one_logit: bool | None) -> None:
    """Raise ValueError if a network has returned probabilities.

    Args:
        outputs: Its outputs for several inputs.
        one_logit: Whether it returns one number for each.
    """
    z = outputs.logits[:, -1]
    if one_logit and bool(((z >= 0) & (z <= 1)).all()):
        raise ValueError(
            "`net` must return logits; its one output is between 0 and 1 for all inputs, as the "
            "probabilities of a sigmoid are. Pass probs=True; or, if these are logits, let it "
            "return them as torch.stack([torch.zeros_like(z), z], -1)."
        )
    if not one_logit and are_probs(outputs.logits):
        raise ValueError(
            "`net` must return logits, the values before the softmax; it returned probabilities. "
            "Pass probs=True, or wrap it so that it returns the logits."
        )
