"""STS beside the methods of other packages, on identical data."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from experiments.page.groups import Table
from experiments.rivals.records import (
    EARLIER_FLOORS_PATH,
    EARLIER_NETWORKS_PATH,
    FLOORS_PATH,
    NETWORKS_PATH,
    PATH,
    Difference,
    FloorRecord,
    RivalRecord,
    read_floors,
    read_records,
)

OURS = "simplexcal"
REFERENCE = "STS"
MISSING = "–"

Method = tuple[str, str]  # package and name


def context(
    path: Path = PATH,
    networks_path: Path = NETWORKS_PATH,
    floors_path: Path = FLOORS_PATH,
    earlier_networks_path: Path = EARLIER_NETWORKS_PATH,
    earlier_floors_path: Path = EARLIER_FLOORS_PATH,
) -> dict[str, object]:
    """Return what the template of this page reads.

    Args:
        path: The file of the records.
        networks_path: The file of the records of networks that were in nobody's view.
        floors_path: The file of their noise floors.
        earlier_networks_path: The records of such networks with an earlier default.
        earlier_floors_path: The file of their noise floors.
    """
    records = read_records(path)
    groups = list(dict.fromkeys(record.group for record in records))
    versions = sorted({f"{k} {v}" for record in records for k, v in record.versions.items()})
    others = [record for record in records if not is_reference(record)]
    return {
        "records": records,
        "versions": versions,
        "n_cases": len({record.case for record in records}),
        "n_methods": len({method_of(record) for record in others}),
        "n_pairs": len({(record.case, record.n) for record in records}),
        "totals": totals_table(others),
        "groups": [group_tables(group, records) for group in groups],
        "wins": wins_table(others),
        "keeping_wins": count_wins([record for record in others if record.changed == 0]),
        "changing_wins": count_wins([record for record in others if record.changed]),
        "failures": failures_table(others),
        "n_changed_by_reference": sum(bool(r.changed) for r in records if is_reference(r)),
        "networks": networks_context(read_records(networks_path), read_floors(floors_path)),
        "earlier_networks": networks_context(
            read_records(earlier_networks_path), read_floors(earlier_floors_path)
        ),
    }


def networks_context(
    records: Sequence[RivalRecord], floors: Sequence[FloorRecord]
) -> dict[str, object]:
    """Return what the template reads of the networks that were in nobody's view.

    Args:
        records: Their records.
        floors: Their noise floors.
    """
    others = [record for record in records if not is_reference(record)]
    groups = list(dict.fromkeys(record.group for record in records))
    return {
        "records": records,
        "n_cases": len({record.case for record in records}),
        "n_pairs": len({(record.case, record.n) for record in records}),
        "n_changed": sum(bool(r.changed) for r in records if is_reference(r)),
        "versions": sorted({f"{k} {v}" for r in records for k, v in r.versions.items()}),
        "totals": totals_table(others),
        "groups": [group_tables(group, records) for group in groups],
        "wins": wins_table([record for record in others if record.changed == 0]),
        "n_floors": sum(len(found.ece) for found in floors),
        "n_below": sum(sum(map(float.__le__, x.ece, x.floor_95)) for x in floors),
        "above": floors_table(floors),
    }


def floors_table(floors: Iterable[FloorRecord]) -> Table:
    """Return each network with a split in which the ECE lies above the 95 % noise floor.

    Args:
        floors: The noise floors.
    """
    rows = []
    for found in floors:
        pairs = list(zip(found.ece, found.floor_95, strict=True))
        if any(ece > floor for ece, floor in pairs):
            cells = [f"{100 * ece:.2f} ({100 * floor:.2f})" for ece, floor in pairs]
            rows.append([found.case, ", ".join(cells)])
    return Table(("network", "ECE % of STS in each split (95 % floor)"), rows)


def totals_table(records: Iterable[RivalRecord]) -> Table:
    """Return how often each method has a clearly higher or lower score than STS.

    Args:
        records: Those of all methods but STS.
    """
    header = (
        "method",
        "pairs",
        "NLL: STS lower",
        "no clear difference",
        "method lower",
        "Brier: STS lower",
        "no clear difference",
        "method lower",
        "failed",
    )
    rows = []
    for method, own in by_method(records).items():
        nll = Counter(sign(record.nll_difference) for record in own)
        brier = Counter(sign(record.brier_difference) for record in own)
        counts = [nll[1], nll[0], nll[-1], brier[1], brier[0], brier[-1]]
        cells = [title(method), str(len(own)), *map(str, counts), str(nll[None])]
        rows.append(cells)
    return Table(header, rows)


def group_tables(group: str, records: Sequence[RivalRecord]) -> dict[str, object]:
    """Return the tables of one group of classifiers.

    Args:
        group: The group.
        records: All records.
    """
    own = [record for record in records if record.group == group]
    sizes = sorted({record.n for record in own})
    common = max(
        n for n in sizes if cases_of(own, n) == cases_of(own, sizes[0])
    )  # that all its classifiers have
    return {
        "title": group,
        "cases": list(dict.fromkeys(record.case for record in own)),
        "n_test": sorted({record.n_test for record in own}),
        "n_splits": own[0].n_splits,
        "by_size": size_table(own, sizes),
        "largest": common,
        "scores": score_table([record for record in own if record.n == common]),
    }


def size_table(records: Sequence[RivalRecord], sizes: Sequence[int]) -> Table:
    """Return the NLL above that of STS by calibration size, with clear wins and losses of STS.

    Args:
        records: Those of a group.
        sizes: Its calibration sizes.
    """
    rows = []
    for method, own in by_method(records).items():
        by_size = [[record for record in own if record.n == n] for n in sizes]
        rows.append([title(method), *(_size_cell(method, found) for found in by_size)])
    return Table(("NLL above STS", *(f"n = {n}" for n in sizes)), rows)


def score_table(records: Sequence[RivalRecord]) -> Table:
    """Return all scores of each method, means over the classifiers of a group.

    Args:
        records: Those of a group with one calibration size.
    """
    header = (
        "method",
        "NLL",
        "Brier",
        "ECE %",
        "smooth ECE %",
        "accuracy %",
        "predictions changed %",
        "fit, STS = 1",
        "predict, STS = 1",
    )
    reference = [record for record in records if is_reference(record)]
    rows = []
    for method, own in by_method(records).items():
        done = [record for record in own if record.nll is not None]
        if len(done) < len(own):
            rows.append([title(method), *[MISSING] * (len(header) - 1)])
            continue
        row = [
            title(method),
            f"{_mean(done, lambda r: r.nll):.4f}",
            f"{_mean(done, lambda r: r.brier):.4f}",
            f"{100 * _mean(done, lambda r: r.ece):.2f}",
            f"{100 * _mean(done, lambda r: r.smooth_ece):.2f}",
            f"{100 * _mean(done, lambda r: r.accuracy):.2f}",
            f"{100 * _mean(done, lambda r: r.changed):.2f}",
            _ratio(done, reference, lambda r: r.fit_seconds),
            _ratio(done, reference, lambda r: r.predict_seconds),
        ]
        rows.append(row)
    return Table(header, rows)


def wins_table(records: Iterable[RivalRecord]) -> Table:
    """Return each classifier and size where a method has a clearly lower NLL than STS.

    Args:
        records: Those of all methods but STS.
    """
    rows = []
    for record in records:
        found = record.nll_difference
        if found is None or sign(found) != -1:
            continue
        changed = f"{100 * (record.changed or 0):.2f}"
        row = [
            record.case,
            str(record.n),
            title(method_of(record)),
            f"{found.mean:.4f}",
            f"{found.low:.4f} to {found.high:.4f}",
            changed,
        ]
        rows.append(row)
    header = ("classifier", "n", "method", "NLL above STS", "95 % interval", "changed %")
    return Table(header, rows)


def failures_table(records: Iterable[RivalRecord]) -> Table:
    """Return what methods raised, with N for every large number.

    Args:
        records: Those of all methods but STS.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for record in records:
        for message in sorted({re.sub(r"\d\d+", "N", message) for message in record.failures}):
            counts[title(method_of(record)), message] += 1
    rows = [[method, f"`{message}`", str(n)] for (method, message), n in counts.items()]
    return Table(("method", "first words of the error", "classifiers and sizes"), rows)


def count_wins(records: Iterable[RivalRecord]) -> int:
    """Return in how many comparisons a method has a clearly lower NLL than STS.

    Args:
        records: Those of all methods but STS.
    """
    return sum(sign(record.nll_difference) == -1 for record in records)


def sign(difference: Difference | None) -> int | None:
    """Return 1 where STS has the lower score, -1 where the method has, 0 where it is not clear.

    Args:
        difference: The method's score less that of STS, or None if the method failed.
    """
    if difference is None:
        return None
    if difference.low > 0:
        return 1
    if difference.high < 0:
        return -1
    return 0


def by_method(records: Iterable[RivalRecord]) -> dict[Method, list[RivalRecord]]:
    """Return the records of each method.

    Args:
        records: The records.
    """
    found: dict[Method, list[RivalRecord]] = {}
    for record in records:
        found.setdefault(method_of(record), []).append(record)
    return found


def cases_of(records: Iterable[RivalRecord], n: int) -> set[str]:
    """Return the classifiers that were calibrated with n inputs.

    Args:
        records: The records.
        n: The calibration size.
    """
    return {record.case for record in records if record.n == n}


def method_of(record: RivalRecord) -> Method:
    """Return package and name of a record's method.

    Args:
        record: The record.
    """
    return record.package, record.method


def is_reference(record: RivalRecord) -> bool:
    """Return whether a record is that of STS.

    Args:
        record: The record.
    """
    return method_of(record) == (OURS, REFERENCE)


def title(method: Method) -> str:
    """Return a method as the tables name it.

    Args:
        method: Package and name.
    """
    package, name = method
    if package == OURS:
        return name
    return f"{package}: {name}"


def _size_cell(method: Method, records: Sequence[RivalRecord]) -> str:
    """Return the mean difference, and how often STS and the method are clearly better."""
    if not records:
        return MISSING
    failed = [record for record in records if record.nll is None]
    if failed:
        return f"failed {len(failed)} of {len(records)}"
    if method == (OURS, REFERENCE):
        return f"NLL {_mean(records, lambda r: r.nll):.4f}"
    found = [record.nll_difference for record in records]
    mean = sum(difference.mean for difference in found if difference is not None) / len(found)
    signs = Counter(map(sign, found))
    return f"{mean:+.4f} ({signs[1]}:{signs[-1]})"


def _mean(records: Sequence[RivalRecord], value: Callable[[RivalRecord], float | None]) -> float:
    return sum(value(record) or 0.0 for record in records) / len(records)


def _ratio(
    records: Sequence[RivalRecord],
    reference: Sequence[RivalRecord],
    seconds: Callable[[RivalRecord], float | None],
) -> str:
    """Return a time over that of STS on the same classifiers."""
    cases = {record.case for record in records}
    same = [record for record in reference if record.case in cases]
    if any(seconds(record) is None for record in (*records, *same)):
        return MISSING
    ratio = _mean(records, seconds) / _mean(same, seconds)
    if ratio == 1:
        return "1"
    return f"{ratio:.2g}"
