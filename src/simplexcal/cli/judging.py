"""``simplexcal evaluate``, ``simplexcal report`` and ``simplexcal demo``."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from simplexcal._console import is_watched, say
from simplexcal.cli.options import Calibrators, Data, Head, Json, JudgedInput, Model, Weights, check_files, network
from simplexcal.demo import run as showcase
from simplexcal.demo.fashion_mnist import CLASSES
from simplexcal.evaluate import Evaluation, evaluate, tabulate
from simplexcal.report import write_report
from simplexcal.sources import read_judged


def judge(
    data: Data,
    input: JudgedInput = None,  # noqa: A002
    calibrator: Calibrators = None,
    model: Model = None,
    weights: Weights = None,
    head: Head = None,
    json: Json = False,
) -> None:
    """Judge against the true classes.

    DATA are predictions, or outputs, which are judged before and after each calibrator.
    """
    check_files(None, [], data, weights, *(calibrator or []))
    judged = read_judged(data, input, calibrator or [], network(model, weights, head))
    evaluations = {name: evaluate(prediction, judged.labels) for name, prediction in judged.predictions.items()}
    say(tabulate(evaluations), {"methods": _records(evaluations)}, json)


def report(
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="The report, .html.")],
    input: JudgedInput = None,  # noqa: A002
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


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The report.")] = Path("simplexcal-demo.html"),
    json: Json = False,
) -> None:
    """Show every method on an embedded network.

    A LeNet-5 and the test images of Fashion-MNIST: 5000 to calibrate, 5000 to judge. Prints a table, writes a report.
    """
    check_files(output, [".html"])
    torch.set_num_threads(1)  # the tensors are small; on a busy machine two threads wait for each other
    data = showcase.prepare()
    predictions = dict(showcase.predictions(data, progress=is_watched()))
    evaluations = {name: evaluate(prediction, data.test_labels) for name, prediction in predictions.items()}
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
    say(text, {"report": str(output), "methods": _records(evaluations)}, json)


def _records(evaluations: dict[str, Evaluation]) -> dict[str, dict[str, float | None]]:
    return {name: evaluation.as_dict() for name, evaluation in evaluations.items()}
