"""Files that are written whole or not at all."""

import os
from pathlib import Path
from secrets import token_hex


def atomic_write(path: Path, content: bytes) -> None:
    """Write the file whole or not at all: an interrupted write leaves what was there before."""
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"'{path.parent}' is not a folder, so nothing can be written there. Make it first."
        )
    if path.is_dir():
        raise IsADirectoryError(f"'{path}' is a folder. Give the name of a file.")
    part = path.with_name(f".{token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
