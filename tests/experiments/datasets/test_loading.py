"""Each data set from a folder as its authors lay it out, with a few images in it."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from experiments.datasets import loading
from experiments.datasets.normalisation import NORMALISATION, Normalisation, normalise
from PIL import Image
from scipy.io import savemat

from simplexcal.demo import lenet5


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def write_idx(folder: Path, split: str, n: int, packed: bool) -> None:
    images = struct.pack(">4B3I", 0, 0, 8, 3, n, 28, 28) + bytes(n * 784)
    labels = struct.pack(">4BI", 0, 0, 8, 1, n) + bytes(range(n))
    for part, content in (("images-idx3", images), ("labels-idx1", labels)):
        name = f"{split}-{part}-ubyte"
        write(
            folder / (name + ".gz" if packed else name),
            gzip.compress(content) if packed else content,
        )


def write_cifar10(folder: Path) -> None:
    for i in range(1, 6):
        write(
            folder / "cifar-10-batches-bin" / f"data_batch_{i}.bin",
            (bytes([i]) + bytes([10 * i]) * 3072) * 2,
        )
    write(folder / "cifar-10-batches-bin" / "test_batch.bin", bytes([9]) + bytes(3072))


def write_cifar100(folder: Path) -> None:
    for split, fine in (("train", 5), ("test", 1)):
        write(folder / "cifar-100-binary" / f"{split}.bin", bytes([19, fine]) + bytes(3072))
    write(folder / "cifar-100-binary" / "fine_label_names.txt", b"apple\naquarium_fish\n\n")


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist(tmp_path: Path, packed: bool) -> None:
    write_idx(tmp_path / "fashion-mnist", "train", 3, packed)
    write_idx(tmp_path / "fashion-mnist", "t10k", 2, packed)
    loaded = loading.load("fashion-mnist", tmp_path)
    assert (loaded.train_images.shape, loaded.test_images.shape) == ((3, 1, 28, 28), (2, 1, 28, 28))
    assert (loaded.train_labels.tolist(), loaded.test_labels.tolist()) == ([0, 1, 2], [0, 1])
    assert loaded.classes[9] == "Ankle boot"


def test_cifar10_has_its_batches_in_order(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    loaded = loading.load("cifar10", tmp_path)
    assert loaded.train_labels.tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert loaded.train_images[:, 0, 0, 0].tolist() == [10, 10, 20, 20, 30, 30, 40, 40, 50, 50]
    assert loaded.classes[int(loaded.test_labels[0])] == "truck"


def test_cifar100_has_fine_labels(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    loaded = loading.load("cifar100", tmp_path)
    assert (loaded.train_labels.tolist(), loaded.test_labels.tolist()) == ([5], [1])
    assert loaded.classes == ("apple", "aquarium_fish")


def test_stl10(tmp_path: Path) -> None:
    for split, n in (("train", 2), ("test", 1)):
        write(tmp_path / "stl10_binary" / f"{split}_X.bin", bytes(n * 3 * 96 * 96))
        write(tmp_path / "stl10_binary" / f"{split}_y.bin", bytes([8, 1][:n]))
    loaded = loading.load("stl10", tmp_path)
    assert (loaded.train_images.shape, loaded.train_labels.tolist()) == ((2, 3, 96, 96), [7, 0])
    assert loaded.classes[int(loaded.test_labels[0])] == "monkey"


def test_ood_datasets(tmp_path: Path) -> None:
    write_idx(tmp_path / "notmnist", "t10k", 2, packed=True)
    (tmp_path / "svhn").mkdir()
    digits = {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.ones((4, 1))}
    savemat(tmp_path / "svhn" / "test_32x32.mat", digits, do_compression=True)
    for folder in ("tinyimagenet_resize", "lsun"):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (40, 32)).save(tmp_path / folder / "00000.png")
    write_cifar10(tmp_path)
    write_cifar100(tmp_path)
    shapes = {name: tuple(loading.load_ood(name, tmp_path).shape) for name in loading.OOD_DATASETS}
    assert shapes == {
        "notmnist": (2, 1, 28, 28),
        "svhn": (4, 3, 32, 32),
        "tinyimagenet": (1, 3, 32, 32),
        "lsun": (1, 3, 32, 32),
        "cifar10": (1, 3, 32, 32),
        "cifar100": (1, 3, 32, 32),
    }


def test_an_unknown_name_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="one of fashion-mnist, cifar10, cifar100, stl10; got 'mnist'"
    ):
        loading.load("mnist", tmp_path)


def test_a_set_that_is_not_there_is_named(tmp_path: Path) -> None:
    for name in loading.DATASETS:
        with pytest.raises(FileNotFoundError, match=str(tmp_path)):
            loading.load(name, tmp_path)


def test_the_split_is_the_papers() -> None:
    fit, test = loading.calibration_test_split(8000)
    order = torch.randperm(8000, generator=torch.Generator().manual_seed(42))
    assert torch.equal(torch.cat([fit, test]), order)
    assert len(fit) == len(test) == 4000


def test_normalisation_is_that_of_the_demo(generator: torch.Generator) -> None:
    images = torch.randint(256, (3, 28, 28), generator=generator, dtype=torch.uint8)
    ours = normalise(images.unsqueeze(1), NORMALISATION["fashion-mnist"])
    torch.testing.assert_close(ours, lenet5.normalise(images), rtol=0, atol=1e-6)


def test_normalisation_by_hand() -> None:
    image = torch.full((1, 3, 1, 1), 51, dtype=torch.uint8)  # 51 / 255 = 0.2
    value = normalise(image, Normalisation((0.1, 0.2, 0.5), (0.1, 0.1, 0.1))).ravel()
    torch.testing.assert_close(value, torch.tensor([1.0, 0.0, -3.0]))
