"""Inputs of the report on pixels: the picture with classes, mistakes, confidence, uncertainties.

A panel is the picture in grey with colours over it. Positions that do not count are grey alone.
"""

import base64
import colorsys
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simplexcal.report.mistakes import Images, pixels
from simplexcal.types import Prediction

WIDTH = 360  # of a panel in pixels: as many as a phone shows
SMALL = 96  # a smaller picture keeps its pixels, larger ones are compressed
COVER = 0.7  # of the colours over the picture
QUALITY = 85
# A scale from dark to bright that stays ordered with every kind of colour vision: five points of
# matplotlib's viridis, with straight lines between them.
SCALE = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]])
WRONG = np.array([255.0, 120.0, 40.0])
GOLDEN = 0.381966  # turns of the colour circle from class to class

Colours = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Example:
    """One input, with what a report shows of it; maps are (H, W) or, of tokens, (T,).

    Args:
        id: Its key.
        labels: The class of each position.
        counts: Which positions count.
        prediction: Predictions of the method in focus, without probabilities.
        before: Confidence of the network before calibration, where it is known.
        nll: Mean negative log-likelihood of the positions that count.
        image: A picture of it, where there is one.
        words: The tokens as text, where there are some.
    """

    id: str
    labels: Tensor
    counts: Tensor
    prediction: "Maps"
    before: Tensor | None
    nll: float
    image: Images | None = None
    words: Sequence[str] | None = None

    @property
    def wrong(self) -> Tensor:
        """Which positions count and are classified wrongly."""
        return (self.prediction.label != self.labels) & self.counts

    @property
    def accuracy(self) -> float:
        """Share of the positions that count that are classified correctly."""
        return 1 - float(self.wrong.sum() / self.counts.sum())

    @property
    def confidence(self) -> float:
        """Mean confidence of the positions that count."""
        return float(self.prediction.confidence[self.counts].mean())


@dataclass(frozen=True, eq=False)
class Maps:
    """What a report keeps of a prediction for one input.

    Args:
        label: The predicted class of each position.
        confidence: Confidence.
        aleatoric: Aleatoric uncertainty, None where a method has none.
        epistemic: Epistemic uncertainty, None where a method has none.
    """

    label: Tensor
    confidence: Tensor
    aleatoric: Tensor | None
    epistemic: Tensor | None

    @classmethod
    def of(cls, prediction: Prediction, i: int) -> "Maps":
        """Return the maps of one input.

        Args:
            prediction: Predictions for several inputs.
            i: Which of them.
        """
        values = []
        for name in ("label", "confidence", "aleatoric", "epistemic"):
            x = getattr(prediction, name)
            if x is not None:
                x = x[i].clone()
            values.append(x)
        return cls(*values)


@dataclass(frozen=True)
class Panel:
    """A picture of one input.

    Args:
        title: What it shows.
        picture: A data URI.
        is_small: Whether single pixels are to be seen.
    """

    title: str
    picture: str
    is_small: bool


@dataclass(frozen=True)
class Range:
    """The range of a value in all pictures; its ends are the darkest and the brightest colour.

    Args:
        title: What is shown.
        low: Lower end.
        high: Upper end.
    """

    title: str
    low: float
    high: float


def value_ranges(examples: Sequence[Example]) -> list[Range]:
    """Return the ranges of confidence and uncertainties: the 1 % and 99 % quantiles of the latter.

    Args:
        examples: All inputs that are shown.
    """
    ranges = [Range("Confidence", 0.0, 1.0)]
    for name in ("aleatoric", "epistemic"):
        maps = [getattr(example.prediction, name) for example in examples]
        if any(x is None for x in maps):
            continue
        values = torch.cat([x[e.counts] for x, e in zip(maps, examples, strict=True)]).double()
        finite = values[values.isfinite()]
        if len(finite) > 0:
            low, high = np.quantile(finite.numpy(), [0.01, 0.99])
            ranges.append(Range(name.capitalize(), float(low), float(high)))
    return ranges


def panels(example: Example, ranges: Sequence[Range], title: str) -> list[Panel]:
    """Return the pictures of one input.

    Args:
        example: The input.
        ranges: Ranges of confidence and uncertainties.
        title: Name of the method in focus.
    """
    shape = tuple(example.labels.shape)
    grey = np.full((*shape, 3), 160.0)
    found = []
    if example.image is not None:
        picture = _fitted(pixels(example.image), shape)
        grey = np.repeat(picture.mean(-1, keepdims=True), 3, -1)
        found.append(_panel("Input", picture))
    maps = example.prediction
    counts = example.counts.numpy()
    everywhere = np.ones_like(counts)
    wrong = np.broadcast_to(WRONG, grey.shape)
    found += [
        _panel("True classes", _over(grey, class_colours(example.labels.numpy()), counts)),
        _panel("Predicted", _over(grey, class_colours(maps.label.numpy()), everywhere)),
        _panel("Mistakes", _over(grey, wrong, example.wrong.numpy())),
    ]
    if example.before is not None:
        colours = scale_colours(example.before, ranges[0])
        found.append(_panel("Confidence before", _over(grey, colours, everywhere)))
    for value_range in ranges:
        values = getattr(maps, value_range.title.lower())
        name = value_range.title
        if example.before is not None and name == "Confidence":
            name = f"Confidence, {title}"
        colours = scale_colours(values, value_range)
        found.append(_panel(name, _over(grey, colours, everywhere)))
    return found


def class_colours(classes: NDArray[np.int64]) -> Colours:
    """Return a colour for each class: around the colour circle, and of three brightnesses.

    Args:
        classes: Numbers of classes, of any shape.
    """
    known, index = np.unique(classes, return_inverse=True)
    table = []
    for k in known.tolist():
        lightness = (0.55, 0.72, 0.4)[k % 3]
        table.append(colorsys.hls_to_rgb(GOLDEN * k % 1, lightness, 0.75))
    colours: Colours = 255 * np.array(table)[index.reshape(classes.shape)]
    return colours


def scale_colours(values: Tensor, value_range: Range) -> Colours:
    """Return the colours of values, dark at the lower end of their range and bright at the upper.

    Args:
        values: Values, of any shape.
        value_range: Their range.
    """
    spread = max(value_range.high - value_range.low, 1e-12)
    share = ((values.double() - value_range.low) / spread).nan_to_num(0).clamp(0, 1).numpy()
    steps = np.linspace(0, 1, len(SCALE))
    colours: Colours = np.stack([np.interp(share, steps, SCALE[:, i]) for i in range(3)], -1)
    return colours


def css(colour: Sequence[float]) -> str:
    """Return a colour as "#0072b2".

    Args:
        colour: Red, green and blue from 0 to 255.
    """
    return "#" + "".join(f"{round(part):02x}" for part in colour)


def _over(grey: Colours, colours: Colours, where: NDArray[np.bool_]) -> Colours:
    """Return colours over a grey picture."""
    covered = (1 - COVER) * grey + COVER * colours
    return np.where(where[..., None], covered, grey)


def _fitted(picture: NDArray[np.uint8], shape: tuple[int, ...]) -> Colours:
    """Return a picture in colours and in the size of the maps."""
    from PIL import Image

    image = Image.fromarray(picture).convert("RGB")
    height, width = shape
    return np.asarray(image.resize((width, height), Image.Resampling.BOX)).astype(float)


def _panel(title: str, picture: Colours) -> Panel:
    """Return a picture as a data URI."""
    from PIL import Image

    image = Image.fromarray(picture.round().astype(np.uint8))
    is_small = max(image.size) < SMALL
    image.thumbnail((WIDTH, WIDTH))
    file = io.BytesIO()
    kind = "png"
    if is_small:
        image.save(file, "PNG", optimize=True)
    else:
        kind = "jpeg"
        image.save(file, "JPEG", quality=QUALITY, optimize=True)
    text = base64.b64encode(file.getvalue()).decode()
    return Panel(title, f"data:image/{kind};base64,{text}", is_small)
