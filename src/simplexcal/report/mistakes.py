"""The inputs that were most confidently wrong, and their pictures."""

import base64
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from simplexcal.types import Prediction

N_MISTAKES = 12
THUMBNAIL = 112  # pixels, twice of what a phone shows

Images = Tensor | NDArray[Any]


@dataclass(frozen=True)
class Mistake:
    """One input: what was said, what is true, how sure of it the method was, and the network before calibration."""

    row: int
    said: str
    true: str
    confidence: float
    before: float | None
    picture: str | None  # a data URI


def most_confident_mistakes(
    prediction: Prediction,
    labels: Tensor,
    before: Prediction | None,
    names: list[str],
    images: Images | None,
) -> list[Mistake]:
    """Return the ``N_MISTAKES`` wrong predictions of the highest confidence, highest first."""
    wrong = (prediction.label != labels).nonzero().squeeze(1)
    order = prediction.confidence[wrong].argsort(descending=True, stable=True)
    return [
        _mistake(i, prediction, labels, before, names, images)
        for i in wrong[order][:N_MISTAKES].tolist()
    ]


def check_images(images: Images | None, n: int) -> None:
    """Raise unless ``images`` is None or holds ``n`` pictures."""
    if images is None:
        return
    if not isinstance(images, Tensor | np.ndarray):
        raise TypeError(
            f"`images` must be a tensor or an array; got {type(images).__name__}. Stack them first."
        )
    shape = tuple(images.shape)
    has_channels = len(shape) == 4 and bool({shape[1], shape[3]} & {1, 3})
    if shape[:1] != (n,) or not (len(shape) == 3 or has_channels):
        raise ValueError(
            f"`images` must have shape (N, H, W), (N, H, W, C) or (N, C, H, W), with N = {n} and C = 1 or 3; "
            f"got {shape}."
        )


def _mistake(
    i: int,
    prediction: Prediction,
    labels: Tensor,
    before: Prediction | None,
    names: list[str],
    images: Images | None,
) -> Mistake:
    said = int(prediction.label[i])
    return Mistake(
        row=i,
        said=names[said],
        true=names[int(labels[i])],
        confidence=float(prediction.confidence[i]),
        before=None if before is None else float(before.probs[i, said]),
        picture=None if images is None else _data_uri(_pixels(images[i])),
    )


def _pixels(image: Images) -> NDArray[np.uint8]:
    """Return one image as bytes (H, W) or (H, W, 3)."""
    x = _array(image) if isinstance(image, Tensor) else image
    if x.ndim == 3 and x.shape[0] in (1, 3):
        x = np.moveaxis(x, 0, -1)
    x = x[..., 0] if x.ndim == 3 and x.shape[-1] == 1 else x
    return np.ascontiguousarray(x if x.dtype == np.uint8 else _bytes(x))


def _array(image: Tensor) -> NDArray[Any]:
    image = image.detach().cpu()
    return np.asarray(
        image.float() if image.is_floating_point() else image
    )  # numpy has no bfloat16


def _bytes(x: NDArray[Any]) -> NDArray[np.uint8]:
    if not np.issubdtype(x.dtype, np.floating):
        raise TypeError(
            f"`images` must be bytes (uint8) or floating-point; got {x.dtype}. Convert them to uint8."
        )
    if not (x.min() >= 0 and x.max() <= 1):
        raise ValueError(
            f"`images` must lie between 0 and 1 if they are floating-point; found {x.min():g} to {x.max():g}. "
            "Pass them as they were before normalisation."
        )
    return (255 * x).round().astype(np.uint8)


def _data_uri(pixels: NDArray[np.uint8]) -> str:
    from PIL import Image

    picture, file = Image.fromarray(pixels), io.BytesIO()
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    picture.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
