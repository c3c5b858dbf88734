"""Outputs and calibrators as one safetensors file each, with a JSON header in its metadata.

Nothing is pickled. The header names what is needed to make the object again, and holds a SHA-256
checksum of itself and all tensors. The checksum finds damage and careless edits; it is not a
signature.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from simplexcal._validation import NotFittedError, check_label_shape
from simplexcal.calibrators import CALIBRATORS, Calibrator
from simplexcal.facts import Facts, own_versions
from simplexcal.io._atomic import atomic_write
from simplexcal.thresholds import from_records
from simplexcal.types import Outputs

FORMAT = 6  # goes up when older versions of the library cannot read the file
KEY = "simplexcal"  # of the header in the metadata
# What the header of each kind of file must have.
KEYS = {
    "calibrator": (
        "kind",
        "versions",
        "method",
        "settings",
        "n_classes",
        "n_features",
        "fingerprint",
    ),
    "outputs": ("kind", "versions"),
}

Header = dict[str, Any]
Tensors = dict[str, Tensor]


class Network(Protocol):
    """Anything with a fingerprint."""

    def fingerprint(self) -> str:
        """Return a digest of the network."""


def save_calibrator(
    calibrator: Calibrator,
    path: str | Path,
    *,
    fingerprint: str | None = None,
    is_dense: bool = False,
) -> None:
    """Write a fitted calibrator.

    Args:
        calibrator: A calibrator of a type in CALIBRATORS.
        path: The file.
        fingerprint: The fingerprint of the backbone that it was fitted for, where it is known.
        is_dense: Whether this backbone classifies each token or pixel.

    Raises:
        NotFittedError: If the calibrator is not fitted.
        ValueError: If its type is not in CALIBRATORS.
        OSError: If the file cannot be written.
    """
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
        "thresholds": [threshold.as_dict() for threshold in calibrator.thresholds.values()],
        "fit_digest": calibrator.fit_digest,
        "facts": calibrator.facts.as_dict(),
    }
    if is_dense:
        description["is_dense"] = True
    _write(Path(path), "calibrator", description, calibrator.state_dict())


def save_again(calibrator: Calibrator, header: Header, path: str | Path) -> None:
    """Write a calibrator that came from a file, with what the file says of its network.

    Args:
        calibrator: The calibrator.
        header: The header of its file.
        path: The file to write, which may be the same.
    """
    save_calibrator(
        calibrator,
        path,
        fingerprint=header["fingerprint"],
        is_dense=bool(header.get("is_dense")),
    )


def load_calibrator(path: str | Path) -> tuple[Calibrator, Header]:
    """Return the calibrator in a file, on the CPU, and the header of the file.

    Args:
        path: A file from ``save_calibrator``.

    Raises:
        ValueError: If the file is damaged, of another kind, or of another version.
        OSError: If the file cannot be read.
    """
    header, tensors = _read(Path(path), "calibrator")
    method = header["method"]
    if method not in CALIBRATORS:
        known = ", ".join(CALIBRATORS)
        raise ValueError(
            f"'{path}' holds the method {method!r}; this version knows {known}. {_remedy(header)}"
        )
    try:
        kind = CALIBRATORS[method]
        calibrator = kind(**_completed(header["settings"], kind.settings_of_older_files))
        calibrator.build(header["n_classes"], header["n_features"])
        # Assigned tensors keep the dtypes of the file.
        calibrator.load_state_dict(tensors, assign=True)
        calibrator.thresholds = from_records(header.get("thresholds", []))
        calibrator.fit_digest = header.get("fit_digest")
        calibrator.facts = Facts.from_record(header.get("facts"))
    except (TypeError, RuntimeError) as error:
        raise ValueError(
            f"'{path}' does not fit this version's {method!r}. {_remedy(header)}"
        ) from error
    return calibrator.requires_grad_(False).eval(), header


def _completed(settings: Mapping[str, Any], older: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with those that the file lacks, also where a setting is itself a mapping.

    Args:
        settings: Settings of a file.
        older: Settings that older files lack.
    """
    whole = {**older, **settings}
    for name, value in older.items():
        if isinstance(value, Mapping):
            whole[name] = {**value, **settings.get(name, {})}
    return whole


def check_fingerprint(header: Header, backbone: Network, path: str | Path) -> None:
    """Raise ValueError if a calibrator was fitted for another network.

    A calibrator that was saved without a fingerprint fits every network.

    Args:
        header: The header of the calibrator's file.
        backbone: The network that it is to be used with.
        path: The calibrator's file.
    """
    expected = header["fingerprint"]
    if expected is not None and expected != backbone.fingerprint():
        raise ValueError(
            f"'{path}' was calibrated for another network: its weights, names or dtypes differ. "
            "Pass the network of the fit, or calibrate this one."
        )


def save_outputs(outputs: Outputs, labels: Tensor | None, path: str | Path) -> None:
    """Write a network's outputs, and the labels if there are any.

    Args:
        outputs: The outputs.
        labels: The true classes, (N,), or None.
        path: The file.

    Raises:
        TypeError: If the labels are no numbers.
        ValueError: If there is not one label for each input.
        OSError: If the file cannot be written.
    """
    if labels is not None:
        labels = check_label_shape(labels, len(outputs))
    columns = {"logits": outputs.logits, "features": outputs.features, "labels": labels}
    _write(Path(path), "outputs", {}, {name: x for name, x in columns.items() if x is not None})


def load_outputs(path: str | Path) -> tuple[Outputs, Tensor | None]:
    """Return the outputs in a file, and the labels or None, on the CPU.

    Args:
        path: A file from ``save_outputs``.

    Raises:
        ValueError: If the file is damaged, of another kind, or of another version.
        OSError: If the file cannot be read.
    """
    _, tensors = _read(Path(path), "outputs")
    if "logits" not in tensors:
        raise ValueError(f"'{path}' is damaged or was edited: it holds no `logits`. Save it again.")
    return Outputs(tensors["logits"], tensors.get("features")), tensors.get("labels")


def _method(calibrator: Calibrator) -> str:
    """Return the key of a calibrator in CALIBRATORS."""
    if CALIBRATORS.get(calibrator.key) is type(calibrator):
        return calibrator.key
    raise ValueError(
        "`calibrator` must be of a type in CALIBRATORS to be found again; got "
        f"{type(calibrator).__name__}. Add it to CALIBRATORS, here and where the file is loaded."
    )


def _remedy(header: Header) -> str:
    version = header["versions"]["simplexcal"]
    return f"It was written by simplexcal {version}: install that version, or fit again."


def _write(path: Path, kind: str, description: Header, tensors: Tensors) -> None:
    stored = {name: _contiguous_copy(x) for name, x in tensors.items()}
    header = {"format": FORMAT, "kind": kind, "versions": own_versions(), **description}
    header["checksum"] = _checksum(header, stored)
    atomic_write(path, save(stored, {KEY: _json(header)}))


def _contiguous_copy(x: Tensor) -> Tensor:
    return x.detach().cpu().clone(memory_format=torch.contiguous_format)


def _read(path: Path, kind: str) -> tuple[Header, Tensors]:
    """Return the content of a file, if it is whole and of this kind."""
    header, tensors = _parse(path)
    if header.get("checksum") != _checksum(header, tensors):
        raise ValueError(
            f"'{path}' is damaged or was edited: its checksum is wrong. Save it again."
        )
    found = header.get("kind")
    if found in KEYS and found != kind:
        raise ValueError(
            f"'{path}' is of kind {found!r}, not {kind!r}. Read it with simplexcal.io.load_{found}."
        )
    for name in KEYS[kind]:
        if name not in header:
            raise ValueError(
                f"'{path}' is damaged or was edited: its header lacks {name!r}. Save it again."
            )
    return header, tensors


def _parse(path: Path) -> tuple[Header, Tensors]:
    """Return the header and the tensors of a file of the library."""
    if path.is_dir():
        raise IsADirectoryError(f"'{path}' is a folder. Give the name of a file from `save`.")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            header = _header(path, metadata.get(KEY))
            # Tensors are copied, since the file itself is mapped.
            tensors = {name: file.get_tensor(name).clone() for name in sorted(file.keys())}
    except SafetensorError as error:
        raise ValueError(
            f"'{path}' is not a whole safetensors file ({error}). It was cut short, damaged, or is "
            "of another kind: save it again."
        ) from error
    return header, tensors


def _header(path: Path, text: str | None) -> Header:
    """Return the header of a file, if it is one of ours and this version can read it."""
    if text is None:
        raise ValueError(
            f"'{path}' was not written by simplexcal: its header is missing. "
            "Pass a file from `save`."
        )
    try:
        header: Header = json.loads(text)
        is_newer = header["format"] > FORMAT
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"'{path}' is damaged or was edited: its header cannot be read. Save it again."
        ) from error
    if is_newer:
        raise ValueError(
            f"'{path}' was written by a newer simplexcal, in format {header['format']}; this "
            f"version reads format {FORMAT}. Upgrade with pip install --upgrade simplexcal."
        )
    return header


def _checksum(header: Header, tensors: Tensors) -> str:
    """Return the SHA-256 digest of the rest of the header and of all tensors.

    Of a tensor, its name, dtype, shape and bytes count.
    """
    rest = {name: value for name, value in header.items() if name != "checksum"}
    listed = [(name, str(x.dtype), list(x.shape)) for name, x in sorted(tensors.items())]
    digest = hashlib.sha256(_json([rest, listed], sort_keys=True).encode())
    for name, _, _ in listed:
        digest.update(tensors[name].flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _json(value: Any, *, sort_keys: bool = False) -> str:
    return json.dumps(value, sort_keys=sort_keys, default=_as_python_number)


def _as_python_number(value: object) -> object:
    """Convert a NumPy number, which a setting may be."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(
        f"Settings must be plain numbers and text; got {type(value).__name__}, "
        "not JSON serializable."
    )
