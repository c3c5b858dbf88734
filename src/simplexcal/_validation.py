"""The few input checks that the library shares: each failure is one sentence that names argument, value and remedy."""

import torch
from torch import Tensor

ROUNDING = 1e-6  # a probability computed in float32 may exceed 1 by this much


def check_float_tensor(name: str, value: object) -> Tensor:
    """Return ``value`` if it is a floating-point tensor; half precision becomes float32."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"`{name}` must be a floating-point torch.Tensor; got {type(value).__name__}. "
            f"Convert it with torch.as_tensor({name}, dtype=torch.float32)."
        )
    if not value.is_floating_point():
        raise TypeError(
            f"`{name}` must be floating-point; got {value.dtype}. Convert it with {name}.float()."
        )
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def check_every(name: str, value: Tensor, ok: Tensor, expected: str, remedy: str) -> None:
    """Raise ValueError unless ``ok`` holds everywhere, naming the first value where it does not."""
    if bool(ok.all()):
        return
    at = tuple(torch.nonzero(~ok)[0].tolist())
    where = f" at position {at[0] if len(at) == 1 else at}" if at else ""
    raise ValueError(f"`{name}` must be {expected}; found {value[at].item():g}{where}. {remedy}")


def check_finite(name: str, value: Tensor, remedy: str) -> None:
    """Raise ValueError unless ``value`` is finite everywhere."""
    if (
        not value.sum().isfinite()
    ):  # in one pass and without another array; it may also just have overflowed
        check_every(name, value, value.isfinite(), "finite", remedy)


def check_generator(generator: object) -> None:
    """Raise TypeError unless ``generator`` is one, or None."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"`generator` must be a torch.Generator or None; got {type(generator).__name__}. For a seed, pass "
            "torch.Generator().manual_seed(seed)."
        )


class NotFittedError(RuntimeError):
    """A calibrator was used before it was fitted."""


def check_labels(labels: object, n: int, k: int) -> Tensor:
    """Return ``labels`` as int64 if it holds one class in 0..K-1 for each of ``n`` inputs, and more than one class."""
    if not isinstance(labels, Tensor):
        raise TypeError(
            f"`labels` must be a torch.Tensor of integers; got {type(labels).__name__}. Use torch.as_tensor."
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(
            f"`labels` must be integers; got {labels.dtype}. Convert class numbers with labels.long()."
        )
    if labels.shape != (n,):
        raise ValueError(
            f"`labels` must have shape ({n},), one class for each input; got {tuple(labels.shape)}. "
            "One-hot labels need .argmax(-1)."
        )
    if n == 0:
        raise ValueError(
            "`labels` is empty; calibration needs labelled inputs. Pass a validation set."
        )
    one_off = bool((labels.min() == 1) & (labels.max() == k))
    remedy = (
        "Your labels start at 1: subtract 1."
        if one_off
        else "Labels count the network's classes from 0."
    )
    inside = (labels >= 0) & (labels < k)
    check_every("labels", labels, inside, f"in 0..{k - 1} for logits with {k} classes", remedy)
    if bool((labels == labels[0]).all()):
        raise ValueError(
            f"`labels` must hold at least two classes; all {n} are class {int(labels[0])}. "
            "Calibrate on a sample of all classes."
        )
    return labels.long()


def check_probs(probs: object) -> Tensor:
    """Return ``probs`` (N, K) if its rows are distributions; logits are recognised as what they are not."""
    given, probs = probs, check_float_tensor("probs", probs)
    rounding = max(1e-6, torch.finfo(getattr(given, "dtype", probs.dtype)).eps)
    if probs.dim() != 2 or probs.shape[1] < 2:
        raise ValueError(
            f"`probs` must have shape (N, K) with K >= 2 classes; got {tuple(probs.shape)}."
        )
    remedy = "If these are logits, apply softmax(-1) first."
    if len(probs) and not (
        probs.amin() >= 0 and probs.amax() <= 1 + rounding
    ):  # without another array as large
        check_every(
            "probs", probs, (probs >= 0) & (probs <= 1 + rounding), "between 0 and 1", remedy
        )
    total = probs.sum(-1)
    nearly_one = (total - 1).abs() <= max(1e-3, rounding)  # bfloat16 has two digits
    check_every("probs", total, nearly_one, "rows of probabilities, each with sum 1", remedy)
    return probs


def check_classified(probs: object, labels: object) -> tuple[Tensor, Tensor]:
    """Return probabilities (N, K) and int64 labels (N,) in 0..K-1."""
    probs = check_probs(probs)
    n, k = probs.shape
    _check_some("probs", n)
    labels = _check_tensor("labels", labels, n)
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise TypeError(
            f"`labels` must be integers; got {labels.dtype}. Convert class numbers with labels.long()."
        )
    remedy = "Labels count the classes from 0."
    check_every(
        "labels", labels, (labels >= 0) & (labels < k), f"in 0..{k - 1} for {k} classes", remedy
    )
    return probs, labels.long()


def check_confidence(confidence: object) -> Tensor:
    """Return confidences (N,), each between 0 and 1."""
    confidence = _check_vector("confidence", confidence)
    inside = (confidence >= -ROUNDING) & (confidence <= 1 + ROUNDING)
    check_every(
        "confidence",
        confidence,
        inside,
        "between 0 and 1",
        "It is the probability of the predicted class.",
    )
    return confidence.clamp(0, 1)


def check_judged(confidence: object, correct: object) -> tuple[Tensor, Tensor]:
    """Return confidences (N,) and whether each prediction was correct, as bool."""
    confidence = check_confidence(confidence)
    return confidence, _check_binary("correct", correct, len(confidence))


def check_scored(score: object, positive: object) -> tuple[Tensor, Tensor]:
    """Return scores (N,) and whether each belongs to the positive class, as bool; both classes must be there."""
    score = _check_vector("score", score)
    check_every(
        "score", score, ~score.isnan(), "numbers", "A score that is not a number has no rank."
    )
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
        raise ValueError(
            f"`{name}` must have shape (N,), one number for each input; got {tuple(value.shape)}."
        )
    _check_some(name, len(value))
    return value


def _check_some(name: str, n: int) -> None:
    if n == 0:
        raise ValueError(f"`{name}` is empty; a metric needs at least one input.")


def _check_tensor(name: str, value: object, n: int) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(
            f"`{name}` must be a torch.Tensor; got {type(value).__name__}. Use torch.as_tensor."
        )
    if value.shape != (n,):
        raise ValueError(
            f"`{name}` must have shape ({n},), one value for each input; got {tuple(value.shape)}."
        )
    return value


def _check_binary(name: str, value: object, n: int) -> Tensor:
    value = _check_tensor(name, value, n)
    check_every(
        name,
        value,
        (value == 0) | (value == 1),
        "True or False, or 1 or 0",
        "Compare label with labels first.",
    )
    return value.bool()
