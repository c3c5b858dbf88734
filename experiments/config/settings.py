"""The settings of the paper's Table 1, and architecture variants of some of them.

A setting is a data set, a network and the way the network is trained.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch


class Augmentation(NamedTuple):
    """What is done to a training image.

    Args:
        padding: Black pixels added on each side before a crop is taken.
        side: Height and width of the crop; None means those of the image.
        flip: Whether one image in two is flipped.
    """

    padding: int = 4
    side: int | None = None
    flip: bool = True


CROPS_AND_FLIPS = Augmentation()
NO_AUGMENTATION = Augmentation(padding=0, flip=False)


@dataclass(frozen=True)
class Setting:
    """A data set, a network and the way the network is trained.

    Args:
        dataset: A name that ``experiments.datasets.loading`` knows.
        network: A name that ``experiments.pretraining.architectures`` knows.
        title: The name on the results pages.
        augmentation: What is done to the training images.
        epochs: Passes through the training images.
    """

    dataset: str
    network: str
    title: str
    augmentation: Augmentation = CROPS_AND_FLIPS
    epochs: int = 200

    def dtype(self, device: str) -> torch.dtype:
        """Return the dtype in which the network trains and sees mixed images.

        Args:
            device: Where the network is. A GPU computes in bfloat16, except for LeNet-5.
        """
        on_gpu = torch.device(device).type == "cuda"
        if on_gpu and self.network != "lenet5":
            return torch.bfloat16
        return torch.float32


TABLE1_SETTINGS = {
    "fmnist-lenet5": Setting(
        "fashion-mnist", "lenet5", "Fashion-MNIST, LeNet-5", augmentation=NO_AUGMENTATION
    ),
    "fmnist-resnet18": Setting(
        "fashion-mnist", "resnet18", "Fashion-MNIST, ResNet-18", augmentation=NO_AUGMENTATION
    ),
    "cifar10-vgg16-bn": Setting("cifar10", "vgg16-bn", "CIFAR-10, VGG16-BN"),
    "cifar10-resnet18": Setting("cifar10", "resnet18", "CIFAR-10, ResNet-18"),
    "cifar100-resnet50": Setting("cifar100", "resnet50", "CIFAR-100, ResNet-50"),
    "cifar100-densenet121": Setting("cifar100", "densenet121", "CIFAR-100, DenseNet-121"),
    "stl10-vgg16-bn": Setting("stl10", "vgg16-bn", "STL-10, VGG16-BN"),
    "stl10-resnet18": Setting("stl10", "resnet18-window", "STL-10, ResNet-18"),
}
# A variant is named after the setting of Table 1 that it varies.
ARCHITECTURE_VARIANTS = {
    "stl10-vgg16-bn-flat": Setting("stl10", "vgg16-bn-flat", "STL-10, VGG16-BN, 3 × 3 features"),
    "stl10-resnet18-wide": Setting(
        "stl10", "resnet18", "STL-10, ResNet-18, 3 × 3 stem without pooling"
    ),
    "stl10-resnet18-strided": Setting(
        "stl10", "resnet18-strided", "STL-10, ResNet-18, 7 × 7 stem pooled to a quarter"
    ),
    "stl10-resnet18-halved": Setting(
        "stl10", "resnet18-halved", "STL-10, ResNet-18, 7 × 7 stem to a half"
    ),
    "stl10-resnet18-pooled": Setting(
        "stl10", "resnet18-pooled", "STL-10, ResNet-18, 3 × 3 stem pooled to a half"
    ),
    "stl10-resnet18-plain": Setting(
        "stl10",
        "resnet18",
        "STL-10, ResNet-18, neither crops nor flips",
        augmentation=NO_AUGMENTATION,
    ),
    "stl10-resnet18-flips": Setting(
        "stl10",
        "resnet18",
        "STL-10, ResNet-18, flips only",
        augmentation=Augmentation(padding=0),
    ),
    "stl10-resnet18-crops": Setting(
        "stl10",
        "resnet18",
        "STL-10, ResNet-18, crops only",
        augmentation=Augmentation(flip=False),
    ),
    "stl10-resnet18-small": Setting(
        "stl10",
        "resnet18",
        "STL-10, ResNet-18, crops of 32 × 32",
        augmentation=Augmentation(side=32),
    ),
    "stl10-vgg16-bn-small": Setting(
        "stl10",
        "vgg16-bn",
        "STL-10, VGG16-BN, crops of 32 × 32",
        augmentation=Augmentation(side=32),
    ),
}
# Networks that the paper does not have, trained for fewer epochs.
SHORT_SETTINGS = {
    "cifar10-resnet18-short": Setting(
        "cifar10", "resnet18", "CIFAR-10, ResNet-18, 30 epochs", epochs=30
    ),
    "cifar100-resnet18-short": Setting(
        "cifar100", "resnet18", "CIFAR-100, ResNet-18, 30 epochs", epochs=30
    ),
}
SETTINGS = TABLE1_SETTINGS | ARCHITECTURE_VARIANTS | SHORT_SETTINGS


def varied_setting(variant: str) -> str:
    """Return the setting of Table 1 that an architecture variant varies.

    Args:
        variant: A key of ``ARCHITECTURE_VARIANTS``.
    """
    return next(name for name in TABLE1_SETTINGS if variant.startswith(f"{name}-"))
