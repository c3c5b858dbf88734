"""Which columns hold an array, and its values row by row; a row that cannot be used has a reason instead."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simplexcal.io._arrow import STEMS
from simplexcal.io._columns import Array, check_once, shown

LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
SMALL = (
    "int8",
    "int16",
    "uint8",
    "uint16",
    "halffloat",
    "float",
)  # types whose values float32 holds


class Field(NamedTuple):
    """An array (N, *shape) of one number type, in numbered columns or in one column of lists, nested or not.

    In a shape that is not settled yet, None stands for a length that each row has for itself.
    """

    name: str
    columns: tuple[str, ...]
    shape: tuple[int | None, ...]
    type: Any

    @property
    def is_numbered(self) -> bool:
        """Whether each number of a row has its own column."""
        return self.columns != (self.name,)


def numbered_columns(schema: Any, name: str) -> list[str]:
    """Return the columns that hold one number of ``name`` each."""
    return [
        own for own in schema.names if name in STEMS and re.fullmatch(rf"{STEMS[name]}_[0-9]+", own)
    ]


def find_field(path: Path, schema: Any, name: str, *, as_float: bool = True) -> Field | None:
    """Return where a file holds ``name``, or None; numbers become floating-point unless they are to stay."""
    numbered = numbered_columns(schema, name)
    if name in schema.names:
        check_once(path, name, [name, *numbered])
        kind, shape = _nested(path, name, schema.field(name).type)
        return Field(name, (name,), shape, _number(path, name, kind, as_float))
    if not numbered:
        return None
    columns = tuple(f"{STEMS[name]}_{i}" for i in range(len(numbered)))
    if missing := [own for own in columns if own not in numbered]:
        raise ValueError(
            f"'{path}' has {len(columns)} columns of {name}, which must be {columns[0]} to {columns[-1]}; "
            f"{missing[0]} is missing. Number them from 0, without gaps."
        )
    kinds = [_number(path, own, schema.field(own).type, as_float) for own in columns]
    return Field(
        name, columns, (len(columns),), pa.float64() if pa.float64() in kinds else kinds[0]
    )


def settle(
    path: Path, field: Field, sample: Any, shape: tuple[int, ...] | None, why: str = ""
) -> Field:
    """Return the field with the shape that all rows must have: the one given, or that of most rows of the sample.

    A shape given is required of the columns' types, and of one row of the sample at least.
    """
    if None not in field.shape:
        own, agrees = field.shape, shape in (None, field.shape)
    else:
        lists = sample[field.name].combine_chunks()
        shapes = Counter(found for value in lists if (found := _shape(value.as_py())))
        own = shapes.most_common(1)[0][0] if shapes else field.shape
        right_depth = shape is None or len(shape) == len(field.shape)
        agrees = right_depth and (
            shape is None or not len(lists) or bool(_fits(lists, shape).any())
        )
    if not agrees:
        raise ValueError(f"'{path}' has {_spelt(own)} {field.name} in a row; {why}")
    if shape is None and (None in own or len(own) != len(field.shape)):
        raise ValueError(
            f"'{path}': column {shown(field.name)} must hold lists; those of its first rows are empty."
        )
    return field._replace(shape=shape or own)


def values(table: Any, field: Field) -> tuple[Array, Array]:
    """Return the array (N, *shape), and for each row the reason why it cannot be used, or ""."""
    reasons = np.full(len(table), "", dtype=object)
    if field.is_numbered:
        numbers, nulls = zip(
            *(_numbers(table[own], field.type) for own in field.columns), strict=True
        )
        x, null = np.stack(numbers, 1), np.stack(nulls, 1)
    else:
        x, null = _unpacked(table[field.name], field, reasons)
    _explain_faults(field, x.reshape(len(table), -1), null.reshape(len(table), -1), reasons)
    return x, reasons


def _unpacked(column: Any, field: Field, reasons: Array) -> tuple[Array, Array]:
    """Return a column of lists as an array and where it has nulls; a row of another shape is zero, and has a reason."""
    shape = tuple(n or 0 for n in field.shape)
    lists = column.combine_chunks()
    sizes = shape
    if isinstance(lists.type, pa.FixedShapeTensorType):
        lists, sizes = lists.storage, (int(np.prod(shape)),)
    ok = _fits(lists, sizes)
    for i in np.flatnonzero(~ok):
        own = _shape(lists[int(i)].as_py())
        reasons[i] = (
            f"`{field.name}` is null" if own is None else f"`{field.name}` has {_sizes(own, shape)}"
        )
    flat = lists.filter(pa.array(ok))
    for _ in sizes:
        flat = pc.list_flatten(flat)
    numbers, nulls = _numbers(flat, field.type)
    x, null = np.zeros((len(ok), *shape), numbers.dtype), np.zeros((len(ok), *shape), bool)
    x[ok], null[ok] = numbers.reshape(-1, *shape), nulls.reshape(-1, *shape)
    return x, null


def _fits(lists: Any, shape: Sequence[int]) -> Array:
    """Return which of the lists are there and have this shape all through."""
    ok: Array = np.asarray(pc.list_value_length(lists).fill_null(-1)) == shape[0]
    if len(shape) > 1:
        inner = _fits(pc.list_flatten(lists.filter(pa.array(ok))), shape[1:])
        ok[ok] = inner.reshape(-1, shape[0]).all(1)
    return ok


def _numbers(column: Any, kind: Any) -> tuple[Array, Array]:
    """Return numbers of this type, and where they are null."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    null = np.asarray(column.is_null()) if column.null_count else np.zeros(len(column), bool)
    column = column.cast(kind, safe=False)
    return (column.fill_null(0) if column.null_count else column).to_numpy(
        zero_copy_only=False
    ), null


def _explain_faults(field: Field, x: Array, null: Array, reasons: Array) -> None:
    """Give a reason to each row with a null, a NaN or an infinite number, that of its first one."""
    bad = null | ~np.isfinite(x)
    for i in np.flatnonzero(bad.any(1)):
        j = int(bad[i].argmax())
        what = "null" if null[i, j] else "NaN" if np.isnan(x[i, j]) else "infinite"
        where = (
            f"`{field.columns[j]}` is"
            if field.is_numbered
            else f"`{field.name}` at position {j} is"
        )
        reasons[i] = reasons[i] or f"{where} {what}"


def _nested(path: Path, name: str, kind: Any) -> tuple[Any, tuple[int | None, ...]]:
    """Return the type of the numbers in lists of lists …, and the lengths that the type fixes."""
    if isinstance(kind, pa.FixedShapeTensorType) and kind.permutation in (
        None,
        sorted(kind.permutation or []),
    ):
        return kind.value_type, tuple(kind.shape)
    shape: list[int | None] = []
    inner = kind
    while isinstance(inner, LISTS):
        shape.append(inner.list_size if isinstance(inner, pa.FixedSizeListType) else None)
        inner = inner.value_type
    if not shape:
        spelt = f" Or write columns {STEMS[name]}_0, {STEMS[name]}_1, …." if name in STEMS else ""
        raise TypeError(
            f"'{path}': column {shown(name)} must hold lists of numbers; it holds values of type {shown(kind)}.{spelt}"
        )
    return inner, tuple(shape)


def _number(path: Path, name: str, kind: Any, as_float: bool) -> Any:
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise TypeError(
            f"'{path}': column {shown(name)} must hold numbers; it holds values of type {shown(kind)}."
        )
    if not as_float and not pa.types.is_decimal(kind):
        return kind
    return pa.float32() if str(kind) in SMALL else pa.float64()


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of nested lists, as their first elements have it; None for null."""
    if value is None:
        return None
    value = value.tolist() if isinstance(value, np.ndarray) else value
    shape: tuple[int, ...] = ()
    while isinstance(value, list):
        shape, value = (*shape, len(value)), value[0] if value else None
    return shape


def _spelt(shape: Sequence[int | None]) -> str:
    return str(shape[0]) if len(shape) == 1 else f"({', '.join(map(str, shape))})"


def _sizes(found: tuple[int, ...], expected: tuple[int, ...]) -> str:
    if found == expected or len(found) != len(expected):
        return f"lists that do not make up the shape {_spelt(expected)}"
    what = f"{_spelt(found)} values" if len(found) == 1 else f"the shape {_spelt(found)}"
    return f"{what}, not {_spelt(expected)}"
