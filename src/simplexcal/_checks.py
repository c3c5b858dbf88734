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
