"""The demo's data as files, such as a user of the command line has."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from simplexcal.backbone import extract
from simplexcal.demo.fashion_mnist import CLASSES
from simplexcal.demo.lenet5 import normalise
from simplexcal.demo.run import WEIGHTS, Data
from simplexcal.io._atomic import atomic_write
from simplexcal.io.tables import WRITERS
from simplexcal.types import Outputs

N_INPUTS = 500
Arrays = dict[str, NDArray[Any]]


def check_folder(folder: Path) -> None:
    """Make the folder for ``save`` and check that it can be written to.

    Args:
        folder: The folder.

    Raises:
        OSError: If it cannot be made or written to, or is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(
            f"`save_data` must be a folder; '{folder}' is a file. Give another name."
        )
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"`save_data`: you may not write to '{folder}'. Give another folder.")


def save(data: Data, folder: Path) -> list[Path]:
    """Write files as the command line reads them, and return their paths.

    ``val.npz`` and ``test.npz`` hold the two halves: outputs, labels, images and the last layer.
    ``ood.npz`` holds the outputs for the photographic negatives of the test half, ``rows.parquet``
    those of the test half as rows, ``inputs.npz`` 500 inputs of the calibration half with labels,
    and ``lenet5.safetensors`` the weights of the network. Nothing is written over a file with other
    content.

    Args:
        data: What ``prepare`` returns.
        folder: An existing folder.

    Raises:
        FileExistsError: If one of the files is there with other content.
    """
    tables = {
        "val.npz": _half(data, data.fit_rows),
        "test.npz": _half(data, data.test_rows),
        "ood.npz": _negatives(data),
        "inputs.npz": _inputs(data, data.fit_rows[:N_INPUTS]),
        "rows.parquet": _outputs(data.test, data.test_rows),
    }
    contents = {folder / name: WRITERS[Path(name).suffix](x) for name, x in tables.items()}
    contents[folder / WEIGHTS.name] = WEIGHTS.read_bytes()
    for path, content in contents.items():
        if path.exists() and (path.is_dir() or path.read_bytes() != content):
            raise FileExistsError(
                f"'{path}' is there with other content, which is kept. Give `save_data` another "
                "folder."
            )
    for path, content in contents.items():
        atomic_write(path, content)
    return list(contents)


def _outputs(outputs: Outputs, rows: Tensor) -> Arrays:
    """Return outputs, with the numbers of their images as keys."""
    arrays = {"id": rows.numpy(), "logits": outputs.logits.numpy()}
    if outputs.features is not None:
        arrays["features"] = outputs.features.numpy()
    return arrays


def _half(data: Data, rows: Tensor) -> Arrays:
    head = data.backbone.head
    return {
        **_outputs(data.outputs[rows], rows),
        "labels": data.labels[rows].numpy(),
        "images": data.images[rows].numpy(),
        "class_names": np.array(CLASSES),
        "head_weight": head.weight.detach().numpy(),
        "head_bias": head.bias.detach().numpy(),
    }


def _negatives(data: Data) -> Arrays:
    """Return the outputs for the test half with black and white exchanged."""
    negatives = 255 - data.test_images
    outputs, _ = extract(data.backbone, (normalise(negatives), data.test_labels))
    return _outputs(outputs, data.test_rows)


def _inputs(data: Data, rows: Tensor) -> Arrays:
    return {
        "id": rows.numpy(),
        "inputs": normalise(data.images[rows]).numpy(),
        "labels": data.labels[rows].numpy(),
    }
