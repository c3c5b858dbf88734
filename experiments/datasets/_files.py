"""Reading a file whole, and the errors for one that is missing or damaged."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: If it does not exist.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"'{path}' does not exist. Fetch it with `python -m experiments download`, or put the "
            "official file there."
        )
    return path.read_bytes()


def damaged(path: Path, expected: str, found: str) -> ValueError:
    """Return the error for a file that is damaged or of another kind.

    Args:
        path: The file.
        expected: What the file should hold.
        found: What it holds.
    """
    return ValueError(
        f"'{path}' is damaged or of another kind: expected {expected}; found {found}. "
        "Fetch it again."
    )


def to_tensor(array: NDArray[Any]) -> Tensor:
    """Return a contiguous copy of an array, in the machine's byte order.

    Args:
        array: The array.
    """
    native = array.dtype.newbyteorder("=")
    return torch.from_numpy(np.array(array, dtype=native, order="C", copy=True))
