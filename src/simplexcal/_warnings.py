"""Warnings that point at the caller's line, however deep in the library they are raised."""

import sys
import warnings
from pathlib import Path

import torch

# torch's decorators, such as inference_mode, stand between the library and its caller.
INSIDE = (str(Path(__file__).parent), str(Path(torch.__file__).parent))


def warn(message: str) -> None:
    """Warn at the innermost line of the call stack that is not the library's.

    Args:
        message: The text of a UserWarning.
    """
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(INSIDE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, stacklevel=level)
