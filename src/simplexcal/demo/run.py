"""The demo: four methods on a LeNet-5 and the 10000 test images of Fashion-MNIST, out of fold.

Each method is fitted on either half of the images and predicts the other half. So every image is
evaluated once, by a calibrator that has not seen it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from simplexcal.backbone import Backbone, extract
from simplexcal.calibrators import (
    Calibrator,
    EnsembleTemperatureScaling,
    SimplexTemperatureScaling,
    TemperatureScaling,
    Uncalibrated,
)
from simplexcal.demo.fashion_mnist import calibration_test_split, images_and_labels
from simplexcal.demo.lenet5 import LeNet5, normalise
from simplexcal.mixup import FeatureMixup
from simplexcal.types import Outputs, Prediction

WEIGHTS = Path(__file__).with_name("lenet5.safetensors")
# These are fitted whole in seconds. The others take minutes.
METHODS: dict[str, type[Calibrator]] = {
    method.key: method
    for method in (
        Uncalibrated,
        TemperatureScaling,
        EnsembleTemperatureScaling,
        SimplexTemperatureScaling,
    )
}
SOURCES = {
    "Data": "the 10000 test images of Fashion-MNIST",
    "Predictions": "out of fold: each method is fitted on either half and predicts the other",
}
NOTES = """\
The 10000 images are split once into two halves. Each method is fitted on either half and predicts
the other, so every image is evaluated once, by a calibrator that has not seen it. An ECE below the
95 % value of the noise floor cannot be distinguished from that of a perfectly calibrated model. The
NLL can rank such methods; lower is better. docs/results has all methods on 32 networks."""


class Data(NamedTuple):
    """The network, the images and its outputs for them.

    Attributes:
        backbone: The frozen network.
        images: The images, bytes, (N, 28, 28).
        labels: Their labels, (N,).
        outputs: The network's outputs for them.
        fit_rows: The rows of the calibration half.
        test_rows: The rows of the test half.
    """

    backbone: Backbone
    images: Tensor
    labels: Tensor
    outputs: Outputs
    fit_rows: Tensor
    test_rows: Tensor

    @property
    def fit(self) -> Outputs:
        """The outputs for the calibration half."""
        return self.outputs[self.fit_rows]

    @property
    def fit_labels(self) -> Tensor:
        """The labels of the calibration half."""
        return self.labels[self.fit_rows]

    @property
    def test(self) -> Outputs:
        """The outputs for the test half."""
        return self.outputs[self.test_rows]

    @property
    def test_labels(self) -> Tensor:
        """The labels of the test half."""
        return self.labels[self.test_rows]

    @property
    def test_images(self) -> Tensor:
        """The images of the test half."""
        return self.images[self.test_rows]


def prepare() -> Data:
    """Run the network on all images and split them."""
    net = LeNet5()
    net.load_state_dict(load_file(WEIGHTS))
    backbone = Backbone(net)
    images, labels = images_and_labels()
    outputs, _ = extract(backbone, (normalise(images), labels))
    fit_rows, test_rows = calibration_test_split(len(labels))
    return Data(backbone, images, labels, outputs, fit_rows, test_rows)


def predictions(
    data: Data, only: Sequence[str] = tuple(METHODS), seed: int = 0, *, progress: bool = False
) -> Iterator[tuple[str, Prediction]]:
    """Yield the name of each method and its out-of-fold prediction for all images, in their order.

    Args:
        data: What ``prepare`` returns.
        only: The names of the methods, from ``METHODS``.
        seed: Seed of each fit.
        progress: Whether to show a progress bar.
    """
    folds = [(data.fit_rows, data.test_rows), (data.test_rows, data.fit_rows)]
    predicted_rows = torch.cat([predicted for _, predicted in folds])
    image_order = predicted_rows.argsort()
    for name in only:
        parts = []
        for fitted, predicted in folds:
            calibrator = METHODS[name]()
            _fit(calibrator, data, fitted, seed, progress)
            parts.append(calibrator(data.outputs[predicted]))
        yield name, Prediction.cat(parts)[image_order]


def _fit(calibrator: Calibrator, data: Data, rows: Tensor, seed: int, progress: bool) -> None:
    """Fit a calibrator to some of the rows."""
    outputs = data.outputs[rows]
    labels = data.labels[rows]
    calibrator.fit(
        outputs,
        labels,
        mixup=FeatureMixup(data.backbone.head, outputs, labels),
        generator=torch.Generator().manual_seed(seed),
        progress=progress,
    )
