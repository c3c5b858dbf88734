"""Readers of the formats in which the data sets' authors distribute them.

They return byte images (N, C, H, W) and labels from 0. Nothing beyond numpy is needed, except
Pillow for folders of images.
"""

import gzip
import struct
import zlib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from experiments.datasets._files import damaged, read_bytes, to_tensor
from experiments.datasets.matlab import read_mat

IMAGE_SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".webp"}
IDX_MAGIC = b"\x00\x00\x08"
GZIP_MAGIC = b"\x1f\x8b"


def read_idx(path: Path) -> Tensor:
    """Return the bytes in an IDX file.

    The file holds two zeros, type 8, the rank, big-endian sizes, then the bytes.

    Args:
        path: The file, gzipped or not.

    Raises:
        ValueError: If the file is damaged or of another kind.
    """
    raw = read_bytes(path)
    if raw.startswith(GZIP_MAGIC):
        raw = _decompress(path, raw)
    if len(raw) < 4 or not raw.startswith(IDX_MAGIC):
        expected = "an IDX file of bytes, which begins with 00 00 08"
        raise damaged(path, expected, raw[:3].hex(" "))
    rank = raw[3]
    start = 4 + 4 * rank
    shape: tuple[int, ...] = (0,)
    if len(raw) >= start:
        shape = struct.unpack(f">{rank}I", raw[4:start])
    size = int(np.prod(shape))
    if len(raw) - start != size:
        expected = f"{size} bytes after the header, for shape {shape}"
        raise damaged(path, expected, str(len(raw) - start))
    return to_tensor(np.frombuffer(raw, np.uint8, offset=start).reshape(shape))


def read_cifar(path: Path, n_label_bytes: int) -> tuple[Tensor, Tensor]:
    """Return images (N, 3, 32, 32) and labels of a file of CIFAR's binary version.

    An image is its label bytes, then 1024 red, 1024 green and 1024 blue ones, row by row.

    Args:
        path: The file.
        n_label_bytes: 1 for CIFAR-10, 2 for CIFAR-100, whose fine label is the second.
    """
    records = _records(path, n_label_bytes + 3072)
    images = records[:, n_label_bytes:].reshape(-1, 3, 32, 32)
    labels = records[:, n_label_bytes - 1]
    return to_tensor(images), to_tensor(labels).long()


def read_names(path: Path) -> tuple[str, ...]:
    """Return the classes' names.

    Args:
        path: A text file with one name a line.
    """
    return tuple(read_bytes(path).decode().split())


def read_stl10(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    """Return images (N, 3, 96, 96) and labels of STL-10.

    Args:
        images: The file of the images, each channel column by column.
        labels: The file of the labels, which start at 1.

    Raises:
        ValueError: If the two files do not fit together.
    """
    pixels = _records(images, 3 * 96 * 96)
    classes = _records(labels, 1).ravel()
    if len(pixels) != len(classes):
        expected = f"a label for each of the {len(pixels)} images of '{images.name}'"
        raise damaged(labels, expected, str(len(classes)))
    if classes.min() < 1 or classes.max() > 10:
        raise damaged(labels, "labels in 1..10", f"{classes.min()}..{classes.max()}")
    in_rows = pixels.reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2)
    return to_tensor(in_rows), to_tensor(classes).long() - 1


def read_svhn(path: Path) -> tuple[Tensor, Tensor]:
    """Return images (N, 3, 32, 32) and labels of SVHN's cropped digits.

    Args:
        path: A MATLAB file with X (32, 32, 3, N) and y (N, 1), in which 10 stands for 0.

    Raises:
        ValueError: If the file has no such arrays.
    """
    arrays = read_mat(path)
    x = arrays.get("X", np.zeros(0))
    y = arrays.get("y", np.zeros(0))
    if x.dtype != np.uint8 or x.shape != (32, 32, 3, y.size):
        shapes = ", ".join(f"{name} {value.shape}" for name, value in arrays.items())
        expected = "bytes X (32, 32, 3, N) and labels y (N, 1)"
        raise damaged(path, expected, shapes or "no numeric array")
    return to_tensor(x.transpose(3, 2, 0, 1)), to_tensor(y.ravel()).long() % 10


def read_images(folder: Path, side: int) -> Tensor:
    """Return the images of a folder, sorted by name: RGB bytes (N, 3, side, side).

    Args:
        folder: The folder. Hidden files and files of other kinds are skipped.
        side: Height and width to which other images are resized.

    Raises:
        FileNotFoundError: If the folder does not exist or holds no image.
        ImportError: If Pillow is not installed.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"'{folder}' is no folder; a folder of images was expected. Check the path."
        )
    paths = [path for path in sorted(folder.iterdir()) if _is_image(path)]
    if not paths:
        suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
        raise FileNotFoundError(f"'{folder}' holds no images ({suffixes}). Unpack them there.")
    if find_spec("PIL") is None:
        raise ImportError(
            "Reading a folder of images needs Pillow, which is not installed. "
            "Run: pip install pillow"
        )
    images = np.stack([_read_image(path, side) for path in paths])
    return to_tensor(images.transpose(0, 3, 1, 2))


def _is_image(path: Path) -> bool:
    hidden = path.name.startswith(".")
    return path.suffix.lower() in IMAGE_SUFFIXES and not hidden


def _read_image(path: Path, side: int) -> NDArray[np.uint8]:
    """Return an image in colour, (side, side, 3)."""
    pillow: Any = import_module("PIL.Image")
    try:
        with pillow.open(path) as image:
            colour = image.convert("RGB")
    except OSError as error:  # Pillow raises it for damaged files.
        raise damaged(path, "an image that Pillow reads", str(error)) from error
    if colour.size != (side, side):
        colour = colour.resize((side, side), pillow.Resampling.BICUBIC)
    return np.asarray(colour)


def _records(path: Path, size: int) -> NDArray[np.uint8]:
    """Return a file's records of so many bytes each, (N, size)."""
    raw = np.frombuffer(read_bytes(path), np.uint8)
    if len(raw) == 0 or len(raw) % size:
        expected = f"a whole number of records of {size} bytes"
        raise damaged(path, expected, f"{len(raw)} bytes")
    return raw.reshape(-1, size)


def _decompress(path: Path, raw: bytes) -> bytes:
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, "a whole gzip file", str(error)) from error
