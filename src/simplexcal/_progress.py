"""Progress bars on stderr, where rich is installed."""

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterable[T]:
    """Return the items; a bar shows how many of them are used up.

    Args:
        items: What is worked on.
        description: Text before the bar.
        total: How many items there are, where they have no length.
    """
    try:
        from rich.console import Console
        from rich.progress import track as rich_track
    except ImportError:
        return items
    return rich_track(items, description, total=total, console=Console(stderr=True))
