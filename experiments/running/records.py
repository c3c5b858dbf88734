"""What a job records, and the files of the records: one line each, one file a study and setting.

A record that has a key too many or too few is rejected. A null stands where nothing was measured,
or where an earlier version did not record it.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, Self, get_args, get_origin, get_type_hints

from simplexcal.io._atomic import atomic_write

SCHEMA_VERSION = 3


class JsonObject:
    """A dataclass that is a JSON object with exactly its fields as keys."""

    @classmethod
    def from_json(cls, value: Any, where: str) -> Self:
        """Return what a decoded JSON object holds.

        Args:
            value: The decoded object.
            where: Its place, for error messages.

        Raises:
            ValueError: If a key is unknown or missing, or a null stands where none may.
        """
        if not isinstance(value, dict):
            raise ValueError(f"{where} must be a JSON object; got {value!r}.")  # noqa: TRY004
        types = _field_types(cls)  # type: ignore[arg-type]  # A class is hashable.
        unknown = sorted(set(value) - set(types))
        if unknown:
            raise ValueError(f"{where} has unknown keys: {', '.join(unknown)}.")
        missing = [key for key in types if key not in value]
        if missing:
            raise ValueError(f"{where} lacks keys: {', '.join(missing)}.")
        decoded = {key: _decode(types[key], value[key], f"{where}, {key}") for key in types}
        return cls(**decoded)

    def to_json(self) -> dict[str, Any]:
        """Return the object as ``json.dumps`` takes it."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]


def read_lines(path: Path) -> list[Any]:
    """Return the decoded lines of a file; none if there is no file.

    Args:
        path: The file.
    """
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(records: Iterable[JsonObject], path: Path) -> None:
    """Write records, one a line.

    Args:
        records: The records.
        path: The file.
    """
    text = "".join(f"{json.dumps(record.to_json())}\n" for record in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, text.encode())


@cache
def _field_types(kind: type[JsonObject]) -> dict[str, Any]:
    return get_type_hints(kind)


def _decode(kind: Any, value: Any, where: str) -> Any:
    """Return a decoded value as the type hint of its field says."""
    options = get_args(kind) or (kind,)
    if value is None:
        if NoneType not in options:
            raise ValueError(f"{where} must not be null.")
        return None
    if get_origin(kind) is list:
        return [_decode(options[0], item, where) for item in value]
    for option in options:
        if get_origin(option) is list:
            return _decode(option, value, where)
        if isinstance(option, type) and issubclass(option, JsonObject):
            return option.from_json(value, where)
    return value


@dataclass(frozen=True)
class Augmentation(JsonObject):
    """The training's augmentation: see ``experiments.config.settings.Augmentation``."""

    padding: int
    side: int | None
    flip: bool


@dataclass(frozen=True)
class Training(JsonObject):
    """How the network was trained.

    Args:
        epochs: Passes through the training images.
        augmentation: What was done to the images.
        concurrent: How many networks trained concurrently.
        settings: Their settings.
        compiled: Whether the networks were compiled.
        seconds: The time of the training.
        device: Where it ran.
    """

    epochs: int
    augmentation: Augmentation
    concurrent: int
    settings: list[str] | None
    compiled: bool | None
    seconds: float
    device: str


@dataclass(frozen=True)
class Mixup(JsonObject):
    """The mixup samples: see ``experiments.config.methods.MixupScheme``."""

    kind: str
    per_class: int
    n_shuffles: int
    weights_per_sample: bool


@dataclass(frozen=True)
class Versions(JsonObject):
    """Versions of what was used."""

    simplexcal: str
    torch: str
    python: str


@dataclass(frozen=True)
class Timings(JsonObject):
    """Seconds.

    Args:
        pretraining: Of the network's training.
        outputs: Of the network on the test split.
        calibration: Of the fit; None if the calibrator came from the cache.
        prediction: Of the calibrator on the test split.
    """

    pretraining: float
    outputs: float
    calibration: float | None
    prediction: float


@dataclass(frozen=True)
class Metrics(JsonObject):
    """What ``simplexcal.evaluation.evaluate`` returns on the test split; None if not finite."""

    n: int
    n_classes: int
    accuracy: float
    confidence: float | None
    nll: float | None
    brier: float | None
    brier_calibration: float | None
    brier_refinement: float | None
    ece: float | None
    ece_floor: float | None
    ece_floor_95: float | None
    ece_low: float | None
    ece_high: float | None
    adaptive_ece: float | None
    classwise_ece: float | None
    mce: float | None
    rms_ce: float | None
    smooth_ece: float | None
    aurc: float | None
    aleatoric: float | None
    epistemic: float | None


@dataclass(frozen=True)
class SplitMetrics(JsonObject):
    """Three metrics on one split; None if not finite or not recorded.

    Args:
        ece: The expected calibration error.
        nll: The negative log-likelihood.
        overconfidence: Mean confidence minus accuracy.
    """

    ece: float | None
    nll: float | None
    overconfidence: float | None


@dataclass(frozen=True)
class BetaMetrics(JsonObject):
    """Metrics of one β of a fit that tried several.

    Args:
        beta: The Dirichlet concentration.
        calibration: On the calibration split.
        test: On the test split.
    """

    beta: float
    calibration: SplitMetrics
    test: SplitMetrics


@dataclass(frozen=True)
class Bins(JsonObject):
    """The bins of the reliability diagram.

    Args:
        edges: Their edges, one more than there are bins.
        count: Inputs in each.
        confidence: Mean confidence in each; None for an empty bin.
        accuracy: Accuracy in each; None for an empty bin.
    """

    edges: list[float]
    count: list[int]
    confidence: list[float | None]
    accuracy: list[float | None]


@dataclass(frozen=True)
class SampledMetrics(JsonObject):
    """Metrics of the mean of 30 samples, the paper's estimate of the probabilities.

    Args:
        ece: The expected calibration error.
        accuracy: The share of correct labels.
        changed: The share of labels that differ from the network's.
    """

    ece: float
    accuracy: float
    changed: float


@dataclass(frozen=True)
class OodMetrics(JsonObject):
    """How well each score detects out-of-distribution inputs.

    ``sampled_entropy_auroc`` has the AUROC of the entropy estimated from samples, by margin.
    """

    n_in: int
    n_out: int
    confidence_auroc: float | None
    confidence_aupr: float | None
    confidence_fpr_95: float | None
    aleatoric_auroc: float | None
    aleatoric_aupr: float | None
    aleatoric_fpr_95: float | None
    epistemic_auroc: float | None
    epistemic_aupr: float | None
    epistemic_fpr_95: float | None
    mutual_information_auroc: float | None
    mutual_information_aupr: float | None
    mutual_information_fpr_95: float | None
    energy_auroc: float | None
    energy_aupr: float | None
    energy_fpr_95: float | None
    sampled_entropy_auroc: dict[str, float] | None

    def score(self, score: str, metric: str) -> float | None:
        """Return a metric of a score, or None if there is none.

        Args:
            score: "confidence", "energy" or the name of an uncertainty.
            metric: "auroc", "aupr" or "fpr_95".
        """
        value: float | None = getattr(self, f"{score}_{metric}")
        return value


class RecordKey(NamedTuple):
    """What tells the records of one file apart; files are sorted by it.

    Args:
        method: The method.
        seed: The network's seed.
        ood_set: The out-of-distribution data set, or "".
    """

    method: str
    seed: int
    ood_set: str


@dataclass(frozen=True)
class Record(JsonObject):
    """One fit of one method to one network, and its evaluation.

    Args:
        schema_version: The version of these keys.
        study: The study.
        setting: The setting.
        network: The network's architecture.
        seed: The network's seed, and that of the fit.
        method: The method.
        ood_set: The out-of-distribution data set, if one was to be detected.
        calibrator: The calibrator's class.
        calibrator_settings: The calibrator's settings.
        mixup: The mixup samples, if there were any.
        mixup_dtype: In what mixed images went through the network, if there were any.
        n_calibration: The number of images to calibrate with, if not all.
        swapped: Whether calibration and test split were swapped.
        beta: The β that was chosen, if there is one.
        training: How the network was trained.
        dry_run: Whether this is no result.
        versions: Versions of what was used.
        device: Where the calibrator was fitted.
        tf32: Whether products were computed in TF32.
        threads: Threads of torch.
        cores: Cores of the machine.
        timings: Seconds.
        n_timed: Inputs in the test split, for which ``timings`` are.
        accuracy: The network's accuracy on the test split.
        labels_preserved: Whether each label is the network's and has the largest probability.
        metrics: Metrics on the test split.
        calibration: Metrics on the calibration split.
        bins: The reliability diagram on the test split.
        betas: Metrics of each β, if several were tried.
        sampled: Metrics of the paper's estimate of the probabilities, if there is one.
        ood: How well ``ood_set`` was detected.
    """

    schema_version: int
    study: str
    setting: str
    network: str
    seed: int
    method: str
    ood_set: str | None
    calibrator: str
    calibrator_settings: dict[str, Any]
    mixup: Mixup | None
    mixup_dtype: str | None
    n_calibration: int | None
    swapped: bool | None
    beta: float | None
    training: Training
    dry_run: bool
    versions: Versions
    device: str
    tf32: bool | None
    threads: int
    cores: int | None
    timings: Timings
    n_timed: int
    accuracy: float
    labels_preserved: bool
    metrics: Metrics
    calibration: SplitMetrics
    bins: Bins
    betas: list[BetaMetrics] | None
    sampled: SampledMetrics | None
    ood: OodMetrics | None

    @property
    def key(self) -> RecordKey:
        """What tells the record apart from others of its study and setting."""
        return RecordKey(self.method, self.seed, self.ood_set or "")


def parse_line(line: str, where: str) -> Record:
    """Return the record in a line of a file.

    Args:
        line: The line.
        where: Its place, for error messages.

    Raises:
        ValueError: If the line is no record of this schema version.
    """
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is no JSON: {error}.") from error
    version = None
    if isinstance(value, dict):
        version = value.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ValueError(
            f"{where} has schema version {version}; this code reads version {SCHEMA_VERSION}."
        )
    return Record.from_json(value, where)


def format_line(record: Record) -> str:
    """Return the line of a record.

    Args:
        record: The record.

    Raises:
        ValueError: If a number is not finite.
    """
    return json.dumps(record.to_json(), allow_nan=False) + "\n"


@dataclass(frozen=True)
class RecordStore:
    """The files of the records, FOLDER/STUDY/SETTING.jsonl.

    Args:
        folder: The folder of all studies.
    """

    folder: Path

    def path(self, study: str, setting: str) -> Path:
        """Return the file of a study and setting.

        Args:
            study: The study.
            setting: The setting.
        """
        return self.folder / study / f"{setting}.jsonl"

    def read(self, study: str, setting: str) -> list[Record]:
        """Return the records of a study and setting, or none if there is no file.

        Args:
            study: The study.
            setting: The setting.
        """
        path = self.path(study, setting)
        if not path.exists():
            return []
        lines = path.read_text().splitlines()
        return [parse_line(line, f"'{path}', line {i}") for i, line in enumerate(lines, 1)]

    def read_study(self, study: str) -> list[Record]:
        """Return all records of a study.

        Args:
            study: The study.
        """
        records = []
        for path in sorted((self.folder / study).glob("*.jsonl")):
            records += self.read(study, path.stem)
        return records

    def write(self, *records: Record) -> None:
        """Add records of one study and setting, or replace those with the same key.

        The file is there whole or not at all, also when several processes write to it.

        Args:
            records: The records.
        """
        first = records[0]
        path = self.path(first.study, first.setting)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent):
            known = {record.key: record for record in self.read(first.study, first.setting)}
            known.update({record.key: record for record in records})
            lines = [format_line(known[key]) for key in sorted(known)]
            atomic_write(path, "".join(lines).encode())


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder, and remove what interrupted writes left in it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for part in folder.glob("*.part"):
            part.unlink()
        yield
    finally:
        os.close(descriptor)  # This releases the lock.
