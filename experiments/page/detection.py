"""`epistemic` beside the detectors that are in use, and before and after the last changes."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.config.paper import Number
from experiments.detection.records import (
    DISTRIBUTIONS,
    PATH,
    DetectionRecord,
    DistributionRecord,
    read_distributions,
    read_records,
)
from experiments.detection.study import DETECTORS, DEVELOPMENT, ERRORS, SCORES, SOURCES
from experiments.detection.training import NETWORKS
from experiments.page.groups import Table, deviation, shown

METRICS = {"auroc": "AUROC", "aupr": "AUPR", "fpr_95": "FPR at 95 % TPR"}
LOGIT_DETECTORS = ("msp", "energy", "gen")
NAMES = {
    "msp": "MSP",
    "energy": "energy",
    "gen": "GEN",
    "fdbd": "fDBD",
    "knn": "KNN",
    "mahalanobis": "Mahalanobis",
    "rmds": "RMDS",
    "vim": "ViM",
    "mutual_information": "mutual information",
}
SETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tinyimagenet": "Tiny-ImageNet",
    "svhn": "SVHN",
    "notmnist": "notMNIST",
    ERRORS: "own errors",
}
TOLERANCE = 0.2  # AUROC points by which a pair may be worse than before
KNN_TOLERANCE = 0.5

Rows = Sequence[DetectionRecord]


def context(path: Path = PATH, distributions: Path = DISTRIBUTIONS) -> dict[str, object]:
    """Return what the template of the page reads.

    Args:
        path: The file of the study's records.
        distributions: The file of the versions' records.
    """
    records = read_records(path)
    printed = read_distributions(distributions)
    fresh = [r for r in records if (r.setting, r.seed) not in DEVELOPMENT]
    return {
        "detection": records,
        "detection_networks": [_networks(records, name) for name in settings_of(records)],
        "development": [f"{_title(name)}, seed {seed}" for name, seed in DEVELOPMENT],
        "detection_summary": summary_table(fresh),
        "detection_misses": misses(fresh),
        "detection_tables": [tables_of(records, name) for name in settings_of(records)],
        "versions_table": versions_table(printed),
        "versions_numbers": numbers_table(printed),
        "versions_changes": changes_table(printed),
    }


def settings_of(records: Iterable[DetectionRecord]) -> list[str]:
    """Return the settings that have records, in the order of the study.

    Args:
        records: The records.
    """
    found = {record.setting for record in records}
    return [name for name in NETWORKS if name in found]


def summary_table(records: Rows) -> Table:
    """Return `epistemic` and the best detectors for each pair of a setting and a set.

    Args:
        records: Those of the networks that count.
    """
    header = (
        "network",
        "detects",
        "networks",
        "epistemic",
        "from logits alone",
        "best of MSP, energy and GEN",
        "fDBD",
        "KNN",
        "epistemic - best",
        "epistemic - KNN",
    )
    rows = []
    for setting in settings_of(records):
        targets = targets_of(records, setting)
        rows += [_summary_row(select(records, setting, target)) for target in targets]
    return Table(header, rows)


def misses(records: Rows) -> dict[str, int]:
    """Return how many single networks and sets miss what is asked of `epistemic`.

    Args:
        records: Those of the networks that count.
    """
    pairs = {(r.setting, r.seed, r.target) for r in records if r.target != ERRORS}
    counts = {"pairs": len(pairs), "best": 0, "knn": 0}
    for setting, seed, target in pairs:
        own = [r for r in select(records, setting, target) if r.seed == seed]
        epistemic = _mean(own, "features", "epistemic")
        best = max(_mean(own, "detector", name) for name in LOGIT_DETECTORS)
        counts["best"] += epistemic < best
        counts["knn"] += epistemic < _mean(own, "detector", "knn") - KNN_TOLERANCE / 100
    return counts


def tables_of(records: Rows, setting: str) -> dict[str, object]:
    """Return the tables of one setting, one for each metric.

    Args:
        records: All records.
        setting: The setting.
    """
    tables = [(title, metric_table(records, setting, name)) for name, title in METRICS.items()]
    return {"title": _title(setting), "tables": tables}


def metric_table(records: Rows, setting: str, metric: str) -> Table:
    """Return a metric of every score, mean and standard deviation over the networks, in %.

    Args:
        records: All records.
        setting: The setting.
        metric: A key of METRICS.
    """
    targets = targets_of(records, setting)
    rows = []
    for source, score in all_scores():
        cells = [_score_title(source, score)]
        for target in targets:
            own = select(records, setting, target)
            values = [getattr(r, metric) for r in own if (r.source, r.score) == (source, score)]
            cells.append(_shown([100 * value for value in values]))
        rows.append(cells)
    return Table(("score", *[SETS[target] for target in targets]), rows)


def versions_table(records: Sequence[DistributionRecord]) -> Table:
    """Return the mean AUROC of `epistemic` with each version of the sources.

    Args:
        records: The versions' records.
    """
    versions = versions_of(records)
    rows = []
    for setting, source, target in _version_groups(records):
        own = [r for r in records if (r.setting, r.source) == (setting, source)]
        cells = [_title(setting), source, SETS[target]]
        for version in versions:
            values = [r.auroc[target] for r in own if r.version == version]
            cells.append(_shown(values))
        rows.append(cells)
    return Table(("network", "from", "detects", *versions), rows)


def numbers_table(records: Sequence[DistributionRecord]) -> Table:
    """Return violations and rank correlations with each version of the sources.

    Args:
        records: The versions' records.
    """
    rows = []
    for setting in dict.fromkeys(r.setting for r in records):
        for source in SOURCES:
            for version in versions_of(records):
                found = [
                    r
                    for r in records
                    if (r.setting, r.source, r.version) == (setting, source, version)
                ]
                violations = ", ".join(str(r.violations) for r in found)
                ranks = ", ".join(f"{r.rank:.3f}" for r in found)
                rows.append([_title(setting), source, version, violations, ranks])
    return Table(("network", "from", "version", "violations", "rank correlation"), rows)


def changes_table(records: Sequence[DistributionRecord]) -> Table:
    """Return how the AUROC changed from the first version to each later one.

    Args:
        records: The versions' records.
    """
    first, *later = versions_of(records) or [""]
    header = ("version", "from", "detects", "pairs", "mean change", "worst", "worse by over 0.2")
    rows = []
    for version in later:
        for source in [name for name in SOURCES if any(r.source == name for r in records)]:
            for title, errors in (("OOD", False), ("own errors", True)):
                changes = _changes(records, (first, version), source, errors)
                n_worse = sum(change < -TOLERANCE for change in changes)
                mean = statistics.mean(changes)
                cells = [f"{len(changes)}", f"{mean:+.2f}", f"{min(changes):+.2f}", f"{n_worse}"]
                rows.append([version, source, title, *cells])
    return Table(header, rows)


def versions_of(records: Iterable[DistributionRecord]) -> list[str]:
    """Return the versions of the sources, in the order of the records.

    Args:
        records: The versions' records.
    """
    return list(dict.fromkeys(record.version for record in records))


def targets_of(records: Iterable[DetectionRecord], setting: str) -> list[str]:
    """Return what the networks of a setting detect, in the order of SETS.

    Args:
        records: The records.
        setting: The setting.
    """
    found = {record.target for record in records if record.setting == setting}
    return [target for target in SETS if target in found]


def select(records: Iterable[DetectionRecord], setting: str, target: str) -> list[DetectionRecord]:
    """Return the records of a setting and a target.

    Args:
        records: The records.
        setting: The setting.
        target: The set to detect.
    """
    return [r for r in records if (r.setting, r.target) == (setting, target)]


def all_scores() -> list[tuple[str, str]]:
    """Return source and name of each score, in the order of the tables."""
    own = [(source, score) for source in SOURCES for score in SCORES]
    return own + [("detector", score) for score in DETECTORS]


def _summary_row(own: Rows) -> list[str]:
    first = own[0]
    best = max(LOGIT_DETECTORS, key=lambda name: _mean(own, "detector", name))
    epistemic = _mean(own, "features", "epistemic")
    to_best = 100 * (epistemic - _mean(own, "detector", best))
    to_knn = 100 * (epistemic - _mean(own, "detector", "knn"))
    cells = [
        f"{100 * _mean(own, source, score):.2f}"
        for source, score in (
            ("features", "epistemic"),
            ("logits", "epistemic"),
            ("detector", best),
            ("detector", "fdbd"),
            ("detector", "knn"),
        )
    ]
    cells[2] += f" ({NAMES[best]})"
    n = len({record.seed for record in own})
    title = [_title(first.setting), SETS[first.target], str(n)]
    return [*title, *cells, f"{to_best:+.2f}", f"{to_knn:+.2f}"]


def _changes(
    records: Iterable[DistributionRecord], versions: tuple[str, str], source: str, errors: bool
) -> list[float]:
    found: dict[str, dict[tuple[str, int, str], float]] = {version: {} for version in versions}
    for record in records:
        if record.source == source and record.version in versions:
            for target, value in record.auroc.items():
                if (target == ERRORS) == errors:
                    found[record.version][record.setting, record.seed, target] = value
    before, after = (found[version] for version in versions)
    return [after[key] - before[key] for key in before]


def _version_groups(records: Sequence[DistributionRecord]) -> list[tuple[str, str, str]]:
    groups = []
    for setting in dict.fromkeys(record.setting for record in records):
        for source in SOURCES:
            found = {target for r in records if r.setting == setting for target in r.auroc}
            groups += [(setting, source, target) for target in SETS if target in found]
    return groups


def _networks(records: Rows, setting: str) -> str:
    n = len({record.seed for record in records if record.setting == setting})
    kind = NETWORKS[setting].setting
    return f"{n} of {_title(setting)} ({kind.epochs} epochs)"


def _mean(own: Rows, source: str, score: str) -> float:
    return statistics.mean(r.auroc for r in own if (r.source, r.score) == (source, score))


def _shown(values: Sequence[float]) -> str:
    if not values:
        return ""
    return shown(Number(statistics.mean(values), deviation(values)))


def _score_title(source: str, score: str) -> str:
    name = NAMES.get(score, score)
    if source == "detector":
        return name
    return f"{name}, from {source}"


def _title(setting: str) -> str:
    return NETWORKS[setting].setting.title
