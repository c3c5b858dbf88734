"""How a page names the files that it was made from."""

import hashlib
from pathlib import Path


def describe_file(path: Path) -> str:
    """Return the name of a file, and the first 16 digits of its SHA-256.

    Args:
        path: The file.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{path.name} (SHA-256 {digest[:16]})"
