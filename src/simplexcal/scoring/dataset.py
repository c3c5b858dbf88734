"""The rows to be scored: Parquet files in the order of their names, divided into shards."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from simplexcal.io._columns import WRITE_AGAIN, quote, reraise_parse_errors

# With pre-buffering, or a larger buffer, the whole file would be in memory in the end.
STREAMING: Any = {
    "pre_buffer": False,
    "buffer_size": 2**16,
    "page_checksum_verification": True,
}
MAX_DECODED_VALUES = 2**21  # that are decoded at a time


class Shard(NamedTuple):
    """Some rows of one file: the unit of work, and of what a killed run does again.

    Args:
        number: The number of the shard.
        path: The file.
        start: The first row, counted in the file.
        rows: The number of rows.
        first: The first row, counted through all files.
    """

    number: int
    path: Path
    start: int
    rows: int
    first: int


class File(NamedTuple):
    """A Parquet file.

    Args:
        path: The file.
        name: Its path below the folder of the data set.
        rows: The number of rows.
        fingerprint: Size, time of change, and digest of the footer: big files are not read twice.
    """

    path: Path
    name: str
    rows: int
    fingerprint: str


@dataclass(frozen=True, eq=False)
class Dataset:
    """Parquet files with the same columns.

    Args:
        path: The file, or the folder of the files.
        files: The files in the order of their names.
        schema: Their columns.
    """

    path: Path
    files: tuple[File, ...]
    schema: Any

    @property
    def rows(self) -> int:
        """The number of rows in all files."""
        return sum(file.rows for file in self.files)

    def shards(self, size: int) -> "Shards":
        """Return all rows in shards; each lies in one file.

        Args:
            size: The number of rows in a shard; the last one of a file may have fewer.
        """
        return Shards(self.files, size)

    def sample(self, columns: Sequence[str], size: int) -> Any:
        """Return the first rows of the first file that has any.

        Args:
            columns: The columns to read.
            size: The number of rows at most.
        """
        first = next(iter(self.shards(size)), None)
        if first is None:
            return pa.schema([self.schema.field(name) for name in columns]).empty_table()
        _, table = next(read_shards([first], columns))
        return table


@dataclass(frozen=True, eq=False)
class Shards:
    """All rows of some files in shards. They are not listed: a file may announce any number.

    Args:
        files: The files, in their order.
        size: The number of rows in a shard; the last one of a file may have fewer.
    """

    files: tuple[File, ...]
    size: int

    def __len__(self) -> int:
        return sum(-(-file.rows // self.size) for file in self.files)

    def __iter__(self) -> Iterator[Shard]:
        number = 0
        first = 0
        for file in self.files:
            for start in range(0, file.rows, self.size):
                rows = min(self.size, file.rows - start)
                yield Shard(number, file.path, start, rows, first + start)
                number += 1
            first += file.rows


def open_dataset(path: Path) -> Dataset:
    """Find the Parquet files, without reading their rows.

    Args:
        path: A .parquet file, or a folder; all .parquet files in it and below are taken.

    Raises:
        ValueError: If there is no such file, if one is malformed, or if their columns differ.
        OSError: If the path does not exist or cannot be read.
    """
    resolved = path.resolve()
    # The suffix is that of the path as it is given: it may link to a file without any.
    paths = _find_files(resolved, path.suffix)
    files = []
    for own in paths:
        name = own.name
        if own != resolved:
            name = str(own.relative_to(resolved))
        files.append(_open_file(own, name))
    first, schema = files[0]
    for file, other in files[1:]:
        _check_same_columns(first.path, schema, file.path, other)
    return Dataset(resolved, tuple(file for file, _ in files), schema)


def read_shards(shards: Iterable[Shard], columns: Sequence[str]) -> Iterator[tuple[Shard, Any]]:
    """Yield each shard with its rows as a table.

    Args:
        shards: Shards of one file, in its order; at least one.
        columns: The columns to read.

    Raises:
        ValueError: If the file is malformed.
    """
    remaining = iter(shards)
    first = next(remaining)
    path = first.path
    with reraise_parse_errors(path, WRITE_AGAIN), pq.ParquetFile(path, **STREAMING) as file:
        groups, position = _row_groups(file.metadata, first.start)
        most = MAX_DECODED_VALUES // max(1, len(columns))
        size = max(1, min(first.rows, most))
        rows = _RowStream(file.iter_batches(size, groups, list(columns)), position)
        for shard in chain([first], remaining):
            rows.skip(shard.start - rows.position)
            table = pa.Table.from_batches(rows.take(shard.rows))
            table.validate(full=True)
            yield shard, table


def group_by_file(shards: Iterable[Shard]) -> Iterator[Iterator[Shard]]:
    """Yield the shards of each file; they are used up before the next file's come.

    Args:
        shards: Shards in the order of the files.
    """
    for _, group in groupby(shards, key=lambda shard: shard.path):
        yield group


class _RowStream:
    """Rows of a file in their order, from batches of any size."""

    def __init__(self, batches: Iterator[Any], position: int) -> None:
        self.position = position
        self._batches = batches
        self._batch = next(batches, None)

    def skip(self, n: int) -> None:
        """Pass over rows, without keeping them."""
        for _ in self.take(n):
            pass

    def take(self, n: int) -> Iterator[Any]:
        """Yield the next rows, as batches."""
        while n > 0:
            while self._batch is not None and not self._batch.num_rows:
                self._batch = next(self._batches, None)
            if self._batch is None:
                raise ValueError("it holds fewer rows than it announces")
            batch = self._batch.slice(0, n)
            self._batch = self._batch.slice(batch.num_rows)
            self.position += batch.num_rows
            n -= batch.num_rows
            yield batch


def _row_groups(metadata: Any, start: int) -> tuple[list[int], int]:
    """Return the row groups from this row on, and the first row of the first group."""
    groups: list[int] = []
    first_row = 0
    position = 0
    for i in range(metadata.num_row_groups):
        end = position + metadata.row_group(i).num_rows
        if end > start:
            if not groups:
                first_row = position
            groups.append(i)
        position = end
    return groups, first_row


def _find_files(path: Path, suffix: str) -> list[Path]:
    """Return the file, or the .parquet files in the folder and below, sorted."""
    if path.is_file():
        if suffix.lower() != ".parquet":
            raise ValueError(
                f"'{path}' must be a .parquet file, or a folder of them; got {suffix!r}."
            )
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(
            f"'{path}' does not exist. Pass a .parquet file, or a folder of them."
        )
    paths = sorted(own for own in _walk(path) if _is_data(own.relative_to(path)))
    if not paths:
        raise ValueError(
            f"'{path}' holds no .parquet file. Pass the folder that holds them, or a file."
        )
    return paths


def _is_data(path: Path) -> bool:
    """Return whether a path below the folder is one of data; others begin with "." or "_"."""
    is_hidden = any(name.startswith((".", "_")) for name in path.parts)
    return path.suffix == ".parquet" and not is_hidden


def _walk(folder: Path) -> Iterator[Path]:
    """Yield all files below; folders that are links are followed, but none is entered twice."""
    entered: set[str] = set()
    for root, folders, files in os.walk(folder, followlinks=True):
        folders.sort()
        real = os.path.realpath(root)
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        for name in files:
            yield Path(root, name)


def _open_file(path: Path, name: str) -> tuple[File, Any]:
    """Return a file, by its footer, and its schema."""
    with (
        reraise_parse_errors(path, WRITE_AGAIN),
        path.open("rb") as handle,
        pq.ParquetFile(handle) as file,
    ):
        status = path.stat()
        # The footer is followed by its length and a magic number, 8 bytes.
        handle.seek(max(0, status.st_size - file.metadata.serialized_size - 8))
        footer = hashlib.sha256(handle.read()).hexdigest()
        schema = file.schema_arrow
        rows = file.metadata.num_rows
    _check_unique_columns(path, schema.names)
    return File(path, name, rows, f"{status.st_size} {status.st_mtime_ns} {footer}"), schema


def _check_unique_columns(path: Path, names: list[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(
                f"'{path}' holds the column {quote(name)} more than once. "
                "Keep the one that is meant."
            )


def _check_same_columns(path: Path, schema: Any, other_path: Path, other: Any) -> None:
    """Raise ValueError unless both files have the same columns, in whatever order."""
    types = {field.name: field.type for field in schema}
    other_types = {field.name: field.type for field in other}
    for name in (*types, *other_types):
        if types.get(name) != other_types.get(name):
            raise ValueError(
                f"All files must have the same columns; {quote(name)} is "
                f"{_describe_type(types.get(name))} in '{path}' and "
                f"{_describe_type(other_types.get(name))} in '{other_path}'. "
                "Write them alike, or score them apart."
            )


def _describe_type(kind: Any) -> str:
    if kind is None:
        return "nothing"
    return quote(kind)
