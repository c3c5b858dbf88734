"""``simplexcal demo``."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from simplexcal.cli._console import echo_result, stderr_is_tty
from simplexcal.cli._options import JsonOption, check_files
from simplexcal.cli.evaluate import as_records
from simplexcal.demo import run as demo_run
from simplexcal.demo.fashion_mnist import CLASSES
from simplexcal.evaluation import evaluate, tabulate
from simplexcal.report import write_report

OUTPUT = Path("simplexcal-demo.html")


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The report.")] = OUTPUT,
    json: JsonOption = False,
) -> None:
    """Show every method on an embedded network.

    A LeNet-5 and the test images of Fashion-MNIST: 5000 to calibrate, 5000 to evaluate. Prints a
    table, writes a report.

    Args:
        output: File to write the report to.
        json: Print JSON instead of text.
    """
    check_files(output, [".html"])
    # The tensors are small: on a busy machine two threads would wait for each other.
    torch.set_num_threads(1)
    data = demo_run.prepare()
    predictions = dict(demo_run.predictions(data, progress=stderr_is_tty()))
    evaluations = {
        name: evaluate(prediction, data.labels) for name, prediction in predictions.items()
    }
    write_report(
        output,
        predictions,
        data.labels,
        images=data.images,
        class_names=CLASSES,
        title="A LeNet-5 on Fashion-MNIST",
    )
    text = (
        f"{tabulate(evaluations)}\n\n{demo_run.NOTES}\n\n"
        f"The report: {output}. Open it in a browser.\n"
        "Next, your own network: simplexcal calibrate --help, or the quickstart in the README."
    )
    echo_result(text, {"report": str(output), "methods": as_records(evaluations)}, json)
