"""Write the tables of docs/results/shift.md from the records that it is about.

They are those of shift, of shift_cifar with both data sets, and of monitor_false_alarms.

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
DIVIDED = {
    "ts": "TS",
    "sts": "STS",
    "sts-first": "first precisions",
    "sts-straight": "and m = x",
    "sts-classless": "and no class terms",
}
PARTS = {
    "right_or_wrong": "NLL: right or wrong",
    "which_other": "NLL: which other",
    "ece": "ECE",
}
DEMO = "shift"
CIFAR = ("shift_cifar10", "shift_cifar100")

Row = dict[str, Any]


def of_severity(rows: Iterable[Row], severity: int) -> list[Row]:
    """Return the rows of a severity; 0 is the images as they are."""
    return [row for row in rows if row["severity"] == severity]


def score_table(
    record: str,
    name: str,
    factor: float,
    digits: int,
    combine: Callable[[Iterable[float]], float] = fmean,
) -> str:
    """Return a score of each method by severity, the mean over the corruptions.

    Args:
        record: Name of the record.
        name: Name of the score.
        factor: What it is multiplied with.
        digits: Digits after the point.
        combine: Takes the scores of the corruptions together, if not their mean.
    """
    rows = read_record(record)["rows"]
    has_floor = name == "ece" and combine is fmean and "noise_floor" in rows[0]
    table = [["severity", "accuracy %", *_abbreviations(rows[0]["methods"])]]
    if has_floor:
        table[0].append("noise floor")
    for severity in (0, *SEVERITIES):
        found = of_severity(rows, severity)
        accuracy = fmean(row["methods"]["none"]["accuracy"] for row in found)
        line = [str(severity or "clean"), f"{100 * accuracy:.1f}"]
        for key in rows[0]["methods"]:
            value = factor * combine(row["methods"][key][name] for row in found)
            line.append(f"{value:.{digits}f}")
        if has_floor:
            line.append(f"{factor * fmean(row['noise_floor'] for row in found):.{digits}f}")
        table.append(line)
    return markdown_table(table)


def accuracy_table(name: str) -> str:
    """Return the accuracy of the network, and of the methods that change predictions.

    Args:
        name: Name of the record.
    """
    record = read_record(name)
    changing = [key for key, keeps in record["keeps_predictions"].items() if not keeps]
    table = [["severity", "network", *_abbreviations(changing)]]
    for severity in (0, *SEVERITIES):
        found = of_severity(record["rows"], severity)
        means = [
            fmean(row["methods"][key]["accuracy"] for row in found) for key in ("none", *changing)
        ]
        table.append([str(severity or "clean"), *(f"{100 * mean:.2f}" for mean in means)])
    return markdown_table(table)


def pooled_table(name: str) -> str:
    """Return the ECE of each method for each corruption, all severities together.

    Args:
        name: Name of the record.
    """
    pooled = read_record(name)["pooled"]
    methods = pooled[0]["methods"]
    table = [["corruption", "accuracy %", *_abbreviations(methods)]]
    for row in pooled:
        line = [row["corruption"].replace("_", " ")]
        line.append(f"{100 * row['methods']['none']['accuracy']:.1f}")
        line += [f"{100 * row['methods'][key]['ece']:.2f}" for key in methods]
        table.append(line)
    worst = [max(row["methods"][key]["ece"] for row in pooled) for key in methods]
    table.append(["worst", "", *(f"{100 * value:.2f}" for value in worst)])
    return markdown_table(table)


def divided_table(name: str) -> str:
    """Return the two parts of the NLL and the ECE by severity, with terms of STS left out.

    Args:
        name: Name of the record.
    """
    rows = read_record(name)["rows"]
    table = [["severity", "score", *DIVIDED.values()]]
    for severity in (0, *SEVERITIES):
        found = of_severity(rows, severity)
        for part, title in PARTS.items():
            means = [fmean(row["divided"][key][part] for row in found) for key in DIVIDED]
            line = [str(severity or "clean"), title, *(f"{mean:.4f}" for mean in means)]
            table.append(line)
    return markdown_table(table)


def runner_up_table(name: str) -> str:
    """Return how often the label of an error is the runner-up, by severity.

    Args:
        name: Name of the record.
    """
    rows = read_record(name)["rows"]
    table = [["severity", "clean", *map(str, SEVERITIES)]]
    means = [
        fmean(row["runner_up"] for row in of_severity(rows, severity))
        for severity in (0, *SEVERITIES)
    ]
    table.append(
        ["label of an error is the runner-up, %", *(f"{100 * mean:.1f}" for mean in means)]
    )
    return markdown_table(table)


def slopes_sentence(name: str) -> str:
    """Return the slopes of the function m of STS, as a sentence.

    Args:
        name: Name of the record.
    """
    first, last = read_record(name)["slopes"]
    return (
        f"The slope of m is {first:.2f} among the least probable classes and {last:.2f} among the "
        "most probable ones; temperature scaling has 1."
    )


def estimate_table(record: str) -> str:
    """Return the mean absolute error of each estimate by severity, in points.

    Args:
        record: Name of the record.
    """
    rows = read_record(record)["rows"]
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


def verdict_table(record: str) -> str:
    """Return the verdicts of the monitor by severity, with the ECE of STS there.

    Args:
        record: Name of the record.
    """
    rows = read_record(record)["rows"]
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


def corruption_table(record: str) -> str:
    """Return accuracy, ECE and verdicts of each corruption and severity.

    Args:
        record: Name of the record.
    """
    rows = read_record(record)["rows"]
    table = [["corruption", *(f"severity {severity}" for severity in SEVERITIES)]]
    for name in dict.fromkeys(row["corruption"] for row in rows if row["severity"] > 0):
        line = [name.replace("_", " ")]
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
    found: dict[str, str] = {}
    for name in (DEMO, *CIFAR, "monitor_false_alarms"):
        found |= read_record(name)["versions"]
    return "Made with " + ", ".join(f"{name} {version}" for name, version in found.items()) + "."


def tables_of(record: str) -> dict[str, Callable[[], str]]:
    """Return what makes the tables of a record of corrupted images, by name.

    Args:
        record: Name of the record.
    """
    return {
        f"{record}_ece": lambda: score_table(record, "ece", 100, 2),
        f"{record}_nll": lambda: score_table(record, "nll", 1, 4),
        f"{record}_aurc": lambda: score_table(record, "aurc", 100, 2),
        f"{record}_estimates": lambda: estimate_table(record),
        f"{record}_divided": lambda: divided_table(record),
        f"{record}_verdicts": lambda: verdict_table(record),
        f"{record}_corruptions": lambda: corruption_table(record),
    }


def tables_of_cifar(record: str) -> dict[str, Callable[[], str]]:
    """Return what makes the tables of a record of shift_cifar, by name.

    Args:
        record: Name of the record.
    """
    return {
        **tables_of(record),
        f"{record}_worst": lambda: score_table(record, "ece", 100, 2, max),
        f"{record}_accuracy": lambda: accuracy_table(record),
        f"{record}_runner_up": lambda: runner_up_table(record),
        f"{record}_slopes": lambda: slopes_sentence(record),
        f"{record}_pooled": lambda: pooled_table(record),
    }


TABLES: dict[str, Callable[[], str]] = {
    **tables_of(DEMO),
    **tables_of_cifar(CIFAR[0]),
    **tables_of_cifar(CIFAR[1]),
    "false_alarms": false_alarm_table,
    "versions": versions,
}


def render(page: str) -> str:
    """Return the page with what the records say.

    Args:
        page: The page as it is.
    """
    return TABLE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", page)


def _abbreviations(keys: Iterable[str]) -> list[str]:
    return [sc.CALIBRATORS[key].abbreviation for key in keys]


def _percent(value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f}"


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
