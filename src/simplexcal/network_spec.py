"""A network named by strings: "package.module:factory" and a file of weights, or an .onnx file."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import nn

from simplexcal.backbone import Backbone
from simplexcal.onnx import OnnxNetwork
from simplexcal.onnx.network import is_onnx_file

# The errors that networks raise at inputs of a wrong shape or dtype.
NETWORK_ERRORS = (RuntimeError, IndexError, AttributeError, KeyError, AssertionError)


class NetworkSpec(NamedTuple):
    """The names that a network is loaded by; plain data, which can be sent to other processes.

    Attributes:
        model: Factory of the network, as "package.module:factory", or the path of an .onnx file.
        weights: File with its state dict; None keeps the weights that the factory gives.
        head: Name of its last linear layer; None finds it in the first forward pass.
        output_name: Of an .onnx file, the output to calibrate; None finds it.
        features_name: Of an .onnx file, the input of the last linear layer; None goes without.
        kind: Of an .onnx file, "logits" or "probs"; None where its graph tells.
    """

    model: str
    weights: Path | None = None
    head: str | None = None
    output_name: str | None = None
    features_name: str | None = None
    kind: str | None = None

    @property
    def onnx_file(self) -> Path | None:
        """The .onnx file, or None for a factory."""
        if is_onnx_file(self.model):
            return Path(self.model)
        return None


def load_backbone(network: NetworkSpec) -> Backbone | OnnxNetwork:
    """Return the network that a specification names, frozen.

    Args:
        network: The names to load it by.

    Raises:
        ValueError: The factory, the weights or the head cannot be found or do not fit together.
    """
    if network.onnx_file is not None:
        return _load_onnx(network)
    if (network.output_name, network.features_name) != (None, None):
        raise ValueError(
            "`output_name` and `features_name` are about an .onnx file; "
            f"got `model` '{network.model}'. Leave them out."
        )
    return Backbone(load_network(network.model, network.weights), network.head)


def _load_onnx(network: NetworkSpec) -> OnnxNetwork:
    if (network.weights, network.head) != (None, None):
        raise ValueError(
            f"`weights` and `head` are about a PyTorch network; got `model` '{network.model}', "
            "which has its own weights. Leave them out."
        )
    return OnnxNetwork(
        network.model,
        output_name=network.output_name,
        features_name=network.features_name,
        kind=network.kind,
    )


def load_network(model: str, weights: Path | None = None) -> nn.Module:
    """Return the network that a factory makes, with its weights.

    Args:
        model: Function or class that is called without arguments, as "package.module:factory".
        weights: State dict, in safetensors or in torch's own format; of the latter only tensors
            are unpickled. None keeps the weights that the factory gives.

    Raises:
        ValueError: The factory cannot be imported or called, or the weights do not fit.
        TypeError: The factory returns something else than a torch.nn.Module.
        FileNotFoundError: There is no file ``weights``.
    """
    with _current_folder_searched():
        factory = _import_factory(model)
        try:
            net = factory()
        except Exception as error:
            raise ValueError(
                f"`model` '{model}' must make a network when called without arguments; "
                f"it raised {error!r}."
            ) from error
    if not isinstance(net, nn.Module):
        raise TypeError(
            f"`model` '{model}' must return a torch.nn.Module; it returned {type(net).__name__}."
        )
    if weights is not None:
        _load_weights(net, weights)
    return net


@contextmanager
def reraise_as_input_error(inputs: str) -> Iterator[None]:
    """Turn what a network raises at its inputs into a ValueError of one line.

    Args:
        inputs: What the network is called with, in words, such as "the `inputs` of 'x.npz'".

    Raises:
        ValueError: The network raised one of ``NETWORK_ERRORS``.
    """
    try:
        yield
    except NETWORK_ERRORS as error:
        raise ValueError(f"The network cannot take {inputs}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type where there is no message.

    Args:
        error: Any exception.
    """
    lines = str(error).splitlines()
    if not lines:
        return type(error).__name__
    return lines[0]


def _import_factory(model: str) -> Any:
    module_name, _, name = model.partition(":")
    if not module_name or not name:
        raise ValueError(
            "`model` must have the form package.module:factory, or be a file that ends in .onnx; "
            f"got {model!r}."
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ValueError(
            f"`model` names the module {module_name!r}, which cannot be imported ({error}). "
            "Run this where `import` finds it."
        ) from error
    factory = getattr(module, name, None)
    if callable(factory):
        return factory
    raise ValueError(
        f"`model` names {name!r}, which is no function or class of the module {module_name!r}."
    )


@contextmanager
def _current_folder_searched() -> Iterator[None]:
    """Let a user's own module in the current folder be imported, for a while.

    The folder comes last, so that no file in it is taken for an installed package.
    """
    current = str(Path.cwd())
    if "" in sys.path or current in sys.path:
        yield
        return
    sys.path.append(current)
    try:
        yield
    finally:
        # The module itself may have changed the list.
        if current in sys.path:
            sys.path.remove(current)


def _load_weights(net: nn.Module, path: Path) -> None:
    state = _read_state_dict(path)
    try:
        net.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        reason = _mismatch(error)
        raise ValueError(f"'{path}' holds the weights of another network: {reason}") from error


def _mismatch(error: Exception) -> str:
    """Return the first mismatch that torch lists; its first line names the network alone."""
    lines = str(error).splitlines()
    if len(lines) > 1:
        return lines[1].strip()
    return str(error).strip()


def _read_state_dict(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(
            f"'{path}' does not exist or is no file. Pass the network's saved state dict."
        )
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's unpickler raises whatever it meets in a foreign file
        raise ValueError(
            f"'{path}' cannot be read as a state dict. Save one with "
            "safetensors.torch.save_file(net.state_dict(), path) or "
            "torch.save(net.state_dict(), path)."
        ) from error
