"""A network named by strings, as the command line names it: a function that makes it, and a file with its weights."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import nn

NETWORK_ERRORS = (
    RuntimeError,
    IndexError,
    AttributeError,
    KeyError,
)  # what networks raise at inputs they cannot take


class Network(NamedTuple):
    """A network by its names on the command line."""

    model: str
    weights: Path | None = None
    head: str | None = None


def load_network(model: str, weights: Path | None = None) -> nn.Module:
    """Return the network that ``package.module:factory`` makes when it is called without arguments, with its weights.

    ``weights`` is a state dict, in safetensors or in torch's own format; of the latter only tensors are unpickled.
    """
    factory = _factory(model)
    try:
        net = factory()
    except Exception as error:
        raise ValueError(
            f"`{model}` must make a network when called without arguments; it raised {error!r}."
        ) from error
    if not isinstance(net, nn.Module):
        raise TypeError(
            f"`{model}` must return a torch.nn.Module; it returned {type(net).__name__}."
        )
    return net if weights is None else _with_weights(net, weights)


def _factory(model: str) -> Any:
    module_name, _, name = model.partition(":")
    if not module_name or not name:
        raise ValueError(f"`model` must have the form package.module:factory; got {model!r}.")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(
            0, str(Path.cwd())
        )  # as `python -m` does, so that a user's own module is found
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


def _with_weights(net: nn.Module, path: Path) -> nn.Module:
    state = _state_dict(path)
    try:
        net.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        first = str(error).splitlines()[1:2] or [str(error)]
        raise ValueError(
            f"'{path}' holds the weights of another network: {first[0].strip()}"
        ) from error
    return net


def _state_dict(path: Path) -> Any:
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
            f"'{path}' cannot be read as a state dict. Save one with safetensors.torch.save_file(net.state_dict(), "
            "path) or torch.save(net.state_dict(), path)."
        ) from error


@contextmanager
def blaming_the_inputs(path: Path) -> Iterator[None]:
    """Say of an error inside the network what it comes from."""
    try:
        yield
    except NETWORK_ERRORS as error:
        raise ValueError(
            f"The network cannot take the `inputs` of '{path}': {first_line(error)}"
        ) from error


def first_line(error: Exception) -> str:
    """Return what an error says, in short."""
    return next(iter(str(error).splitlines()), type(error).__name__)
