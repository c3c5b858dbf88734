"""A trained network with its data, to try things on."""

from typing import NamedTuple

from safetensors.torch import load_file
from torch import Tensor

from simplexcal.demo.fashion_mnist import calibration_test_split, images_and_labels
from simplexcal.demo.lenet5 import LeNet5, normalise
from simplexcal.demo.run import WEIGHTS


class Example(NamedTuple):
    """A trained network, and inputs with labels that it was not trained on.

    Attributes:
        net: A LeNet-5 for Fashion-MNIST.
        held_out: 5000 normalised test images (N, 1, 28, 28) and their labels, to calibrate with.
        test: The other 5000 test images and their labels, to evaluate with.
    """

    net: LeNet5
    held_out: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def load_example() -> Example:
    """Return the network of the demo and its data: real ones, which the package contains."""
    net = LeNet5()
    net.load_state_dict(load_file(WEIGHTS))
    images, labels = images_and_labels()
    inputs = normalise(images)
    held_out, test = calibration_test_split(len(labels))
    return Example(net, (inputs[held_out], labels[held_out]), (inputs[test], labels[test]))
