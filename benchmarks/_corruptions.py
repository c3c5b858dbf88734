"""Six simple corruptions of grey images, each at five severities.

They are in the style of hendrycks/robustness and share no code with it. Their strengths were set
before anything was measured.
"""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn import functional

SEVERITIES = (1, 2, 3, 4, 5)

NOISE = (0.04, 0.08, 0.12, 0.18, 0.26)  # standard deviation, of a range of 1
BLUR = (0.4, 0.6, 0.8, 1.1, 1.5)  # standard deviation, pixels
CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.2)  # factor
BRIGHTNESS = (0.05, 0.1, 0.2, 0.3, 0.4)  # added
ROTATION = (5, 10, 15, 20, 30)  # degrees, to either side
PIXELS = (24, 20, 16, 12, 9)  # of the side of the smaller image


def gaussian_noise(images: Tensor, severity: int, generator: Generator) -> Tensor:
    """Add independent noise to each pixel."""
    noise = torch.randn(images.shape, generator=generator)
    return (images + NOISE[severity - 1] * noise).clamp(0, 1)


def blur(images: Tensor, severity: int, generator: Generator) -> Tensor:  # noqa: ARG001
    """Convolve with a Gaussian of 9 x 9 pixels."""
    x = torch.arange(-4.0, 5.0)
    weights = (-0.5 * (x / BLUR[severity - 1]).square()).softmax(0)
    rows = functional.conv2d(
        functional.pad(images, (4, 4, 0, 0), mode="replicate"), weights.view(1, 1, 1, 9)
    )
    return functional.conv2d(
        functional.pad(rows, (0, 0, 4, 4), mode="replicate"), weights.view(1, 1, 9, 1)
    )


def contrast(images: Tensor, severity: int, generator: Generator) -> Tensor:  # noqa: ARG001
    """Move each pixel towards the mean of its image."""
    mean = images.mean((1, 2, 3), keepdim=True)
    return mean + CONTRAST[severity - 1] * (images - mean)


def brightness(images: Tensor, severity: int, generator: Generator) -> Tensor:  # noqa: ARG001
    """Add the same to every pixel."""
    return (images + BRIGHTNESS[severity - 1]).clamp(0, 1)


def rotation(images: Tensor, severity: int, generator: Generator) -> Tensor:
    """Rotate each image about its centre, to a random side."""
    side = torch.randint(2, (len(images),), generator=generator) * 2 - 1
    angle = math.radians(ROTATION[severity - 1]) * side
    zero = torch.zeros(len(images))
    first = torch.stack([angle.cos(), -angle.sin(), zero], -1)
    second = torch.stack([angle.sin(), angle.cos(), zero], -1)
    grid = functional.affine_grid(
        torch.stack([first, second], 1), list(images.shape), align_corners=False
    )
    return functional.grid_sample(images, grid, align_corners=False)


def pixelate(images: Tensor, severity: int, generator: Generator) -> Tensor:  # noqa: ARG001
    """Average to fewer pixels, and enlarge these."""
    small = functional.interpolate(images, size=PIXELS[severity - 1], mode="area")
    return functional.interpolate(small, size=images.shape[-1], mode="nearest")


CORRUPTIONS: dict[str, Callable[[Tensor, int, Generator], Tensor]] = {
    "Gaussian noise": gaussian_noise,
    "blur": blur,
    "contrast": contrast,
    "brightness": brightness,
    "rotation": rotation,
    "pixelate": pixelate,
}


def corrupt(name: str, images: Tensor, severity: int) -> Tensor:
    """Return corrupted images as bytes, always the same.

    Args:
        name: Name of the corruption.
        images: Bytes, (N, H, W).
        severity: 1 to 5.
    """
    generator = Generator().manual_seed(severity)
    share = images.float().unsqueeze(1) / 255
    corrupted = CORRUPTIONS[name](share, severity, generator)
    return (255 * corrupted).round().clamp(0, 255).to(torch.uint8).squeeze(1)
