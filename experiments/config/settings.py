"""The rows of the paper's Table 1, and other forms of some: a data set, a network, and how it is trained."""

from typing import NamedTuple

import torch

from experiments.pretraining.augmentation import CROPS_AND_FLIPS, NOTHING, Augmentation


class Row(NamedTuple):
    """A data set and a network, by the names that ``experiments.data`` and ``experiments.architectures`` know."""

    data: str
    network: str
    title: str
    augment: Augmentation = CROPS_AND_FLIPS

    def dtype(self, device: str) -> torch.dtype:
        """Return what a network computes in when it learns, and when it sees mixed images: on a GPU mostly bfloat16."""
        fast = torch.device(device).type == "cuda" and self.network != "lenet5"
        return torch.bfloat16 if fast else torch.float32


_TABLE1 = {
    "fmnist-lenet5": Row("fashion-mnist", "lenet5", "Fashion-MNIST, LeNet-5", NOTHING),
    "fmnist-resnet18": Row("fashion-mnist", "resnet18", "Fashion-MNIST, ResNet-18", NOTHING),
    "cifar10-vgg16-bn": Row("cifar10", "vgg16-bn", "CIFAR-10, VGG16-BN"),
    "cifar10-resnet18": Row("cifar10", "resnet18", "CIFAR-10, ResNet-18"),
    "cifar100-resnet50": Row("cifar100", "resnet50", "CIFAR-100, ResNet-50"),
    "cifar100-densenet121": Row("cifar100", "densenet121", "CIFAR-100, DenseNet-121"),
    "stl10-vgg16-bn": Row("stl10", "vgg16-bn", "STL-10, VGG16-BN"),
    "stl10-resnet18": Row("stl10", "resnet18-window", "STL-10, ResNet-18"),
}
_FORMS = {  # each is named after the row of Table 1 of which it is another form
    "stl10-vgg16-bn-flat": Row("stl10", "vgg16-bn-flat", "STL-10, VGG16-BN, 3 × 3 places"),
    "stl10-resnet18-wide": Row(
        "stl10", "resnet18", "STL-10, ResNet-18, 3 × 3 stem without pooling"
    ),
    "stl10-resnet18-strided": Row(
        "stl10", "resnet18-strided", "STL-10, ResNet-18, 7 × 7 stem pooled to a quarter"
    ),
    "stl10-resnet18-halved": Row(
        "stl10", "resnet18-halved", "STL-10, ResNet-18, 7 × 7 stem to a half"
    ),
    "stl10-resnet18-pooled": Row(
        "stl10", "resnet18-pooled", "STL-10, ResNet-18, 3 × 3 stem pooled to a half"
    ),
    "stl10-resnet18-plain": Row(
        "stl10", "resnet18", "STL-10, ResNet-18, neither crops nor flips", NOTHING
    ),
    "stl10-resnet18-flips": Row(
        "stl10", "resnet18", "STL-10, ResNet-18, flips alone", Augmentation(padding=0)
    ),
    "stl10-resnet18-crops": Row(
        "stl10", "resnet18", "STL-10, ResNet-18, crops alone", Augmentation(flip=False)
    ),
    "stl10-resnet18-small": Row(
        "stl10", "resnet18", "STL-10, ResNet-18, crops of 32 × 32", Augmentation(side=32)
    ),
    "stl10-vgg16-bn-small": Row(
        "stl10", "vgg16-bn", "STL-10, VGG16-BN, crops of 32 × 32", Augmentation(side=32)
    ),
}
ROWS = _TABLE1 | _FORMS
TABLE1_ROWS = tuple(_TABLE1)
FORM_OF = {form: next(row for row in _TABLE1 if form.startswith(f"{row}-")) for form in _FORMS}
