"""What an example has measured: printed, and written as a record that `render.py` reads."""

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import simplexcal as sc
from simplexcal.evaluation import markdown_table

METHOD_HEADER = (
    "method",
    "acc. %",
    "ECE %",
    "95 % interval",
    "floor %",
    "NLL",
    "NLL above STS",
    "Brier",
)
DETECTION_HEADER = ("score", "AUROC %", "AUPR %", "FPR95 %")
FOLDER = Path(__file__).parent / "records"

Block = dict[str, Any]


class Record:
    """Tables and notes of an example, in the order in which they were made.

    Args:
        example: The name of the example.
        packages: The packages whose versions matter, beside simplexcal and torch.
    """

    def __init__(self, example: str, packages: tuple[str, ...] = ()) -> None:
        self.example = example
        versions = {name: metadata.version(name) for name in ("torch", *packages)}
        self.versions = {"simplexcal": sc.__version__, **versions}
        self.blocks: list[Block] = []

    def add(self, block: Block) -> None:
        """Keep a block and print it.

        Args:
            block: A note, a table of methods or a table of detection scores.
        """
        self.blocks.append(block)
        print(f"{markdown(block)}\n")

    def note(self, text: str) -> None:
        """Keep a sentence and print it.

        Args:
            text: What was found beside the tables.
        """
        self.add({"kind": "note", "text": text})

    def write(self, folder: Path | None = FOLDER) -> None:
        """Write the record as JSON.

        Args:
            folder: Where it is written; None writes none.
        """
        if folder is None:
            return
        content = {"example": self.example, "versions": self.versions, "blocks": self.blocks}
        text = json.dumps(content, indent=1, ensure_ascii=False)
        (folder / f"{self.example}.json").write_text(f"{text}\n")


def markdown(block: Block) -> str:
    """Return a block as the results pages show it.

    Args:
        block: A note, a table of methods or a table of detection scores.
    """
    if block["kind"] == "note":
        return str(block["text"])
    if block["kind"] == "methods":
        rows = [METHOD_HEADER, *(_method_row(key, row) for key, row in block["rows"].items())]
        after = f"\n\nPredictions that a method changed: {block['changed']}."
    else:
        rows = [DETECTION_HEADER, *(_detection_row(key, row) for key, row in block["rows"].items())]
        after = ""
    return f"{block['title']}\n\n{markdown_table(rows)}{after}"


def _method_row(method: str, row: dict[str, Any]) -> tuple[str, ...]:
    mean, error = row["nll_above_sts"]
    above = f"{mean:.4f} ± {error:.4f}"
    if method == "sts":
        above = ""
    return (
        sc.CALIBRATORS[method].abbreviation,
        f"{100 * row['accuracy']:.2f}",
        f"{100 * row['ece']:.2f}",
        f"{100 * row['ece_low']:.2f} to {100 * row['ece_high']:.2f}",
        f"{100 * row['ece_floor_95']:.2f}",
        f"{row['nll']:.4f}",
        above,
        f"{row['brier']:.4f}",
    )


def _detection_row(score: str, row: dict[str, float]) -> tuple[str, ...]:
    numbers = (row["auroc"], row["aupr"], row["fpr_95"])
    return (score, *(f"{100 * number:.2f}" for number in numbers))
