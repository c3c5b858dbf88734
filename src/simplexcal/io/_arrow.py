"""The formats that hold named columns as rows: .parquet and .csv, by pyarrow.

The names of the array formats become names of rows: `labels` is a column `label`, and `logits` (N, K) are columns
`logit_0`, `logit_1`, …, or in Parquet one column `logits` of lists; so are `probs` and `features`.
"""

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simplexcal.io._columns import Array, Columns, check_once, parsing, shown

STEMS = {"logits": "logit", "probs": "prob", "features": "feature"}  # of numbered columns
SCALARS = (
    "labels",
    "predicted",
    "confidence",
    "aleatoric",
    "epistemic",
    "mutual_information",
)  # a number in each row
BLOCK = 2**24  # bytes of CSV that are parsed at a time; a line has to fit
NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.IGNORECASE)

Spelt = list[tuple[str, Any]]  # the columns that make up an array, by their names in the file


def read_parquet(path: Path, wanted: Sequence[str]) -> Columns:
    """Read columns, each only if it is wanted."""
    pa = _pyarrow()
    remedy = "It was cut short, damaged, or is of another kind: write it again."
    with (
        parsing(path, remedy),
        pa.parquet.ParquetFile(path, page_checksum_verification=True) as file,
    ):
        names = list(file.schema_arrow.names)
        table = file.read(list(dict.fromkeys(name for name in names if _meaning(name) in wanted)))
        table.validate(full=True)
        announced = file.metadata.num_rows
    if table.num_columns and table.num_rows != announced:
        raise ValueError(
            f"'{path}' holds {table.num_rows} rows where it announces {announced}. {remedy}"
        )
    return _columns(path, names, list(zip(table.column_names, table.columns, strict=True)), wanted)


def read_csv(path: Path, wanted: Sequence[str]) -> Columns:
    """Read columns; `id` stays as it is written, so that 007 is not 7."""
    pa = _pyarrow()
    with parsing(
        path, "Write a first line of column names and a line for each row, with commas, in UTF-8."
    ):
        table = pa.csv.read_csv(
            path,
            pa.csv.ReadOptions(block_size=BLOCK),
            pa.csv.ParseOptions(newlines_in_values=True),
            pa.csv.ConvertOptions(column_types={"id": pa.string()}),
        )
        names = [name.strip() for name in table.column_names]
    return _columns(path, names, list(zip(names, table.columns, strict=True)), wanted)


def parquet_bytes(columns: Mapping[str, Array]) -> bytes:
    """Return the content of a .parquet file."""
    pa, buffer = _pyarrow(), io.BytesIO()
    pa.parquet.write_table(pa.table(_spread(columns)), buffer, write_page_checksum=True)
    return buffer.getvalue()


def csv_bytes(columns: Mapping[str, Array]) -> bytes:
    """Return the content of a .csv file, with as many digits as give the same numbers again."""
    pa, buffer = _pyarrow(), io.BytesIO()
    pa.csv.write_csv(pa.table(_spread(columns)), buffer)
    return buffer.getvalue()


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            '.parquet and .csv files need pyarrow, which is not installed. Run pip install "simplexcal[cli]".'
        ) from error
    return pa


def _meaning(name: str) -> str:
    """Return which array a column is, or is a part of."""
    if name == "label":
        return "labels"
    stem, _, number = name.rpartition("_")
    whole = next((whole for whole, own in STEMS.items() if own == stem), name)
    return whole if number.isdecimal() else name


def _spread(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Return the columns of rows that hold these arrays."""
    rows: dict[str, Array] = {}
    for name, x in columns.items():
        own = STEMS.get(name, "label" if name == "labels" else name)
        rows |= {own: x} if x.ndim == 1 else {f"{own}_{i}": x[:, i] for i in range(x.shape[1])}
    return rows


def _columns(path: Path, spelt: list[str], read: Spelt, wanted: Sequence[str]) -> Columns:
    groups: dict[str, Spelt] = {}
    for name, column in read:
        groups.setdefault(_meaning(name), []).append((name, column))
    known = [name for name in wanted if name in groups and name in (*STEMS, *SCALARS, "id")]
    arrays = {name: _array(path, name, groups[name]) for name in known}
    return Columns(path, arrays, list(dict.fromkeys(map(_meaning, spelt))), spelt)


def _array(path: Path, name: str, group: Spelt) -> Array:
    if name in STEMS and any(own != name for own, _ in group):
        return _numbered(path, name, group)
    check_once(path, name, [own for own, _ in group])
    read = _lists if name in STEMS else _keys if name == "id" else _numbers
    return read(path, *group[0])


def _numbered(path: Path, name: str, group: Spelt) -> Array:
    """Return numbered columns as one array, in the order of their numbers."""
    columns = dict(group)
    expected = [f"{STEMS[name]}_{i}" for i in range(len(group))]
    missing = [own for own in expected if own not in columns]
    if missing:
        raise ValueError(
            f"'{path}' has {len(group)} columns of {name}, which must be {expected[0]} to {expected[-1]}, once each; "
            f"{missing[0]} is missing. Number them from 0, without gaps."
        )
    return np.stack([_numbers(path, own, columns[own]) for own in expected], 1)


def _numbers(path: Path, name: str, column: Any) -> Array:
    """Return a column of numbers; where one is missing it is NaN."""
    types = _pyarrow().types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_decimal(column.type) or types.is_null(column.type):
        column = column.cast("float64")
    if not (types.is_integer(column.type) or types.is_floating(column.type)):
        raise TypeError(
            f"'{path}': column {shown(name)} must hold numbers; it holds {_found(column)}."
        )
    array: Array = column.to_numpy()
    return array


def _found(column: Any) -> str:
    """Say what a column holds that is not numbers, and for text which value is none."""
    if not _is_text(column.type):
        return f"values of type {shown(column.type)}"
    values = column.to_pylist()
    bad = (i for i, value in enumerate(values) if value is not None and not NUMBER.fullmatch(value))
    i = next(bad, 0)
    return f"text, {shown(values[i])} at position {i}" if values else "text"


def _is_text(kind: Any) -> bool:
    types = _pyarrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _lists(path: Path, name: str, column: Any) -> Array:
    """Return a column of lists, all of one length, as the rows of an array."""
    pa = _pyarrow()
    if not isinstance(column.type, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        raise TypeError(
            f"'{path}': column {shown(name)} must hold lists of numbers; it holds {_found(column)}. Or write columns "
            f"{STEMS[name]}_0, {STEMS[name]}_1, …."
        )
    lengths = pa.compute.list_value_length(column).fill_null(0).to_numpy()
    width = int(lengths[0]) if len(lengths) else 0
    if (lengths != width).any():
        i = int((lengths != width).argmax())
        raise ValueError(
            f"'{path}': column {shown(name)} must hold lists of one length; the first has {width} values, that at "
            f"position {i} has {lengths[i]}."
        )
    return _numbers(path, name, pa.compute.list_flatten(column)).reshape(len(column), width)


def _keys(path: Path, name: str, column: Any) -> Array:
    """Return integers or text."""
    kind = column.type
    if not (_is_text(kind) or _pyarrow().types.is_integer(kind)):
        raise TypeError(
            f"'{path}': column {shown(name)} must hold integers or text; it holds {shown(kind)}."
        )
    if column.null_count:
        raise ValueError(
            f"'{path}': column {shown(name)} must have a value in every row; {column.null_count} have none."
        )
    array: Array = column.to_numpy()
    return array
