"""Progress of long work, on stderr, where it is wanted and rich is installed; silence otherwise."""

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def track(items: Iterable[T], description: str, wanted: bool) -> Iterable[T]:
    """Return ``items``; while they are used up, a bar says how far it is."""
    if not wanted:
        return items
    try:
        from rich.console import Console
        from rich.progress import track as shown
    except ImportError:
        return items
    return shown(items, description, console=Console(stderr=True))
