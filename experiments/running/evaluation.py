"""What a record says about a fitted calibrator on the test split."""

import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

import simplexcal as sc
from experiments.config.paper import N_BINS
from experiments.config.run_config import RunConfig
from experiments.pretraining.network_id import NetworkId
from experiments.pretraining.outputs import SplitOutputs, read_ood_outputs, training_metadata
from experiments.running.records import (
    BetaMetrics,
    Bins,
    Metrics,
    OodMetrics,
    SampledMetrics,
    SplitMetrics,
    Timings,
)
from experiments.running.sampled_scores import (
    energy_scores,
    sampled_entropy_auroc,
    sampled_mean_scores,
)
from simplexcal.evaluation import evaluate, evaluate_ood
from simplexcal.metrics import ece, nll, reliability

# methods that can try several β
BETA_METHODS = (sc.SimplexTemperatureScaling, sc.DirichletTemperatureScaling)


class Fitted(NamedTuple):
    """A fitted calibrator.

    Args:
        calibrator: The calibrator.
        device: Where it is.
        seconds: The time of the fit; None if it comes from the cache.
    """

    calibrator: sc.Calibrator
    device: str
    seconds: float | None

    def predict(self, outputs: sc.Outputs) -> sc.Prediction:
        """Return the prediction on the CPU, where metrics are the same on every machine.

        Args:
            outputs: The network's outputs.
        """
        prediction: sc.Prediction = self.calibrator(outputs.to(self.device))
        return prediction.to("cpu")


class Evaluation(NamedTuple):
    """The fields of a record that the evaluation fills; see ``Record``."""

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


def evaluate_fit(
    fitted: Fitted,
    data: SplitOutputs,
    network: NetworkId,
    ood_set: str | None,
    config: RunConfig,
) -> Evaluation:
    """Return what a record says about a fitted calibrator.

    Args:
        fitted: The calibrator.
        data: The network's outputs on both splits.
        network: The network.
        ood_set: The out-of-distribution data set to detect, if any.
        config: Folders and device of the run.
    """
    prediction, seconds = _timed_prediction(fitted, data.test)
    timings = Timings(
        pretraining=training_metadata(*network, config)["seconds"],
        outputs=data.seconds,
        calibration=fitted.seconds,
        prediction=seconds,
    )
    ood = None
    if ood_set is not None:
        ood_outputs = read_ood_outputs(*network, ood_set, config)
        ood = ood_metrics(fitted, data.test, prediction, ood_outputs, network.seed)
    correct = data.test.label == data.test_labels
    metrics = _finite(evaluate(prediction, data.test_labels, N_BINS).as_dict())
    calibration = fitted.predict(data.calibration)
    return Evaluation(
        timings=timings,
        n_timed=len(data.test),
        accuracy=correct.double().mean().item(),
        labels_preserved=_labels_preserved(prediction, data.test),
        metrics=Metrics.from_json(metrics, "The evaluation"),
        calibration=split_metrics(calibration, data.calibration_labels),
        bins=_bins(prediction, data.test_labels),
        betas=_beta_metrics(fitted, data),
        sampled=_sampled_metrics(fitted, data, network.seed),
        ood=ood,
    )


def _timed_prediction(fitted: Fitted, outputs: sc.Outputs) -> tuple[sc.Prediction, float]:
    """Return the prediction on the CPU, and the seconds before it was moved there."""
    inputs = outputs.to(fitted.device)
    start = time.perf_counter()
    prediction = fitted.calibrator(inputs)
    if torch.device(fitted.device).type == "cuda":
        torch.cuda.synchronize(fitted.device)
    seconds = time.perf_counter() - start
    return prediction.to("cpu"), seconds


def _beta_metrics(fitted: Fitted, data: SplitOutputs) -> list[BetaMetrics] | None:
    """Return the metrics of each β of a fit that tried several."""
    calibrator = fitted.calibrator
    if not isinstance(calibrator, BETA_METHODS):
        return None
    if fitted.seconds is None or len(calibrator.betas) == 1:
        return None
    metrics = []
    for beta, calibrated in calibrator.each_beta().items():
        one = fitted._replace(calibrator=calibrated)
        calibration = split_metrics(one.predict(data.calibration), data.calibration_labels)
        test = split_metrics(one.predict(data.test), data.test_labels)
        metrics.append(BetaMetrics(beta, calibration, test))
    return metrics


def _sampled_metrics(fitted: Fitted, data: SplitOutputs, seed: int) -> SampledMetrics | None:
    """Return the metrics of the paper's estimate, where the branch gives the probabilities."""
    calibrator = fitted.calibrator
    if not isinstance(calibrator, sc.SimplexTemperatureScaling) or calibrator.likelihood_head:
        return None
    distribution = calibrator.concrete(data.test.to(fitted.device))
    return SampledMetrics(**sampled_mean_scores(distribution, data.test_labels, seed))


def ood_metrics(
    fitted: Fitted,
    test: sc.Outputs,
    prediction: sc.Prediction,
    ood: sc.Outputs,
    seed: int,
) -> OodMetrics:
    """Return how well a calibrator's scores detect out-of-distribution inputs.

    Args:
        fitted: The calibrator.
        test: The network's outputs on the test split.
        prediction: The calibrator's prediction for them.
        ood: The network's outputs for out-of-distribution inputs.
        seed: Decides the samples of the paper's estimate.
    """
    calibrator = fitted.calibrator
    detected = evaluate_ood(prediction, fitted.predict(ood)).as_dict()
    sampled = None
    if isinstance(calibrator, sc.SimplexTemperatureScaling):
        in_distribution = calibrator.concrete(test.to(fitted.device))
        out_of_distribution = calibrator.concrete(ood.to(fitted.device))
        sampled = sampled_entropy_auroc(in_distribution, out_of_distribution, seed)
    metrics = {
        **_finite(detected),
        **energy_scores(test, ood),
        "sampled_entropy_auroc": sampled,
    }
    return OodMetrics.from_json(metrics, "The detection")


def _labels_preserved(prediction: sc.Prediction, outputs: sc.Outputs) -> bool:
    """Return whether each label is the network's, and no other class has a larger probability."""
    largest = prediction.confidence == prediction.probs.amax(-1)
    return bool((largest & (prediction.label == outputs.label)).all())


def split_metrics(prediction: sc.Prediction, labels: Tensor) -> SplitMetrics:
    """Return three metrics of a prediction.

    Args:
        prediction: The prediction for the inputs of a split.
        labels: Their classes.
    """
    correct = prediction.label == labels
    overconfidence = (prediction.confidence - correct.to(prediction.confidence)).mean()
    return SplitMetrics(
        ece=_finite_or_none(ece(prediction.confidence, correct, N_BINS).item()),
        nll=_finite_or_none(nll(prediction.probs, labels).item()),
        overconfidence=_finite_or_none(overconfidence.item()),
    )


def _bins(prediction: sc.Prediction, labels: Tensor) -> Bins:
    """Return the reliability diagram's bins."""
    bins = reliability(prediction.confidence, prediction.label == labels, N_BINS)
    lists = {}
    for name, values in bins._asdict().items():
        lists[name] = [_finite_or_none(value) for value in values.tolist()]
    return Bins(**lists)


def _finite(numbers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _finite_or_none(value) for name, value in numbers.items()}


def _finite_or_none(value: float | None) -> Any:
    """Return the number, or None for one that JSON cannot hold."""
    if value is None or not math.isfinite(value):
        return None
    return value
