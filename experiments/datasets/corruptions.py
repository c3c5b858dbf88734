"""Corrupt images by the functions of hendrycks/robustness, file make_cifar_c.py.

usage: python experiments/datasets/corruptions.py SOURCE IMAGES.npy OUTPUT [NAME ...]

SOURCE is the folder ImageNet-C/create_c of that repository. IMAGES are bytes (N, 32, 32, 3), or
(N, 28, 28): grey images get a black border of 2 pixels and three equal channels, are corrupted, and
are cut and averaged to grey again. OUTPUT gets a file NAME.npy, (5, N, ...), for each corruption.

The file needs old packages, which is why this runs in an environment of its own, without torch:
Python 3.10 with numpy<2, scipy<1.12, scikit-image 0.19 (with 0.20 glass_blur cannot run),
opencv-python-headless 4.10, Wand with ImageMagick 6, and pillow. What it imports of torch and
torchvision loads CIFAR-10 alone, and is left out. The definitions are executed as they are; the
loop that writes CIFAR-10-C is not.
"""

import argparse
import os
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Bytes = NDArray[np.uint8]

UNUSED = (
    "torch",
    "torchvision",
    "torchvision.datasets",
    "torchvision.transforms",
    "torch.utils",
    "torch.utils.data",
)
END_OF_DEFINITIONS = "test_data = "
N_SEVERITIES = 5
BORDER = 2


def read_corruptions(source: Path) -> dict[str, Callable[[Image.Image, int], Any]]:
    """Return the corruptions by the name of their function, in the file's order.

    The current folder becomes the source: one corruption reads pictures from there.

    Args:
        source: The folder of make_cifar_c.py.
    """
    text = (source / "make_cifar_c.py").read_text()
    for name in UNUSED:
        sys.modules[name] = ModuleType(name)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, sys.modules[name])
    namespace: dict[str, Any] = {}
    exec(compile(text.partition(END_OF_DEFINITIONS)[0], "make_cifar_c.py", "exec"), namespace)
    os.chdir(source)
    return {function.__name__: function for function in namespace["d"].values()}


def corrupt(images: Bytes, corruption: Callable[[Image.Image, int], Any], severity: int) -> Bytes:
    """Return corrupted images of the same shape.

    Args:
        images: Bytes (N, 32, 32, 3) or (N, 28, 28).
        corruption: A function of an image and a severity.
        severity: 1 to 5.
    """
    is_grey = images.ndim == 3
    colour = images
    if is_grey:
        margin = ((0, 0), (BORDER, BORDER), (BORDER, BORDER))
        colour = np.repeat(np.pad(images, margin)[..., np.newaxis], 3, -1)
    found = [np.uint8(corruption(Image.fromarray(image), severity)) for image in colour]
    corrupted = np.stack(found)
    if is_grey:
        inner = corrupted[:, BORDER:-BORDER, BORDER:-BORDER]
        corrupted = inner.mean(-1).round().astype(np.uint8)
    return corrupted


def main(source: Path, images: Path, output: Path, names: list[str]) -> None:
    """Write the corrupted images; files that exist are left alone.

    Args:
        source: The folder of make_cifar_c.py.
        images: The file of the images.
        output: The folder to write to.
        names: Names of corruptions; all of the file where there are none.
    """
    clean = np.load(images)
    output = output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    corruptions = read_corruptions(source.resolve())
    for name in names or list(corruptions):
        path = output / f"{name}.npy"
        if path.exists():
            continue
        start = time.perf_counter()
        # Each corruption has a seed of its own, so that their order does not matter.
        np.random.seed(zlib.crc32(name.encode()))  # noqa: NPY002 - the functions use this state
        try:
            severities = range(1, N_SEVERITIES + 1)
            found = np.stack([corrupt(clean, corruptions[name], s) for s in severities])
        except Exception as error:
            print(f"{name}: cannot run: {error!r}", flush=True)
            continue
        part = path.with_suffix(".part.npy")
        np.save(part, found)
        part.rename(path)
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    main(options.source, options.images, options.output, options.names)
