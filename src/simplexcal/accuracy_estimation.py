"""The accuracy on inputs without labels, estimated from calibrated predictions.

No estimate can be right for every shift: inputs that look like the old ones and have other labels
cannot be seen without labels. docs/guide/deployment.md says when each estimate fails.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from simplexcal._arrays import ArrayLike
from simplexcal._validation import check_fraction, check_labels, check_probs
from simplexcal.model import CalibratedModel
from simplexcal.types import Prediction

Method = Literal["shift-aware", "atc", "confidence"]

# Class matching: assignments are softened by these temperatures, one after the other.
TEMPERATURES = (0.2, 0.05, 0.02)
N_STEPS = 30  # at each temperature
N_RESAMPLES = 20
MAX_RESAMPLE = 5000  # rows
MAX_CELLS = 2_000_000  # rows times classes; of larger batches a random part is matched
LABELS_PER_CLASS = 20  # with fewer labels the class shares are too uncertain to match
SMALLEST_SHARE = 1e-6


@dataclass(frozen=True)
class AccuracyEstimate:
    """An estimate of the accuracy on inputs without labels.

    Args:
        estimate: The estimated accuracy.
        low: Lower end of the interval.
        high: Upper end of the interval.
        method: "shift-aware", "atc" or "confidence".
        level: Confidence level of the interval.
        n: Number of inputs.
        n_reference: Number of labelled reference inputs, 0 without a reference.
        components: The estimates that "shift-aware" is made of, by name: "confidence", "atc", and
            "matching" where the reference has enough labels for it. Empty for other methods.
    """

    estimate: float
    low: float
    high: float
    method: str
    level: float
    n: int
    n_reference: int
    components: Mapping[str, float]

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends of the interval."""
        return self.low, self.high

    def as_dict(self) -> dict[str, Any]:
        """Return names and values, in the order of the arguments."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"accuracy {100 * self.estimate:.1f} %, {100 * self.level:g} % interval "
            f"{100 * self.low:.1f} to {100 * self.high:.1f} % ({self.method}, {self.n} inputs)"
        )


class Reference(NamedTuple):
    """What labelled inputs say about confidence and accuracy.

    Attributes:
        confidence: Confidence of each prediction, (N,).
        correct: Whether each prediction is right, (N,).
        probs: Probabilities (N, K), or None.
        shares: Share of each true class, (K,), or None.
    """

    confidence: Tensor
    correct: Tensor
    probs: Tensor | None = None
    shares: Tensor | None = None


@torch.no_grad()
def estimate_accuracy(
    model: CalibratedModel | Prediction | ArrayLike,
    inputs: Any = None,
    *,
    reference: Any = None,
    method: Method | None = None,
    level: float = 0.95,
    batch_size: int = 256,
) -> AccuracyEstimate:
    """Estimate the accuracy on inputs without labels.

    - "confidence" is the mean calibrated confidence (CBPE). It is right as long as the model is
      calibrated on these inputs. The interval holds sampling variation and, with a reference, the
      difference between confidence and accuracy there.
    - "atc" is the average thresholded confidence (Garg et al. 2022): the share of inputs whose
      confidence exceeds a threshold, which on the reference is exceeded as often as a prediction
      is right.
    - "shift-aware" matches classes (Lu et al. 2023): each input is assigned to a class so that the
      classes have the shares of the reference and the mean probability of the assigned classes is
      largest. This mean, less its excess over the accuracy on the reference, is the estimate. The
      interval spans those of all three. Where classes cannot be matched, the estimate is ATC.

    All fail where inputs that look like those of the reference have other labels (concept drift).
    "shift-aware" is too low where the classes have other shares than in the reference; the interval
    then reaches up to the mean confidence.

    Args:
        model: A calibrated model; or predictions for N inputs; or their probabilities, (N, K).
        inputs: Inputs of the model, as `CalibratedModel.predict` takes them; None for predictions.
        reference: Labelled inputs that the network was not trained on: data as `calibrate` takes
            them for a model, a pair (predictions or probabilities, labels) otherwise. The data of
            the calibration will do.
        method: "shift-aware", "atc" or "confidence". None is the first with a reference and the
            last without, which is the only one that needs none.
        level: Confidence level of the interval.
        batch_size: Size of the batches that inputs and reference are divided into.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument has no meaning, or does not fit the others.
    """
    check_fraction("level", level)
    if isinstance(model, CalibratedModel):
        if inputs is None:
            raise ValueError("`inputs` must be given for a model; got None. Pass the new inputs.")
        prediction = model.predict(inputs, batch_size=batch_size)
        labelled = None
        if reference is not None:
            labelled = model.predict_labelled(reference, batch_size=batch_size)
    else:
        if inputs is not None:
            raise ValueError("`inputs` are for a model; leave them out for predictions.")
        prediction = _as_prediction(model)
        labelled = _as_labelled(reference)
    found = None
    if labelled is not None:
        found = make_reference(*labelled)
    return estimate_from_scores(prediction.confidence, prediction.probs, found, method, level)


def make_reference(prediction: Prediction, labels: ArrayLike) -> Reference:
    """Return what predictions and their labels say about confidence and accuracy.

    Args:
        prediction: The predictions.
        labels: The true classes, (N,).
    """
    n, k = prediction.probs.shape
    labels = check_labels(labels, n, k).cpu()
    correct = prediction.label.cpu() == labels
    shares = torch.bincount(labels, minlength=k).double() / n
    return Reference(prediction.confidence.cpu(), correct, prediction.probs.cpu(), shares)


def estimate_from_scores(
    confidence: Tensor,
    probs: Tensor | None,
    reference: Reference | None,
    method: Method | None = None,
    level: float = 0.95,
) -> AccuracyEstimate:
    """Estimate the accuracy from confidences, and from probabilities where there are any.

    Args:
        confidence: Confidence of each prediction, (N,).
        probs: Probabilities (N, K), or None.
        reference: Labelled predictions, or None.
        method: The method; see `estimate_accuracy`.
        level: Confidence level of the interval.
    """
    method = _check_method(method, reference)
    confidence = confidence.double().cpu()
    n = len(confidence)
    z = NormalDist().inv_cdf((1 + level) / 2)
    if reference is None:
        deviation = math.sqrt(float((confidence * (1 - confidence)).sum())) / n
        return _record(float(confidence.mean()), z * deviation, method, level, n, 0)
    m = len(reference.correct)
    if method == "confidence":
        estimate, half = _from_confidence(confidence, reference, z)
        return _record(estimate, half, method, level, n, m)
    if method == "atc":
        estimate, half = _from_threshold(confidence, reference, z)
        return _record(estimate, half, method, level, n, m)
    parts = {
        "confidence": _from_confidence(confidence, reference, z),
        "atc": _from_threshold(confidence, reference, z),
    }
    name = "atc"
    if _can_match(probs, reference):
        parts["matching"] = _from_matching(probs, reference, z)
        name = "matching"
    return AccuracyEstimate(
        estimate=_share(parts[name][0]),
        low=_share(min(estimate - half for estimate, half in parts.values())),
        high=_share(max(estimate + half for estimate, half in parts.values())),
        method=method,
        level=level,
        n=n,
        n_reference=m,
        components={part: _share(estimate) for part, (estimate, _) in parts.items()},
    )


def match_classes(probs: Tensor, shares: Tensor) -> Tensor:
    """Return for each input the probability of the class that it is assigned to, (N,).

    The classes have about the given shares, and the sum is about as large as it can be then. The
    optimal transport is softened by an entropy, so that few inputs are divided among classes.

    Args:
        probs: Probabilities (N, K).
        shares: Share of each class, (K,).
    """
    probs = probs.double()
    log_shares = shares.clamp_min(SMALLEST_SHARE).log()
    advantage = torch.zeros_like(log_shares)  # what is added to the probability of each class
    for temperature in TEMPERATURES:
        for _ in range(N_STEPS):
            found = ((probs + advantage) / temperature).softmax(-1).mean(0)
            missing = log_shares - found.clamp_min(SMALLEST_SHARE).log()
            advantage = advantage + temperature * missing
    assigned = ((probs + advantage) / TEMPERATURES[-1]).softmax(-1)
    return (assigned * probs).sum(-1)


def threshold_scores(confidence: Tensor, reference: Reference) -> tuple[Tensor, Tensor]:
    """Return whether the confidence of each input exceeds ATC's threshold: new ones, reference.

    An input at the threshold counts in part, so that on the reference the mean is the accuracy.

    Args:
        confidence: Confidence of each new input, (N,).
        reference: Labelled predictions.
    """
    known = reference.confidence.double()
    n_wrong = int((~reference.correct).sum())
    ordered = known.sort().values
    threshold = ordered[min(n_wrong, len(ordered) - 1)]
    n_above = int((known > threshold).sum())
    n_at = int((known == threshold).sum())
    part = (len(known) - n_wrong - n_above) / n_at

    def count(values: Tensor) -> Tensor:
        return (values > threshold).double() + part * (values == threshold).double()

    return count(confidence.double()), count(known)


# --- the estimates, each with half the width of its interval ---


def _from_confidence(confidence: Tensor, reference: Reference, z: float) -> tuple[float, float]:
    known = reference.confidence.double()
    gap = float(reference.correct.double().mean() - known.mean())
    half = z * _deviation(known, reference, len(confidence)) + abs(gap)
    return float(confidence.mean()), half


def _from_threshold(confidence: Tensor, reference: Reference, z: float) -> tuple[float, float]:
    scores, known = threshold_scores(confidence, reference)
    return float(scores.mean()), z * _deviation(known, reference, len(confidence))


def _can_match(probs: Tensor | None, reference: Reference) -> bool:
    if probs is None or reference.probs is None or reference.shares is None:
        return False
    return len(reference.correct) >= LABELS_PER_CLASS * probs.shape[1]


def _from_matching(probs: Any, reference: Any, z: float) -> tuple[float, float]:
    """Return the estimate by matched classes.

    The shares of the classes vary among samples, so that the mean of few inputs is too low. By how
    much is found on samples of the reference that are as large.
    """
    if probs.shape[1] != reference.probs.shape[1]:
        raise ValueError(
            f"`reference` must have the {probs.shape[1]} classes of the predictions; "
            f"got {reference.probs.shape[1]}."
        )
    generator = torch.Generator().manual_seed(0)
    matched = match_classes(_some_rows(probs.cpu(), generator), reference.shares).mean()
    size = min(len(probs), MAX_RESAMPLE)
    excess = []
    for _ in range(N_RESAMPLES):
        rows = torch.randint(len(reference.correct), (size,), generator=generator)
        sample = match_classes(_some_rows(reference.probs[rows], generator), reference.shares)
        excess.append(sample.mean() - reference.correct[rows].double().mean())
    estimate = float(matched - torch.stack(excess).mean())
    known = match_classes(_some_rows(reference.probs, generator), reference.shares)
    if len(known) < len(reference.correct):
        known = reference.confidence.double()
    return estimate, z * _deviation(known, reference, len(probs))


def _deviation(known: Tensor, reference: Reference, n: int) -> float:
    """Return the standard deviation of the estimate's error on n inputs like the reference.

    One more input on which it is wrong is added: without errors, nothing is known of their number.
    """
    residual = reference.correct.double() - known
    m = len(residual)
    variance = float((residual.square().sum() + 1) / (m + 1) - residual.mean().square())
    return math.sqrt(variance * (1 / n + 1 / m))


def _some_rows(probs: Tensor, generator: torch.Generator) -> Tensor:
    """Return the rows, or a random part of so many that matching them would be slow."""
    n, k = probs.shape
    most = max(1, MAX_CELLS // k)
    if n <= most:
        return probs
    return probs[torch.randperm(n, generator=generator)[:most]]


def _record(
    estimate: float, half: float, method: str, level: float, n: int, n_reference: int
) -> AccuracyEstimate:
    low = _share(estimate - half)
    high = _share(estimate + half)
    return AccuracyEstimate(_share(estimate), low, high, method, level, n, n_reference, {})


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)


# --- the checks of arguments ---


def _as_prediction(value: Any) -> Prediction:
    if isinstance(value, Prediction):
        return value
    probs = check_probs(value)
    return Prediction(probs, probs.argmax(-1))


def _as_labelled(reference: Any) -> tuple[Prediction, Any] | None:
    if reference is None:
        return None
    if not isinstance(reference, tuple | list) or len(reference) != 2:
        raise TypeError(
            "`reference` must be a pair (predictions or probabilities, labels); "
            f"got {type(reference).__name__}."
        )
    return _as_prediction(reference[0]), reference[1]


def _check_method(method: Method | None, reference: Reference | None) -> Method:
    if method is None:
        if reference is None:
            return "confidence"
        return "shift-aware"
    if method not in get_args(Method):
        known = ", ".join(get_args(Method))
        raise ValueError(f"`method` must be one of {known}; got {method!r}.")
    if reference is None and method != "confidence":
        raise ValueError(
            f"`reference` must be given for the method {method!r}; got None. "
            "Pass labelled data, such as those of the calibration."
        )
    return method
