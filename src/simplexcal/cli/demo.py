"""``simplexcal demo``."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from simplexcal.cli._console import say, stderr_is_tty
from simplexcal.cli._options import Json, check_files
from simplexcal.cli.evaluate import as_records
from simplexcal.demo import run as showcase
from simplexcal.demo.fashion_mnist import CLASSES
from simplexcal.evaluation import evaluate, tabulate
from simplexcal.report import write_report


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The report.")] = Path(
        "simplexcal-demo.html"
    ),
    json: Json = False,
) -> None:
    """Show every method on an embedded network.

    A LeNet-5 and the test images of Fashion-MNIST: 5000 to calibrate, 5000 to judge. Prints a table, writes a report.
    """
    check_files(output, [".html"])
    torch.set_num_threads(
        1
    )  # the tensors are small; on a busy machine two threads wait for each other
    data = showcase.prepare()
    predictions = dict(showcase.predictions(data, progress=stderr_is_tty()))
    evaluations = {
        name: evaluate(prediction, data.test_labels) for name, prediction in predictions.items()
    }
    write_report(
        output,
        predictions,
        data.test_labels,
        images=data.test_images,
        class_names=CLASSES,
        title="A LeNet-5 on Fashion-MNIST",
    )
    text = (
        f"{tabulate(evaluations)}\n\n{showcase.NOTES}\n\nThe report: {output}. Open it in a browser.\n"
        "Next, your own network: simplexcal calibrate --help, or the quickstart in the README."
    )
    say(text, {"report": str(output), "methods": as_records(evaluations)}, json)
