"""The records of a study: read, grouped, and brought to mean ± standard deviation over the seeds."""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.config.paper import Number
from experiments.config.run_config import RESULTS

Record = dict[str, Any]
Group = dict[str, list[Record]]  # records of each method, by seed
Rows = dict[str, Group]


def read(study: str, results: Path = RESULTS) -> Rows:
    """Return the records of a study, for each row (with the stranger, where there is one) and method."""
    rows: Rows = {}
    for path in sorted(
        (results / study).glob("*/*/*.json"), key=lambda p: (p.parts[-3], int(p.parts[-2]), p.name)
    ):
        record = json.loads(path.read_text())
        if record["trial"]:
            raise ValueError(f"'{path}' is of a trial run, not a result. Remove it.")
        rows.setdefault(path.parts[-3], {}).setdefault(record["method"], []).append(record)
    return rows


def values(records: Iterable[Record], *keys: str, factor: float = 1.0) -> list[float]:
    """Return the number that each record has at these keys."""
    found = []
    for record in records:
        value: Any = record
        for key in keys:
            value = value[key]
        found.append(factor * float(value))
    return found


def number(records: Iterable[Record], *keys: str, factor: float = 1.0) -> Number:
    """Return mean and standard deviation of the numbers at these keys."""
    found = values(records, *keys, factor=factor)
    return Number(statistics.mean(found), spread(found))


def spread(found: Sequence[float]) -> float:
    """Return the standard deviation, which one value does not have: nan."""
    return statistics.stdev(found) if len(found) > 1 else math.nan


def fitted_on(record: Record) -> str:
    """Return the GPU that fitted the calibrator, or how many threads of a CPU."""
    n = record["threads"]
    return (
        f"cpu ({n} thread{'s' if n > 1 else ''})"
        if record["device"] == "cpu"
        else str(record["device"])
    )


def shown(x: Number, digits: int = 2, bold: bool = False) -> str:
    """Return "mean ± deviation", or the one value there is."""
    text = f"{x.mean:.{digits}f}" + ("" if math.isnan(x.std) else f" ± {x.std:.{digits}f}")
    return f"**{text}**" if bold else text


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    cells = [list(header), *map(list, rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(cells[0]), *lines[1:]])
