"""What the comparison records: one line for each classifier, method and calibration size."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from experiments.config.run_config import RESULTS
from experiments.running.records import JsonObject, read_lines, write_lines

PATH = RESULTS / "rivals" / "rivals.jsonl"
NETWORKS_PATH = PATH.with_name("networks.jsonl")
FLOORS_PATH = PATH.with_name("floors.jsonl")
# The same with the default before the precisions of its head had a prior, on other networks.
EARLIER_NETWORKS_PATH = PATH.with_name("networks-before-prior.jsonl")
EARLIER_FLOORS_PATH = PATH.with_name("floors-before-prior.jsonl")


@dataclass(frozen=True)
class Difference(JsonObject):
    """A method's score minus that of STS on the same inputs.

    Args:
        mean: The mean over inputs and splits.
        low: Lower end of the 95 % interval of a paired bootstrap over inputs.
        high: Upper end.
    """

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class RivalRecord(JsonObject):
    """A method on one classifier, with one number of inputs to calibrate with.

    Scores are means over the splits. They are None where the method failed.

    Args:
        case: Name of the classifier.
        group: Table in which it is.
        n_classes: K.
        package: Name of the package.
        method: Name of the method.
        n: Number of inputs to calibrate with.
        n_splits: Number of splits.
        n_test: Number of inputs that evaluate, in each split.
        failures: What the method raised, by split, without repeats.
        accuracy: Share of correct predictions.
        nll: Negative log-likelihood.
        brier: Brier score.
        ece: Expected calibration error, 15 bins of equal width.
        smooth_ece: Smooth calibration error.
        changed: Share of predictions that are not the classifier's own.
        fit_seconds: CPU time of the fit in the first split, with one thread.
        predict_seconds: CPU time to predict the inputs that evaluate there.
        nll_difference: Of the NLL.
        brier_difference: Of the Brier score.
        versions: Versions of the packages and of Python.
    """

    case: str
    group: str
    n_classes: int
    package: str
    method: str
    n: int
    n_splits: int
    n_test: int
    failures: list[str]
    accuracy: float | None
    nll: float | None
    brier: float | None
    ece: float | None
    smooth_ece: float | None
    changed: float | None
    fit_seconds: float | None
    predict_seconds: float | None
    nll_difference: Difference | None
    brier_difference: Difference | None
    versions: dict[str, str]


@dataclass(frozen=True)
class FloorRecord(JsonObject):
    """The ECE of a method beside its noise floor, in each split.

    Args:
        case: Name of the classifier.
        method: Name of the method.
        n: Number of inputs to calibrate with.
        ece: Expected calibration error, 15 bins of equal width.
        floor_95: 95 % quantile of the ECE of a calibrated model with the same confidences.
    """

    case: str
    method: str
    n: int
    ece: list[float]
    floor_95: list[float]


def read_floors(path: Path = FLOORS_PATH) -> list[FloorRecord]:
    """Return the records of a file; none if there is no file.

    Args:
        path: The file.
    """
    return [FloorRecord.from_json(line, str(path)) for line in read_lines(path)]


def read_records(path: Path = PATH) -> list[RivalRecord]:
    """Return the records of a file; none if there is no file.

    Args:
        path: The file.
    """
    return [RivalRecord.from_json(line, str(path)) for line in read_lines(path)]


def write_records(records: Iterable[RivalRecord | FloorRecord], path: Path = PATH) -> None:
    """Write records, one a line.

    Args:
        records: The records.
        path: The file.
    """
    write_lines(records, path)
