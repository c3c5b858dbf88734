"""Rows in chunks, so that row-wise work needs memory for one chunk and the results, for any N."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain

import torch
from torch import Tensor

# Numbers held at a time: as many as fit into a cache, and as many as occupy a GPU. In smaller
# chunks the threads of a scoring run would wait more often for Python's lock.
CHUNK = {"cpu": 2**21, "cuda": 2**27}
# Bytes; the dynamic threshold of glibc's malloc does not grow beyond 32 MiB.
LARGEST_BLOCK = 31 * 2**20


def in_chunks(
    function: Callable[..., tuple[Tensor, ...]], rows: Tensor, *others: Tensor, width: int
) -> tuple[Tensor, ...]:
    """Apply a function to chunks of rows, and concatenate the results.

    Args:
        function: Takes some rows of each tensor; each of its results has as many rows.
        rows: First argument of the function.
        others: Its other arguments, with as many rows.
        width: How many numbers the function holds for a row.
    """
    if torch.compiler.is_compiling():  # a graph has no number of rows to divide
        return function(rows, *others)
    if rows.device.type == "cpu":
        _keep_freed_memory()
    size = max(1, CHUNK.get(rows.device.type, CHUNK["cpu"]) // width)
    # Chunks of equal size: a short last one costs nearly as much as a full one.
    n_chunks = max(1, -(-len(rows) // size))
    size = max(1, -(-len(rows) // n_chunks))
    columns = [tensor.split(size) for tensor in (rows, *others)]
    results = (function(*chunk) for chunk in zip(*columns, strict=True))
    return join(results, len(rows))


@cache
def _keep_freed_memory() -> None:
    """Let the C library keep the memory of a chunk's arrays for the next chunk.

    glibc gives free memory back to the system once it is twice the largest block that was freed so
    far. The next chunk then pays for each page anew, which can double its time. One large block,
    freed without being touched, ends that. Other C libraries take no notice.
    """
    torch.empty(LARGEST_BLOCK, dtype=torch.uint8)


def map_rows(function: Callable[..., Tensor], rows: Tensor, *others: Tensor, width: int) -> Tensor:
    """Apply a function with one result to chunks of rows, and concatenate the results.

    Args:
        function: Takes some rows of each tensor; its result has as many rows.
        rows: First argument of the function.
        others: Its other arguments, with as many rows.
        width: How many numbers the function holds for a row.
    """

    def as_tuple(*chunk: Tensor) -> tuple[Tensor]:
        return (function(*chunk),)

    (result,) = in_chunks(as_tuple, rows, *others, width=width)
    return result


def join(parts: Iterator[tuple[Tensor, ...]], n: int) -> tuple[Tensor, ...]:
    """Concatenate tuples of tensors along their rows, and keep the first n rows.

    Without gradients each part is written into the result at once, so that none is held twice.

    Args:
        parts: Tuples of tensors; the tensors of one tuple have the same number of rows.
        n: Number of rows of the result.
    """
    first = next(parts)
    if len(first[0]) >= n:
        return tuple(tensor[:n] for tensor in first)
    if any(tensor.requires_grad for tensor in first):
        columns = zip(first, *parts, strict=True)
        return tuple(torch.cat(column)[:n] for column in columns)
    results = tuple(tensor.new_empty(n, *tensor.shape[1:]) for tensor in first)
    end = 0
    for part in chain([first], parts):
        start = end
        end = min(n, start + len(part[0]))
        for result, tensor in zip(results, part, strict=True):
            result[start:end] = tensor[: end - start]
    return results
