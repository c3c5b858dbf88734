"""What the study records: one line for each network, set to detect, source and score."""

from dataclasses import dataclass
from pathlib import Path

from experiments.config.run_config import RESULTS
from experiments.running.records import JsonObject, read_lines

PATH = RESULTS / "detection" / "detection.jsonl"
DISTRIBUTIONS = RESULTS / "detection" / "one-distribution.jsonl"


@dataclass(frozen=True)
class DetectionRecord(JsonObject):
    """How well one score of one network detects one set of inputs, which is positive.

    Args:
        setting: Data set and architecture of the network.
        seed: Its seed.
        target: The out-of-distribution set, or "errors" for the network's own errors.
        n_in: Inputs that are not to be detected.
        n_out: Inputs that are.
        source: "features" or "logits", from which STS was fitted, or "detector".
        score: Name of the score.
        auroc: Area under the ROC curve.
        aupr: Average precision.
        fpr_95: False-positive rate at a true-positive rate of 95 %.
    """

    setting: str
    seed: int
    target: str
    n_in: int
    n_out: int
    source: str
    score: str
    auroc: float
    aupr: float
    fpr_95: float


@dataclass(frozen=True)
class DistributionRecord(JsonObject):
    """What ``benchmarks/one_distribution.py --json`` prints for one network, and of which sources.

    Args:
        version: The sources: "two distributions", "one distribution" or "with the distance".
        setting: Data set and architecture of the network.
        seed: Its seed.
        source: "features" or "logits".
        violations: Inputs with aleatoric < 0 or aleatoric > H(probs).
        rank: Rank correlation of `epistemic` between two seeds of the fit.
        auroc: AUROC of `epistemic` in %, for "errors" and each out-of-distribution set.
    """

    version: str
    setting: str
    seed: int
    source: str
    violations: int
    rank: float
    auroc: dict[str, float]


def read_records(path: Path = PATH) -> list[DetectionRecord]:
    """Return the records of a file; none if there is no file.

    Args:
        path: The file.
    """
    return [DetectionRecord.from_json(value, str(path)) for value in read_lines(path)]


def read_distributions(path: Path = DISTRIBUTIONS) -> list[DistributionRecord]:
    """Return the records of a file; none if there is no file.

    Args:
        path: The file.
    """
    return [DistributionRecord.from_json(value, str(path)) for value in read_lines(path)]
