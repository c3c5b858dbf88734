"""A reader of MATLAB's level 5 files, in which SVHN is distributed.

Such a file is a header of 128 bytes, then elements, each a tag (data type, size) and its data.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.datasets._files import damaged, read_bytes

HEADER_SIZE = 128
MATRIX = 14
COMPRESSED = 15
COMPLEX = 0x0800
# numpy's names of the data types of elements
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
}
# numpy's names of the classes of arrays
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


class Element(NamedTuple):
    """One element of a MATLAB file.

    Args:
        kind: Its data type.
        data: Its bytes, without the tag.
    """

    kind: int
    data: bytes


def read_mat(path: Path) -> dict[str, NDArray[Any]]:
    """Return the real numeric arrays of a MATLAB file of level 5 (versions 5 to 7), by name.

    Args:
        path: The file. Elements of other kinds are skipped.

    Raises:
        ValueError: If the file is damaged or of another version.
    """
    raw = read_bytes(path)
    order = _byte_order(path, raw)
    arrays = {}
    try:
        for element in _inflated(_elements(raw[HEADER_SIZE:], order), order):
            if element.kind == MATRIX:
                arrays.update(_named_array(element.data, order))
    except (zlib.error, struct.error, ValueError, LookupError) as error:
        raise damaged(path, "whole MATLAB elements", f"a broken one ({error})") from error
    return arrays


def _byte_order(path: Path, raw: bytes) -> str:
    """Return the byte order of a file, as ``struct`` writes it."""
    if raw.startswith((b"MATLAB 7.3", b"\x89HDF\r\n\x1a\n")):
        found = "version 7.3; save it again with `save -v7`"
        raise damaged(path, "a MATLAB file of level 5", found)
    mark = raw[126:HEADER_SIZE]
    if mark == b"IM":
        return "<"
    if mark == b"MI":
        return ">"
    raise damaged(path, "a MATLAB file of level 5", "no header of that kind")


def _inflated(elements: Iterable[Element], order: str) -> Iterator[Element]:
    """Yield the elements, with compressed ones replaced by their content."""
    for element in elements:
        if element.kind == COMPRESSED:
            yield from _elements(zlib.decompress(element.data), order)
        else:
            yield element


def _elements(raw: bytes, order: str) -> Iterator[Element]:
    """Yield the elements of a stretch of bytes."""
    position = 0
    while position < len(raw):
        kind, size = struct.unpack_from(f"{order}II", raw, position)
        start = position + 8
        if kind >> 16:  # An element of at most 4 bytes shares the 8 bytes of its tag.
            size = kind >> 16
            kind = kind & 0xFFFF
            start = position + 4
        end = start + size
        if end > len(raw):
            raise ValueError(f"{size} bytes announced, {len(raw) - start} there")
        yield Element(kind, raw[start:end])
        position = end
        if kind != COMPRESSED:  # All other elements end on a multiple of 8.
            position += -end % 8


def _named_array(raw: bytes, order: str) -> dict[str, NDArray[Any]]:
    """Return a numeric array by its name, or nothing for an array of another class.

    The parts of an array are its flags, its sizes, its name and its numbers.
    """
    parts = list(_elements(raw, order))
    flags = struct.unpack_from(f"{order}I", parts[0].data)[0]
    array_class = flags & 0xFF
    if array_class not in CLASSES or flags & COMPLEX:
        return {}
    _, sizes, name, numbers = parts
    # Numbers may be stored in a narrower type than the array's class.
    stored = np.frombuffer(numbers.data, order + NUMBERS[numbers.kind])
    shape = np.frombuffer(sizes.data, f"{order}i4").tolist()
    array = stored.reshape(shape, order="F").astype(CLASSES[array_class], copy=False)
    return {name.data.decode("ascii"): array}
