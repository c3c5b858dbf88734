"""Files of known type, for the examples about files.

Left out are C headers, which several languages share; XML files with another extension than .xml,
which are formats of their own; files whose extension is the name of another class of the network;
those with fewer than 32 bytes; and copies. Files that resemble each other can have one origin. So
all of one type whose names begin with the same letters are one group.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

MIN_BYTES = 32
XML = "xml"
HEADER = "h"  # the extension of C, C++ and Objective-C


class File(NamedTuple):
    """A file of known type.

    Args:
        path: The file.
        label: The name of its class.
        content: Its bytes.
    """

    path: Path
    label: str
    content: bytes


def files_of_linguist(folder: Path, languages: dict[str, str]) -> list[File]:
    """Return the samples of the languages that a network knows.

    Args:
        folder: A clone of github.com/github-linguist/linguist.
        languages: From the name of a language there to the name of its class.
    """
    files = []
    for language, label in languages.items():
        paths = sorted(x for x in (folder / "samples" / language).rglob("*") if x.is_file())
        files += [File(path, label, path.read_bytes()) for path in paths]
    return files


def certain(files: list[File], class_names: list[str]) -> list[File]:
    """Return the files whose type is certain, each content once.

    Args:
        files: Files of known type.
        class_names: The names of the network's classes.
    """
    kept = []
    seen = set()
    for file in files:
        digest = hashlib.sha256(file.content).digest()
        if has_certain_type(file, class_names) and digest not in seen:
            kept.append(file)
        seen.add(digest)
    return kept


def has_certain_type(file: File, class_names: list[str]) -> bool:
    """Return whether nothing speaks against the type of a file.

    Args:
        file: A file.
        class_names: The names of the network's classes.
    """
    extension = file.path.suffix[1:].lower()
    if extension == HEADER or len(file.content) < MIN_BYTES:
        return False
    if file.label == XML:
        return extension == XML
    return extension == file.label or extension not in class_names


def group_of(file: File) -> str:
    """Return the group of a file: its type and the letters that its name begins with.

    Args:
        file: A file.
    """
    name = file.path.name.lower()
    n_letters = 0
    while n_letters < len(name) and name[n_letters].isalpha():
        n_letters += 1
    return f"{file.label} {name[:n_letters]}"
