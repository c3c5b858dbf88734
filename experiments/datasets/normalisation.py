"""The data sets' means and standard deviations, and images normalised by them."""

from typing import NamedTuple

import torch
from torch import Tensor


class Normalisation(NamedTuple):
    """How images are normalised.

    Args:
        mean: Mean of each channel, on the scale from 0 to 1.
        std: Standard deviation of each channel, on that scale.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]


CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
NORMALISATION = {
    "fashion-mnist": Normalisation((0.2859,), (0.3530,)),
    "cifar10": Normalisation(CIFAR10_MEAN, (0.2023, 0.1994, 0.2010)),
    "cifar100": Normalisation((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    "stl10": Normalisation(CIFAR10_MEAN, (0.2471, 0.2435, 0.2616)),
}


def normalise(images: Tensor, normalisation: Normalisation) -> Tensor:
    """Return (bytes / 255 - mean) / std, float32.

    Args:
        images: Bytes (N, C, H, W).
        normalisation: Mean and standard deviation of the C channels.
    """
    mean = torch.tensor(normalisation.mean, device=images.device).view(-1, 1, 1)
    std = torch.tensor(normalisation.std, device=images.device).view(-1, 1, 1)
    return (images.float() / 255 - mean) / std
