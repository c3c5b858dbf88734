"""Weights of the inputs of a fit. They add up to 1; None stands for inputs that count alike."""

import torch
from torch import Tensor


def normalise(sample_weight: Tensor) -> Tensor | None:
    """Return positive weights with the sum 1, or None where all are the same.

    Args:
        sample_weight: Positive weights, (N,).
    """
    largest = sample_weight.max()
    if bool(sample_weight.min() == largest):
        return None
    relative = sample_weight / largest  # so that the sum does not overflow
    return relative / relative.sum()


def weighted_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean over the first dimension.

    Args:
        values: (N, ...).
        weights: (N,), or None.
    """
    if weights is None:
        return values.mean(0)
    return torch.einsum("n,n...->...", weights.to(values.dtype), values)


def effective_number(n: int, weights: Tensor | None) -> float:
    """Return how many inputs with equal weights tell as much: (Σw)² / Σw² (Kish 1965).

    Args:
        n: Number of inputs.
        weights: (N,), or None, which gives n.
    """
    if weights is None:
        return n
    return 1 / weights.square().sum().item()
