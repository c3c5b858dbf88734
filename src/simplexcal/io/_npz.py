"""The formats that hold named columns as arrays: .npz, by NumPy, and .safetensors."""

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

from simplexcal.io._columns import Array, Columns, check_once, parsing
from simplexcal.io.native import KEY, load_outputs


def read_npz(path: Path, wanted: Sequence[str]) -> Columns:
    """Read NumPy arrays, each only if it is wanted."""
    remedy = "Write it with numpy.savez, as arrays of numbers or text; objects are never unpickled."
    with (
        parsing(path, remedy),
        path.open("rb") as handle,
        NpzFile(handle, allow_pickle=False) as file,
    ):
        names = list(file.files)
        arrays = {name: np.asarray(file[name]) for name in wanted if name in names}
    for name in arrays:
        check_once(path, name, [other for other in names if other == name])
    return Columns(path, arrays, names, names)


def read_safetensors(path: Path, wanted: Sequence[str]) -> Columns:
    """Read tensors, each only if it is wanted; what the library itself wrote must have the right checksum."""
    remedy = "It was cut short, damaged, or is of another kind: write it again."
    with parsing(path, remedy), safe_open(path, "pt") as file:
        names = list(file.keys())
        ours = KEY in (file.metadata() or {})
        arrays = (
            {}
            if ours
            else {name: _as_array(file.get_tensor(name)) for name in wanted if name in names}
        )
    return Columns(path, _read_outputs(path, wanted) if ours else arrays, names, names)


def _read_outputs(path: Path, wanted: Sequence[str]) -> dict[str, Array]:
    try:
        outputs, labels = load_outputs(path)
    except (LookupError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"'{path}' is damaged or was edited: its header makes no sense. Save it again."
        ) from error
    tensors = {"logits": outputs.logits, "features": outputs.features, "labels": labels}
    return {name: _as_array(x) for name, x in tensors.items() if name in wanted and x is not None}


def _as_array(x: Tensor) -> Array:
    """Return a copy, since the file itself is mapped; floats that NumPy does not know become float32."""
    unknown = x.is_floating_point() and x.dtype not in (torch.float16, torch.float32, torch.float64)
    array: Array = (x.float() if unknown else x).numpy().copy()
    return array


def npz_bytes(columns: Mapping[str, Array]) -> bytes:
    """Return the content of an .npz file."""
    buffer = io.BytesIO()
    plain: dict[str, Any] = {
        name: x.astype(str) if x.dtype == object else x for name, x in columns.items()
    }
    np.savez(buffer, **plain)
    return buffer.getvalue()


def safetensors_bytes(columns: Mapping[str, Array]) -> bytes:
    """Return the content of a .safetensors file."""
    for name, x in columns.items():
        if x.dtype.kind not in "iuf":
            raise TypeError(
                f"`{name}` is text, which .safetensors cannot hold. Write .npz, .parquet or .csv."
            )
    return safetensors.numpy.save({name: np.ascontiguousarray(x) for name, x in columns.items()})
