"""Links: from places in the repository to places on the site."""

import posixpath
import re
from collections.abc import Callable

# Pages that lie outside docs/ in the repository.
OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
FILE_NAME = re.compile(r"[\w./-]+\.md|docs/[\w./-]*")


def for_site(
    markdown: str, page: str, title_of: Callable[[str], str | None] = lambda _: None
) -> str:
    """Return the text of a page with its links as the site needs them.

    Files that are not on the site, such as source code, are not linked: the words are kept. A link
    that shows the name of a file, as is useful in the repository, shows the title of its page.

    Args:
        markdown: The text.
        page: Its path in the repository.
        title_of: The title of a page by its path on the site, or None.
    """
    here = _on_site(page) or page

    def adapted(link: re.Match[str]) -> str:
        words, target, anchor = link[1], link[2], link[3] or ""
        path = _on_site(posixpath.normpath(posixpath.join(posixpath.dirname(page), target)))
        if path is None:
            return words
        if FILE_NAME.fullmatch(words):
            words = title_of(path) or words
        return f"[{words}]({posixpath.relpath(path, posixpath.dirname(here) or '.')}{anchor})"

    return LINK.sub(adapted, markdown)


def _on_site(path: str) -> str | None:
    """Return where a file of the repository is on the site, or None."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return None
