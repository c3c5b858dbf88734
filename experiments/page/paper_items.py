"""Each table and figure of the paper beside ours: theirs, ours, the difference, and why."""

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.config.paper import (
    BRANCH,
    DIRICHLET,
    MIXUP,
    OOD,
    OOD_COLUMNS,
    TABLE1,
    Number,
)
from experiments.config.settings import SETTINGS, TABLE1_SETTINGS
from experiments.page.groups import Group, Results, Table, ece_percent, mean_of, shown
from experiments.running.records import Record

HEADER = ("setting", "paper's", "ours", "networks", "difference")
PAPER_STS = "sts-paper"
DIFFERENTIAL_ENTROPY = "epistemic"
ENTROPY_COLUMN = "sts-paper, differential entropy"


@dataclass(frozen=True)
class Row:
    """A number of the paper beside ours.

    Args:
        title: What it is of.
        theirs: The paper's number.
        ours: Ours.
        n: The networks of ours.
    """

    title: str
    theirs: Number
    ours: Number
    n: int

    def cells(self) -> list[str]:
        """Return the cells of a line."""
        difference = self.ours.mean - self.theirs.mean
        return [
            self.title,
            shown(self.theirs),
            shown(self.ours),
            str(self.n),
            f"{difference:+.2f}",
        ]


def context(results: Results) -> dict[str, object]:
    """Return what the template of the page reads.

    Args:
        results: The records.
    """
    settings = results.settings("table1")
    return {
        "table1": _table(_rows(settings, PAPER_STS, PAPER_STS)),
        "default_above": default_above(settings),
        "pretrained": _table(_rows(settings, "none", "none")),
        "dirichlet": _table(_study_rows(results, "dirichlet", DIRICHLET)),
        "ood": _table(ood_rows(results)),
        "mixup": _table(_compared_rows(results, "mixup", MIXUP)),
        "branch": _table(_compared_rows(results, "branch", BRANCH)),
    }


def default_above(settings: dict[str, Group]) -> list[str]:
    """Return the settings in which the default's mean ECE is above that of the paper's STS.

    Args:
        settings: The records of each setting and method.
    """
    rows = _rows(settings, "sts", PAPER_STS)
    return [row.title for row in rows if row.ours.mean > row.theirs.mean]


def ood_rows(results: Results) -> list[Row]:
    """Return the AUROC of the differential entropy in %.

    Args:
        results: The records.
    """
    rows = []
    for key, group in results.ood_groups("ood").items():
        records = group.get(PAPER_STS, [])
        if key in OOD and records:
            column = OOD_COLUMNS.index(ENTROPY_COLUMN)
            theirs = Number(*OOD[key]["auroc"][column])
            ours = mean_of(records, _entropy_auroc, 100)
            title = f"{SETTINGS[key.setting].title}, {key.ood_set}"
            rows.append(Row(title, theirs, ours, len(records)))
    return rows


def _entropy_auroc(record: Record) -> float | None:
    if record.ood is None:
        return None
    return record.ood.score(DIFFERENTIAL_ENTROPY, "auroc")


def _rows(settings: dict[str, Group], method: str, column: str) -> list[Row]:
    rows = []
    for name in TABLE1_SETTINGS:
        records = settings.get(name, {}).get(method, [])
        if records:
            theirs = TABLE1[name][column]
            rows.append(Row(SETTINGS[name].title, theirs, ece_percent(records), len(records)))
    return rows


def _study_rows(results: Results, study: str, theirs: dict[str, Number]) -> list[Row]:
    rows = []
    for name, group in results.settings(study).items():
        for records in group.values():
            if name in theirs:
                title = SETTINGS[name].title
                rows.append(Row(title, theirs[name], ece_percent(records), len(records)))
    return rows


def _compared_rows(results: Results, study: str, theirs: dict[str, dict[str, Number]]) -> list[Row]:
    rows = []
    for name, group in results.settings(study).items():
        for method, records in group.items():
            if method in theirs.get(name, {}):
                title = f"{SETTINGS[name].title}, {method.removeprefix('sts-')}"
                rows.append(Row(title, theirs[name][method], ece_percent(records), len(records)))
    return rows


def _table(rows: Sequence[Row]) -> Table:
    return Table(HEADER, [row.cells() for row in rows])
