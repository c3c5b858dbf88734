"""``simplexcal report``."""

from pathlib import Path
from typing import Annotated

import typer

from simplexcal.cli._console import echo_result
from simplexcal.cli._inputs import read_evaluation_inputs
from simplexcal.cli._options import (
    CalibratorOption,
    DataArgument,
    EvaluationKindOption,
    HeadOption,
    JsonOption,
    ModelOption,
    WeightsOption,
    check_files,
    network_spec,
)
from simplexcal.report import write_report


def report(
    data: DataArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="The report, .html.")],
    kind: EvaluationKindOption = None,
    calibrator: CalibratorOption = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    head: HeadOption = None,
    title: Annotated[str, typer.Option(help="The report's title.")] = "Calibration report",
    json: JsonOption = False,
) -> None:
    """Write a report to open in a browser.

    One file that works offline: a verdict, a table, charts, and the most confident mistakes.

    Args:
        data: Predictions, outputs or inputs, with labels.
        output: File to write the report to.
        kind: What the file holds.
        calibrator: Calibrators to evaluate beside the network itself.
        model: Network for raw inputs, as "package.module:factory".
        weights: State dict of the network.
        head: Name of the network's last linear layer.
        title: Title of the report.
        json: Print JSON instead of text.
    """
    calibrators = calibrator or []
    check_files(output, [".html"], data, weights, *calibrators)
    network = network_spec(model, weights, head)
    inputs = read_evaluation_inputs(data, kind, calibrators, network, images=True)
    write_report(
        output,
        inputs.predictions,
        inputs.labels,
        images=inputs.images,
        class_names=inputs.class_names,
        thresholds=inputs.thresholds,
        title=title,
    )
    n = len(inputs.labels)
    methods = list(inputs.predictions)
    text = f"{output}: {n} inputs, {', '.join(methods)}. Open it in a browser."
    echo_result(text, {"report": str(output), "n": n, "methods": methods}, json)
