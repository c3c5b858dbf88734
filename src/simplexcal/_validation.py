"""Checks of arguments, each written once.

A failure is one sentence that names the argument, the value and the remedy.
"""

import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from simplexcal._arrays import as_tensor

ROUNDING = 1e-6  # a probability computed in float32 may exceed 1 by this much
SUM_ROUNDING = 1e-3  # and a sum of probabilities may differ from 1 by this much
LIBRARIES = (str(Path(__file__).parent), str(Path(torch.__file__).parent))


class NotFittedError(RuntimeError):
    """A calibrator was used before it was fitted."""


def warn_caller(message: str) -> None:
    """Warn at the line of the caller: the innermost one outside of this library and of torch.

    Args:
        message: Text of the warning.
    """
    frame = sys._getframe(1)
    level = 2
    while frame.f_code.co_filename.startswith(LIBRARIES) and frame.f_back is not None:
        frame = frame.f_back
        level += 1
    warnings.warn(message, stacklevel=level)


# --- any value ---


def check_array(name: str, value: object, remedy: str = "") -> Tensor:
    """Return a tensor as it is, and an array, a list or a column of numbers as a tensor.

    Args:
        name: Name of the argument.
        value: Its value.
        remedy: Last sentence of the message, after a space.

    Raises:
        TypeError: If torch cannot make a tensor of the value.
    """
    if isinstance(value, Tensor):
        return value
    try:
        return as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"`{name}` must be a tensor, or an array or a list of numbers; "
            f"got {_describe(value)}.{remedy}"
        ) from error


def check_float_tensor(name: str, value: object) -> Tensor:
    """Return a floating-point tensor; half precision becomes float32.

    Args:
        name: Name of the argument.
        value: Its value.

    Raises:
        TypeError: If the value holds no floating-point numbers.
    """
    tensor = check_array(name, value)
    if not tensor.is_floating_point():
        raise TypeError(
            f"`{name}` must be floating-point; got {tensor.dtype}. "
            f"Convert it with torch.as_tensor({name}, dtype=torch.float32)."
        )
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return tensor.float()
    return tensor


def check_every(name: str, value: Tensor, ok: Tensor, expected: str, remedy: str) -> None:
    """Raise ValueError unless a condition holds everywhere, naming the first value that fails.

    Args:
        name: Name of the argument.
        value: Its value.
        ok: The condition, of the same shape.
        expected: What the value must be.
        remedy: Last sentence of the message.
    """
    if bool(ok.all()):
        return
    position = tuple(torch.nonzero(~ok)[0].tolist())
    found = f"{value[position].item():g}"
    if len(position) == 1:
        found += f" at position {position[0]}"
    elif position:
        found += f" at position {position}"
    raise ValueError(f"`{name}` must be {expected}; found {found}. {remedy}")


def check_finite(name: str, value: Tensor, remedy: str) -> None:
    """Raise ValueError unless a tensor is finite everywhere.

    Args:
        name: Name of the argument.
        value: Its value.
        remedy: Last sentence of the message.
    """
    # The sum needs one pass and no other array. It may also overflow, so it only raises suspicion.
    if not value.sum().isfinite():
        check_every(name, value, value.isfinite(), "finite", remedy)


def check_generator(generator: object) -> None:
    """Raise TypeError unless the argument is a generator or None.

    Args:
        generator: The argument of this name.
    """
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"`generator` must be a torch.Generator or None; got {type(generator).__name__}. "
            "For a seed, pass torch.Generator().manual_seed(seed)."
        )


def check_count(name: str, value: int) -> int:
    """Return a number that is at least 1.

    Args:
        name: Name of the argument.
        value: Its value.
    """
    if value < 1:
        raise ValueError(f"`{name}` must be at least 1; got {value}.")
    return value


def check_fraction(name: str, value: float) -> float:
    """Return a number strictly between 0 and 1.

    Args:
        name: Name of the argument.
        value: Its value.
    """
    if not 0 < value < 1:
        raise ValueError(f"`{name}` must be between 0 and 1; got {value:g}. Write 95 % as 0.95.")
    return value


# --- outputs of a network ---


def check_logits_and_features(
    logits: object, features: object | None
) -> tuple[Tensor, Tensor | None]:
    """Return logits (N, K) and features (N, D) or None; half precision becomes float32.

    Args:
        logits: The argument of this name.
        features: The argument of this name.
    """
    logits = check_float_tensor("logits", logits)
    if logits.dim() != 2 or logits.shape[1] < 2:
        raise ValueError(
            f"`logits` must have shape (N, K) with K >= 2 classes; got {tuple(logits.shape)}. "
            "For a binary model with one output z, pass torch.stack([torch.zeros_like(z), z], -1)."
        )
    if features is None:
        return logits, None
    features = check_float_tensor("features", features)
    n = logits.shape[0]  # and not len(), which is a constant in an exported graph
    if features.dim() != 2 or features.shape[0] != n:
        raise ValueError(
            f"`features` must have shape (N, D) with N = {n} as the logits have; "
            f"got {tuple(features.shape)}. Flatten each input's features to one row."
        )
    return logits, features


# --- labels ---


def check_labels(labels: object, n: int, k: int) -> Tensor:
    """Return the labels of a fit as int64: one class for each input, and more than one class.

    Args:
        labels: The argument of this name.
        n: Number of inputs.
        k: Number of classes.
    """
    labels = check_classes(check_label_shape(labels, n), k)
    if n == 0:
        raise ValueError(
            "`labels` is empty; calibration needs labelled inputs. Pass a validation set."
        )
    if bool((labels == labels[0]).all()):
        raise ValueError(
            f"`labels` must hold at least two classes; all {n} are class {int(labels[0])}. "
            "Calibrate on a sample of all classes."
        )
    return labels


def check_label_shape(labels: object, n: int) -> Tensor:
    """Return labels as a tensor with one value for each input.

    Args:
        labels: The argument of this name.
        n: Number of inputs.
    """
    tensor = check_array("labels", labels, " Number the classes from 0.")
    _check_shape("labels", tensor, n, _remedy_of_columns(tensor))
    return tensor


def check_sample_weight(sample_weight: object, n: int) -> Tensor:
    """Return weights of N inputs as float64, not negative and not all 0.

    Args:
        sample_weight: The argument of this name.
        n: N.
    """
    weights = check_array("sample_weight", sample_weight)
    _check_shape("sample_weight", weights, n)
    if weights.is_complex():
        raise TypeError(f"`sample_weight` must hold real numbers; got {weights.dtype}.")
    weights = weights.detach().double()
    allowed = (weights >= 0) & weights.isfinite()
    remedy = "A weight says how often an input counts."
    check_every("sample_weight", weights, allowed, "at least 0 and finite", remedy)
    if n > 0 and not bool(weights.any()):
        raise ValueError(f"`sample_weight` must be positive somewhere; all {n} weights are 0.")
    return weights


def check_classes(labels: object, k: int, remedy: str | None = None) -> Tensor:
    """Return labels of any shape as int64, each in 0..K-1.

    Args:
        labels: The argument of this name.
        k: Number of classes.
        remedy: Last sentence of the message about a label that is no class.
    """
    labels = check_array("labels", labels, " Number the classes from 0.")
    if not _is_integer(labels.dtype):
        raise TypeError(
            f"`labels` must be integers; got {labels.dtype}. "
            "Convert class numbers with torch.as_tensor(labels).long()."
        )
    labels = labels.long()  # first, since torch cannot compare all kinds of integers
    inside = (labels >= 0) & (labels < k)
    if not bool(inside.all()):
        remedy = remedy or "Labels count the classes from 0."
        if labels.min() == 1 and labels.max() == k:
            remedy = "Your labels start at 1: subtract 1."
        check_every("labels", labels, inside, f"in 0..{k - 1} for {k} classes", remedy)
    return labels


def check_batch_labels(labels: object, n: int) -> Tensor:
    """Return labels of a batch: integers, one for each input.

    One class alone is enough, and the classes may be any: the batch is not fitted to.

    Args:
        labels: The argument of this name.
        n: Number of inputs.
    """
    labels = check_array("labels", labels, " Number the classes from 0.")
    if labels.dim() == 2 and labels.shape[1] > 1:
        _check_shape("labels", labels, n, _remedy_of_columns(labels))
    if not _is_integer(labels.dtype):
        raise TypeError(
            f"`labels` must be integers; got {labels.dtype}. "
            "Number the classes from 0; one-hot labels need .argmax(-1)."
        )
    _check_shape("labels", labels, n, _remedy_of_columns(labels))
    return labels


def binary_labels(labels: object, n: int) -> Tensor | None:
    """Return the labels of a binary network, or None for labels that are none or of another form.

    Binary networks are trained with floats of shape (N,) or (N, 1).

    Args:
        labels: Labels of a batch.
        n: Number of inputs.
    """
    try:
        tensor = as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):
        return None
    if tuple(tensor.shape) not in ((n,), (n, 1)):
        return None
    if not bool(((tensor == 0) | (tensor == 1)).all()):
        return None
    return tensor.reshape(n).long()


def _remedy_of_columns(labels: Tensor) -> str:
    """Return what to do with labels of several columns, of which one row may have several."""
    is_binary = bool(((labels == 0) | (labels == 1)).all())
    if labels.dim() == 2 and is_binary and bool((labels.sum(-1) > 1).any()):
        return (
            " Multi-label classification is not supported: calibrate each class as a binary "
            "classifier of its own."
        )
    return " One-hot labels need .argmax(-1)."


# --- probabilities, confidences and scores ---


def check_probs(probs: object) -> Tensor:
    """Return probabilities (N, K) whose rows are distributions; logits are recognised.

    Args:
        probs: The argument of this name.
    """
    given = check_array("probs", probs)
    probs = check_float_tensor("probs", given)
    rounding = max(ROUNDING, torch.finfo(given.dtype).eps)
    if probs.dim() != 2 or probs.shape[1] < 2:
        raise ValueError(
            f"`probs` must have shape (N, K) with K >= 2 classes; got {tuple(probs.shape)}."
        )
    remedy = "If these are logits, apply softmax(-1) first."
    if not _is_within(probs, 1 + rounding):
        inside = (probs >= 0) & (probs <= 1 + rounding)
        check_every("probs", probs, inside, "between 0 and 1", remedy)
    total = probs.sum(-1)
    nearly_one = (total - 1).abs() <= max(SUM_ROUNDING, rounding)  # bfloat16 has two digits
    check_every("probs", total, nearly_one, "rows of probabilities, each with sum 1", remedy)
    return probs


def are_probs(logits: Tensor) -> bool:
    """Return whether all rows are distributions, which logits never are.

    Args:
        logits: (N, K).
    """
    try:
        check_probs(logits[:1])  # One row settles it for most logits.
        check_probs(logits)
    except ValueError:
        return False
    return len(logits) > 0


def check_probs_and_labels(probs: object, labels: object) -> tuple[Tensor, Tensor]:
    """Return probabilities (N, K) and int64 labels (N,) in 0..K-1.

    Args:
        probs: The argument of this name.
        labels: The argument of this name.
    """
    probs = check_probs(probs)
    n, k = probs.shape
    _check_not_empty("probs", n)
    return probs, check_classes(check_label_shape(labels, n), k)


def check_class_names(class_names: Iterable[object], k: int) -> list[str]:
    """Return the names of the classes as text.

    Args:
        class_names: A name for each class.
        k: Number of classes.

    Raises:
        TypeError: If they are one text.
        ValueError: If they are not K.
    """
    if isinstance(class_names, str):
        raise TypeError(
            f"`class_names` must be a list of {k} names; got the text {class_names!r}. "
            "Put the names in a list."
        )
    names = [str(name) for name in class_names]
    if len(names) != k:
        raise ValueError(
            f"`class_names` must name all {k} classes, in the order of `probs`; got {len(names)}."
        )
    return names


def check_confidence(confidence: object) -> Tensor:
    """Return confidences (N,), each between 0 and 1.

    Args:
        confidence: The argument of this name.
    """
    confidence = _check_vector("confidence", confidence)
    inside = (confidence >= -ROUNDING) & (confidence <= 1 + ROUNDING)
    remedy = "It is the probability of the predicted class."
    check_every("confidence", confidence, inside, "between 0 and 1", remedy)
    return confidence.clamp(0, 1)


def check_confidence_and_correct(confidence: object, correct: object) -> tuple[Tensor, Tensor]:
    """Return confidences (N,) and whether each prediction was correct, as bool.

    Args:
        confidence: The argument of this name.
        correct: The argument of this name.
    """
    confidence = check_confidence(confidence)
    return confidence, _check_binary("correct", correct, len(confidence))


def check_correct(correct: object, n: int) -> Tensor:
    """Return whether each of N predictions is correct, as bool.

    Args:
        correct: The argument of this name.
        n: N.
    """
    return _check_binary("correct", correct, n)


def check_score_and_positive(score: object, positive: object) -> tuple[Tensor, Tensor]:
    """Return scores (N,) and whether each belongs to the positive class, as bool.

    Both classes must be present.

    Args:
        score: The argument of this name.
        positive: The argument of this name.
    """
    score = _check_vector("score", score)
    remedy = "A score that is not a number has no rank."
    check_every("score", score, ~score.isnan(), "numbers", remedy)
    positive = _check_binary("positive", positive, len(score))
    if bool(positive.all()) or not bool(positive.any()):
        raise ValueError(
            f"`positive` must hold both classes; all {len(positive)} are {bool(positive[0])}. "
            "A ranking compares one with the other."
        )
    return score, positive


def _check_vector(name: str, value: object) -> Tensor:
    value = check_float_tensor(name, value)
    if value.dim() != 1:
        raise ValueError(
            f"`{name}` must have shape (N,), one number for each input; got {tuple(value.shape)}."
        )
    _check_not_empty(name, len(value))
    return value


def _check_not_empty(name: str, n: int) -> None:
    if n == 0:
        raise ValueError(f"`{name}` is empty; a metric needs at least one input.")


def _describe(value: object) -> str:
    """Return the type of a value, and of what an array holds."""
    kind = type(value).__name__
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return kind
    return f"{kind} of {dtype}"


def _check_shape(name: str, value: Tensor, n: int, remedy: str = "") -> None:
    if value.shape != (n,):
        raise ValueError(
            f"`{name}` must have shape ({n},), one value for each input; "
            f"got {tuple(value.shape)}.{remedy}"
        )


def _check_binary(name: str, value: object, n: int) -> Tensor:
    value = check_array(name, value)
    _check_shape(name, value, n)
    binary = (value == 0) | (value == 1)
    remedy = "Compare label with labels first."
    check_every(name, value, binary, "True or False, or 1 or 0", remedy)
    return value.bool()


def _is_integer(dtype: torch.dtype) -> bool:
    return "int" in str(dtype)


def _is_within(probs: Tensor, largest: float) -> bool:
    """Return whether all values are in 0..largest, without another array as large."""
    if probs.shape[0] == 0:
        return True
    return bool(probs.amin() >= 0) and bool(probs.amax() <= largest)
