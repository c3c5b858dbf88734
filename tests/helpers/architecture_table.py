"""The table of docs/results/any-classifier.md, from the lists that the tests go through.

usage: python tests/helpers/architecture_table.py
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "any-classifier.md"
BEGIN = "<!-- table, written by python tests/helpers/architecture_table.py -->"
END = "<!-- end of table -->"
TABLE = re.compile(rf"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)


def table() -> str:
    """Return a line for each architecture: what it is, and what becomes of it."""
    from helpers.architectures import CASES, REFUSALS
    from helpers.onnx_graphs import ONNX_CASES

    lines = []
    for name, case in CASES.items():
        outcome = "works, with features"
        if case.n_features is None:
            outcome = "works, from logits alone"
        if case.positions:
            outcome = f"{outcome}, for each {case.positions}"
        lines.append((case.kind, name, outcome))
    for name, graph in ONNX_CASES.items():
        outcome = f"works, from {graph.reading}"
        if graph.sentence is not None:
            sentence = graph.sentence.format(path="net.onnx")
            outcome = f"asks: “{sentence}” Then it {outcome}"
        lines.append((graph.kind, name.replace("_", " "), outcome))
    for name, refusal in REFUSALS.items():
        lines.append((refusal.kind, name, f"refused: “{refusal.sentence}”"))
    lines.sort(key=lambda line: (line[2].startswith("refused"), line[0]))
    rows = [f"| {kind} | {name} | {outcome} |" for kind, name, outcome in lines]
    return "\n".join(["| kind | architecture | outcome |", "|---|---|---|", *rows])


def counts() -> str:
    """Return how many architectures there are, as a sentence."""
    lines = table().splitlines()[2:]
    refused = sum("| refused" in line for line in lines)
    return f"{len(lines)} architectures: {len(lines) - refused} work, {refused} are refused."


def render(page: str) -> str:
    """Return the page with the table of today."""
    text = f"{BEGIN}\n\n{counts()}\n\n{table()}\n\n{END}"
    return TABLE.sub(lambda _: text, page)


def main() -> None:
    """Write the page."""
    sys.path.insert(0, str(ROOT / "tests"))
    PAGE.write_text(render(PAGE.read_text()))


if __name__ == "__main__":
    main()
