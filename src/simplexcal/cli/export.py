"""``simplexcal export``."""

from pathlib import Path
from typing import Annotated, cast

import torch
import typer
from torch import Tensor

from simplexcal.backbone import Backbone
from simplexcal.cli._console import echo_result
from simplexcal.cli._inputs import as_network_input
from simplexcal.cli._options import (
    CalibratorArgument,
    HeadOption,
    JsonOption,
    ModelOption,
    OnnxFeaturesOption,
    OnnxOutputOption,
    WeightsOption,
    check_files,
    network_spec,
    onnx_file,
)
from simplexcal.evaluation import wrap
from simplexcal.io import load_calibrator
from simplexcal.io.native import check_fingerprint
from simplexcal.io.tables import read_inputs
from simplexcal.model import load
from simplexcal.network_spec import (
    NetworkSpec,
    load_backbone,
    load_network,
    reraise_as_input_error,
)
from simplexcal.onnx import (
    Exported,
    OnnxNetwork,
    append_calibrator,
    export_calibrator,
    export_model,
)


def export(
    calibrator: CalibratorArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="The graph, .onnx.")],
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="DATA", help="A file of inputs of --model, of which the first ones are taken."
        ),
    ] = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    head: HeadOption = None,
    output_name: OnnxOutputOption = None,
    features_name: OnnxFeaturesOption = None,
    shape: Annotated[
        str | None,
        typer.Option(metavar="SIZES", help="Or the shape of one input, such as 1,28,28."),
    ] = None,
    outputs: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Outputs of the graph, such as label,probs."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write an ONNX graph.

    With --model, network and calibrator in one; otherwise the calibrator alone, which takes logits
    and features.

    Args:
        calibrator: File of the calibrator.
        output: File to write the graph to.
        data: File of inputs of the network.
        model: Network that the calibrator was fitted for, as "package.module:factory" or an .onnx
            file.
        weights: State dict of the network.
        head: Name of the network's last linear layer.
        output_name: Output of an .onnx file to calibrate.
        features_name: Tensor of an .onnx file that its last linear layer takes.
        shape: Shape of one input of the network.
        outputs: Outputs of the graph, with commas between them; all by default.
        json: Print JSON instead of text.
    """
    network = network_spec(model, weights, head, output_name, features_name)
    check_files(output, [".onnx"], calibrator, weights, data, onnx_file(network))
    exported = export_file(calibrator, output, network, shape=shape, data=data, outputs=outputs)
    inputs = ", ".join(exported.inputs)
    names_of_outputs = ", ".join(exported.outputs)
    record = {
        "output": str(output),
        "method": exported.method,
        "inputs": list(exported.inputs),
        "outputs": list(exported.outputs),
    }
    names = [wrap(f"Inputs: {inputs}."), wrap(f"Outputs: {names_of_outputs}.")]
    echo_result("\n".join([f"{output}: {exported.method}.", *names]), record, json)


def export_file(
    calibrator: Path,
    output: Path,
    network: NetworkSpec | None = None,
    *,
    shape: str | None = None,
    data: Path | None = None,
    outputs: str | None = None,
) -> Exported:
    """Write a saved calibrator as an ONNX graph, alone or after its network.

    Args:
        calibrator: File of the calibrator.
        output: File to write the graph to.
        network: Network that the calibrator was fitted for; None writes the calibrator alone.
        shape: Shape of one float32 input of the network, as "1,28,28".
        data: File of inputs, from which shape and dtype are taken instead.
        outputs: Outputs of the graph, as "label,probs"; None is all.

    Returns:
        The method, and the names of the graph's inputs and outputs.

    Raises:
        ValueError: The options do not fit together, or the calibrator is for another network.
    """
    wanted = None
    if outputs is not None:
        wanted = outputs.split(",")
    if network is not None and network.onnx_file is not None:
        return _append_to_network(calibrator, output, network, shape, data, wanted)
    if network is not None:
        return _export_with_network(calibrator, output, network, _example(shape, data), wanted)
    if shape is not None or data is not None:
        raise ValueError(
            "--shape and DATA tell what a network takes: give --model package.module:factory too."
        )
    fitted, header = load_calibrator(calibrator)
    return export_calibrator(fitted, output, fingerprint=header["fingerprint"], outputs=wanted)


def _append_to_network(
    calibrator: Path,
    output: Path,
    network: NetworkSpec,
    shape: str | None,
    data: Path | None,
    outputs: list[str] | None,
) -> Exported:
    if shape is not None or data is not None:
        raise ValueError("An .onnx file tells what it takes: leave out --shape and DATA.")
    own = load_backbone(network)
    fitted, header = load_calibrator(calibrator)
    check_fingerprint(header, own, calibrator)
    return append_calibrator(cast(OnnxNetwork, own), fitted, output, outputs=outputs)


def _export_with_network(
    calibrator: Path,
    output: Path,
    network: NetworkSpec,
    example: Tensor,
    outputs: list[str] | None,
) -> Exported:
    net = load_network(network.model, network.weights)
    model = load(calibrator, net, head=network.head)
    example = as_network_input(model.backbone, example)
    with reraise_as_input_error(f"inputs of shape {tuple(example.shape[1:])} and {example.dtype}"):
        model.backbone(example)
    backbone = cast(Backbone, model.backbone)
    return export_model(backbone, model.calibrator, output, example, outputs=outputs)


def _example(shape: str | None, data: Path | None) -> Tensor:
    if shape is not None and data is None:
        return _zeros(shape)
    if data is not None and shape is None:
        return read_inputs(data).inputs[:2]
    raise ValueError(
        "Say what the network takes: --shape of one input, as 1,28,28, or DATA with some inputs."
    )


def _zeros(shape: str) -> Tensor:
    """Return two inputs of zeros; torch takes a dimension of size 1 for a constant."""
    try:
        sizes = [int(size) for size in shape.split(",")]
        return torch.zeros(2, *sizes)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"--shape must be positive numbers with commas between them, as 1,28,28; got {shape!r}."
        ) from error
