"""The paper's data sets, from a folder that holds them as their authors distribute them.

The folder has fashion-mnist, cifar-10-batches-bin, cifar-100-binary and stl10_binary; and for
out-of-distribution detection notmnist, svhn, tinyimagenet_resize and lsun.
``python -m experiments download`` fetches those that have a fixed address.
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
from simplexcal.demo.fashion_mnist import calibration_test_split

__all__ = [
    "DATASETS",
    "OOD_DATASETS",
    "Dataset",
    "calibration_test_split",
    "load",
    "load_ood",
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


class Dataset(NamedTuple):
    """Labelled images to train on and to test with.

    Args:
        train_images: Bytes (N, C, H, W).
        train_labels: Classes (N,).
        test_images: Bytes (M, C, H, W).
        test_labels: Classes (M,).
        classes: The classes' names.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]


def load(name: str, folder: Path) -> Dataset:
    """Return a data set.

    Args:
        name: A key of ``DATASETS``: fashion-mnist, cifar10, cifar100 or stl10.
        folder: The folder of the data sets.

    Raises:
        FileNotFoundError: If a file of the data set is missing.
        ValueError: If the name is unknown or a file is damaged.
    """
    _check_name(name, DATASETS)
    return DATASETS[name](folder)


def load_ood(name: str, folder: Path) -> Tensor:
    """Return the images of an out-of-distribution data set, bytes (N, C, H, W).

    Args:
        name: A key of ``OOD_DATASETS``. Images of notmnist are 28 × 28, all others 32 × 32.
        folder: The folder of the data sets.

    Raises:
        FileNotFoundError: If a file of the data set is missing.
        ValueError: If the name is unknown or a file is damaged.
    """
    _check_name(name, OOD_DATASETS)
    return OOD_DATASETS[name](folder)


def _fashion_mnist(folder: Path) -> Dataset:
    train = _read_idx_pair(folder / "fashion-mnist", "train")
    test = _read_idx_pair(folder / "fashion-mnist", "t10k")
    return Dataset(*train, *test, FASHION_CLASSES)


def _read_idx_pair(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Return images and labels of the two IDX files of a split."""
    images = read_idx(_plain_or_gzipped(folder / f"{split}-images-idx3-ubyte"))
    labels = read_idx(_plain_or_gzipped(folder / f"{split}-labels-idx1-ubyte"))
    return images.unsqueeze(1), labels.long()


def _plain_or_gzipped(path: Path) -> Path:
    if path.exists():
        return path
    return path.with_name(f"{path.name}.gz")


def _cifar10(folder: Path) -> Dataset:
    source = folder / "cifar-10-batches-bin"
    batches = [read_cifar(source / f"data_batch_{i}.bin", 1) for i in range(1, 6)]
    images = torch.cat([batch_images for batch_images, _ in batches])
    labels = torch.cat([batch_labels for _, batch_labels in batches])
    test = read_cifar(source / "test_batch.bin", 1)
    return Dataset(images, labels, *test, CIFAR10_CLASSES)


def _cifar100(folder: Path) -> Dataset:
    source = folder / "cifar-100-binary"
    train = read_cifar(source / "train.bin", 2)
    test = read_cifar(source / "test.bin", 2)
    return Dataset(*train, *test, read_names(source / "fine_label_names.txt"))


def _stl10(folder: Path) -> Dataset:
    source = folder / "stl10_binary"
    train = read_stl10(source / "train_X.bin", source / "train_y.bin")
    test = read_stl10(source / "test_X.bin", source / "test_y.bin")
    return Dataset(*train, *test, STL10_CLASSES)


def _notmnist(folder: Path) -> Tensor:
    return _read_idx_pair(folder / "notmnist", "t10k")[0]


def _svhn(folder: Path) -> Tensor:
    return read_svhn(folder / "svhn" / "test_32x32.mat")[0]


DATASETS: dict[str, Callable[[Path], Dataset]] = {
    "fashion-mnist": _fashion_mnist,
    "cifar10": _cifar10,
    "cifar100": _cifar100,
    "stl10": _stl10,
}
OOD_DATASETS: dict[str, Callable[[Path], Tensor]] = {
    "notmnist": _notmnist,
    "svhn": _svhn,
    "tinyimagenet": lambda folder: read_images(folder / "tinyimagenet_resize", 32),
    "lsun": lambda folder: read_images(folder / "lsun", 32),
    "cifar10": lambda folder: _cifar10(folder).test_images,
    "cifar100": lambda folder: _cifar100(folder).test_images,
}


def _check_name(name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise ValueError(f"`name` must be one of {', '.join(known)}; got {name!r}.")
