"""Records grouped by setting and method, and brought to mean ± standard deviation over seeds."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from experiments.config.methods import METHODS
from experiments.config.paper import Number
from experiments.config.run_config import RESULTS
from experiments.config.settings import SETTINGS
from experiments.config.studies import STUDIES
from experiments.running.records import Record, RecordStore

Group = dict[str, list[Record]]  # the records of each method, by seed
Settings = dict[str, Group]
Value = Callable[[Record], float | None]


class OodKey(NamedTuple):
    """A network and the data set that it is to detect.

    Args:
        setting: The network's setting.
        ood_set: The out-of-distribution data set.
    """

    setting: str
    ood_set: str


@dataclass(frozen=True)
class Results:
    """The records of all studies.

    Args:
        studies: The records of each study.
    """

    studies: dict[str, list[Record]]

    def __iter__(self) -> Iterator[Record]:
        for records in self.studies.values():
            yield from records

    def settings(self, study: str) -> Settings:
        """Return the records of a study for each setting and method.

        Args:
            study: The study.
        """
        records = self.studies[study]
        groups = {}
        for setting in SETTINGS:
            group = by_method([record for record in records if record.setting == setting])
            if group:
                groups[setting] = group
        return groups

    def ood_groups(self, study: str) -> dict[OodKey, Group]:
        """Return the records of a study for each setting, OOD data set and method.

        Args:
            study: The study.
        """
        found: dict[OodKey, list[Record]] = {}
        for record in self.studies[study]:
            key = OodKey(record.setting, record.ood_set or "")
            found.setdefault(key, []).append(record)
        return {key: by_method(found[key]) for key in sorted(found)}


def read_results(folder: Path = RESULTS) -> Results:
    """Return the records of all studies.

    Args:
        folder: The folder of the records.

    Raises:
        ValueError: If a record is of a dry run.
    """
    store = RecordStore(folder)
    studies = {study: store.read_study(study) for study in STUDIES}
    results = Results(studies)
    for record in results:
        if record.dry_run:
            path = store.path(record.study, record.setting)
            raise ValueError(f"'{path}' has a record of a dry run, which is no result. Remove it.")
    return results


def by_method(records: Iterable[Record]) -> Group:
    """Return the records of each method, in the order of ``METHODS``, by seed.

    Args:
        records: Records of one study and setting.
    """
    found: Group = {}
    for record in records:
        found.setdefault(record.method, []).append(record)
    group = {}
    for method in METHODS:
        if method in found:
            group[method] = sorted(found[method], key=lambda record: record.seed)
    return group


def ece_on_test(record: Record) -> float | None:
    """Return the ECE on the test split.

    Args:
        record: The record.
    """
    return record.metrics.ece


def nll_on_test(record: Record) -> float | None:
    """Return the NLL on the test split.

    Args:
        record: The record.
    """
    return record.metrics.nll


def ece_on_calibration(record: Record) -> float | None:
    """Return the ECE on the calibration split.

    Args:
        record: The record.
    """
    return record.calibration.ece


def accuracy(record: Record) -> float | None:
    """Return the network's accuracy on the test split.

    Args:
        record: The record.
    """
    return record.accuracy


def known(value: float | None) -> float:
    """Return a number that must be on record.

    Args:
        value: The number.

    Raises:
        ValueError: If it is None.
    """
    if value is None:
        raise ValueError("A record lacks a number that the pages show.")
    return value


def values_of(records: Iterable[Record], value: Value, factor: float = 1.0) -> list[float]:
    """Return a number of each record.

    Args:
        records: The records.
        value: Which number.
        factor: It is multiplied by this, 100 for percentages.
    """
    return [factor * known(value(record)) for record in records]


def mean_of(records: Iterable[Record], value: Value, factor: float = 1.0) -> Number:
    """Return mean and standard deviation of a number over the records.

    Args:
        records: The records.
        value: Which number.
        factor: It is multiplied by this, 100 for percentages.
    """
    found = values_of(records, value, factor)
    return Number(statistics.mean(found), deviation(found))


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation, which is nan for a single value.

    Args:
        values: The values.
    """
    if len(values) == 1:
        return math.nan
    return statistics.stdev(values)


def ece_percent(records: Iterable[Record]) -> Number:
    """Return the ECE on the test split, in %.

    Args:
        records: The records.
    """
    return mean_of(records, ece_on_test, 100)


def shown(number: Number, digits: int = 2, bold: bool = False) -> str:
    """Return "mean ± deviation", or the single value.

    Args:
        number: The number.
        digits: Digits after the point.
        bold: Whether it is set in bold.
    """
    text = f"{number.mean:.{digits}f}"
    if not math.isnan(number.std):
        text += f" ± {number.std:.{digits}f}"
    if bold:
        return f"**{text}**"
    return text


def shown_ece(records: Iterable[Record]) -> str:
    """Return the ECE on the test split in %, as it is shown.

    Args:
        records: The records.
    """
    return shown(ece_percent(records))


def shown_nll(records: Iterable[Record]) -> str:
    """Return the NLL on the test split, as it is shown.

    Args:
        records: The records.
    """
    return shown(mean_of(records, nll_on_test), digits=4)


def shown_if_known(numbers: dict[str, Number], key: str) -> str:
    """Return one of the paper's numbers, or an empty cell.

    Args:
        numbers: The paper's numbers.
        key: Which.
    """
    if key in numbers:
        return shown(numbers[key])
    return ""


def shown_betas(records: Iterable[Record]) -> str:
    """Return the values of β that were chosen.

    Args:
        records: The records.
    """
    chosen = {record.beta for record in records if record.beta is not None}
    return ", ".join([f"{beta:g}" for beta in sorted(chosen)])


def fitted_on(record: Record) -> str:
    """Return the GPU that fitted the calibrator, or how many threads of a CPU.

    Args:
        record: The record.
    """
    if record.device != "cpu":
        return record.device
    if record.threads == 1:
        return "cpu (1 thread)"
    return f"cpu ({record.threads} threads)"


@dataclass(frozen=True)
class Table:
    """A table of text.

    Args:
        header: The titles of the columns.
        rows: The cells of each row.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        lines = [_line(self.header), "|" + "---|" * len(self.header)]
        lines += [_line(row) for row in self.rows]
        return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
