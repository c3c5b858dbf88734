"""``simplexcal report``."""

from pathlib import Path
from typing import Annotated

import typer

from simplexcal.cli._console import say
from simplexcal.cli._inputs import read_judged
from simplexcal.cli._options import (
    Calibrators,
    Data,
    Head,
    Json,
    JudgedInput,
    Model,
    Weights,
    check_files,
    network,
)
from simplexcal.report import write_report


def report(
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="The report, .html.")],
    input: JudgedInput = None,
    calibrator: Calibrators = None,
    model: Model = None,
    weights: Weights = None,
    head: Head = None,
    title: Annotated[str, typer.Option(help="The report's title.")] = "Calibration report",
    json: Json = False,
) -> None:
    """Write a report to open in a browser.

    One file that works offline: a verdict, a table, charts, and what was confidently wrong.
    """
    check_files(output, [".html"], data, weights, *(calibrator or []))
    judged = read_judged(data, input, calibrator or [], network(model, weights, head), images=True)
    predictions, labels, images, class_names = judged
    write_report(output, predictions, labels, images=images, class_names=class_names, title=title)
    text = f"{output}: {len(labels)} inputs, {', '.join(predictions)}. Open it in a browser."
    say(text, {"report": str(output), "n": len(labels), "methods": list(predictions)}, json)
