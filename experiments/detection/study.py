"""The study: one half of the test images fits STS, the other half is in-distribution."""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Generator, Tensor

import simplexcal as sc
from experiments.detection.networks import NetworkOutputs
from experiments.detection.records import DetectionRecord
from simplexcal import metrics
from simplexcal.demo.fashion_mnist import calibration_test_split
from simplexcal.types import Prediction

ERRORS = "errors"
SOURCES = ("features", "logits")
UNCERTAINTIES = ("aleatoric", "epistemic", "mutual_information")
SCORES = ("confidence", *UNCERTAINTIES)
DETECTORS = ("msp", "energy", "gen", "fdbd", "knn", "mahalanobis", "rmds", "vim")

# The distance term of λ was chosen with these networks; they count no evidence for it.
DEVELOPMENT = (("cifar10-resnet18", 0), ("cifar100-resnet18", 0), ("fmnist-lenet5", 0))

Scores = dict[str, Tensor]


def measure(network: NetworkOutputs) -> Iterator[DetectionRecord]:
    """Yield the records of one network.

    Args:
        network: Its outputs.
    """
    fit, test = calibration_test_split(len(network.labels))
    wrong = network.test.label[test] != network.labels[test]
    for source in SOURCES:
        calibrator = fitted(network, fit, source)
        inside = scores_of(calibrator(reduced(network.test[test], source)))
        outside = {}
        for name, outputs in network.ood.items():
            outside[name] = scores_of(calibrator(reduced(outputs, source)))
        yield from _records(network, source, inside, outside, wrong)
    inside = _detectors(network, "test", test)
    outside = {name: _detectors(network, name) for name in network.ood}
    yield from _records(network, "detector", inside, outside, wrong)


def fitted(network: NetworkOutputs, rows: Tensor, source: str) -> sc.SimplexTemperatureScaling:
    """Return the default STS.

    Args:
        network: A network's outputs.
        rows: The test images to calibrate with.
        source: "features" or "logits".
    """
    outputs = reduced(network.test[rows], source)
    labels = network.labels[rows]
    mixup = None
    if source == "features":
        mixup = sc.FeatureMixup(network.head, outputs, labels)
    generator = Generator().manual_seed(network.seed)
    calibrator = sc.SimplexTemperatureScaling()
    return calibrator.fit(outputs, labels, mixup=mixup, generator=generator)


def reduced(outputs: sc.Outputs, source: str) -> sc.Outputs:
    """Return the outputs, or their logits alone.

    Args:
        outputs: A network's outputs.
        source: "features" or "logits".
    """
    if source == "features":
        return outputs
    return sc.Outputs(outputs.logits)


def scores_of(prediction: Prediction) -> Scores:
    """Return the scores of a prediction, which rise with suspicion.

    Args:
        prediction: The prediction.
    """
    scores = {"confidence": -prediction.confidence}
    for name in UNCERTAINTIES:
        scores[name] = cast(Tensor, getattr(prediction, name))
    return scores


def _detectors(network: NetworkOutputs, name: str, rows: Tensor | None = None) -> Scores:
    scores = {score: network.detectors[f"{name}.{score}"].float() for score in DETECTORS}
    if rows is None:
        return scores
    return {score: values[rows] for score, values in scores.items()}


def _records(
    network: NetworkOutputs, source: str, inside: Scores, outside: dict[str, Scores], wrong: Tensor
) -> Iterator[DetectionRecord]:
    for score, values in inside.items():
        yield _record(network, ERRORS, source, score, values[~wrong], values[wrong])
        for name, scores in outside.items():
            yield _record(network, name, source, score, values, scores[score])


def _record(
    network: NetworkOutputs,
    target: str,
    source: str,
    score: str,
    negative: Tensor,
    positive: Tensor,
) -> DetectionRecord:
    values = torch.cat([negative, positive]).double()
    is_positive = torch.arange(len(values)) >= len(negative)
    return DetectionRecord(
        network.setting,
        network.seed,
        target,
        len(negative),
        len(positive),
        source,
        score,
        metrics.auroc(values, is_positive).item(),
        metrics.aupr(values, is_positive).item(),
        metrics.fpr_at_tpr(values, is_positive).item(),
    )
