"""The checks behind the three signatures of a metric: (probs, labels), (confidence, correct), (score, positive)."""

import torch
from torch import Tensor

from simplexcal._checks import check_every, check_float_tensor
from simplexcal.records import check_probs

ROUNDING = 1e-6  # a probability computed in float32 may exceed 1 by this much


def check_classified(probs: object, labels: object) -> tuple[Tensor, Tensor]:
    """Return probabilities (N, K) and int64 labels (N,) in 0..K-1."""
    probs = check_probs(probs)
    n, k = probs.shape
    _check_some("probs", n)
    labels = _check_tensor("labels", labels, n)
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise TypeError(f"`labels` must be integers; got {labels.dtype}. Convert class numbers with labels.long().")
    remedy = "Labels count the classes from 0."
    check_every("labels", labels, (labels >= 0) & (labels < k), f"in 0..{k - 1} for {k} classes", remedy)
    return probs, labels.long()


def check_confidence(confidence: object) -> Tensor:
    """Return confidences (N,), each between 0 and 1."""
    confidence = _check_vector("confidence", confidence)
    inside = (confidence >= -ROUNDING) & (confidence <= 1 + ROUNDING)
    check_every("confidence", confidence, inside, "between 0 and 1", "It is the probability of the predicted class.")
    return confidence.clamp(0, 1)


def check_judged(confidence: object, correct: object) -> tuple[Tensor, Tensor]:
    """Return confidences (N,) and whether each prediction was correct, as bool."""
    confidence = check_confidence(confidence)
    return confidence, _check_binary("correct", correct, len(confidence))


def check_scored(score: object, positive: object) -> tuple[Tensor, Tensor]:
    """Return scores (N,) and whether each belongs to the positive class, as bool; both classes must be there."""
    score = _check_vector("score", score)
    check_every("score", score, ~score.isnan(), "numbers", "A score that is not a number has no rank.")
    positive = _check_binary("positive", positive, len(score))
    if bool(positive.all()) or not bool(positive.any()):
        raise ValueError(
            f"`positive` must hold both classes; all {len(positive)} are {bool(positive[0])}. "
            "A ranking needs something to tell apart."
        )
    return score, positive


def check_count(name: str, value: int) -> int:
    """Return ``value`` if it is at least 1."""
    if value < 1:
        raise ValueError(f"`{name}` must be at least 1; got {value}.")
    return value


def check_fraction(name: str, value: float) -> float:
    """Return ``value`` if it lies strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"`{name}` must be between 0 and 1; got {value:g}. Write 95 % as 0.95.")
    return value


def _check_vector(name: str, value: object) -> Tensor:
    value = check_float_tensor(name, value)
    if value.dim() != 1:
        raise ValueError(f"`{name}` must have shape (N,), one number for each input; got {tuple(value.shape)}.")
    _check_some(name, len(value))
    return value


def _check_some(name: str, n: int) -> None:
    if n == 0:
        raise ValueError(f"`{name}` is empty; a metric needs at least one input.")


def _check_tensor(name: str, value: object, n: int) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"`{name}` must be a torch.Tensor; got {type(value).__name__}. Use torch.as_tensor.")
    if value.shape != (n,):
        raise ValueError(f"`{name}` must have shape ({n},), one value for each input; got {tuple(value.shape)}.")
    return value


def _check_binary(name: str, value: object, n: int) -> Tensor:
    value = _check_tensor(name, value, n)
    check_every(
        name, value, (value == 0) | (value == 1), "True or False, or 1 or 0", "Compare label with labels first."
    )
    return value.bool()
