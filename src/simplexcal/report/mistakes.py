"""The most confident mistakes, and pictures of their inputs."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from simplexcal.types import Prediction

N_MISTAKES = 12
THUMBNAIL = 112  # pixels: twice as many as a phone shows

Images = Tensor | NDArray[Any]


@dataclass(frozen=True)
class Mistake:
    """One input that is classified wrongly.

    Args:
        row: Its row in the prediction.
        id: Its key.
        prediction: Name of the predicted class.
        label: Name of the true class.
        confidence: Confidence of the method.
        before: Confidence of the network before calibration, where it is known.
        picture: The input as a data URI, where there are images.
    """

    row: int
    id: str
    prediction: str
    label: str
    confidence: float
    before: float | None
    picture: str | None


def most_confident_mistakes(
    prediction: Prediction,
    labels: Tensor,
    before: Prediction | None,
    class_names: list[str],
    images: Images | None,
    ids: Sequence[str] | None = None,
) -> list[Mistake]:
    """Return the ``N_MISTAKES`` wrong predictions of the highest confidence, highest first.

    Args:
        prediction: Predictions of a method for N inputs.
        labels: The class of each input, (N,).
        before: Predictions of the network before calibration, where they are known.
        class_names: The names of the classes.
        images: Pictures of the inputs, where there are any.
        ids: A key for each input; None counts them from 0.

    Raises:
        TypeError: If the images are neither bytes nor floating-point.
        ValueError: If floating-point images are not between 0 and 1.
    """
    mistakes = []
    for i in _wrong_rows(prediction, labels)[:N_MISTAKES].tolist():
        predicted = int(prediction.label[i])
        mistake = Mistake(
            row=i,
            id=_key(ids, i),
            prediction=class_names[predicted],
            label=class_names[int(labels[i])],
            confidence=float(prediction.confidence[i]),
            before=_probability(before, i, predicted),
            picture=_picture(images, i),
        )
        mistakes.append(mistake)
    return mistakes


def mistake_columns(
    prediction: Prediction,
    labels: Tensor,
    before: Prediction | None,
    ids: Sequence[str] | None = None,
) -> dict[str, list[Any]]:
    """Return all wrong predictions, the most confident first, as columns for a CSV file.

    Classes are numbers, which the page replaces by their names: a file of a million inputs stays
    small.

    Args:
        prediction: Predictions of a method for N inputs.
        labels: The class of each input, (N,).
        before: Predictions of the network before calibration, where they are known.
        ids: A key for each input; None counts them from 0.
    """
    rows = _wrong_rows(prediction, labels)
    predicted = prediction.label[rows]
    columns: dict[str, list[Any]] = {
        "id": [_key(ids, i) for i in rows.tolist()],
        "predicted": predicted.tolist(),
        "label": labels[rows].tolist(),
        "confidence": _rounded(prediction.confidence[rows]),
    }
    if before is not None:
        columns["confidence_before"] = _rounded(before.probs[rows, predicted])
    return columns


def _wrong_rows(prediction: Prediction, labels: Tensor) -> Tensor:
    """Return the rows of the wrong predictions, the most confident first."""
    wrong = (prediction.label != labels).nonzero().squeeze(1)
    order = prediction.confidence[wrong].argsort(descending=True, stable=True)
    return wrong[order]


def _key(ids: Sequence[str] | None, row: int) -> str:
    if ids is None:
        return str(row)
    return ids[row]


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.double().tolist()]


def _probability(prediction: Prediction | None, row: int, column: int) -> float | None:
    if prediction is None:
        return None
    return float(prediction.probs[row, column])


def _picture(images: Images | None, i: int) -> str | None:
    """Return one image as a small PNG in a data URI."""
    if images is None:
        return None
    from PIL import Image

    picture = Image.fromarray(pixels(images[i]))
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def pixels(image: Images) -> NDArray[np.uint8]:
    """Return one image as bytes (H, W) or (H, W, 3).

    Args:
        image: The image, in any form.

    Raises:
        TypeError: If it is neither bytes nor floating-point.
        ValueError: If it is floating-point and not between 0 and 1.
    """
    x = _array(image)
    if x.ndim == 3 and x.shape[0] in (1, 3):
        x = np.moveaxis(x, 0, -1)
    if x.ndim == 3 and x.shape[-1] == 1:
        x = x[..., 0]
    if x.dtype != np.uint8:
        x = _bytes(x)
    return np.ascontiguousarray(x)


def _array(image: Images) -> NDArray[Any]:
    if not isinstance(image, Tensor):
        return image
    image = image.detach().cpu()
    if image.is_floating_point():
        image = image.float()  # numpy has no bfloat16
    return np.asarray(image)


def _bytes(x: NDArray[Any]) -> NDArray[np.uint8]:
    if not np.issubdtype(x.dtype, np.floating):
        raise TypeError(
            f"`images` must be bytes (uint8) or floating-point; got {x.dtype}. "
            "Convert them to uint8."
        )
    if not (x.min() >= 0 and x.max() <= 1):
        raise ValueError(
            "`images` must lie between 0 and 1 if they are floating-point; "
            f"found {x.min():g} to {x.max():g}. Pass them as they were before normalisation."
        )
    return (255 * x).round().astype(np.uint8)
