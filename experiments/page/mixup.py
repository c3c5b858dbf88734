"""Mixup samples and the branch that learns from them: the Dirichlet method, β, R and S, steps."""

import statistics

from experiments.config.methods import METHODS, PAPER_BETAS
from experiments.config.paper import BEST_BETA, BRANCH, DIRICHLET, MIXUP, TABLE1, Number
from experiments.config.settings import SETTINGS
from experiments.page.groups import (
    Results,
    Settings,
    Table,
    deviation,
    mean_of,
    shown,
    shown_betas,
    shown_ece,
    shown_if_known,
)
from experiments.page.provenance import provenance
from experiments.page.splits import splits_table
from experiments.running.records import Record

STUDIES = ("dirichlet", "mixup", "branch", "resampled", "steps")
SPLITS = ("calibration", "test")

Searched = dict[str, list[Record]]  # fits that tried several β, for each setting


def context(results: Results) -> dict[str, object]:
    """Return what the template of this page reads.

    Args:
        results: The records.
    """
    found = {study: results.settings(study) for study in STUDIES}
    searched = searched_betas(results.settings("table1"))
    return {
        "has": {study: bool(settings) for study, settings in found.items()},
        "provenance": {study: provenance(results.studies[study]) for study in STUDIES},
        "dirichlet_table": dirichlet_table(found["dirichlet"]),
        "dirichlet_settings": list(found["dirichlet"]),
        "mixup_table": comparison_table(found["mixup"], MIXUP),
        "branch_table": comparison_table(found["branch"], BRANCH),
        "resampled_table": splits_table(found["resampled"]),
        "steps_table": splits_table(found["steps"]),
        "searched": searched,
        "beta_table": beta_table(searched),
    }


def dirichlet_table(settings: Settings) -> Table:
    """Return the ECE of the Dirichlet method, with β chosen as the paper does.

    Args:
        settings: The records of each setting and method.
    """
    rows = []
    for name, group in settings.items():
        records = group["dirichlet-ts"]
        confidence = mean_of(records, lambda record: record.metrics.confidence, 100)
        row = [
            SETTINGS[name].title,
            str(len(records)),
            shown_ece(records),
            shown_if_known(DIRICHLET, name),
            shown(confidence),
            shown_betas(records),
            _extreme_betas(records),
        ]
        rows.append(row)
    header = (
        "setting",
        "seeds",
        "ECE %",
        "paper's ECE %",
        "mean confidence %",
        "β",
        "ECE % of each β",
    )
    return Table(header, rows)


def comparison_table(settings: Settings, paper: dict[str, dict[str, Number]]) -> Table:
    """Return the ECE of variants of the paper's method beside the paper's.

    Args:
        settings: The records of each setting and method.
        paper: The paper's numbers for each setting and method.
    """
    rows = []
    for name, group in settings.items():
        for method, records in group.items():
            row = [
                SETTINGS[name].title,
                METHODS[method].title,
                str(len(records)),
                shown_ece(records),
                shown_if_known(paper.get(name, {}), method),
                shown(TABLE1[name]["sts-paper"]),
            ]
            rows.append(row)
    header = ("setting", "method", "seeds", "ECE %", "paper's ECE %", "paper's, as in Table 1")
    return Table(header, rows)


def searched_betas(settings: Settings) -> Searched:
    """Return the fits of the paper's method that have the metrics of each β on record.

    Args:
        settings: The records of Table 1.
    """
    found = {}
    for name, group in settings.items():
        records = group.get("sts-paper", [])
        if records and all(record.betas for record in records):
            found[name] = records
    return found


def beta_errors(records: list[Record], beta: float, split: str) -> list[float]:
    """Return the ECE of each network for one β; fits that diverged are left out.

    Args:
        records: Fits that tried several β.
        beta: The β.
        split: "calibration" or "test".
    """
    errors = []
    for record in records:
        for metrics in record.betas or []:
            ece = getattr(metrics, split).ece
            if metrics.beta == beta and ece is not None:
                errors.append(float(ece))
    return errors


def beta_table(searched: Searched) -> Table:
    """Return the test ECE of each β as in the paper's figure, and the best β on either split.

    Args:
        searched: Fits that tried several β, for each setting.
    """
    rows = []
    for beta in PAPER_BETAS:
        row = [str(beta)]
        row += [_median_cell(beta_errors(records, beta, "test")) for records in searched.values()]
        rows.append(row)
    for split in SPLITS:
        best = [f"β = {_best_beta(records, split)}" for records in searched.values()]
        rows.append([f"smallest, {split}", *best])
    paper = []
    for name in searched:
        cell = ""
        if name in BEST_BETA:
            cell = f"β = {BEST_BETA[name]}"
        paper.append(cell)
    rows.append(["smallest, paper", *paper])
    return Table(("β", *[SETTINGS[name].title for name in searched]), rows)


def _median_cell(errors: list[float]) -> str:
    if not errors:
        return "diverged"
    return shown(Number(100 * statistics.median(errors), 100 * deviation(errors)))


def _best_beta(records: list[Record], split: str) -> float:
    medians = {}
    for beta in PAPER_BETAS:
        errors = beta_errors(records, beta, split)
        if errors:
            medians[beta] = statistics.median(errors)
    return min(medians, key=lambda beta: medians[beta])


def _extreme_betas(records: list[Record]) -> str:
    """Return the smallest and the largest test ECE of all β, if they are on record."""
    if not all(record.betas for record in records):
        return ""
    means = {}
    for beta in PAPER_BETAS:
        errors = beta_errors(records, beta, "test")
        if errors:
            means[beta] = statistics.mean(errors)
    best = min(means, key=lambda beta: means[beta])
    worst = max(means, key=lambda beta: means[beta])
    return " to ".join([f"{100 * means[beta]:.2f} (β = {beta:g})" for beta in (best, worst)])
