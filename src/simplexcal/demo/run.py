"""The demo: every method on a LeNet-5 and the Fashion-MNIST test images, 5000 to calibrate and 5000 to judge."""

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
from simplexcal.demo.fashion_mnist import halves, images_and_labels
from simplexcal.demo.lenet5 import LeNet5, normalise
from simplexcal.mixup import FeatureMixup
from simplexcal.types import Outputs, Prediction

# Three methods want minutes; the demo stops them early and says so.
METHODS: dict[str, Callable[[], Calibrator]] = {
    "none": Uncalibrated,
    "TS": TemperatureScaling,
    "ETS": EnsembleTemperatureScaling,
    "PTS, 5 % of its steps": lambda: ParameterizedTemperatureScaling(n_steps=5_000),
    "AdaTS, 10 % of its epochs": lambda: AdaptiveTemperatureScaling(n_epochs=10),
    "Dirichlet, 1 % of its steps": lambda: DirichletTemperatureScaling(n_steps=250),
    "STS": SimplexTemperatureScaling,
}
NOTES = """5000 images to calibrate, 5000 others to judge. An ECE below the 95 % value of its floor cannot be told from
that of a perfectly calibrated model with so many images; the NLL (lower is better) can tell methods apart. Three
methods would take minutes and were stopped early; docs/results.md has PTS and AdaTS whole, on five networks."""


class Data(NamedTuple):
    """The network's outputs for the images to calibrate with, and for those to judge by."""

    backbone: Backbone
    fit: Outputs
    fit_labels: Tensor
    test: Outputs
    test_labels: Tensor
    test_images: Tensor


def prepare() -> Data:
    """Run the network on all images and split what comes out."""
    net = LeNet5()
    net.load_state_dict(load_file(Path(__file__).with_name("lenet5.safetensors")))
    backbone, (images, labels) = Backbone(net), images_and_labels()
    outputs, _ = extract(backbone, (normalise(images), labels))
    fit, test = halves(len(labels))
    return Data(backbone, outputs[fit], labels[fit], outputs[test], labels[test], images[test])


def predictions(
    data: Data, only: Sequence[str] = tuple(METHODS), seed: int = 0, *, progress: bool = False
) -> Iterator[tuple[str, Prediction]]:
    """Fit one method after the other, and yield its name and what it predicts for the images to judge by."""
    mixup = FeatureMixup(data.backbone.head, data.fit, data.fit_labels)
    for name in only:
        generator = torch.Generator().manual_seed(seed)
        calibrator = METHODS[name]().fit(
            data.fit, data.fit_labels, mixup=mixup, generator=generator, progress=progress
        )
        yield name, calibrator(data.test)
