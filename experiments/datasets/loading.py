"""The paper's data sets, from a folder that holds them as their authors distribute them.

DATA/fashion-mnist, cifar-10-batches-bin, cifar-100-binary, stl10_binary; and to judge strangers by: notmnist, svhn,
tinyimagenet_resize, lsun. ``experiments.download`` fetches those that have a fixed address.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from experiments.datasets.formats import (
    read_cifar,
    read_idx,
    read_images,
    read_names,
    read_stl10,
    read_svhn,
)
from simplexcal.demo.fashion_mnist import CLASSES as FASHION_CLASSES
from simplexcal.demo.fashion_mnist import halves

__all__ = [
    "NORMALISATION",
    "SETS",
    "STRANGERS",
    "Images",
    "Normalisation",
    "halves",
    "load",
    "load_ood",
    "normalise",
]

CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
STL10_CLASSES = (
    "airplane",
    "bird",
    "car",
    "cat",
    "deer",
    "dog",
    "horse",
    "monkey",
    "ship",
    "truck",
)


class Images(NamedTuple):
    """A data set: bytes (N, C, H, W) and labels (N,) to train on and to test with, and the classes' names."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]


class Normalisation(NamedTuple):
    """Mean and standard deviation of each channel, on the scale from 0 to 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
NORMALISATION = {
    "fashion-mnist": Normalisation((0.2859,), (0.3530,)),
    "cifar10": Normalisation(CIFAR10_MEAN, (0.2023, 0.1994, 0.2010)),
    "cifar100": Normalisation((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    "stl10": Normalisation(CIFAR10_MEAN, (0.2471, 0.2435, 0.2616)),
}


def load(name: str, folder: Path) -> Images:
    """Return a data set by its name: fashion-mnist, cifar10, cifar100 or stl10."""
    _check_name(name, SETS)
    return SETS[name](folder)


def load_ood(name: str, folder: Path) -> Tensor:
    """Return strangers' images by their set's name: notmnist (28 × 28), or one of 32 × 32 in ``STRANGERS``."""
    _check_name(name, STRANGERS)
    return STRANGERS[name](folder)


def normalise(images: Tensor, normalisation: Normalisation) -> Tensor:
    """Return (bytes / 255 - mean) / std, float32."""
    mean, std = (torch.tensor(v, device=images.device).view(-1, 1, 1) for v in normalisation)
    return (images.float() / 255 - mean) / std


def _fashion_mnist(folder: Path) -> Images:
    train, test = (_idx(folder / "fashion-mnist", split) for split in ("train", "t10k"))
    return Images(*train, *test, FASHION_CLASSES)


def _idx(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    images, labels = (
        read_idx(_gzipped(folder / f"{split}-{part}-ubyte"))
        for part in ("images-idx3", "labels-idx1")
    )
    return images.unsqueeze(1), labels.long()


def _gzipped(path: Path) -> Path:
    return path if path.exists() else path.with_name(path.name + ".gz")


def _cifar10(folder: Path) -> Images:
    source = folder / "cifar-10-batches-bin"
    images, labels = zip(
        *(read_cifar(source / f"data_batch_{i}.bin", 1) for i in range(1, 6)), strict=True
    )
    return Images(
        torch.cat(images),
        torch.cat(labels),
        *read_cifar(source / "test_batch.bin", 1),
        CIFAR10_CLASSES,
    )


def _cifar100(folder: Path) -> Images:
    source = folder / "cifar-100-binary"
    names = read_names(source / "fine_label_names.txt")
    return Images(*read_cifar(source / "train.bin", 2), *read_cifar(source / "test.bin", 2), names)


def _stl10(folder: Path) -> Images:
    source = folder / "stl10_binary"
    train, test = (
        read_stl10(source / f"{split}_X.bin", source / f"{split}_y.bin")
        for split in ("train", "test")
    )
    return Images(*train, *test, STL10_CLASSES)


SETS: dict[str, Callable[[Path], Images]] = {
    "fashion-mnist": _fashion_mnist,
    "cifar10": _cifar10,
    "cifar100": _cifar100,
    "stl10": _stl10,
}
STRANGERS: dict[str, Callable[[Path], Tensor]] = {
    "notmnist": lambda folder: _idx(folder / "notmnist", "t10k")[0],
    "svhn": lambda folder: read_svhn(folder / "svhn" / "test_32x32.mat")[0],
    "tinyimagenet": lambda folder: read_images(folder / "tinyimagenet_resize", 32),
    "lsun": lambda folder: read_images(folder / "lsun", 32),
    "cifar10": lambda folder: _cifar10(folder).test_images,
    "cifar100": lambda folder: _cifar100(folder).test_images,
}


def _check_name(name: str, sets: Iterable[str]) -> None:
    if name not in sets:
        raise ValueError(f"`name` must be one of {', '.join(sets)}; got {name!r}.")
