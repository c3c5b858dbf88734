"""Write the tables of docs/results/third-party.md, docs/results/text.md and the README.

usage: python examples/render.py

A page has the lines `<!-- record NAME -->` and `<!-- end of record -->`. What is between them is
written from `records/NAME.json`, so that no figure is typed. The README has one row of each record.
"""

import json
import re
from pathlib import Path

from _record import FOLDER, markdown

README = Path(__file__).parents[1] / "README.md"
PAGES_FOLDER = README.parent / "docs" / "results"
PAGES = ("third-party.md", "text.md")
# The README's rows: what the classifier of each record does, and for how many classes.
CLASSIFIERS = {
    "g2pm": ("g2pM: how a Chinese character is pronounced", 876),
    "magika_onnx": ("magika: the type of a file (ONNX)", 214),
    "vscode_languages": ("Visual Studio Code's model: the language of source code", 54),
    "intents": ("a small network: the intent of a query (CLINC150)", 150),
    "tagger": ("a small network: the part of speech of each word (UD English)", 17),
}
README_HEADER = (
    "classifier",
    "classes",
    "accuracy",
    "ECE before",
    "ECE, STS",
    "NLL before",
    "NLL, TS",
    "NLL, ETS",
    "NLL, STS",
)
README_TABLE = re.compile(
    r"(<!-- classifiers, .*? -->\n).*?(<!-- end of classifiers -->)", re.DOTALL
)
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


def render_readme(text: str) -> str:
    """Return the README with a row of each classifier.

    Args:
        text: The README as it is.
    """
    rows = [
        f"| {' | '.join(README_HEADER)} |",
        f"|{'---|' * len(README_HEADER)}",
        *(_readme_row(name, *described) for name, described in CLASSIFIERS.items()),
    ]
    table = "\n".join(rows)
    return README_TABLE.sub(lambda found: f"{found[1]}{table}\n{found[2]}", text)


def _readme_row(example: str, title: str, n_classes: int) -> str:
    """Return the figures of the first table of a record; the lowest NLL is bold."""
    record = json.loads((FOLDER / f"{example}.json").read_text())
    rows = next(block["rows"] for block in record["blocks"] if block["kind"] == "methods")
    nlls = {method: row["nll"] for method, row in rows.items()}
    lowest = min(nlls.values())
    shown = []
    for nll in nlls.values():
        text = f"{nll:.3f}"
        if nll == lowest:
            text = f"**{text}**"
        shown.append(text)
    errors = [f"{rows[method]['ece']:.1%}" for method in ("none", "sts")]
    cells = [title, str(n_classes), f"{rows['none']['accuracy']:.1%}", *errors, *shown]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Write the pages."""
    README.write_text(render_readme(README.read_text()))
    for name in PAGES:
        path = PAGES_FOLDER / name
        path.write_text(render(path.read_text()))


if __name__ == "__main__":
    main()
