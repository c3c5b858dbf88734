"""The paper's Table 1: our numbers beside the paper's, and what follows from them."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from experiments.config.methods import METHODS
from experiments.config.paper import TABLE1, Number, best
from experiments.config.settings import SETTINGS, TABLE1_SETTINGS
from experiments.page.groups import (
    Group,
    Results,
    Settings,
    Table,
    accuracy,
    ece_on_calibration,
    ece_on_test,
    ece_percent,
    known,
    mean_of,
    nll_on_test,
    shown,
    shown_betas,
    shown_if_known,
    values_of,
)
from experiments.page.provenance import Provenance, provenance
from experiments.running.records import Bins, Record

DEFAULT = "sts"
METHOD_ORDER = ("none", "ts", "ets", "pts", "adats", "sts-paper", "sts")
COMPARED_WITH_PAPER = ("sts-paper", "pts", "adats")
BY_CONFIDENCE_METHODS = ("ts", "pts", "sts-paper", "sts")
HIGH_CONFIDENCE = 0.9  # an edge of the bins
HEADER = (
    "method",
    "seeds",
    "ECE %",
    "paper's ECE %",
    "floor, 95 %",
    "NLL",
    "β",
    "fit, s",
    "predict, s",
)


@dataclass(frozen=True)
class Summary:
    """Table 1 in short.

    Args:
        tables: ECE and NLL of all settings and methods.
        n_networks: The number of networks that the default was fitted to.
        n_lowest: For how many of them the default has the lowest NLL.
    """

    tables: list[Table]
    n_networks: int
    n_lowest: int


class ComparisonWithPaper(NamedTuple):
    """The ECE of a method beside the paper's.

    Args:
        title: The method.
        ours: Our ECE in %.
        paper: The paper's.
        side: "worse" or "better".
        difference: The absolute difference.
        deviations: The difference in the paper's standard deviations.
    """

    title: str
    ours: str
    paper: str
    side: str
    difference: str
    deviations: str


class MethodNumbers(NamedTuple):
    """A method and two numbers.

    Args:
        title: The method.
        first: The first number.
        second: The second.
    """

    title: str
    first: str
    second: str


class Difference(NamedTuple):
    """A score minus that of another method, network by network.

    Args:
        title: The other method.
        mean: The mean difference.
        n_lower: For how many networks the score is lower.
        n: The number of networks.
    """

    title: str
    mean: str
    n_lower: int
    n: int


@dataclass(frozen=True)
class SettingPage:
    """What the page says about one setting; None or an empty list where nothing is on record.

    Args:
        name: The setting.
        title: Its title.
        provenance: Where and with what the records were made.
        table: All methods.
        n_networks: The number of networks.
        accuracy: The networks' accuracy in %.
        paper_accuracy: The paper's.
        ece: The networks' ECE in %.
        paper_ece: The paper's.
        comparisons: The ECE of methods beside the paper's.
        paper_sts_ece: ECE of the paper's method on the calibration and on the test split.
        brier: The Brier score of ETS minus that of TS.
        below_floor: Networks whose ECE is below its noise floor, by method.
        overconfidence: Confidence minus accuracy on the calibration and on the test split.
        by_confidence: Confidence minus accuracy for low and for high confidence.
        nll_differences: NLL of the default minus that of the other methods.
        default_ece: The default's ECE in %.
        smaller_ece: Methods with a smaller ECE than the default's.
    """

    name: str
    title: str
    provenance: Provenance
    table: Table
    n_networks: int
    accuracy: str
    paper_accuracy: Number
    ece: str
    paper_ece: str
    comparisons: list[ComparisonWithPaper]
    paper_sts_ece: MethodNumbers | None
    brier: Difference | None
    below_floor: list[tuple[str, int]]
    overconfidence: list[MethodNumbers]
    by_confidence: list[MethodNumbers]
    nll_differences: list[Difference]
    default_ece: str | None
    smaller_ece: list[tuple[str, str]]


def context(results: Results, study: str = "table1") -> dict[str, object]:
    """Return what the template of Table 1 reads.

    Args:
        results: The records.
        study: The study of the table: "table1", or "table1-0.2" for the present default.
    """
    settings = results.settings(study)
    return {
        "is_present": study != "table1",
        "n_settings": len(settings),
        "n_all_settings": len(TABLE1_SETTINGS),
        "n_records": len(list(results)),
        "n_changed": sum(not record.labels_preserved for record in results),
        "summary": summarise(settings),
        "settings": [setting_page(name, group) for name, group in settings.items()],
        "high_confidence": HIGH_CONFIDENCE,
    }


def summarise(settings: Settings) -> Summary:
    """Return ECE and NLL of all settings and methods, bold by the paper's rule.

    Args:
        settings: The records of each setting and method.
    """
    present = {method for group in settings.values() for method in group}
    methods = [method for method in METHOD_ORDER if method in present]
    titles = [METHODS[method].title for method in methods]
    ece_rows = []
    nll_rows = []
    for name, group in settings.items():
        ece_rows.append(_summary_row(name, group, methods, ece_percent, 2))
        nll_rows.append(_summary_row(name, group, methods, _nll, 4))
    tables = [Table(("ECE %", *titles), ece_rows), Table(("NLL", *titles), nll_rows)]
    n_networks = 0
    n_lowest = 0
    for group in settings.values():
        for record in group.get(DEFAULT, []):
            n_networks += 1
            n_lowest += _has_lowest_nll(record, group)
    return Summary(tables, n_networks, n_lowest)


def _nll(records: list[Record]) -> Number:
    return mean_of(records, nll_on_test)


def _summary_row(
    name: str,
    group: Group,
    methods: list[str],
    mean: Callable[[list[Record]], Number],
    digits: int,
) -> list[str]:
    found = {method: mean(group[method]) for method in methods if method in group}
    bold = best(found)
    most = max(len(group[method]) for method in found)
    title = SETTINGS[name].title
    if most == 1:
        title += " (one network)"
    row = [title]
    for method in methods:
        cell = ""
        if method in found:
            cell = shown(found[method], digits, method in bold)
            n = len(group[method])
            if n < most:
                cell += f" (of {n})"
        row.append(cell)
    return row


def _has_lowest_nll(record: Record, group: Group) -> bool:
    """Return whether a record of the default has the lowest NLL of all methods."""
    others = []
    for method, records in group.items():
        if method != DEFAULT:
            others += [nll_on_test(other) for other in records if other.seed == record.seed]
    ours = known(nll_on_test(record))
    return all(ours < known(nll) for nll in others)


def setting_page(name: str, group: Group) -> SettingPage:
    """Return what the page says about one setting.

    Args:
        name: The setting.
        group: Its records.
    """
    networks = group["none"]
    return SettingPage(
        name=name,
        title=SETTINGS[name].title,
        provenance=provenance([record for records in group.values() for record in records]),
        table=setting_table(name, group),
        n_networks=len(networks),
        accuracy=shown(mean_of(networks, accuracy, 100)),
        paper_accuracy=TABLE1[name]["accuracy"],
        ece=shown(ece_percent(networks)),
        paper_ece=shown(TABLE1[name]["none"]),
        comparisons=_comparisons(name, group),
        paper_sts_ece=_paper_sts_ece(group),
        brier=_brier_difference(group),
        below_floor=_below_floor(group),
        overconfidence=_overconfidence(group),
        by_confidence=_by_confidence(group),
        nll_differences=_nll_differences(group),
        default_ece=_default_ece(group),
        smaller_ece=_smaller_ece(group),
    )


def setting_table(name: str, group: Group) -> Table:
    """Return the table of a setting, bold by the paper's rule.

    Args:
        name: The setting.
        group: Its records.
    """
    methods = _present(group)
    ece = {method: ece_percent(group[method]) for method in methods}
    nll = {method: mean_of(group[method], nll_on_test) for method in methods}
    paper = {method: TABLE1[name][method] for method in METHOD_ORDER if method in TABLE1[name]}
    bold_ece = best(ece)
    bold_nll = best(nll)
    bold_paper = best(paper)
    rows = []
    for method in methods:
        records = group[method]
        paper_ece = shown_if_known(paper, method)
        if method in bold_paper:
            paper_ece = f"**{paper_ece}**"
        rows.append(
            [
                METHODS[method].title,
                str(len(records)),
                shown(ece[method], bold=method in bold_ece),
                paper_ece,
                _floor(records),
                shown(nll[method], 4, method in bold_nll),
                shown_betas(records),
                f"{mean_of(records, lambda record: record.timings.calibration).mean:.1f}",
                f"{mean_of(records, lambda record: record.timings.prediction).mean:.3f}",
            ]
        )
    return Table(HEADER, rows)


def _present(group: Group) -> list[str]:
    return [method for method in METHOD_ORDER if method in group]


def _floor(records: list[Record]) -> str:
    """Return the mean and the 95th percentile of the ECE's noise floor, in %."""
    mean = mean_of(records, lambda record: record.metrics.ece_floor, 100).mean
    high = mean_of(records, lambda record: record.metrics.ece_floor_95, 100).mean
    return f"{mean:.2f}, {high:.2f}"


def _comparisons(name: str, group: Group) -> list[ComparisonWithPaper]:
    comparisons = []
    for method in COMPARED_WITH_PAPER:
        if method in group:
            ours = ece_percent(group[method])
            paper = TABLE1[name][method]
            difference = ours.mean - paper.mean
            side = "better"
            if difference > 0:
                side = "worse"
            deviations = abs(difference) / max(paper.std, 1e-9)
            comparison = ComparisonWithPaper(
                METHODS[method].title,
                shown(ours),
                shown(paper),
                side,
                f"{abs(difference):.2f}",
                f"{deviations:.1f}",
            )
            comparisons.append(comparison)
    return comparisons


def _paper_sts_ece(group: Group) -> MethodNumbers | None:
    """Return whether the paper's method does worse on new images than on those it learned from."""
    if "sts-paper" not in group:
        return None
    records = group["sts-paper"]
    on_calibration = shown(mean_of(records, ece_on_calibration, 100))
    return MethodNumbers(METHODS["sts-paper"].title, on_calibration, shown(ece_percent(records)))


def _brier_difference(group: Group) -> Difference | None:
    """Return what ETS gains by its own loss, where NLL and ECE do not show it."""
    if "ets" not in group or "ts" not in group:
        return None
    ets = values_of(group["ets"], lambda record: record.metrics.brier)
    ts = values_of(group["ts"], lambda record: record.metrics.brier)
    differences = [ours - theirs for ours, theirs in zip(ets, ts, strict=True)]
    return _difference("ts", differences)


def _difference(method: str, differences: list[float]) -> Difference:
    n_lower = sum(difference < 0 for difference in differences)
    mean = f"{statistics.mean(differences):+.4f}"
    return Difference(METHODS[method].title, mean, n_lower, len(differences))


def _below_floor(group: Group) -> list[tuple[str, int]]:
    """Return for how many networks the ECE could be that of a calibrated model, by method."""
    counts = []
    for method in _present(group):
        below = [_is_below_floor(record) for record in group[method]]
        counts.append((METHODS[method].title, sum(below)))
    return counts


def _is_below_floor(record: Record) -> bool:
    return known(record.metrics.ece) <= known(record.metrics.ece_floor_95)


def _overconfidence(group: Group) -> list[MethodNumbers]:
    """Return confidence minus accuracy on both splits, if several methods have it on record."""
    numbers = []
    for method in _present(group):
        records = group[method]
        if any(record.calibration.overconfidence is None for record in records):
            continue
        seen = mean_of(records, lambda record: record.calibration.overconfidence, 100).mean
        confidence = mean_of(records, lambda record: record.metrics.confidence, 100).mean
        correct = mean_of(records, accuracy, 100).mean
        first = f"{seen:+.2f}"
        second = f"{confidence - correct:+.2f}"
        numbers.append(MethodNumbers(METHODS[method].title, first, second))
    if len(numbers) < 2:
        return []
    return numbers


def _by_confidence(group: Group) -> list[MethodNumbers]:
    """Return confidence minus accuracy of inputs with a low and with a high confidence."""
    numbers = []
    for method in BY_CONFIDENCE_METHODS:
        if method in group:
            bins = [record.bins for record in group[method]]
            low = statistics.mean([_overconfidence_of_bins(b, high=False) for b in bins])
            high = statistics.mean([_overconfidence_of_bins(b, high=True) for b in bins])
            title = METHODS[method].title
            numbers.append(MethodNumbers(title, _signed_percent(low), _signed_percent(high)))
    return numbers


def _signed_percent(share: float) -> str:
    rounded = round(100 * share, 1) + 0.0  # Adding 0 turns -0.0 into 0.0.
    return f"{rounded:+.1f}"


def _overconfidence_of_bins(bins: Bins, high: bool) -> float:
    """Return confidence minus accuracy in the bins above HIGH_CONFIDENCE, or in the others.

    It is 0 if there are no inputs.
    """
    n = 0.0
    total = 0.0
    for i, count in enumerate(bins.count):
        middle = (bins.edges[i] + bins.edges[i + 1]) / 2
        if count > 0 and (middle > HIGH_CONFIDENCE) == high:
            n += count
            total += count * (known(bins.confidence[i]) - known(bins.accuracy[i]))
    return total / max(n, 1.0)


def _nll_differences(group: Group) -> list[Difference]:
    """Compare the default's NLL with each other method's, network by network."""
    ours = {record.seed: known(nll_on_test(record)) for record in group.get(DEFAULT, [])}
    compared = []
    for method in _present(group):
        if method == DEFAULT:
            continue
        records = [record for record in group[method] if record.seed in ours]
        differences = [ours[record.seed] - known(nll_on_test(record)) for record in records]
        if differences:
            compared.append(_difference(method, differences))
    return compared


def _default_ece(group: Group) -> str | None:
    if DEFAULT not in group:
        return None
    return f"{ece_percent(group[DEFAULT]).mean:.2f}"


def _smaller_ece(group: Group) -> list[tuple[str, str]]:
    """Return the methods whose mean ECE is smaller than the default's."""
    if DEFAULT not in group:
        return []
    default = mean_of(group[DEFAULT], ece_on_test).mean
    smaller = []
    for method in _present(group):
        ece = mean_of(group[method], ece_on_test).mean
        if ece < default:
            smaller.append((METHODS[method].title, f"{100 * ece:.2f}"))
    return smaller
