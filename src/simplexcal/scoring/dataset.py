"""The rows to be scored: Parquet files in the order of their names, cut into slices that can be read one by one."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from simplexcal.io._columns import parsing, shown

REMEDY = "It was cut short, damaged, or is of another kind: write it again."
STREAMING: Any = {  # or what was read would stay in memory: the whole file in the end
    "pre_buffer": False,
    "buffer_size": 2**16,
    "page_checksum_verification": True,
}
AT_ONCE = 2**21  # values decoded at a time


class Slice(NamedTuple):
    """Some rows of one file: the unit of work, and of what a run does again after it was killed."""

    number: int
    path: Path
    start: int  # in the file
    rows: int
    first: int  # the number of the first row, counted through all files

    @property
    def stop(self) -> int:
        """The row of the file after the last one."""
        return self.start + self.rows


class File(NamedTuple):
    """A Parquet file, known by what its footer and the file system say of it: big files are not read twice."""

    path: Path
    name: str
    rows: int
    fingerprint: str


@dataclass(frozen=True, eq=False)
class Dataset:
    """Files with the same columns."""

    path: Path
    files: tuple[File, ...]
    schema: Any

    @property
    def rows(self) -> int:
        """The number of rows in all files."""
        return sum(file.rows for file in self.files)

    def slices(self, size: int) -> list[Slice]:
        """Return all rows in slices of ``size``; none goes across files, so that a slice needs one of them only."""
        found: list[Slice] = []
        first = 0
        for file in self.files:
            for start in range(0, file.rows, size):
                rows = min(size, file.rows - start)
                found.append(Slice(len(found), file.path, start, rows, first + start))
            first += file.rows
        return found

    def sample(self, columns: Sequence[str], rows: int) -> Any:
        """Return the first rows, of one file."""
        for piece in self.slices(rows)[:1]:
            return next(read([piece], columns))[1]
        return pa.schema([self.schema.field(name) for name in columns]).empty_table()


def open_dataset(path: Path) -> Dataset:
    """Find the file, or the .parquet files in a folder and below; their columns must have the same names and types."""
    suffix, path = (
        path.suffix,
        path.resolve(),
    )  # a link may lead to a file whose name is just a number
    paths = _paths(path, suffix)
    found = [_file(own, own.name if own == path else str(own.relative_to(path))) for own in paths]
    schema = found[0][1]
    for file, other in found[1:]:
        _check_same(paths[0], schema, file.path, other)
    return Dataset(path, tuple(file for file, _ in found), schema)


def read(slices: Sequence[Slice], columns: Sequence[str]) -> Iterator[tuple[Slice, Any]]:
    """Yield each of the slices, which are of one file and in its order, with its rows as a table."""
    path = slices[0].path
    with parsing(path, REMEDY), pq.ParquetFile(path, **STREAMING) as file:
        groups, at = _groups(file.metadata, slices[0].start, slices[-1].stop)
        size = max(1, min(slices[0].rows, AT_ONCE // max(1, len(columns))))
        batches = chain(file.iter_batches(size, groups, list(columns)), _no_more())
        yield from zip(slices, _cut(batches, at, slices), strict=True)


def by_file(slices: Sequence[Slice]) -> Iterator[list[Slice]]:
    """Yield the slices of each file."""
    own: list[Slice] = []
    for piece in slices:
        if own and own[0].path != piece.path:
            yield own
            own = []
        own.append(piece)
    if own:
        yield own


def _groups(metadata: Any, start: int, stop: int) -> tuple[list[int], int]:
    """Return the row groups that hold the rows start..stop, and the row at which the first of them begins."""
    groups: list[int] = []
    at, begin = 0, 0
    for i in range(metadata.num_row_groups):
        rows = metadata.row_group(i).num_rows
        if at < stop and at + rows > start:
            begin = begin if groups else at
            groups.append(i)
        at += rows
    return groups, begin


def _cut(batches: Iterator[Any], at: int, slices: Sequence[Slice]) -> Iterator[Any]:
    """Yield the rows of each slice as a table, from batches that begin at row ``at``; rows between are let go."""
    batch = next(batches)
    for piece in slices:
        pieces = []
        while at < piece.stop:
            while not batch.num_rows:
                batch = next(batches)
            n = min(batch.num_rows, (piece.start if at < piece.start else piece.stop) - at)
            if at >= piece.start:
                pieces.append(batch.slice(0, n))
            batch, at = batch.slice(n), at + n
        table = pa.Table.from_batches(pieces)
        table.validate(full=True)
        yield table


def _no_more() -> Iterator[Any]:
    raise ValueError("it holds fewer rows than it announces")
    yield


def _paths(path: Path, suffix: str) -> list[Path]:
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
    below = sorted(own for own in _below(path) if own.suffix == ".parquet")
    paths = [
        own for own in below if not any(part[0] in "._" for part in own.relative_to(path).parts)
    ]
    if not paths:
        raise ValueError(
            f"'{path}' holds no .parquet file. Pass the folder that holds them, or a file."
        )
    return paths


def _below(folder: Path) -> Iterator[Path]:
    """Yield all files below; folders that are links are followed, but none is entered twice."""
    entered: set[str] = set()
    for root, folders, files in os.walk(folder, followlinks=True):
        folders.sort()
        if (real := os.path.realpath(root)) in entered:
            folders.clear()
            continue
        entered.add(real)
        yield from (Path(root, name) for name in files)


def _file(path: Path, name: str) -> tuple[File, Any]:
    with parsing(path, REMEDY), path.open("rb") as handle, pq.ParquetFile(handle) as file:
        status, size = path.stat(), file.metadata.serialized_size
        handle.seek(
            max(0, status.st_size - size - 8)
        )  # the footer is followed by its length and a magic number
        footer = hashlib.sha256(handle.read()).hexdigest()
        schema, rows = file.schema_arrow, file.metadata.num_rows
    twice = next((own for own in schema.names if schema.names.count(own) > 1), None)
    if twice is not None:
        raise ValueError(
            f"'{path}' holds the column {shown(twice)} more than once. Keep the one that is meant."
        )
    return File(path, name, rows, f"{status.st_size} {status.st_mtime_ns} {footer}"), schema


def _check_same(path: Path, schema: Any, other_path: Path, other: Any) -> None:
    """Raise ValueError unless both files have the same columns, whatever their order and metadata."""
    mine, its = ({field.name: field.type for field in s} for s in (schema, other))
    for name in (*mine, *its):
        if mine.get(name) != its.get(name):
            there = [
                f"{shown(kinds[name])}" if name in kinds else "nothing" for kinds in (mine, its)
            ]
            raise ValueError(
                f"All files must have the same columns; {shown(name)} is {there[0]} in '{path}' and {there[1]} in "
                f"'{other_path}'. Write them alike, or score them apart."
            )
