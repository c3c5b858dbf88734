"""``simplexcal export``."""

from pathlib import Path
from typing import Annotated

import typer

from simplexcal.cli._console import say
from simplexcal.cli._export_file import export_file
from simplexcal.cli._options import Head, Json, Model, Weights, check_files, network


def export(
    calibrator: Annotated[
        Path, typer.Argument(help="A file that `calibrate` wrote.", metavar="CALIBRATOR")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The graph, .onnx.")],
    model: Model = None,
    weights: Weights = None,
    head: Head = None,
    shape: Annotated[
        str | None, typer.Option(help="Of one input of --model, such as 1,28,28.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Or a file of inputs, of which the first ones are taken.")
    ] = None,
    json: Json = False,
) -> None:
    """Write an ONNX graph.

    With --model, network and calibrator in one; otherwise the calibrator alone, which takes logits and features.
    """
    check_files(output, [".onnx"], calibrator, weights, data)
    written = export_file(calibrator, output, network(model, weights, head), shape=shape, data=data)
    text = f"{output}: {written.method}; in: {', '.join(written.inputs)}; out: {', '.join(written.outputs)}."
    record = {"output": str(output), "method": written.method}
    say(text, record | {"inputs": list(written.inputs), "outputs": list(written.outputs)}, json)
