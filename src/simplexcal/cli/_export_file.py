"""From the files that `simplexcal calibrate` takes and writes to an ONNX file."""

from pathlib import Path

import torch
from torch import Tensor

from simplexcal.backbone import Backbone
from simplexcal.io import load_calibrator
from simplexcal.io.tables import read_inputs
from simplexcal.model import load
from simplexcal.network_spec import Network, load_network
from simplexcal.onnx import Exported, export_calibrator, export_model


def export_file(
    calibrator: Path,
    output: Path,
    network: Network | None = None,
    *,
    shape: str | None = None,
    data: Path | None = None,
) -> Exported:
    """Write the calibrator in a file to ``output``: alone, or after the ``network`` that it was fitted for.

    A network's graph needs to know what it takes: the ``shape`` of one input, as "1,28,28", of float32 numbers; or a
    file of inputs, ``data``, whose shape and dtype are taken.
    """
    if network is None:
        if shape is not None or data is not None:
            raise ValueError(
                "--shape and --data tell what a network takes: give --model package.module:factory too."
            )
        fitted, header = load_calibrator(calibrator)
        return export_calibrator(fitted, output, fingerprint=header["fingerprint"])
    example = _example(shape, data)
    model = load(calibrator, load_network(network.model, network.weights), head=network.head)
    _check_taken(model.backbone, example)
    return export_model(model.backbone, model.calibrator, output, example)


def _example(shape: str | None, data: Path | None) -> Tensor:
    if (shape is None) == (data is None):
        raise ValueError(
            "Say what the network takes: --shape of one input, as 1,28,28, or --data with some inputs."
        )
    if data is not None:
        return read_inputs(data).inputs[:2]
    try:
        return torch.zeros(2, *(int(size) for size in str(shape).split(",")))
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"--shape must be positive numbers with commas between them, as 1,28,28; got {shape!r}."
        ) from error


def _check_taken(backbone: Backbone, example: Tensor) -> None:
    try:
        backbone(example)
    except (RuntimeError, IndexError, AttributeError, KeyError) as error:
        shape = tuple(example.shape[1:])
        raise ValueError(
            f"The network cannot take inputs of shape {shape} and {example.dtype}: {error}"
        ) from error
