"""Rows in chunks: what is computed row by row needs no more memory than a chunk and the results, for any N."""

from collections.abc import Callable, Iterator
from itertools import chain

import torch
from torch import Tensor

CHUNK = {"cpu": 2**20, "cuda": 2**27}  # numbers held at once: what fits a cache, what fills a GPU


def in_chunks(
    function: Callable[..., tuple[Tensor, ...]], rows: Tensor, *others: Tensor, width: int
) -> tuple[Tensor, ...]:
    """Apply ``function`` to some rows of all its arguments at a time, and join the results.

    ``width`` is how many numbers the function holds for a row.
    """
    if torch.compiler.is_compiling():  # The number of rows may be a symbol.
        return tuple(function(rows, *others))
    size = max(1, CHUNK.get(rows.device.type, CHUNK["cpu"]) // width)
    chunks = zip(*(x.split(size) for x in (rows, *others)), strict=True)
    return join((function(*chunk) for chunk in chunks), len(rows))


def join(parts: Iterator[tuple[Tensor, ...]], n: int) -> tuple[Tensor, ...]:
    """Concatenate the parts to n rows; without gradients they are put in place one by one, and none is held twice."""
    first = next(parts)
    if len(first[0]) >= n:
        return tuple(x[:n] for x in first)
    if any(x.requires_grad for x in first):
        return tuple(torch.cat(column)[:n] for column in zip(first, *parts, strict=True))
    wholes, end = tuple(x.new_empty(n, *x.shape[1:]) for x in first), 0
    for part in chain([first], parts):
        start, end = end, min(n, end + len(part[0]))
        for whole, x in zip(wholes, part, strict=True):
            whole[start:end] = x[: end - start]
    return wholes
