"""Outputs and calibrators as one safetensors file each, with a JSON header in its metadata. Nothing is pickled.

The header names what is needed to make the object again, and holds a SHA-256 checksum of itself and all tensors. The
checksum finds damage and careless edits; it is not a signature.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from simplexcal._validation import NotFittedError
from simplexcal._version import __version__
from simplexcal.calibrators import CALIBRATORS, Calibrator
from simplexcal.io._atomic import atomic_write
from simplexcal.types import Outputs

FORMAT = 1  # goes up when older versions of the library cannot read the file
KEY = "simplexcal"  # of the header in the metadata

Header = dict[str, Any]
Tensors = dict[str, Tensor]


def save_calibrator(
    calibrator: Calibrator, path: str | Path, *, fingerprint: str | None = None
) -> None:
    """Write a fitted calibrator to ``path``, with the ``fingerprint`` of the backbone that it was fitted for."""
    if calibrator.n_classes is None:
        raise NotFittedError(
            f"This {type(calibrator).__name__} is not fitted yet. Call fit(outputs, labels) first."
        )
    description = {
        "method": _method(calibrator),
        "settings": calibrator.settings,
        "n_classes": calibrator.n_classes,
        "n_features": calibrator.n_features,
        "fingerprint": fingerprint,
    }
    _write(Path(path), "calibrator", description, calibrator.state_dict())


def load_calibrator(path: str | Path) -> tuple[Calibrator, Header]:
    """Return the calibrator in the file, on the CPU, and the file's header."""
    header, tensors = _read(Path(path), "calibrator")
    method = header["method"]
    if method not in CALIBRATORS:
        known = ", ".join(CALIBRATORS)
        raise ValueError(
            f"'{path}' holds the method {method!r}; this version knows {known}. {_remedy(header)}"
        )
    try:
        calibrator = CALIBRATORS[method](**header["settings"])
        calibrator.build(header["n_classes"], header["n_features"])
        calibrator.load_state_dict(
            tensors, assign=True
        )  # assigned, so that the dtypes are those of the file
    except (TypeError, RuntimeError) as error:
        raise ValueError(
            f"'{path}' does not fit this version's {method!r}. {_remedy(header)}"
        ) from error
    return calibrator.requires_grad_(False).eval(), header


def save_outputs(outputs: Outputs, labels: Tensor | None, path: str | Path) -> None:
    """Write a network's outputs to ``path``, and the labels if there are any."""
    if labels is not None and (not isinstance(labels, Tensor) or labels.shape != (len(outputs),)):
        found = tuple(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
        raise ValueError(
            f"`labels` must be a tensor of shape ({len(outputs)},), one for each input; got {found}. "
            "Save the labels of these outputs, or None."
        )
    columns = {"logits": outputs.logits, "features": outputs.features, "labels": labels}
    _write(Path(path), "outputs", {}, {name: x for name, x in columns.items() if x is not None})


def load_outputs(path: str | Path) -> tuple[Outputs, Tensor | None]:
    """Return the outputs in the file, and the labels or None, on the CPU."""
    _, tensors = _read(Path(path), "outputs")
    return Outputs(tensors["logits"], tensors.get("features")), tensors.get("labels")


def _method(calibrator: Calibrator) -> str:
    for name, kind in CALIBRATORS.items():
        if kind is type(calibrator):
            return name
    raise ValueError(
        f"`calibrator` must be of a type in CALIBRATORS to be found again; got {type(calibrator).__name__}. "
        "Add it to CALIBRATORS, here and where the file is loaded."
    )


def _remedy(header: Header) -> str:
    return f"It was written by simplexcal {header['versions']['simplexcal']}: install that version, or fit again."


def _write(path: Path, kind: str, description: Header, tensors: Tensors) -> None:
    tensors = {
        name: x.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, x in tensors.items()
    }
    versions = {"simplexcal": __version__, "torch": str(torch.__version__)}
    header = {"format": FORMAT, "kind": kind, "versions": versions, **description}
    header["checksum"] = _checksum(header, tensors)
    atomic_write(path, save(tensors, {KEY: _json(header)}))


def _read(path: Path, kind: str) -> tuple[Header, Tensors]:
    if path.is_dir():
        raise IsADirectoryError(f"'{path}' is a folder. Give the name of a file from `save`.")
    try:
        with safe_open(path, "pt") as file:
            header = _header(path, (file.metadata() or {}).get(KEY))
            tensors = {
                name: file.get_tensor(name).clone() for name in sorted(file.keys())
            }  # the file itself is mapped
    except SafetensorError as error:
        raise ValueError(
            f"'{path}' is not a whole safetensors file ({error}). It was cut short, damaged, or is of another kind: "
            "save it again."
        ) from error
    if header.get("checksum") != _checksum(header, tensors):
        raise ValueError(
            f"'{path}' is damaged or was edited: its checksum is wrong. Save it again."
        )
    if (other := header["kind"]) != kind:
        raise ValueError(
            f"'{path}' is of kind {other!r}, not {kind!r}. Read it with simplexcal.io.load_{other}."
        )
    return header, tensors


def _header(path: Path, text: str | None) -> Header:
    if text is None:
        raise ValueError(
            f"'{path}' was not written by simplexcal: its header is missing. Pass a file from `save`."
        )
    try:
        header: Header = json.loads(text)
        newer = header["format"] > FORMAT
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"'{path}' is damaged or was edited: its header cannot be read. Save it again."
        ) from error
    if newer:
        raise ValueError(
            f"'{path}' was written by a newer simplexcal, in format {header['format']}; this version reads format "
            f"{FORMAT}. Upgrade with pip install --upgrade simplexcal."
        )
    return header


def _checksum(header: Header, tensors: Tensors) -> str:
    """Return the SHA-256 digest of the rest of the header, and of the tensors' names, dtypes, shapes and bytes."""
    rest = {name: value for name, value in header.items() if name != "checksum"}
    listed = [(name, str(x.dtype), list(x.shape)) for name, x in sorted(tensors.items())]
    digest = hashlib.sha256(_json([rest, listed], sort_keys=True).encode())
    for name, _, _ in listed:
        digest.update(tensors[name].flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _json(value: Any, *, sort_keys: bool = False) -> str:
    return json.dumps(value, sort_keys=sort_keys, default=_number)


def _number(value: object) -> object:
    """Return a number of numpy's, which a setting may be, as one of Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(
        f"Settings must be plain numbers and text; got {type(value).__name__}, not JSON serializable."
    )
