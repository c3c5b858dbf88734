"""Named arrays of a file, and the checks that they must pass. Each error is one line."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]
Names = Mapping[str, str]  # what a file calls an array, by the array's own name

# The arrays (N, K) and the names of their columns in files of rows: `logit_0`, `logit_1`, ….
STEMS = {"logits": "logit", "probs": "prob", "features": "feature"}
UNCERTAINTIES = ("aleatoric", "epistemic", "mutual_information")
MAX_NAMES = 12  # that a message lists
NUMBERED = re.compile(r"(.*\D)\d+")
WRITE_AGAIN = "It was cut short, damaged, or is of another kind: write it again."


class Columns(NamedTuple):
    """Arrays that were read from a file.

    Args:
        path: The file.
        arrays: The arrays that were asked for and found.
        array_names: The names of all arrays in the file, asked for or not.
        column_names: The names of all columns, as the file spells them.
        is_unnamed: Whether the file is one array without a name.
    """

    path: Path
    arrays: dict[str, Array]
    array_names: Sequence[str]
    column_names: Sequence[str]
    is_unnamed: bool = False

    def __contains__(self, name: object) -> bool:
        return name in self.arrays

    def numbers(self, name: str, shape: tuple[int, ...] | None = None) -> Array:
        """Return an array of finite numbers in the machine's byte order, with at least one row.

        Args:
            name: The array.
            shape: The shape that it must have; None allows any.

        Raises:
            TypeError: If it holds no numbers.
            ValueError: If it is empty, has another shape, or holds a number that is not finite.
        """
        x = self.arrays[name]
        if x.dtype.kind not in "iuf":
            raise TypeError(f"'{self.path}': `{name}` must be numbers; got {quote(x.dtype)}.")
        if x.ndim == 0 or x.size == 0:
            raise ValueError(
                f"'{self.path}': `{name}` must have at least one row and column; "
                f"got shape {x.shape}."
            )
        if shape is not None:
            self.check_shape(name, shape)
        dtype = x.dtype.newbyteorder("=")
        if dtype.itemsize > 8:
            dtype = np.dtype(np.float64)
        with np.errstate(over="ignore"):
            # A long double may become inf, which the next check finds.
            x = np.require(x, dtype, ["C", "W"])
        self._check_each(name, x, np.isfinite(x), "finite", "Mend or drop such rows.")
        return x

    def floats(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """Return numbers as float32, or as float64 where float32 cannot hold their type.

        Args:
            name: The array.
            shape: The shape that it must have; None allows any.
        """
        x = self.numbers(name, shape)
        dtype = np.result_type(x, np.float32)
        return torch.from_numpy(x.astype(dtype, copy=False))

    def class_numbers(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return whole numbers as int64; a file may hold them as floats.

        The number of classes is not known here, so no range is checked.

        Args:
            name: The array.
            shape: The shape that it must have.
        """
        x = self.numbers(name, shape)
        is_whole = x == np.floor(x)
        is_exact = np.abs(x.astype(np.float64)) < 2**53
        remedy = "Number the classes from 0."
        self._check_each(name, x, is_whole & is_exact, "whole numbers", remedy)
        return torch.from_numpy(x.astype(np.int64))

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ValueError if the array has another shape.

        Args:
            name: The array.
            shape: The shape that it must have.
        """
        found = self.arrays[name].shape
        if found != shape:
            raise ValueError(
                f"'{self.path}': `{name}` must have shape {shape}, to fit the rest; got {found}."
            )

    def _check_each(self, name: str, x: Array, ok: Array, expected: str, remedy: str) -> None:
        """Raise ValueError unless ``ok`` holds everywhere, naming the first place where not."""
        if ok.all():
            return
        index = np.unravel_index(ok.argmin(), x.shape)
        where = f"row {index[0]}"
        if len(index) == 2:
            where = f"row {index[0]}, column {index[1]}, both"
        raise ValueError(
            f"'{self.path}': `{name}` must be {expected}; found {x[index]} in {where} counted "
            f"from 0. {remedy}"
        )


@contextmanager
def reraise_parse_errors(path: Path, remedy: str) -> Iterator[None]:
    """Raise one ValueError, of one line, for whatever a parser raises at a malformed file.

    Parsers raise EOFError, zlib.error, MemoryError and others.

    Args:
        path: The file.
        remedy: What the user can do about it.
    """
    try:
        yield
    except Exception as error:
        line = " ".join(str(error).split())
        printable = "".join(c for c in line if c.isprintable())
        reason = printable[:200] or type(error).__name__
        raise ValueError(
            f"'{path}' cannot be read as {path.suffix.lower()} ({reason}). {remedy}"
        ) from error


def quote(value: object) -> str:
    """Return a name or a value of a file in quotes, at a length fit for a message.

    Args:
        value: What is quoted, by its text.
    """
    text = repr(str(value))
    if len(text) <= 60:
        return text
    return f"{text[:57]}…{text[0]}"


def quote_names(names: Sequence[str]) -> str:
    """Return names in quotes, or "nothing" where there are none.

    Of numbered columns the first and the last are named, of many names the first.

    Args:
        names: Names of arrays or columns.
    """
    if not names:
        return "nothing"
    quoted = _fold(names)
    if len(quoted) > MAX_NAMES:
        quoted = [*quoted[:MAX_NAMES], "…"]
    return ", ".join(quoted)


def _fold(names: Sequence[str]) -> list[str]:
    """Return names in quotes, and columns that differ in their number as one range."""
    runs: dict[str, list[str]] = {}
    for name in names:
        stem = NUMBERED.fullmatch(name)
        key = f"{name}\0"
        if stem is not None:
            key = stem[1]
        runs.setdefault(key, []).append(name)
    quoted = []
    for run in runs.values():
        if len(run) < 3:
            quoted += [quote(name) for name in run]
        else:
            quoted.append(f"{quote(run[0])} to {quote(run[-1])}")
    return quoted


def name_is_missing(path: Path, name: str, given: str, found: Sequence[str]) -> ValueError:
    """Return the error that a file lacks the array that the user named.

    Args:
        path: The file.
        name: The array.
        given: What the user calls it.
        found: The names of all arrays or columns in the file.
    """
    return ValueError(
        f"`names[\"{name}\"]` is {quote(given)}, which '{path}' does not hold; "
        f"it holds {quote_names(found)}."
    )


def find_columns(columns: Sequence[str], name: str, given: str) -> list[str]:
    """Return the columns that the user's name of an array means.

    Args:
        columns: The names of all columns.
        name: The array.
        given: The name of a column; or of an array (N, K) what comes before the number: "z_" for
            z_0, z_1, ….
    """
    if given in columns or name not in STEMS:
        return [column for column in columns if column == given]
    size = len(given)
    return [column for column in columns if column.startswith(given) and column[size:].isdecimal()]


def check_unique(path: Path, name: str, columns: Sequence[str]) -> None:
    """Raise ValueError if a file holds an array more than once, under whatever names.

    Args:
        path: The file.
        name: The array.
        columns: The columns that hold it.
    """
    if len(columns) > 1:
        found = ", ".join(quote(column) for column in columns[:5])
        raise ValueError(
            f"'{path}' must hold `{name}` once; found {found}. Keep the one that is meant."
        )


def check_pyarrow() -> None:
    """Raise ImportError if pyarrow, which is optional, is not installed."""
    if find_spec("pyarrow") is None:
        raise ImportError(
            ".parquet and .csv files need pyarrow, which is not installed. "
            'Run pip install "simplexcal[cli]".'
        )
