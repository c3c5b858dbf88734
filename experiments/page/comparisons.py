"""Comparisons beside Table 1: variants, few labels, swapped splits, architectures, time."""

import statistics
from dataclasses import replace

from experiments.config.methods import FEW_LABELS_METHODS, LABEL_COUNTS, METHODS
from experiments.config.paper import CALIBRATION_SECONDS, INFERENCE_SECONDS, TABLE1
from experiments.config.settings import SETTINGS, varied_setting
from experiments.page.groups import (
    Group,
    Results,
    Settings,
    Table,
    accuracy,
    fitted_on,
    known,
    mean_of,
    nll_on_test,
    shown,
    shown_betas,
    shown_ece,
    shown_if_known,
    shown_nll,
    values_of,
)
from experiments.page.provenance import provenance
from experiments.page.splits import splits_table
from experiments.page.table1 import METHOD_ORDER, summarise
from experiments.running.records import Record


def variants_context(results: Results) -> dict[str, object]:
    """Return what the template of the methods' variants reads.

    Args:
        results: The records.
    """
    settings = results.settings("variants")
    return {
        "found": bool(settings),
        "provenance": provenance(results.studies["variants"]),
        "table": splits_table(settings),
        "sampled_table": sampled_table(settings),
    }


def few_labels_context(results: Results) -> dict[str, object]:
    """Return what the template of the study with few labels reads.

    Args:
        results: The records.
    """
    settings = results.settings("few-labels")
    return {
        "found": bool(settings),
        "provenance": provenance(results.studies["few-labels"]),
        "table": few_labels_table(settings),
        "wins": few_labels_wins(settings),
    }


def swapped_context(results: Results) -> dict[str, object]:
    """Return what the template of the swapped splits reads.

    Args:
        results: The records.
    """
    swapped = {}
    for name, group in results.settings("swapped").items():
        renamed = {}
        for method, records in group.items():
            renamed[method.removesuffix("-swapped")] = records
        swapped[name] = renamed
    return {
        "found": bool(swapped),
        "provenance": provenance(results.studies["swapped"]),
        "swapped": summarise(swapped),
        "both": summarise(both_ways(swapped, results.settings("table1"))),
    }


def architectures_context(results: Results) -> dict[str, object]:
    """Return what the template of the architecture variants reads.

    Args:
        results: The records.
    """
    variants = results.settings("architectures")
    return {
        "found": bool(variants),
        "provenance": provenance(results.studies["architectures"]),
        "table": architectures_table(variants, results.settings("table1")),
    }


def time_context(results: Results) -> dict[str, object]:
    """Return what the template of the times reads.

    Args:
        results: The records.
    """
    settings = results.settings("time")
    return {
        "found": bool(settings),
        "provenance": provenance(results.studies["time"]),
        "table": time_table(settings),
    }


def sampled_table(settings: Settings) -> Table:
    """Return what becomes of the exact mean when 30 samples estimate it.

    Args:
        settings: The records of each setting and method.
    """
    rows = []
    for name, group in settings.items():
        for method, records in group.items():
            if all(record.sampled is not None for record in records):
                row = [SETTINGS[name].title, METHODS[method].title, shown_ece(records)]
                row.append(shown(mean_of(records, _sampled_ece, 100)))
                row.append(shown(mean_of(records, _sampled_changed, 100)))
                rows.append(row)
    header = ("setting", "method", "ECE, exact", "ECE, 30 samples", "labels that 30 samples change")
    return Table(header, rows)


def _sampled_ece(record: Record) -> float | None:
    if record.sampled is None:
        return None
    return record.sampled.ece


def _sampled_changed(record: Record) -> float | None:
    if record.sampled is None:
        return None
    return record.sampled.changed


def few_labels_table(settings: Settings) -> Table:
    """Return ECE and NLL after calibration with few labels.

    Args:
        settings: The records of each setting and method.
    """
    rows = []
    for name, group in settings.items():
        for n in LABEL_COUNTS:
            found = _few_labels_records(group, n)
            if found:
                row = [SETTINGS[name].title, str(n)]
                row += [shown_ece(records) for records in found]
                row += [shown_nll(records) for records in found]
                n_lower = _n_lower_nll(found)
                row.append(f"{n_lower} of {len(found[0])}")
                rows.append(row)
    titles = [METHODS[method].title.removesuffix(", default") for method in FEW_LABELS_METHODS]
    ece = [f"{title}, ECE %" for title in titles]
    nll = [f"{title}, NLL" for title in titles]
    return Table(("setting", "labels", *ece, *nll, "lower"), rows)


def few_labels_wins(settings: Settings) -> list[tuple[int, int, int]]:
    """Return for how many of how many networks STS has a lower NLL than TS, by label count.

    Args:
        settings: The records of each setting and method.

    Returns:
        The number of labels, the number of networks with a lower NLL, and the number of all.
    """
    wins = []
    for n in LABEL_COUNTS:
        n_lower = 0
        n_networks = 0
        for group in settings.values():
            found = _few_labels_records(group, n)
            if found:
                n_lower += _n_lower_nll(found)
                n_networks += len(found[0])
        if n_networks > 0:
            wins.append((n, n_lower, n_networks))
    return wins


def _few_labels_records(group: Group, n: int) -> list[list[Record]]:
    """Return the records of TS, ETS and STS with n labels, or nothing if one is missing."""
    found = [group.get(f"{method}-{n}-labels", []) for method in FEW_LABELS_METHODS]
    if not all(found):
        return []
    return found


def _n_lower_nll(found: list[list[Record]]) -> int:
    """Return for how many networks the last method has a lower NLL than the first."""
    first = values_of(found[0], nll_on_test)
    last = values_of(found[-1], nll_on_test)
    return sum(ours < theirs for ours, theirs in zip(last, first, strict=True))


def both_ways(swapped: Settings, table1: Settings) -> Settings:
    """Return records with the means of ECE and NLL over both ways to split.

    Args:
        swapped: The records with swapped splits, by the names of the methods of Table 1.
        table1: The records of Table 1.
    """
    means: Settings = {}
    for name, group in swapped.items():
        for method, records in group.items():
            others = {record.seed: record for record in table1.get(name, {}).get(method, [])}
            found = [_mean_record(r, others[r.seed]) for r in records if r.seed in others]
            if found:
                means.setdefault(name, {})[method] = found
    return means


def _mean_record(first: Record, second: Record) -> Record:
    ece = (known(first.metrics.ece) + known(second.metrics.ece)) / 2
    nll = (known(first.metrics.nll) + known(second.metrics.nll)) / 2
    metrics = replace(first.metrics, ece=ece, nll=nll)
    return replace(first, method=second.method, metrics=metrics)


def architectures_table(variants: Settings, table1: Settings) -> Table:
    """Return accuracy and ECE of architecture variants, below those of Table 1's setting.

    Args:
        variants: The records of each variant and method.
        table1: The records of Table 1.
    """
    rows = []
    for name in dict.fromkeys([varied_setting(variant) for variant in variants]):
        compared = [variant for variant in variants if varied_setting(variant) == name]
        methods = {method for variant in compared for method in variants[variant]}
        rows += _architecture_rows(name, name, table1.get(name, {}), methods)
        for variant in compared:
            rows += _architecture_rows(variant, name, variants[variant], methods)
    header = ("setting", "method", "seeds", "accuracy %", "paper's", "ECE %", "paper's", "NLL", "β")
    return Table(header, rows)


def _architecture_rows(
    setting: str, varied: str, group: Group, methods: set[str]
) -> list[list[str]]:
    paper = TABLE1[varied]
    rows = []
    for method in METHOD_ORDER:
        if method in group and method in methods:
            records = group[method]
            row = [
                SETTINGS[setting].title,
                METHODS[method].title,
                str(len(records)),
                shown(mean_of(records, accuracy, 100)),
                shown(paper["accuracy"]),
                shown_ece(records),
                shown_if_known(paper, method),
                shown_nll(records),
                shown_betas(records),
            ]
            rows.append(row)
    return rows


def time_table(settings: Settings) -> Table:
    """Return seconds to calibrate, and to predict the test split with network and calibrator.

    Args:
        settings: The records of each setting and method.
    """
    rows = []
    for name, group in settings.items():
        for method, records in group.items():
            calibration = mean_of(records, lambda record: record.timings.calibration).mean
            inference = [r.timings.outputs + r.timings.prediction for r in records]
            row = [
                SETTINGS[name].title,
                METHODS[method].title,
                " and ".join(sorted({fitted_on(record) for record in records})),
                f"{calibration:.1f}",
                _paper_seconds(CALIBRATION_SECONDS, method),
                f"{statistics.mean(inference):.2f}",
                _paper_seconds(INFERENCE_SECONDS, method),
            ]
            rows.append(row)
    header = (
        "setting",
        "method",
        "fitted on",
        "calibration, s",
        "paper's",
        "inference, s",
        "paper's",
    )
    return Table(header, rows)


def _paper_seconds(seconds: dict[str, float], method: str) -> str:
    if method in seconds:
        return f"{seconds[method]:.1f}"
    return ""
