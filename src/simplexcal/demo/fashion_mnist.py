"""The demo's data: the test images of Fashion-MNIST as their authors distribute them; see ``data/ORIGIN.md``."""

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def images_and_labels() -> tuple[Tensor, Tensor]:
    """Return the 10000 test images (10000, 28, 28), bytes, and their labels."""
    folder = Path(__file__).parent / "data"
    return read_idx(folder / "t10k-images-idx3-ubyte.gz"), read_idx(
        folder / "t10k-labels-idx1-ubyte.gz"
    ).long()


def halves(n: int) -> tuple[Tensor, Tensor]:
    """Return the rows to calibrate with and those to judge by: the halves of the fixed permutation of seed 42."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(42))
    return order[: n // 2], order[n // 2 :]


def read_idx(path: Path) -> Tensor:
    """Return the bytes in a gzipped IDX file."""
    raw = gzip.decompress(path.read_bytes())
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(raw[3])]
    return torch.from_numpy(
        np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape).copy()
    )
