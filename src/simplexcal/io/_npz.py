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
    check_unique,
    reraise_parse_errors,
)
from simplexcal.io.native import KEY, load_outputs

NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)


def read_npz(path: Path, wanted: Sequence[str]) -> Columns:
    """Read NumPy arrays, each only if it is wanted.

    Args:
        path: The file.
        wanted: Names of arrays.
    """
    remedy = "Write it with numpy.savez, as arrays of numbers or text; objects are never unpickled."
    with (
        reraise_parse_errors(path, remedy),
        path.open("rb") as handle,
        NpzFile(handle, allow_pickle=False) as file,
    ):
        names = list(file.files)
        arrays = {name: np.asarray(file[name]) for name in wanted if name in names}
    for name in arrays:
        check_unique(path, name, [other for other in names if other == name])
    return Columns(path, arrays, names, names)


def read_safetensors(path: Path, wanted: Sequence[str]) -> Columns:
    """Read tensors, each only if it is wanted; a file of the library must have a valid checksum.

    Args:
        path: The file.
        wanted: Names of tensors.
    """
    arrays: dict[str, Array] = {}
    with reraise_parse_errors(path, WRITE_AGAIN), safe_open(path, "pt") as file:
        names = list(file.keys())
        is_native = KEY in (file.metadata() or {})
        if not is_native:
            arrays = {name: _as_array(file.get_tensor(name)) for name in wanted if name in names}
    if is_native:
        arrays = _read_native(path, wanted)
    return Columns(path, arrays, names, names)


def read_npy(path: Path, wanted: Sequence[str]) -> Columns:
    """Read one NumPy array, which is the first that is wanted.

    Args:
        path: The file.
        wanted: Names of arrays.
    """
    remedy = "Write it with numpy.save, as an array of numbers; objects are never unpickled."
    with reraise_parse_errors(path, remedy), path.open("rb") as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
    names = list(wanted[:1])
    return Columns(path, {names[0]: array}, names, names)


def read_pt(path: Path, wanted: Sequence[str]) -> Columns:
    """Read a dict of tensors, each only if it is wanted, or one tensor, which is the first wanted.

    Args:
        path: The file.
        wanted: Names of tensors.
    """
    remedy = "Write it with torch.save, as a tensor or a dict of tensors; only those are unpickled."
    with reraise_parse_errors(path, remedy):
        content = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(content, Tensor):
        content = {wanted[0]: content}
    if not isinstance(content, Mapping):
        raise _no_tensors(path, f"it holds {type(content).__name__}")
    names = [str(name) for name in content]
    arrays: dict[str, Array] = {}
    for name in wanted:
        if name in content:
            if not isinstance(content[name], Tensor):
                raise _no_tensors(path, f"{name!r} is {type(content[name]).__name__}")
            with reraise_parse_errors(path, remedy):
                arrays[name] = _as_array(content[name].detach())
    return Columns(path, arrays, names, names)


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


def _read_native(path: Path, wanted: Sequence[str]) -> dict[str, Array]:
    """Read outputs that the library saved."""
    try:
        outputs, labels = load_outputs(path)
    except (LookupError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"'{path}' is damaged or was edited: its header makes no sense. Save it again."
        ) from error
    tensors = {"logits": outputs.logits, "features": outputs.features, "labels": labels}
    return {name: _as_array(x) for name, x in tensors.items() if name in wanted and x is not None}


def _as_array(x: Tensor) -> Array:
    """Return a copy, since the file itself is mapped; floats unknown to NumPy become float32."""
    if x.is_floating_point() and x.dtype not in NUMPY_FLOATS:
        x = x.float()
    array: Array = x.numpy().copy()
    return array
