"""The check of an output path; simplexcal.io._atomic.check_output_path replaces it."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path


def check_output_path(path: Path, suffixes: Sequence[str], inputs: Iterable[Path]) -> None:
    """Reject an output path before work begins.

    Args:
        path: The file to write.
        suffixes: The formats that can be written.
        inputs: Existing files that must not be overwritten.

    Raises:
        ValueError: The suffix is wrong, or the path is one of ``inputs``.
        OSError: Nothing can be written there.
    """
    if path.suffix not in suffixes:
        raise ValueError(f"`output` must end in {' or '.join(suffixes)}; got '{path}'.")
    _check_writable(path)
    if path.exists() and any(path.samefile(other) for other in inputs):
        raise ValueError(
            f"`output` '{path}' is read by this command and would be overwritten. "
            "Give another name."
        )


def _check_writable(path: Path) -> None:
    folder = path.parent
    if not folder.is_dir():
        raise FileNotFoundError(
            f"`output` is to go to '{folder}', which is no folder. Make it first."
        )
    if path.is_dir():
        raise IsADirectoryError(f"`output` '{path}' is a folder. Give the name of a file.")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"`output` is to go to '{folder}', where you may not write.")
