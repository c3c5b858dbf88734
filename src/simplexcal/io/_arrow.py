"""Arrays in Arrow tables: which columns hold an array, and its values.

An array (N,) is one column of numbers. An array (N, K) is numbered columns, `logit_0`, `logit_1`,
…, or one column of lists; an array of more dimensions is one column of nested lists.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from simplexcal.io._columns import (
    STEMS,
    UNCERTAINTIES,
    Array,
    Names,
    check_unique,
    find_columns,
    quote,
)

SCALARS = ("labels", "predicted", "confidence", *UNCERTAINTIES)  # the arrays (N,) of numbers
LIST_TYPES = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.IGNORECASE)
FLOAT32_HOLDS = ("int8", "int16", "uint8", "uint16", "halffloat", "float")


class StoredArray(NamedTuple):
    """Where a table holds an array (N, *shape).

    Args:
        name: The name of the array.
        columns: The columns that hold it: one, or one for each number of a row.
        shape: The shape of a row. None stands for a length that is not known from the types.
        type: The Arrow type in which its numbers are decoded.
        in_lists: Whether it is one column of lists.
    """

    name: str
    columns: tuple[str, ...]
    shape: tuple[int | None, ...]
    type: Any
    in_lists: bool = False

    def as_floats(self) -> "StoredArray":
        """Return the same array, decoded as float32, or float64 where float32 cannot hold it."""
        if str(self.type) in FLOAT32_HOLDS:
            return self._replace(type=pa.float32())
        return self._replace(type=pa.float64())


class Decoded(NamedTuple):
    """The values of an array.

    Args:
        values: The numbers, (N, *shape); 0 where there is none.
        null: Whether a number is null, (N, *shape); None where none is.
        fits: Whether a row has the shape, (N,).
    """

    values: Array
    null: Array | None
    fits: Array


def array_name(column: str) -> str:
    """Return the name of the array that a column is, or is a part of.

    Args:
        column: The name of the column.
    """
    if column == "label":
        return "labels"
    stem, _, number = column.rpartition("_")
    if number.isdecimal():
        for name, own in STEMS.items():
            if own == stem:
                return name
    return column


def columns_of(columns: Sequence[str], name: str, names: Names) -> list[str]:
    """Return the columns that an array is made of.

    Args:
        columns: The names of all columns.
        name: The name of the array.
        names: What the file calls an array, where it has another name.
    """
    if name in names:
        return find_columns(columns, name, names[name])
    return [column for column in columns if array_name(column) == name]


def find_array(
    path: Path,
    schema: Any,
    name: str,
    *,
    names: Names,
    nested: bool = False,
    table: Any = None,
) -> StoredArray | None:
    """Return where a table holds an array, or None.

    Args:
        path: The file, for errors.
        schema: The schema of the table.
        name: The name of the array.
        names: What the file calls an array, where it has another name.
        nested: Whether its rows may be lists of lists.
        table: The table, where it was read: an error then quotes a value.

    Raises:
        TypeError: If a column does not hold numbers.
        ValueError: If the array is there more than once, or a numbered column is missing.
    """
    columns = columns_of(schema.names, name, names)
    if not columns:
        return None
    own = names.get(name, name)
    if name in STEMS and own not in columns:
        columns = _sort_numbered(path, name, columns, names.get(name, f"{STEMS[name]}_"))
        types = [_scalar_type(path, column, schema, table) for column in columns]
        return StoredArray(name, tuple(columns), (len(columns),), _common_type(types))
    check_unique(path, name, columns)
    column = columns[0]
    if name in SCALARS:
        return StoredArray(name, (column,), (), _scalar_type(path, column, schema, table))
    return _find_lists(path, name, column, schema, table, nested)


def decode(table: Any, stored: StoredArray) -> Decoded:
    """Return the values of an array whose shape is known.

    Args:
        table: The rows.
        stored: Where they hold the array.
    """
    if stored.in_lists:
        return _decode_lists(table[stored.columns[0]], stored)
    shape = (len(table), *_known(stored.shape))
    columns = [_decode_numbers(table[column], stored.type) for column in stored.columns]
    values = np.stack([x for x, _ in columns], axis=1)
    null = None
    if any(where is not None for _, where in columns):
        null = np.stack([_null_or_false(x, where) for x, where in columns], axis=1)
        null = null.reshape(shape)
    return Decoded(values.reshape(shape), null, np.ones(len(table), bool))


def as_lists(column: Any) -> Any:
    """Return a column as one array of plain lists.

    Args:
        column: A column of lists or of tensors.
    """
    lists = column.combine_chunks()
    if isinstance(lists.type, pa.FixedShapeTensorType):
        return lists.storage
    return lists


def have_shape(lists: Any, shape: Sequence[int]) -> Array:
    """Return which of the lists are not null and have this shape throughout.

    Args:
        lists: An array of lists.
        shape: The lengths, from the outer lists to the inner ones.
    """
    ok: Array = np.asarray(pc.list_value_length(lists).fill_null(-1)) == shape[0]
    if len(shape) > 1:
        inner = have_shape(pc.list_flatten(lists.filter(pa.array(ok))), shape[1:])
        ok[ok] = inner.reshape(-1, shape[0]).all(1)
    return ok


def is_text(kind: Any) -> bool:
    """Return whether a type is one of text.

    Args:
        kind: An Arrow type.
    """
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def describe_values(kind: Any, values: Any = None) -> str:
    """Say what a column holds that is not numbers.

    Args:
        kind: The type of the values.
        values: The values, where they were read: of text, the first that is no number is quoted.
    """
    if values is None or not is_text(kind):
        return f"values of type {quote(kind)}"
    texts = values.to_pylist()
    if not texts:
        return "text"
    faults = [i for i, text in enumerate(texts) if text is not None and not _is_number(text)]
    position = 0
    if faults:
        position = faults[0]
    return f"text, {quote(texts[position])} at position {position}"


def _find_lists(
    path: Path, name: str, column: str, schema: Any, table: Any, nested: bool
) -> StoredArray:
    """Return an array that is one column of lists or tensors."""
    kind = schema.field(column).type
    if isinstance(kind, pa.FixedShapeTensorType) and _is_in_order(kind):
        number_type = _number_type(path, column, kind.value_type)
        return StoredArray(name, (column,), tuple(kind.shape), number_type, in_lists=True)
    values = _read_column(table, column)
    shape = _list_shape(kind)
    if not shape:
        raise _not_lists(path, name, column, kind, values)
    if not nested:
        shape = shape[:1]
    number_type = _list_number_type(path, column, kind, values, len(shape))
    return StoredArray(name, (column,), shape, number_type, in_lists=True)


def _sort_numbered(path: Path, name: str, columns: list[str], prefix: str) -> list[str]:
    """Return numbered columns in the order of their numbers, which have no gap."""
    expected = [f"{prefix}{i}" for i in range(len(columns))]
    present = set(columns)
    for column in expected:
        if column not in present:
            raise ValueError(
                f"'{path}' has {len(columns)} columns of {name}, which must be {expected[0]} to "
                f"{expected[-1]}, once each; {column} is missing. Number them from 0, without gaps."
            )
    return expected


def _scalar_type(path: Path, name: str, schema: Any, table: Any) -> Any:
    """Return the type in which a column of numbers is decoded."""
    return _number_type(path, name, schema.field(name).type, _read_column(table, name))


def _list_number_type(path: Path, name: str, kind: Any, values: Any, depth: int) -> Any:
    """Return the type in which the numbers inside of so many lists are decoded."""
    for _ in range(depth):
        kind = kind.value_type
    if values is not None:
        values = _flatten(values, depth)
    return _number_type(path, name, kind, values)


def _number_type(path: Path, name: str, kind: Any, values: Any = None) -> Any:
    """Return the type in which values of this type are decoded; they must be numbers."""
    if pt.is_dictionary(kind):
        kind = kind.value_type
    if pt.is_decimal(kind) or pt.is_null(kind):
        return pa.float64()
    if pt.is_integer(kind) or pt.is_floating(kind):
        return kind
    found = describe_values(kind, values)
    raise TypeError(f"'{path}': column {quote(name)} must hold numbers; it holds {found}.")


def _common_type(types: list[Any]) -> Any:
    """Return a type that holds the numbers of all columns."""
    if len(set(types)) == 1:
        return types[0]
    if all(str(kind) in FLOAT32_HOLDS for kind in types):
        return pa.float32()
    return pa.float64()


def _list_shape(kind: Any) -> tuple[int | None, ...]:
    """Return the lengths of nested lists, from outside to inside, None where they may vary."""
    shape: list[int | None] = []
    inner = kind
    while isinstance(inner, LIST_TYPES):
        length = None
        if isinstance(inner, pa.FixedSizeListType):
            length = inner.list_size
        shape.append(length)
        inner = inner.value_type
    return tuple(shape)


def _not_lists(path: Path, name: str, column: str, kind: Any, values: Any) -> TypeError:
    remedy = ""
    if name in STEMS:
        remedy = f" Or write columns {STEMS[name]}_0, {STEMS[name]}_1, …."
    found = describe_values(kind, values)
    return TypeError(
        f"'{path}': column {quote(column)} must hold lists of numbers; it holds {found}.{remedy}"
    )


def _read_column(table: Any, name: str) -> Any:
    """Return the values of a column where they were read."""
    if table is None:
        return None
    return table[name]


def _is_in_order(kind: Any) -> bool:
    """Return whether the dimensions of tensors are stored in their order."""
    return kind.permutation is None or list(kind.permutation) == sorted(kind.permutation)


def _is_number(text: str) -> bool:
    """Return whether a text is a decimal number."""
    return NUMBER.fullmatch(text) is not None


def _known(shape: tuple[int | None, ...]) -> tuple[int, ...]:
    """Return a shape whose lengths are all known."""
    return tuple(length or 0 for length in shape)


def _flatten(column: Any, depth: int) -> Any:
    """Return the values inside of so many lists; null lists have none."""
    for _ in range(depth):
        column = pc.list_flatten(column)
    return column


def _decode_lists(column: Any, stored: StoredArray) -> Decoded:
    """Decode a column of lists; a row of another shape is zero."""
    shape = _known(stored.shape)
    lists = as_lists(column)
    lengths = shape
    if lists.type != column.type:
        # A tensor is stored as one list of all its numbers.
        lengths = (int(np.prod(shape)),)
    fits = have_shape(lists, lengths)
    flat = _flatten(lists.filter(pa.array(fits)), len(lengths))
    numbers, null_numbers = _decode_numbers(flat, stored.type)
    n_fitting = int(fits.sum())
    values = np.zeros((len(fits), *shape), numbers.dtype)
    values[fits] = numbers.reshape(n_fitting, *shape)
    null = None
    if null_numbers is not None:
        null = np.zeros((len(fits), *shape), bool)
        null[fits] = null_numbers.reshape(n_fitting, *shape)
    return Decoded(values, null, fits)


def _null_or_false(values: Array, null: Array | None) -> Array:
    """Return where values are null, given as None if none is."""
    if null is None:
        return np.zeros(len(values), bool)
    return null


def _decode_numbers(column: Any, kind: Any) -> tuple[Array, Array | None]:
    """Return numbers of this type, 0 for null, and where they are null; None if none is."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pt.is_dictionary(column.type):
        column = column.dictionary_decode()
    null = None
    if column.null_count:
        null = np.asarray(column.is_null())
    if column.type != kind:
        column = column.cast(kind, safe=False)
    if column.null_count:
        column = column.fill_null(0)
    return column.to_numpy(zero_copy_only=False), null
