"""The navigation: a folder in mkdocs.yml stands for all of its pages.

A new page appears without a line in mkdocs.yml.
"""

import re
from pathlib import PurePosixPath
from typing import Any

LINK = re.compile(r"\]\(([\w./-]+\.md)[)#]")
REST = "More"


def expand(nav: list[Any], pages: dict[str, str]) -> list[Any]:
    """Return the navigation with folders replaced by their pages, and all other pages at its end.

    The index of a folder, ``guide/index.md`` or ``guide.md``, gives the order of its pages: first
    those that it links to, then the others.

    Args:
        nav: The navigation of mkdocs.yml, in which ``results/`` is a folder.
        pages: The text of each page by its path below docs/.
    """
    expanded = _expand(nav, pages)
    listed = set(_paths(expanded))
    rest = sorted(set(pages) - listed)
    if rest:
        expanded.append({REST: rest})
    return expanded


def _expand(items: list[Any], pages: dict[str, str]) -> list[Any]:
    found: list[Any] = []
    for item in items:
        if isinstance(item, dict):
            ((title, value),) = item.items()
            if isinstance(value, list):
                value = _expand(value, pages)
            found.append({title: value})
        elif item.endswith("/"):
            found += _folder(item, pages)
        else:
            found.append(item)
    return found


def _folder(folder: str, pages: dict[str, str]) -> list[str]:
    inside = [path for path in pages if path.startswith(folder)]
    index = f"{folder}index.md"
    if index not in pages:
        index = f"{folder.rstrip('/')}.md"
    linked = LINK.findall(pages.get(index, ""))
    start = PurePosixPath(index).parent
    order = [index, *(str(start / target) for target in linked)]
    ranks = {path: rank for rank, path in reversed(list(enumerate(order)))}
    return sorted(inside, key=lambda path: ranks.get(path, len(order)))


def _paths(items: list[Any]) -> list[str]:
    found: list[str] = []
    for item in items:
        if isinstance(item, dict):
            for value in item.values():
                found += _paths(value if isinstance(value, list) else [value])
        else:
            found.append(item)
    return found
