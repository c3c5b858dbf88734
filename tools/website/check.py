"""Check the links of the built site.

usage: python -m tools.website.check [FOLDER]

Every link, image, style and script must lead to a file in the folder, and every anchor to an id on
its page. Nothing may be loaded from another host; links to other hosts are not followed.
"""

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("use", "href")}
FOLLOWED = LOADED | {("a", "href")}


class Page(HTMLParser):
    """The ids of a page, and its links as (tag, target)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what a tag says.

        Args:
            tag: Its name.
            attrs: Its attributes.
        """
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.ids.add(value)
            if (tag, name) in FOLLOWED and value:
                self.links.append((tag, value))


def faults(folder: Path) -> Iterator[str]:
    """Yield a sentence for each link that leads nowhere, and for each file of another host.

    Args:
        folder: The built site.
    """
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}

    def places(path: Path) -> set[str]:
        return pages[path].ids

    for path, page in pages.items():
        here = path.relative_to(folder)
        for tag, target in page.links:
            url = urlsplit(target)
            if url.scheme == "data" or (url.scheme and tag == "a"):
                continue
            if url.scheme or url.netloc:
                yield f"{here} loads {target}"
                continue
            found = _resolve(folder, path, url.path)
            if not found.is_file():
                yield f"{here} links to {target}, which is not there"
            elif url.fragment and unquote(url.fragment) not in places(found):
                yield f"{here} links to {target}, but the page has no such place"


def _resolve(folder: Path, page: Path, target: str) -> Path:
    if not target:
        return page
    start = folder if target.startswith("/") else page.parent
    found = (start / unquote(target).lstrip("/")).resolve()
    if found.is_dir():
        found = found / "index.html"
    return found


def main(folder: str = "site") -> int:
    """Print all faults; return 1 if there are any.

    Args:
        folder: The built site.
    """
    root = Path(folder).resolve()
    found = list(faults(root))
    for fault in found:
        print(fault)
    n_pages = len(list(root.rglob("*.html")))
    print(f"{n_pages} pages, {len(found)} broken links")
    return int(bool(found) or n_pages == 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
