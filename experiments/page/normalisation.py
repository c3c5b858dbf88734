"""How mixed images are normalised: frozen, batch and moving statistics."""

from pathlib import Path

from experiments.config.methods import POOL_SIZE
from experiments.config.paper import OOD, OOD_COLUMNS, TABLE1, Number
from experiments.config.run_config import RESULTS
from experiments.config.settings import SETTINGS
from experiments.page.groups import Table, known, shown
from experiments.running.normalisation_records import (
    NormalisationBeta,
    NormalisationRecord,
    read_records,
)
from experiments.running.normalisation_study import N_STEPS, OOD_SETS
from experiments.running.records import OodMetrics

MODES = ("frozen", "batch", "moving")
FEWER_STEPS = 6000
MARGIN = "0.001"  # of the samples of the estimated differential entropy
PAPER_SCORE = OOD_COLUMNS.index("sts-paper, differential entropy")

Modes = dict[str, NormalisationRecord]  # of one network


def context(folder: Path = RESULTS) -> dict[str, object]:
    """Return what the template of this page reads.

    Args:
        folder: The folder of the records.
    """
    networks = read_networks(folder)
    shorter = read_networks(folder, FEWER_STEPS)
    grids = {SETTINGS[setting].title: grid_table(modes) for setting, modes in networks.items()}
    return {
        "networks": networks,
        "n_steps": _spaced(N_STEPS),
        "pool_size": _spaced(POOL_SIZE),
        "n_networks": len(networks),
        "chosen_table": chosen_table(networks),
        "detection_table": detection_table(networks),
        "best_table": best_table(networks),
        "steps_table": steps_table(networks, shorter),
        "steps_differences": steps_differences(networks, shorter),
        "grids": grids,
        "lower_ece": _titles_with_lower_ece(networks, "batch", "frozen"),
        "higher_ece": _titles_with_lower_ece(networks, "frozen", "batch"),
        "n_above_paper": _count_above_paper(networks),
        "detections": _compare_detections(networks),
        "lost_accuracy": _lost_accuracy(networks),
        "svhn": _svhn_estimates(networks),
    }


def read_networks(folder: Path, n_steps: int = N_STEPS) -> dict[str, Modes]:
    """Return the records of each setting whose first seed has all three modes.

    Args:
        folder: The folder of the records.
        n_steps: Steps of the branch.

    Raises:
        ValueError: If a record is of a dry run.
    """
    networks = {}
    for setting in OOD_SETS:
        modes: Modes = {}
        for record in read_records(folder, setting):
            if record.dry_run:
                raise ValueError(f"A record of {setting} is of a dry run. Remove it.")
            if record.n_steps == n_steps:
                modes.setdefault(record.mode, record)
        if set(modes) == set(MODES):
            networks[setting] = modes
    return networks


def chosen_table(networks: dict[str, Modes]) -> Table:
    """Return accuracy and ECE at the β that the calibration split chooses.

    Args:
        networks: The records of each setting and mode.
    """
    rows = []
    for setting, modes in networks.items():
        for mode in MODES:
            record = modes[mode]
            chosen = _chosen(record)
            row = [
                SETTINGS[setting].title,
                mode,
                f"{chosen.beta:g}",
                _percent(record.accuracy),
                _percent(chosen.accuracy),
                _percent(chosen.changed),
                _percent(chosen.test.ece),
                shown(TABLE1[setting]["sts-paper"]),
            ]
            rows.append(row)
    header = (
        "setting",
        "mode",
        "β",
        "accuracy before %",
        "after %",
        "predictions changed %",
        "ECE %",
        "paper's ECE %",
    )
    return Table(header, rows)


def detection_table(networks: dict[str, Modes]) -> Table:
    """Return the AUROC of the scores at the β that the calibration split chooses.

    Args:
        networks: The records of each setting and mode.
    """
    rows = []
    for setting, modes in networks.items():
        for ood_set in OOD_SETS[setting]:
            for mode in MODES:
                chosen = _chosen(modes[mode])
                row = [f"{SETTINGS[setting].title}, {ood_set}", mode, f"{chosen.beta:g}"]
                rows.append(row + _detection_cells(setting, ood_set, chosen))
    header = (
        "set",
        "mode",
        "β",
        "differential entropy",
        "30 samples",
        f"30 samples, margin {MARGIN}",
        "paper's",
        "expected entropy",
        "mutual information",
        "confidence",
    )
    return Table(header, rows)


def _detection_cells(setting: str, ood_set: str, chosen: NormalisationBeta) -> list[str]:
    metrics = _metrics(chosen, ood_set)
    sampled = metrics.sampled_entropy_auroc or {}
    return [
        _percent(metrics.epistemic_auroc),
        _percent(sampled.get("0")),
        _percent(sampled.get(MARGIN)),
        _paper_cell(setting, ood_set),
        _percent(metrics.aleatoric_auroc),
        _percent(metrics.mutual_information_auroc),
        _percent(metrics.confidence_auroc),
    ]


def grid_table(modes: Modes) -> Table:
    """Return ECE, accuracy and the AUROC of the differential entropy for every β.

    Args:
        modes: The record of each mode.
    """
    frozen = modes["frozen"]
    ood_sets = [detection.ood_set for detection in frozen.betas[0].ood]
    header = ["β"]
    header += [f"ECE %, {mode}" for mode in MODES]
    header += ["accuracy %, moving", "changed %, moving"]
    header += [f"{ood_set}, {mode}" for ood_set in ood_sets for mode in MODES]
    rows = []
    for i, one in enumerate(frozen.betas):
        found = {mode: modes[mode].betas[i] for mode in MODES}
        row = [f"{one.beta:g}"]
        row += [_percent(found[mode].test.ece) for mode in MODES]
        row += [_percent(found["moving"].accuracy), _percent(found["moving"].changed)]
        for ood_set in ood_sets:
            row += [_percent(_entropy_auroc(found[mode], ood_set)) for mode in MODES]
        rows.append(row)
    return Table(tuple(header), rows)


def best_table(networks: dict[str, Modes]) -> Table:
    """Return the β whose differential entropy detects best, with its AUROC and ECE.

    Args:
        networks: The records of each setting and mode.
    """
    rows = []
    for setting, modes in networks.items():
        for ood_set in OOD_SETS[setting]:
            row = [f"{SETTINGS[setting].title}, {ood_set}"]
            row += _best_cells(modes["frozen"], ood_set)
            row += _best_cells(modes["batch"], ood_set)
            rows.append(row)
    columns = ("frozen: β", "AUROC %", "ECE %", "batch: β", "AUROC %", "ECE %")
    return Table(("set", *columns), rows)


def _best_cells(record: NormalisationRecord, ood_set: str) -> list[str]:
    best = max(record.betas, key=lambda one: _entropy_auroc(one, ood_set))
    return [f"{best.beta:g}", _percent(_entropy_auroc(best, ood_set)), _percent(best.test.ece)]


def steps_table(networks: dict[str, Modes], shorter: dict[str, Modes]) -> Table:
    """Return what fewer steps of the branch change at the chosen β.

    Args:
        networks: The records of each setting and mode.
        shorter: Those with fewer steps.
    """
    rows = []
    for setting, modes in shorter.items():
        for ood_set in OOD_SETS[setting]:
            for mode in MODES:
                row = [f"{SETTINGS[setting].title}, {ood_set}", mode]
                row += _steps_cells(networks[setting][mode], ood_set)
                row += _steps_cells(modes[mode], ood_set)
                rows.append(row)
    header = ["set", "mode"]
    for n_steps in (N_STEPS, FEWER_STEPS):
        header += [f"{_spaced(n_steps)} steps: β", "ECE %", "AUROC %"]
    return Table(header, rows)


def _steps_cells(record: NormalisationRecord, ood_set: str) -> list[str]:
    chosen = _chosen(record)
    return [
        f"{chosen.beta:g}",
        _percent(chosen.test.ece),
        _percent(_entropy_auroc(chosen, ood_set)),
    ]


def steps_differences(networks: dict[str, Modes], shorter: dict[str, Modes]) -> dict[str, str]:
    """Return the largest differences between the numbers of steps, in percentage points.

    Args:
        networks: The records of each setting and mode.
        shorter: Those with fewer steps.
    """
    errors = [0.0]
    areas = [0.0]
    for setting, modes in shorter.items():
        for mode, record in modes.items():
            longer = networks[setting][mode]
            errors.append(abs(_chosen_ece(longer) - _chosen_ece(record)))
            for ood_set in OOD_SETS[setting]:
                before = _entropy_auroc(_chosen(longer), ood_set)
                areas.append(abs(before - _entropy_auroc(_chosen(record), ood_set)))
    return {"ece": _percent(max(errors)), "auroc": _percent(max(areas))}


def _titles_with_lower_ece(networks: dict[str, Modes], mode: str, other: str) -> list[str]:
    """Return the settings whose ECE at the chosen β is lower in one mode than in the other."""
    titles = []
    for setting, modes in networks.items():
        if _chosen_ece(modes[mode]) < _chosen_ece(modes[other]):
            titles.append(SETTINGS[setting].title)
    return titles


def _count_above_paper(networks: dict[str, Modes]) -> int:
    """Return in how many settings the ECE with batch statistics is above the paper's mean."""
    above = 0
    for setting, modes in networks.items():
        if 100 * _chosen_ece(modes["batch"]) > TABLE1[setting]["sts-paper"].mean:
            above += 1
    return above


def _svhn_estimates(networks: dict[str, Modes]) -> dict[str, str]:
    """Return the AUROC of the estimate with a margin, CIFAR-10's ResNet-18 against SVHN."""
    setting = "cifar10-resnet18"
    if setting not in networks:
        return {}
    found = {"paper": _paper_cell(setting, "svhn")}
    for mode, record in networks[setting].items():
        sampled = _metrics(_chosen(record), "svhn").sampled_entropy_auroc or {}
        found[mode] = _percent(sampled.get(MARGIN))
    return found


def _compare_detections(networks: dict[str, Modes]) -> dict[str, int]:
    """Return how often the differential entropy detects better with batch statistics."""
    counts = {"n": 0, "better": 0}
    for setting, modes in networks.items():
        for ood_set in OOD_SETS[setting]:
            frozen = _entropy_auroc(_chosen(modes["frozen"]), ood_set)
            batch = _entropy_auroc(_chosen(modes["batch"]), ood_set)
            counts["n"] += 1
            if batch > frozen:
                counts["better"] += 1
    return counts


def _lost_accuracy(networks: dict[str, Modes]) -> dict[str, str]:
    """Return the least and the most accuracy that moving statistics cost, over every β."""
    lost = []
    for modes in networks.values():
        record = modes["moving"]
        lost += [100 * (record.accuracy - one.accuracy) for one in record.betas]
    if not lost:
        return {}
    return {"least": f"{min(lost):.1f}", "most": f"{max(lost):.1f}"}


def _spaced(number: int) -> str:
    """Return a number with spaces between the thousands."""
    return f"{number:,}".replace(",", " ")


def _chosen(record: NormalisationRecord) -> NormalisationBeta:
    chosen = record.chosen
    if chosen is None:
        raise ValueError(f"No β of {record.setting}, {record.mode}, has a finite ECE.")
    return chosen


def _chosen_ece(record: NormalisationRecord) -> float:
    return known(_chosen(record).test.ece)


def _metrics(one: NormalisationBeta, ood_set: str) -> OodMetrics:
    return next(detection.metrics for detection in one.ood if detection.ood_set == ood_set)


def _entropy_auroc(one: NormalisationBeta, ood_set: str) -> float:
    return known(_metrics(one, ood_set).epistemic_auroc)


def _paper_cell(setting: str, ood_set: str) -> str:
    if (setting, ood_set) not in OOD:
        return ""
    return shown(Number(*OOD[setting, ood_set]["auroc"][PAPER_SCORE]))


def _percent(value: float | None) -> str:
    return f"{100 * known(value):.2f}"
