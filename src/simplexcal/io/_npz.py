"""The formats that hold arrays: .npz and .npy, by NumPy, .safetensors, and torch's .pt."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from numpy.lib.npyio import NpzFile
from safetensors import safe_open
from torch import Tensor

from simplexcal.io._columns import (
    WRITE_AGAIN,
    Array,
    Columns,
    Names,
    check_unique,
    reraise_parse_errors,
)
from simplexcal.io.native import KEY, load_outputs

NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)


def read_npz(path: Path, wanted: Sequence[str], names: Names) -> Columns:
    """Read NumPy arrays, each only if it is wanted.

    Args:
        path: The file.
        wanted: The arrays.
        names: What the file calls them, where it has other names.
    """
    remedy = "Write it with numpy.savez, as arrays of numbers or text; objects are never unpickled."
    with (
        reraise_parse_errors(path, remedy),
        path.open("rb") as handle,
        NpzFile(handle, allow_pickle=False) as file,
    ):
        found = list(file.files)
        own = _own_names(wanted, names, found)
        arrays = {name: np.asarray(file[key]) for name, key in own.items()}
    for name, key in own.items():
        check_unique(path, name, [other for other in found if other == key])
    return Columns(path, arrays, found, found)


def read_safetensors(path: Path, wanted: Sequence[str], names: Names) -> Columns:
    """Read tensors, each only if it is wanted; a file of the library must have a valid checksum.

    Args:
        path: The file.
        wanted: The arrays.
        names: What the file calls them, where it has other names.
    """
    arrays: dict[str, Array] = {}
    with reraise_parse_errors(path, WRITE_AGAIN), safe_open(path, "pt") as file:
        found = list(file.keys())
        is_native = KEY in (file.metadata() or {})
        own = _own_names(wanted, names, found)
        if not is_native:
            arrays = {name: _as_array(file.get_tensor(key)) for name, key in own.items()}
    if is_native:
        arrays = _read_native(path, own)
    return Columns(path, arrays, found, found)


def read_npy(path: Path, wanted: Sequence[str], _: Names) -> Columns:
    """Read one NumPy array, which is the first that is wanted.

    Args:
        path: The file.
        wanted: The arrays.
    """
    remedy = "Write it with numpy.save, as an array of numbers; objects are never unpickled."
    with reraise_parse_errors(path, remedy), path.open("rb") as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
    return Columns(path, dict.fromkeys(wanted[:1], array), [], [], is_unnamed=True)


def read_pt(path: Path, wanted: Sequence[str], names: Names) -> Columns:
    """Read a dict of tensors, each only if it is wanted, or one tensor, which is the first wanted.

    Args:
        path: The file.
        wanted: The arrays.
        names: What the file calls them, where it has other names.
    """
    remedy = "Write it with torch.save, as a tensor or a dict of tensors; only those are unpickled."
    with reraise_parse_errors(path, remedy):
        content = torch.load(path, map_location="cpu", weights_only=True)
    is_unnamed = isinstance(content, Tensor)
    if is_unnamed:
        content = dict.fromkeys(wanted[:1], content)
        names = {}
    if not isinstance(content, Mapping):
        raise _no_tensors(path, f"it holds {type(content).__name__}")
    arrays: dict[str, Array] = {}
    for name, key in _own_names(wanted, names, list(content)).items():
        if not isinstance(content[key], Tensor):
            raise _no_tensors(path, f"{key!r} is {type(content[key]).__name__}")
        with reraise_parse_errors(path, remedy):
            arrays[name] = _as_array(content[key].detach())
    found = [str(name) for name in content]
    if is_unnamed:
        found = []
    return Columns(path, arrays, found, found, is_unnamed)


def _own_names(wanted: Sequence[str], names: Names, found: Sequence[str]) -> dict[str, str]:
    """Return what the file calls each array that is wanted and present."""
    own = {name: names.get(name, name) for name in wanted}
    return {name: key for name, key in own.items() if key in found}


def _no_tensors(path: Path, found: str) -> TypeError:
    return TypeError(f"'{path}' must hold a tensor, or a dict of tensors; {found}.")


def npz_bytes(columns: Mapping[str, Array]) -> bytes:
    """Return the content of an .npz file.

    Args:
        columns: Arrays by their names.
    """
    plain: dict[str, Any] = dict(columns)
    for name, x in columns.items():
        if x.dtype == object:
            plain[name] = x.astype(str)
    buffer = io.BytesIO()
    np.savez(buffer, **plain)
    return buffer.getvalue()


def safetensors_bytes(columns: Mapping[str, Array]) -> bytes:
    """Return the content of a .safetensors file.

    Args:
        columns: Arrays by their names.

    Raises:
        TypeError: If an array holds text.
    """
    for name, x in columns.items():
        if x.dtype.kind not in "iufb":
            raise TypeError(
                f"`{name}` is text, which .safetensors cannot hold. Write .npz, .parquet or .csv."
            )
    return safetensors.numpy.save({name: np.ascontiguousarray(x) for name, x in columns.items()})


def _read_native(path: Path, own: Names) -> dict[str, Array]:
    """Read outputs that the library saved."""
    try:
        outputs, labels = load_outputs(path)
    except (LookupError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"'{path}' is damaged or was edited: its header makes no sense. Save it again."
        ) from error
    tensors = {"logits": outputs.logits, "features": outputs.features, "labels": labels}
    found = {name: tensors.get(key) for name, key in own.items()}
    return {name: _as_array(x) for name, x in found.items() if x is not None}


def _as_array(x: Tensor) -> Array:
    """Return a copy, since the file itself is mapped; floats unknown to NumPy become float32."""
    if x.is_floating_point() and x.dtype not in NUMPY_FLOATS:
        x = x.float()
    array: Array = x.numpy().copy()
    return array
