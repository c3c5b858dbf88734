"""The few input checks that the library shares: each failure is one sentence that names argument, value and remedy."""

import torch
from torch import Tensor


def check_float_tensor(name: str, value: object) -> Tensor:
    """Return ``value`` if it is a floating-point tensor; half precision becomes float32."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"`{name}` must be a floating-point torch.Tensor; got {type(value).__name__}. "
            f"Convert it with torch.as_tensor({name}, dtype=torch.float32)."
        )
    if not value.is_floating_point():
        raise TypeError(f"`{name}` must be floating-point; got {value.dtype}. Convert it with {name}.float().")
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
    if not value.sum().isfinite():  # in one pass and without another array; it may also just have overflowed
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
        raise TypeError(f"`labels` must be integers; got {labels.dtype}. Convert class numbers with labels.long().")
    if labels.shape != (n,):
        raise ValueError(
            f"`labels` must have shape ({n},), one class for each input; got {tuple(labels.shape)}. "
            "One-hot labels need .argmax(-1)."
        )
    if n == 0:
        raise ValueError("`labels` is empty; calibration needs labelled inputs. Pass a validation set.")
    one_off = bool((labels.min() == 1) & (labels.max() == k))
    remedy = "Your labels start at 1: subtract 1." if one_off else "Labels count the network's classes from 0."
    inside = (labels >= 0) & (labels < k)
    check_every("labels", labels, inside, f"in 0..{k - 1} for logits with {k} classes", remedy)
    if bool((labels == labels[0]).all()):
        raise ValueError(
            f"`labels` must hold at least two classes; all {n} are class {int(labels[0])}. "
            "Calibrate on a sample of all classes."
        )
    return labels.long()
