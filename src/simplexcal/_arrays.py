"""Tensors from what users have: arrays, data frames and their columns, lists."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor


class Column(Protocol):
    """A data frame or a column of one, of pandas or polars say."""

    def to_numpy(self) -> Any:
        """Return it as an array."""


ArrayLike = Tensor | np.ndarray | Sequence[Any] | Column


def as_tensor(x: Any) -> Tensor:
    """Return a tensor as it is, and what ``torch.as_tensor`` takes as a tensor.

    Data frames and arrays in any byte order will do too. Arrays are copied.

    Args:
        x: A tensor, an array, a data frame, a column or a list of numbers.

    Raises:
        TypeError, ValueError, RuntimeError: If torch cannot make a tensor of it.
    """
    if isinstance(x, Tensor):
        return x
    x = frame_to_array(x)
    if isinstance(x, tuple | list) and len(x) > 0 and isinstance(x[0], np.ndarray | np.generic):
        x = np.stack(x)  # torch would take it number by number
    if isinstance(x, np.ndarray):
        array = np.array(x)  # a copy, since an array may be read-only, or change later
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    return torch.as_tensor(x)


def list_to_array(x: Any) -> Any:
    """Return a data frame or a list of numbers as an array, and anything else as it is.

    Args:
        x: Anything. Lists may be nested; those of several lengths stay lists.
    """
    first = x
    while isinstance(first, list) and len(first) > 0:
        first = first[0]
    if not isinstance(x, list) or not isinstance(first, int | float):
        return frame_to_array(x)
    try:
        return np.array(x)
    except ValueError:
        return x


def frame_to_array(x: Any) -> Any:
    """Return a data frame or a series as an array, and anything else as it is.

    Args:
        x: Anything.
    """
    if isinstance(x, Tensor) or not hasattr(x, "to_numpy"):
        return x
    return np.ascontiguousarray(x.to_numpy())
