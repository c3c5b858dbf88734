"""Records of measurements that a page of docs/results is written from."""

import json
from pathlib import Path
from typing import Any

import torch

import simplexcal as sc

FOLDER = Path(__file__).with_name("records")

Record = dict[str, Any]


def write_record(name: str, record: Record) -> None:
    """Write a record.

    Args:
        name: Name of the script that measured it.
        record: What was measured.
    """
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


def read_record(name: str) -> Record:
    """Read a record.

    Args:
        name: Name of the script that measured it.
    """
    record: Record = json.loads((FOLDER / f"{name}.json").read_text())
    return record


def versions() -> dict[str, str]:
    """Return what a measurement was made with."""
    return {"simplexcal": sc.__version__, "torch": torch.__version__}
