"""The data of the demo: the test images of Fashion-MNIST as their authors distribute them.

``data/ORIGIN.md`` says where they come from.
"""

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
    images = read_idx(folder / "t10k-images-idx3-ubyte.gz")
    labels = read_idx(folder / "t10k-labels-idx1-ubyte.gz")
    return images, labels.long()


def calibration_test_split(n: int) -> tuple[Tensor, Tensor]:
    """Split n rows at random, always in the same way: one half to calibrate, one to test.

    Args:
        n: Number of rows.
    """
    order = torch.randperm(n, generator=torch.Generator().manual_seed(42))
    middle = n // 2
    return order[:middle], order[middle:]


def read_idx(path: Path) -> Tensor:
    """Return the bytes in a gzipped IDX file.

    Args:
        path: The file.
    """
    raw = gzip.decompress(path.read_bytes())
    n_dimensions = raw[3]
    start = 4 + 4 * n_dimensions
    sizes = np.frombuffer(raw[4:start], ">u4").tolist()
    pixels = np.frombuffer(raw, np.uint8, offset=start)
    return torch.from_numpy(pixels.reshape(sizes).copy())
