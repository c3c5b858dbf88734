"""Keeps what benchmarks/one_distribution.py prints with several versions of the sources.

usage: python -m experiments.detection.distributions VERSION=FILE ... [--output FILE]

A FILE holds the lines that ``benchmarks/one_distribution.py --json`` printed for the networks of
the study with one VERSION. They become experiments/results/detection/one-distribution.jsonl.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from experiments.detection.records import DISTRIBUTIONS, DistributionRecord
from experiments.running.records import write_lines

OTHER_NUMBERS = ("network", "source", "violations", "rank", "nll", "ece")


def read_printed(version: str, path: Path) -> Iterator[DistributionRecord]:
    """Yield the records of one version.

    Args:
        version: The sources.
        path: The file of the lines.
    """
    for line in path.read_text().splitlines():
        found = json.loads(line)
        setting, _, seed = found["network"].rpartition("-")
        names = [name for name in found if not name.endswith("(ts)")]
        auroc = {name: found[name] for name in names if name not in OTHER_NUMBERS}
        yield DistributionRecord(
            version,
            setting,
            int(seed),
            found["source"],
            int(found["violations"]),
            found["rank"],
            auroc,
        )


def main() -> None:
    """Write the records."""
    parser = argparse.ArgumentParser(prog="python -m experiments.detection.distributions")
    parser.add_argument("printed", nargs="+", metavar="VERSION=FILE")
    parser.add_argument("--output", type=Path, default=DISTRIBUTIONS)
    arguments = parser.parse_args()
    records: list[DistributionRecord] = []
    for pair in arguments.printed:
        version, _, path = pair.partition("=")
        records += read_printed(version, Path(path))
    write_lines(records, arguments.output)


if __name__ == "__main__":
    main()
