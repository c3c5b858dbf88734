"""Named columns of a file, and what is asked of them. What is wrong with a file is said in one line."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]


class Columns(NamedTuple):
    """Those of the columns asked for that a file has, and the names of all that it has, asked for or not.

    Both go by the names of the array formats, ``spelt`` by those in the file.
    """

    path: Path
    arrays: dict[str, Array]
    names: Sequence[str]
    spelt: Sequence[str]

    def __contains__(self, name: object) -> bool:
        return name in self.arrays

    def numbers(self, name: str, shape: tuple[int, ...] | None = None) -> Array:
        """Return an array of finite numbers, with at least one row, in the machine's own byte order."""
        x = self.arrays[name]
        if x.dtype.kind not in "iuf":
            raise TypeError(f"'{self.path}': `{name}` must be numbers; got {shown(x.dtype)}.")
        if x.ndim == 0 or x.size == 0:
            raise ValueError(
                f"'{self.path}': `{name}` must have at least one row and column; got shape {x.shape}."
            )
        self.check_shape(name, shape or x.shape)
        with np.errstate(over="ignore"):  # a long double may become inf, which is found below
            x = np.require(
                x, x.dtype.newbyteorder("=") if x.dtype.itemsize <= 8 else np.float64, ["C", "W"]
            )
        self._check_each(name, x, np.isfinite(x), "finite", "Mend or drop such rows.")
        return x

    def floats(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """Return numbers as float32, or as float64 where they need it."""
        x = self.numbers(name, shape)
        return torch.from_numpy(x.astype(np.result_type(x, np.float32), copy=False))

    def class_numbers(self, name: str, n: int) -> Tensor:
        """Return ``n`` integers, which may be written as floats; which classes there are is not known here."""
        x = self.numbers(name, (n,))
        whole = (x == np.floor(x)) & (np.abs(x.astype(np.float64)) < 2**53)
        self._check_each(name, x, whole, "whole numbers", "Number the classes from 0.")
        return torch.from_numpy(x.astype(np.int64))

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ValueError if the array has another shape."""
        if (found := self.arrays[name].shape) != shape:
            raise ValueError(
                f"'{self.path}': `{name}` must have shape {shape}, to fit the rest; got {found}."
            )

    def _check_each(self, name: str, x: Array, ok: Array, expected: str, remedy: str) -> None:
        if ok.all():
            return
        row, *rest = (int(i) for i in np.unravel_index(ok.argmin(), x.shape))
        where = f"row {row}, column {rest[0]}, both" if len(rest) == 1 else f"row {row}"
        found = f"{x[(row, *rest)]} in {where} counted from 0"
        raise ValueError(f"'{self.path}': `{name}` must be {expected}; found {found}. {remedy}")


@contextmanager
def parsing(path: Path, remedy: str) -> Iterator[None]:
    """Say in one line what a parser raises at a malformed file: EOFError, zlib.error, MemoryError and others."""
    try:
        yield
    except Exception as error:
        said = (
            "".join(c for c in " ".join(str(error).split()) if c.isprintable())[:200]
            or type(error).__name__
        )
        raise ValueError(
            f"'{path}' cannot be read as {path.suffix.lower()} ({said}). {remedy}"
        ) from error


def shown(value: object) -> str:
    """Return what a file holds, or calls something, in quotes and at a length fit for a message."""
    text = repr(str(value))
    return text if len(text) <= 60 else f"{text[:57]}…{text[0]}"


def check_once(path: Path, name: str, spelt: Sequence[str]) -> None:
    """Raise ValueError if a column is there more than once, under whatever names."""
    if len(spelt) > 1:
        found = ", ".join(map(shown, spelt[:5]))
        raise ValueError(
            f"'{path}' must hold `{name}` once; found {found}. Keep the one that is meant."
        )
