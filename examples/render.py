"""Write the tables of docs/results/third-party.md and docs/results/text.md from the records.

usage: python examples/render.py

A page has the lines `<!-- record NAME -->` and `<!-- end of record -->`. What is between them is
written from `records/NAME.json`, so that no figure is typed.
"""

import json
import re
from pathlib import Path

from _record import FOLDER, markdown

PAGES_FOLDER = Path(__file__).parents[1] / "docs" / "results"
PAGES = ("third-party.md", "text.md")
RECORD = re.compile(r"(<!-- record (\w+) -->\n).*?(<!-- end of record -->)", re.DOTALL)


def render(page: str) -> str:
    """Return a page with what the records say.

    Args:
        page: The page as it is.
    """
    return RECORD.sub(lambda found: f"{found[1]}\n{_text_of(found[2])}\n\n{found[3]}", page)


def _text_of(example: str) -> str:
    record = json.loads((FOLDER / f"{example}.json").read_text())
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return "\n\n".join([*map(markdown, record["blocks"]), f"Made with {versions}."])


def main() -> None:
    """Write the pages."""
    for name in PAGES:
        path = PAGES_FOLDER / name
        path.write_text(render(path.read_text()))


if __name__ == "__main__":
    main()
