"""Output files: checked before the work starts, and written whole or not at all."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO


def check_output_path(path: Path, suffixes: Sequence[str], inputs: Sequence[Path] = ()) -> None:
    """Reject an `output` that cannot or must not be written, before hours are spent on it.

    Args:
        path: The file to be written, whatever it is called in the caller's signature: errors
            call it `output`.
        suffixes: The suffixes that it may have.
        inputs: Existing files that are read and must not be overwritten.

    Raises:
        ValueError: If the suffix is another, or the file is one of the inputs.
        OSError: If there is no such folder, if it cannot be written to, or if `path` is a folder.
    """
    if path.suffix not in suffixes:
        raise ValueError(f"`output` must end in {' or '.join(suffixes)}; got '{path}'.")
    check_name_length(path)
    _check_place(path, "`output`: ")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"`output`: you may not write to '{path.parent}'.")
    if path.exists() and any(path.samefile(other) for other in inputs):
        raise ValueError(
            f"`output` '{path}' is read by this call and would be overwritten. Give another name."
        )


def check_name_length(path: Path) -> None:
    """Reject a file whose name is longer than its folder can hold.

    Args:
        path: The file.

    Raises:
        ValueError: If the name is too long.
    """
    if not hasattr(os, "pathconf") or not path.parent.is_dir():
        return
    most = os.pathconf(path.parent, "PC_NAME_MAX")
    size = len(os.fsencode(path.name))
    if size > most:
        raise ValueError(
            f"The name of '{path}' has {size} bytes; names in this folder have at most {most}. "
            "Give `output` a shorter name."
        )


def atomic_write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: an interrupted write leaves what was there before.

    Args:
        path: The file.
        content: All of its bytes.

    Raises:
        OSError: If there is no such folder, or if `path` is a folder.
    """
    with atomic_open(path, path.parent) as file:
        file.write(content)


@contextmanager
def atomic_open(path: Path, folder: Path) -> Iterator[BinaryIO]:
    """Open a file that is written whole or not at all: it is there when the block has ended.

    Args:
        path: The file.
        folder: Where the file is while it is written, on the same file system. A killed process
            leaves it there, as `.*.part`.

    Raises:
        OSError: If there is no such folder, or if `path` is a folder.
    """
    _check_place(path)
    temporary = folder / f".{token_hex(8)}.part"
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        # A disk that is full names no file.
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def _check_place(path: Path, prefix: str = "") -> None:
    """Raise OSError unless a file can be put at this path."""
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"{prefix}'{path.parent}' is no folder, so nothing can be written there. Make it first."
        )
    if path.is_dir():
        raise IsADirectoryError(f"{prefix}'{path}' is a folder. Give the name of a file.")
    if path.exists() and not path.is_file():
        raise FileExistsError(
            f"{prefix}'{path}' is a device or a pipe, which a file would replace. Name a file."
        )
