"""What the study of the normalisation of mixed images records, and the files of the records."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.running.records import (
    JsonObject,
    Mixup,
    OodMetrics,
    SplitMetrics,
    Training,
    Versions,
)
from simplexcal.io._atomic import atomic_write

STUDY = "normalisation"  # the folder of the records


@dataclass(frozen=True)
class OodDetection(JsonObject):
    """How well one data set is detected.

    Args:
        ood_set: The out-of-distribution data set.
        metrics: How well each score detects it.
    """

    ood_set: str
    metrics: OodMetrics


@dataclass(frozen=True)
class NormalisationBeta(JsonObject):
    """One β of one mode.

    Args:
        beta: The Dirichlet concentration.
        accuracy: The network's accuracy on the test split, as it is evaluated.
        changed: The share of predictions on the test split that differ from those before.
        calibration: Metrics on the calibration split.
        test: Metrics on the test split.
        ood: How well each out-of-distribution data set is detected.
    """

    beta: float
    accuracy: float
    changed: float
    calibration: SplitMetrics
    test: SplitMetrics
    ood: list[OodDetection]


@dataclass(frozen=True)
class NormalisationRecord(JsonObject):
    """One network and one mode, with every β.

    Args:
        setting: The setting.
        seed: The network's seed, and that of the fit.
        mode: How mixed images, and then images, are normalised: "frozen", "batch" or "moving".
        calibrator_settings: The calibrator's settings.
        mixup: The mixup samples.
        moving_batches: The batches of mixup samples that moved the statistics, if any did.
        mixup_dtype: In what mixed images went through the network.
        training: How the network was trained.
        dry_run: Whether this is no result.
        versions: Versions of what was used.
        device: Where the calibrator was fitted.
        seconds: The time of the fit; that of "moving" is the fit of "batch".
        accuracy: The network's accuracy on the test split before calibration.
        betas: Every β.
        beta: The β that the calibration split chooses, by the smallest ECE.
    """

    setting: str
    seed: int
    mode: str
    calibrator_settings: dict[str, Any]
    mixup: Mixup
    moving_batches: int | None
    mixup_dtype: str
    training: Training
    dry_run: bool
    versions: Versions
    device: str
    seconds: float
    accuracy: float
    betas: list[NormalisationBeta]
    beta: float | None

    @property
    def n_steps(self) -> int:
        """Steps of the branch."""
        return int(self.calibrator_settings["n_steps"])

    @property
    def key(self) -> tuple[int, int, str]:
        """What tells the record apart from others of its setting."""
        return self.seed, self.n_steps, self.mode

    @property
    def chosen(self) -> NormalisationBeta | None:
        """What is recorded of the β that the calibration split chooses."""
        for one in self.betas:
            if one.beta == self.beta:
                return one
        return None


def read_records(folder: Path, setting: str) -> list[NormalisationRecord]:
    """Return the records of a setting, or none if there is no file.

    Args:
        folder: The folder of all studies.
        setting: The setting.
    """
    path = _path(folder, setting)
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        where = f"'{path}', line {number}"
        records.append(NormalisationRecord.from_json(json.loads(line), where))
    return records


def write_record(folder: Path, record: NormalisationRecord) -> None:
    """Add a record, or replace the one with the same seed, mode and number of steps.

    Args:
        folder: The folder of all studies.
        record: The record.
    """
    known = {one.key: one for one in read_records(folder, record.setting)}
    known[record.key] = record
    lines = [json.dumps(known[key].to_json(), allow_nan=False) + "\n" for key in sorted(known)]
    path = _path(folder, record.setting)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, "".join(lines).encode())


def _path(folder: Path, setting: str) -> Path:
    return folder / STUDY / f"{setting}.jsonl"
