"""Readers of the formats in which the data sets' authors distribute them: bytes (N, C, H, W), labels from 0.

Nothing beyond numpy is needed, except Pillow for folders of images.
"""

import gzip
import struct
import zlib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

IMAGE_SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".webp"}


def read_idx(path: Path) -> Tensor:
    """Return the bytes in an IDX file, gzipped or not: two zeros, type 8, rank, big-endian sizes, then the bytes."""
    raw = _read(path)
    if raw[:2] == b"\x1f\x8b":
        raw = _inflated(path, raw)
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise _damaged(
            path, "an IDX file of bytes, which begins with 00 00 08", f"{raw[:3].hex(' ')}"
        )
    start = 4 + 4 * raw[3]
    shape = struct.unpack(f">{raw[3]}I", raw[4:start]) if len(raw) >= start else (0,)
    if len(raw) < start or len(raw) - start != int(np.prod(shape)):
        raise _damaged(
            path,
            f"{int(np.prod(shape))} bytes after the header, for shape {shape}",
            f"{len(raw) - start}",
        )
    return _tensor(np.frombuffer(raw, np.uint8, offset=start).reshape(shape))


def read_cifar(path: Path, n_label_bytes: int) -> tuple[Tensor, Tensor]:
    """Return images (N, 3, 32, 32) and labels of a file of CIFAR's binary version.

    A record is 1 (CIFAR-10) or 2 (CIFAR-100: coarse, fine) label bytes, then 1024 red, green and blue ones in rows.
    """
    records = _records(path, n_label_bytes + 3072)
    images = records[:, n_label_bytes:].reshape(-1, 3, 32, 32)
    return _tensor(images), _tensor(records[:, n_label_bytes - 1]).long()


def read_names(path: Path) -> tuple[str, ...]:
    """Return the classes' names, one a line."""
    return tuple(_read(path).decode().split())


def read_stl10(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    """Return images (N, 3, 96, 96) and labels from STL-10's two files; images lie in columns, labels start at 1."""
    pixels, classes = _records(images, 3 * 96 * 96), _records(labels, 1).ravel()
    if len(pixels) != len(classes):
        raise _damaged(
            labels,
            f"a label for each of the {len(pixels)} images of '{images.name}'",
            f"{len(classes)}",
        )
    if classes.min() < 1 or classes.max() > 10:
        raise _damaged(labels, "labels in 1..10", f"{classes.min()}..{classes.max()}")
    return _tensor(pixels.reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2)), _tensor(classes).long() - 1


def read_svhn(path: Path) -> tuple[Tensor, Tensor]:
    """Return images (N, 3, 32, 32) and labels of SVHN's cropped digits: X (32, 32, 3, N), y (N, 1) with 10 for 0."""
    arrays = read_mat(path)
    x, y = arrays.get("X"), arrays.get("y")
    if (
        x is None
        or y is None
        or x.shape[:3] != (32, 32, 3)
        or x.shape[3:] != (y.size,)
        or x.dtype != np.uint8
    ):
        found = ", ".join(f"{name} {value.shape}" for name, value in arrays.items())
        raise _damaged(
            path, "bytes X (32, 32, 3, N) and labels y (N, 1)", found or "no numeric array"
        )
    return _tensor(x.transpose(3, 2, 0, 1)), _tensor(y.ravel()).long() % 10


def read_images(folder: Path, side: int) -> Tensor:
    """Return the images of a folder, sorted by name, in colour and resized to ``side``: bytes (N, 3, side, side)."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"'{folder}' is no folder; a folder of images was expected. Check the path."
        )
    paths = sorted(
        p for p in folder.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES and p.name[0] != "."
    )
    if not paths:
        raise FileNotFoundError(
            f"'{folder}' holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}). Unpack them there."
        )
    if find_spec("PIL") is None:
        raise ImportError(
            "Reading a folder of images needs Pillow, which is not installed. Run: pip install pillow"
        )
    return _tensor(np.stack([_image(path, side) for path in paths]).transpose(0, 3, 1, 2))


def _image(path: Path, side: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    pillow: Any = import_module("PIL.Image")
    try:
        with pillow.open(path) as image:
            colour = image.convert("RGB")
    except OSError as error:  # what Pillow raises for damaged files
        raise _damaged(path, "an image that Pillow reads", str(error)) from error
    if colour.size != (side, side):
        colour = colour.resize((side, side), pillow.Resampling.BICUBIC)
    return np.asarray(colour)


# MATLAB's level 5 files: a header of 128 bytes, then elements, each a tag (type, size) and its data.

MATRIX, COMPRESSED = 14, 15
NUMBERS = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}  # by data type
CLASSES = {
    6: "f8",
    7: "f4",
    8: "i1",
    9: "u1",
    10: "i2",
    11: "u2",
    12: "i4",
    13: "u4",
    14: "i8",
    15: "u8",
}
COMPLEX = 0x0800


class Element(NamedTuple):
    """A piece of a MATLAB file."""

    kind: int
    data: bytes


def read_mat(path: Path) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """Return the real numeric arrays of a MATLAB file of level 5 (versions 5 to 7), by name; others are passed over."""
    raw = _read(path)
    if raw[:10] == b"MATLAB 7.3" or raw[:8] == b"\x89HDF\r\n\x1a\n":
        raise _damaged(
            path, "a MATLAB file of level 5", "version 7.3; save it again with `save -v7`"
        )
    if len(raw) < 128 or raw[126:128] not in (b"IM", b"MI"):
        raise _damaged(path, "a MATLAB file of level 5", "no header of that kind")
    order = "<" if raw[126:128] == b"IM" else ">"
    arrays: dict[str, np.ndarray[Any, np.dtype[Any]]] = {}
    try:
        for element in _elements(raw[128:], order):
            inner = (
                _elements(zlib.decompress(element.data), order)
                if element.kind == COMPRESSED
                else [element]
            )
            arrays.update(
                pair for e in inner if e.kind == MATRIX and (pair := _array(e.data, order))
            )
    except (zlib.error, struct.error, ValueError, LookupError) as error:
        raise _damaged(path, "whole MATLAB elements", f"a broken one ({error})") from error
    return arrays


def _elements(raw: bytes, order: str) -> Iterator[Element]:
    """Yield the elements of a stretch of bytes; one of at most 4 bytes may share the 8 bytes of its tag."""
    at = 0
    while at < len(raw):
        kind, size = struct.unpack_from(f"{order}II", raw, at)
        start = at + 8
        if kind >> 16:
            kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
        if start + size > len(raw):
            raise ValueError(f"{size} bytes announced, {len(raw) - start} there")
        yield Element(kind, raw[start : start + size])
        at = start + size
        at += (
            -at % 8 if kind != COMPRESSED else 0
        )  # all but compressed elements end on a multiple of 8


def _array(raw: bytes, order: str) -> tuple[str, np.ndarray[Any, np.dtype[Any]]] | None:
    """Return name and value of a numeric array: elements flags, sizes, name, numbers; None for anything else."""
    parts = list(_elements(raw, order))
    flags = struct.unpack_from(f"{order}I", parts[0].data)[0]
    if flags & 0xFF not in CLASSES or flags & COMPLEX:
        return None
    _, sizes, name, numbers = parts
    stored = np.frombuffer(
        numbers.data, order + NUMBERS[numbers.kind]
    )  # may be narrower than the array's class
    shaped = stored.reshape(np.frombuffer(sizes.data, f"{order}i4").tolist(), order="F")
    return name.data.decode("ascii"), shaped.astype(CLASSES[flags & 0xFF], copy=False)


def _records(path: Path, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    raw = np.frombuffer(_read(path), np.uint8)
    if len(raw) == 0 or len(raw) % size:
        raise _damaged(path, f"a whole number of records of {size} bytes", f"{len(raw)} bytes")
    return raw.reshape(-1, size)


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(
            f"'{path}' does not exist. Fetch it with experiments.download, or put the official file there."
        )
    return path.read_bytes()


def _inflated(path: Path, raw: bytes) -> bytes:
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, "a whole gzip file", str(error)) from error


def _tensor(array: np.ndarray[Any, np.dtype[Any]]) -> Tensor:
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C", copy=True))


def _damaged(path: Path, expected: str, found: str) -> ValueError:
    return ValueError(
        f"'{path}' is damaged or of another kind: expected {expected}; found {found}. Fetch it again."
    )
