"""Write the tables of docs/results/shift.md from the records of shift and monitor_false_alarms.

usage: python benchmarks/render_shift.py

The page has lines `<!-- table NAME -->` and `<!-- end of table -->`. What is between them is
written here, so that no figure is typed.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from _measured import read_record

import simplexcal as sc
from simplexcal.evaluation import markdown_table

PAGE = Path(__file__).parents[1] / "docs" / "results" / "shift.md"
TABLE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
SEVERITIES = (1, 2, 3, 4, 5)
ESTIMATES = {
    "shift-aware": "shift-aware",
    "atc": "ATC",
    "confidence": "mean confidence",
    "reference": "reference accuracy",
}
VERDICTS = ("steady", "undecided", "recalibrate")

Row = dict[str, Any]


def of_severity(rows: Iterable[Row], severity: int) -> list[Row]:
    """Return the rows of a severity; 0 is the images as they are."""
    return [row for row in rows if row["severity"] == severity]


def score_table(name: str, factor: float, digits: int) -> str:
    """Return a score of each method by severity, the mean over the corruptions.

    Args:
        name: Name of the score.
        factor: What it is multiplied with.
        digits: Digits after the point.
    """
    rows = read_record("shift")["rows"]
    table = [["severity", "accuracy %"]]
    table[0] += [sc.CALIBRATORS[key].abbreviation for key in rows[0]["methods"]]
    for severity in (0, *SEVERITIES):
        found = of_severity(rows, severity)
        accuracy = fmean(row["methods"]["none"]["accuracy"] for row in found)
        line = [str(severity or "clean"), f"{100 * accuracy:.1f}"]
        for key in rows[0]["methods"]:
            value = factor * fmean(row["methods"][key][name] for row in found)
            line.append(f"{value:.{digits}f}")
        table.append(line)
    return markdown_table(table)


def estimate_table() -> str:
    """Return the mean absolute error of each estimate by severity, in points."""
    rows = read_record("shift")["rows"]
    table = [["severity", "accuracy %", *ESTIMATES.values(), "in the interval"]]
    for severity in (0, *SEVERITIES):
        found = [batch for row in of_severity(rows, severity) for batch in row["estimates"]]
        line = [str(severity or "clean")]
        line.append(f"{100 * fmean(batch['accuracy'] for batch in found):.1f}")
        for key in ESTIMATES:
            error = fmean(abs(batch[key] - batch["accuracy"]) for batch in found)
            line.append(f"{100 * error:.2f}")
        inside = sum(
            batch["interval"][0] <= batch["accuracy"] <= batch["interval"][1] for batch in found
        )
        table.append([*line, f"{inside} of {len(found)}"])
    return markdown_table(table)


def verdict_table() -> str:
    """Return the verdicts of the monitor by severity, with the ECE of STS there."""
    rows = read_record("shift")["rows"]
    table = [["severity", "batches", *VERDICTS, "lowest accuracy missed %", "highest ECE missed %"]]
    for severity in (0, *SEVERITIES):
        found = of_severity(rows, severity)
        verdicts = [verdict for row in found for verdict in row["verdicts"]]
        line = [str(severity or "clean"), str(len(verdicts))]
        line += [str(verdicts.count(verdict)) for verdict in VERDICTS]
        missed = [row["methods"]["sts"] for row in found if not alarms_mostly(row)]
        accuracy = min((scores["accuracy"] for scores in missed), default=None)
        error = max((scores["ece"] for scores in missed), default=None)
        table.append([*line, _percent(accuracy), _percent(error)])
    return markdown_table(table)


def alarms_mostly(row: Row) -> bool:
    """Return whether most batches of a set are to be recalibrated."""
    verdicts: list[str] = row["verdicts"]
    return verdicts.count("recalibrate") > len(verdicts) / 2


def corruption_table() -> str:
    """Return accuracy, ECE and verdicts of each corruption and severity."""
    rows = read_record("shift")["rows"]
    table = [["corruption", *(f"severity {severity}" for severity in SEVERITIES)]]
    for name in dict.fromkeys(row["corruption"] for row in rows if row["severity"] > 0):
        line = [name]
        for row in rows:
            if row["corruption"] == name:
                scores = row["methods"]["sts"]
                n_alarms = row["verdicts"].count("recalibrate")
                line.append(
                    f"{100 * scores['accuracy']:.1f} / {100 * scores['ece']:.1f} / {n_alarms}"
                )
        table.append(line)
    return markdown_table(table)


def false_alarm_table() -> str:
    """Return how often unshifted batches give each verdict."""
    record = read_record("monitor_false_alarms")
    table = [["n", "reference", *(f"{verdict} %" for verdict in VERDICTS), "tolerance 0: alarms %"]]
    names = {"fixed": "calibration half", "split": "random half of the test half"}
    for row in record["rows"]:
        for key, name in names.items():
            shares = [100 * row[key].get(verdict, 0) for verdict in (*VERDICTS, "zero")]
            table.append([str(row["n"]), name, *(f"{share:.1f}" for share in shares)])
    return markdown_table(table)


def versions() -> str:
    """Return what the records were made with."""
    found = read_record("shift")["versions"] | read_record("monitor_false_alarms")["versions"]
    return "Made with " + ", ".join(f"{name} {version}" for name, version in found.items()) + "."


TABLES: dict[str, Callable[[], str]] = {
    "ece": lambda: score_table("ece", 100, 2),
    "nll": lambda: score_table("nll", 1, 4),
    "aurc": lambda: score_table("aurc", 100, 2),
    "estimates": estimate_table,
    "verdicts": verdict_table,
    "corruptions": corruption_table,
    "false_alarms": false_alarm_table,
    "versions": versions,
}


def render(page: str) -> str:
    """Return the page with what the records say.

    Args:
        page: The page as it is.
    """
    return TABLE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", page)


def _percent(value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f}"


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
