"""The demo: every method on a LeNet-5 and the Fashion-MNIST test images.

5000 images are for calibration, 5000 for the test.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from simplexcal.backbone import Backbone, extract
from simplexcal.calibrators import (
    AdaptiveTemperatureScaling,
    Calibrator,
    DirichletTemperatureScaling,
    EnsembleTemperatureScaling,
    ParameterizedTemperatureScaling,
    SimplexTemperatureScaling,
    TemperatureScaling,
    Uncalibrated,
)
from simplexcal.demo.fashion_mnist import calibration_test_split, images_and_labels
from simplexcal.demo.lenet5 import LeNet5, normalise
from simplexcal.mixup import FeatureMixup
from simplexcal.types import Outputs, Prediction

# Three methods would take minutes. The demo stops them early, and their names say so.
METHODS: dict[str, Callable[[], Calibrator]] = {
    Uncalibrated.key: Uncalibrated,
    TemperatureScaling.abbreviation: TemperatureScaling,
    EnsembleTemperatureScaling.abbreviation: EnsembleTemperatureScaling,
    f"{ParameterizedTemperatureScaling.abbreviation}, 5 % of its steps": (
        lambda: ParameterizedTemperatureScaling(n_steps=5_000)
    ),
    f"{AdaptiveTemperatureScaling.abbreviation}, 10 % of its epochs": (
        lambda: AdaptiveTemperatureScaling(n_epochs=10)
    ),
    f"{DirichletTemperatureScaling.abbreviation}, 1 % of its steps": (
        lambda: DirichletTemperatureScaling(n_steps=250)
    ),
    SimplexTemperatureScaling.abbreviation: SimplexTemperatureScaling,
}
NOTES = """\
5000 images are for calibration, 5000 others for the test. An ECE below the 95 % value of the noise
floor cannot be distinguished from that of a perfectly calibrated model. The NLL can rank such
methods; lower is better. Three methods would take minutes and were stopped early. docs/results has
PTS and AdaTS in full, on five networks."""


class Data(NamedTuple):
    """The network, and its outputs for the calibration set and the test set.

    Attributes:
        backbone: The frozen network.
        fit: Its outputs for the calibration set.
        fit_labels: The labels of the calibration set.
        test: Its outputs for the test set.
        test_labels: The labels of the test set.
        test_images: The images of the test set, bytes.
    """

    backbone: Backbone
    fit: Outputs
    fit_labels: Tensor
    test: Outputs
    test_labels: Tensor
    test_images: Tensor


def prepare() -> Data:
    """Run the network on all images and split its outputs."""
    net = LeNet5()
    net.load_state_dict(load_file(Path(__file__).with_name("lenet5.safetensors")))
    backbone = Backbone(net)
    images, labels = images_and_labels()
    outputs, _ = extract(backbone, (normalise(images), labels))
    fit, test = calibration_test_split(len(labels))
    return Data(backbone, outputs[fit], labels[fit], outputs[test], labels[test], images[test])


def predictions(
    data: Data, only: Sequence[str] = tuple(METHODS), seed: int = 0, *, progress: bool = False
) -> Iterator[tuple[str, Prediction]]:
    """Fit one method after the other, and yield its name and its prediction for the test set.

    Args:
        data: What ``prepare`` returns.
        only: The names of the methods, from ``METHODS``.
        seed: Seed of each fit.
        progress: Whether to show a progress bar.
    """
    mixup = FeatureMixup(data.backbone.head, data.fit, data.fit_labels)
    for name in only:
        calibrator = METHODS[name]()
        calibrator.fit(
            data.fit,
            data.fit_labels,
            mixup=mixup,
            generator=torch.Generator().manual_seed(seed),
            progress=progress,
        )
        yield name, calibrator(data.test)
