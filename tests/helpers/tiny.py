"""Tiny data sets in the official formats: 16 or more images of each class, with bright pixels."""

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat

Bytes = NDArray[np.uint8]


def write_all(folder: Path) -> None:
    """Write every data set."""
    write_fashion_mnist(folder)
    write_cifar10(folder)
    write_cifar100(folder)
    write_stl10(folder)
    write_ood_datasets(folder)


def write_fashion_mnist(folder: Path) -> None:
    for split, n in (("train", 160), ("t10k", 320)):
        _write_idx(folder / "fashion-mnist", split, *_images(n, 10, (28, 28)))


def write_cifar10(folder: Path) -> None:
    source = _made(folder / "cifar-10-batches-bin")
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        images, labels = _images(320 if name == "test_batch" else 32, 10, (3, 32, 32))
        (source / f"{name}.bin").write_bytes(_records(labels[:, None], images))


def write_cifar100(folder: Path) -> None:
    source = _made(folder / "cifar-100-binary")
    for name, n in (("train", 100), ("test", 1600)):
        images, labels = _images(n, 100, (3, 32, 32))
        (source / f"{name}.bin").write_bytes(_records(np.stack([0 * labels, labels], 1), images))
    (source / "fine_label_names.txt").write_text("".join(f"class {i}\n" for i in range(100)))


def write_stl10(folder: Path) -> None:
    source = _made(folder / "stl10_binary")
    for split, n in (("train", 32), ("test", 160)):
        images, labels = _images(n, 10, (3, 96, 96))
        (source / f"{split}_X.bin").write_bytes(
            images.transpose(0, 1, 3, 2).tobytes()
        )  # column by column
        (source / f"{split}_y.bin").write_bytes((labels + 1).astype(np.uint8).tobytes())


def write_ood_datasets(folder: Path) -> None:
    _write_idx(folder / "notmnist", "t10k", *_images(20, 10, (28, 28)))
    digits, labels = _images(20, 10, (32, 32, 3))
    savemat(
        _made(folder / "svhn") / "test_32x32.mat",
        {"X": digits.transpose(1, 2, 3, 0), "y": labels[:, None] + 1},
    )
    source = _made(folder / "tinyimagenet_resize")
    for i, image in enumerate(_images(4, 2, (32, 32, 3))[0]):
        Image.fromarray(image).save(source / f"{i}.png")


def _images(n: int, n_classes: int, shape: tuple[int, ...]) -> tuple[Bytes, Bytes]:
    """Return noise with a bright pixel whose place is the class, and the classes in turn."""
    random = np.random.default_rng(n)
    images = random.integers(0, 128, (n, *shape), dtype=np.uint8)
    labels = (np.arange(n) % n_classes).astype(np.uint8)
    flat = images.reshape(n, -1)
    for i in range(6):
        flat[np.arange(n), 7 * labels.astype(int) + i] = 255
    return images, labels


def _write_idx(folder: Path, split: str, images: Bytes, labels: Bytes) -> None:
    _made(folder)
    n, height, width = images.shape
    sizes = struct.pack(">4B3I", 0, 0, 8, 3, n, height, width)
    (folder / f"{split}-images-idx3-ubyte").write_bytes(sizes + images.tobytes())
    (folder / f"{split}-labels-idx1-ubyte").write_bytes(
        struct.pack(">4BI", 0, 0, 8, 1, n) + labels.tobytes()
    )


def _records(labels: Bytes, images: Bytes) -> bytes:
    return np.concatenate([labels.astype(np.uint8), images.reshape(len(images), -1)], 1).tobytes()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
