"""Out-of-distribution detection: the paper's Appendix F, and which mixup kind and β serve best."""

import simplexcal as sc
from experiments.config.methods import METHODS
from experiments.config.paper import OOD, OOD_COLUMNS, Number
from experiments.config.settings import SETTINGS
from experiments.page import detection
from experiments.page.groups import Group, OodKey, Results, Table, known, mean_of, shown
from experiments.page.provenance import provenance
from experiments.page.table1 import METHOD_ORDER
from experiments.running.records import OodMetrics, Record
from experiments.running.sampled_scores import MARGINS

SCORES = ("confidence", "aleatoric", "epistemic", "mutual_information", "energy")
# The paper's names of two scores.
PAPER_NAMES = {"aleatoric": "expected entropy", "epistemic": "differential entropy"}
HEADER = (
    "set",
    "method",
    "score",
    "AUROC %",
    "paper's",
    "AUPR %",
    "paper's",
    "FPR at 95 % TPR, %",
)


def context(results: Results) -> dict[str, object]:
    """Return what the template of this page reads.

    Args:
        results: The records.
    """
    betas = sc.SimplexTemperatureScaling().betas
    appendix = results.ood_groups("ood")
    uncertainty = results.ood_groups("uncertainty")
    return {
        "appendix": appendix,
        "appendix_provenance": provenance(results.studies["ood"]),
        "appendix_table": detection_table(appendix),
        "uncertainty": uncertainty,
        "uncertainty_provenance": provenance(results.studies["uncertainty"]),
        "uncertainty_table": uncertainty_table(uncertainty),
        "sampled_table": sampled_table(uncertainty),
        **detection.context(),
        "default_betas": ", ".join([f"{beta:g}" for beta in betas]),
    }


def detection_table(groups: dict[OodKey, Group]) -> Table:
    """Return AUROC and AUPR of each method's confidence, and of STS's uncertainties.

    Args:
        groups: The records of each setting and OOD data set.
    """
    rows = []
    for key, group in groups.items():
        for method in METHOD_ORDER:
            if method in group:
                rows += _detection_rows(key, method, group[method])
    return Table(HEADER, rows)


def uncertainty_table(groups: dict[OodKey, Group]) -> Table:
    """Return the AUROC of each score for the branch without its head, by mixup kind and β.

    Args:
        groups: The records of each setting and OOD data set.
    """
    rows = []
    for key, group in groups.items():
        for method, records in group.items():
            row = [_title(key), METHODS[method].title, str(len(records))]
            row += [_auroc_cell(records, score) for score in SCORES]
            rows.append(row)
    scores = [_words(score) for score in SCORES]
    return Table(("set", "method", "seeds", *scores), rows)


def sampled_table(groups: dict[OodKey, Group]) -> Table:
    """Return the AUROC of the entropy estimated from 30 samples, for each margin.

    Args:
        groups: The records of each setting and OOD data set.
    """
    rows = []
    for key, group in groups.items():
        for method, records in group.items():
            if all(_ood(record).sampled_entropy_auroc is not None for record in records):
                row = [_title(key), METHODS[method].title]
                row.append(_auroc_cell(records, "epistemic"))
                row += [_sampled_cell(records, f"{margin:g}") for margin in MARGINS]
                rows.append(row)
    margins = [f"30 samples, margin {margin:g}" for margin in MARGINS]
    return Table(("set", "method", "exact", *margins), rows)


def _ood(record: Record) -> OodMetrics:
    if record.ood is None:
        raise ValueError(f"A record of {record.setting} has no OOD metrics.")
    return record.ood


def _has_score(record: Record, score: str) -> bool:
    """Return whether a record has this score; the energy is the network's alone."""
    if score == "energy" and record.method != "none":
        return False
    return _ood(record).score(score, "auroc") is not None


def _detection_rows(key: OodKey, method: str, records: list[Record]) -> list[list[str]]:
    scores = [score for score in SCORES if _has_score(records[0], score)]
    return [_detection_row(key, method, score, records) for score in scores]


def _detection_row(key: OodKey, method: str, score: str, records: list[Record]) -> list[str]:
    column = method
    if score != "confidence":
        column = f"{method}, {_words(score)}"
    return [
        _title(key),
        METHODS[method].title,
        _words(score),
        _metric_cell(records, score, "auroc"),
        _paper_cell(key, "auroc", column),
        _metric_cell(records, score, "aupr"),
        _paper_cell(key, "aupr", column),
        _metric_cell(records, score, "fpr_95"),
    ]


def _metric_cell(records: list[Record], score: str, metric: str) -> str:
    return shown(mean_of(records, lambda record: _ood(record).score(score, metric), 100))


def _auroc_cell(records: list[Record], score: str) -> str:
    if not _has_score(records[0], score):
        return ""
    return _metric_cell(records, score, "auroc")


def _sampled_cell(records: list[Record], margin: str) -> str:
    return shown(mean_of(records, lambda record: _sampled_auroc(record, margin), 100))


def _sampled_auroc(record: Record, margin: str) -> float:
    areas = _ood(record).sampled_entropy_auroc or {}
    return known(areas.get(margin))


def _paper_cell(key: OodKey, metric: str, column: str) -> str:
    """Return one of the paper's numbers, or an empty cell."""
    if key not in OOD or column not in OOD_COLUMNS:
        return ""
    numbers = OOD[key][metric]
    return shown(Number(*numbers[OOD_COLUMNS.index(column)]))


def _title(key: OodKey) -> str:
    return f"{SETTINGS[key.setting].title}, {key.ood_set}"


def _words(score: str) -> str:
    """Return the name of a score on the page."""
    return PAPER_NAMES.get(score, score.replace("_", " "))
