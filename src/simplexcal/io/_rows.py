"""The formats that hold rows: .parquet and .csv, by pyarrow.

The arrays of the other formats are columns here: `labels` is a column `label`, and `logits` (N, K)
are columns `logit_0`, `logit_1`, …, or in Parquet one column `logits` of lists; so are `probs` and
`features`.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

from simplexcal.io._arrow import (
    SCALARS,
    StoredArray,
    array_name,
    as_lists,
    columns_of,
    decode,
    find_array,
    is_text,
)
from simplexcal.io._columns import (
    STEMS,
    WRITE_AGAIN,
    Array,
    Columns,
    Names,
    check_unique,
    quote,
    reraise_parse_errors,
)

BLOCK = 2**24  # bytes of CSV that are parsed at a time; a line has to fit


def read_parquet(path: Path, wanted: Sequence[str], names: Names) -> Columns:
    """Read the arrays in a .parquet file, each only if it is wanted.

    Args:
        path: The file.
        wanted: The arrays.
        names: What the file calls them, where it has other names.
    """
    with (
        reraise_parse_errors(path, WRITE_AGAIN),
        pq.ParquetFile(path, page_checksum_verification=True) as file,
    ):
        found = list(file.schema_arrow.names)
        columns = [column for name in wanted for column in columns_of(found, name, names)]
        table = file.read(list(dict.fromkeys(columns)))
        table.validate(full=True)
        n_announced = file.metadata.num_rows
    if table.num_columns and table.num_rows != n_announced:
        raise ValueError(
            f"'{path}' holds {table.num_rows} rows where it announces {n_announced}. {WRITE_AGAIN}"
        )
    return _read_arrays(path, found, table, wanted, names)


def read_csv(path: Path, wanted: Sequence[str], names: Names) -> Columns:
    """Read the arrays in a .csv file; `id` stays as it is written, so that 007 is not 7.

    Args:
        path: The file.
        wanted: The arrays.
        names: What the file calls them, where it has other names.
    """
    remedy = "Write a first line of column names and a line for each row, with commas, in UTF-8."
    with reraise_parse_errors(path, remedy):
        table = csv.read_csv(
            path,
            csv.ReadOptions(block_size=BLOCK),
            csv.ParseOptions(newlines_in_values=True),
            csv.ConvertOptions(column_types={names.get("id", "id"): pa.string()}),
        )
        found = [name.strip() for name in table.column_names]
        table = table.rename_columns(found)
    return _read_arrays(path, found, table, wanted, names)


def parquet_bytes(columns: Mapping[str, Array]) -> bytes:
    """Return the content of a .parquet file.

    Args:
        columns: Arrays by their names.
    """
    buffer = io.BytesIO()
    pq.write_table(_as_rows(columns), buffer, write_page_checksum=True)
    return buffer.getvalue()


def csv_bytes(columns: Mapping[str, Array]) -> bytes:
    """Return the content of a .csv file, with all digits that the numbers need to come back.

    Args:
        columns: Arrays by their names.
    """
    buffer = io.BytesIO()
    csv.write_csv(_as_rows(columns), buffer)
    return buffer.getvalue()


def _as_rows(columns: Mapping[str, Array]) -> Any:
    """Return a table of rows that hold these arrays."""
    rows: dict[str, Array] = {}
    for name, x in columns.items():
        if x.ndim == 2:
            rows |= {f"{STEMS[name]}_{i}": x[:, i] for i in range(x.shape[1])}
        elif name == "labels":
            rows["label"] = x
        else:
            rows[name] = x
    return pa.table(rows)


def _read_arrays(
    path: Path, found: list[str], table: Any, wanted: Sequence[str], names: Names
) -> Columns:
    """Decode the arrays that rows can hold and that are wanted; raise at the first fault."""
    arrays: dict[str, Array] = {}
    for name in wanted:
        if name in STEMS or name in SCALARS:
            stored = find_array(path, table.schema, name, names=names, table=table)
            if stored is not None:
                arrays[name] = _read_numbers(path, table, stored)
        elif name == "id" and names.get(name, name) in found:
            arrays[name] = _read_ids(path, table, names.get(name, name))
        elif name == "accepted" and name in found:
            check_unique(path, name, [column for column in found if column == name])
            arrays[name] = table[name].to_numpy()
    array_names = list(dict.fromkeys(map(array_name, found)))
    return Columns(path, arrays, array_names, found)


def _read_numbers(path: Path, table: Any, stored: StoredArray) -> Array:
    """Decode an array of which each row must have the same shape; null becomes NaN."""
    if stored.in_lists:
        stored = _with_one_length(path, table, stored)
    if stored.name in STEMS:
        stored = stored.as_floats()
    decoded = decode(table, stored)
    if decoded.null is not None:
        return np.where(decoded.null, np.nan, decoded.values)
    return decoded.values


def _with_one_length(path: Path, table: Any, stored: StoredArray) -> StoredArray:
    """Take the length of the first list, which all others must have; a null list has length 0."""
    column = stored.columns[0]
    lists = as_lists(table[column])
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    first = 0
    if len(lengths):
        first = int(lengths[0])
    others = np.flatnonzero(lengths != first)
    if len(others):
        i = others[0]
        raise ValueError(
            f"'{path}': column {quote(column)} must hold lists of one length; the first has "
            f"{first} values, that at position {i} has {lengths[i]}."
        )
    if len(stored.shape) > 1 and first > 0:
        return stored  # A tensor keeps its dimensions.
    return stored._replace(shape=(first,))


def _read_ids(path: Path, table: Any, name: str) -> Array:
    """Return the column of integers or text that names the rows."""
    check_unique(path, "id", [other for other in table.column_names if other == name])
    column = table[name]
    kind = column.type
    if not is_text(kind) and not pa.types.is_integer(kind):
        raise TypeError(
            f"'{path}': column {quote(name)} must hold integers or text; it holds {quote(kind)}."
        )
    if column.null_count:
        raise ValueError(
            f"'{path}': column {quote(name)} must have a value in every row; "
            f"{column.null_count} have none."
        )
    array: Array = column.to_numpy()
    return array
