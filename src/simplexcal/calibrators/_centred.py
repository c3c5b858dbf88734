"""Logits in one form whatever constant a row has, for methods that are not softmax(z / T)."""

from torch import Tensor

DEPTH = 100.0  # e^-100 is no probability: a class so far down is masked, or as good as that.


def centred(logits: Tensor, temperature: Tensor | float) -> Tensor:
    """Return z / T less its mean over the classes, whatever constant the row has.

    In the mean, a class further than DEPTH below the largest counts as one just there. So it does
    not matter how far down a masked class is. Trained networks have logits with a mean near 0,
    which this form changes little.

    Args:
        logits: z, (N, K).
        temperature: T.
    """
    below = (logits - logits.amax(-1, keepdim=True)) / temperature
    return below - below.clamp_min(-DEPTH).mean(-1, keepdim=True)


def floored(values: Tensor) -> Tensor:
    """Return values with those further than DEPTH below the largest just there.

    Args:
        values: (N, K).
    """
    return values.maximum(values.amax(-1, keepdim=True) - DEPTH)
