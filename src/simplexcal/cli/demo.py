"""``simplexcal demo``."""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from simplexcal.cli._console import echo_result, stderr_is_tty
from simplexcal.cli._options import JsonOption, check_files
from simplexcal.cli.evaluate import as_records
from simplexcal.demo import files
from simplexcal.demo import run as demo_run
from simplexcal.demo.fashion_mnist import CLASSES
from simplexcal.evaluation import evaluate, tabulate, wrap
from simplexcal.report import write_report

OUTPUT = Path("simplexcal-demo.html")


def demo(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help=f"The report; by default {OUTPUT}."),
    ] = None,
    save_data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write the network's weights, inputs and outputs there, for the other commands. "
            "Then there is no report, unless its file is named.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show some methods on an embedded network.

    A LeNet-5 and the 10000 test images of Fashion-MNIST. Each method is fitted on either half of
    them and evaluated on the other. Prints a table, writes a report.

    Args:
        output: File to write the report to.
        save_data: Folder to write the data to.
        json: Print JSON instead of text.
    """
    if output is None and save_data is None:
        output = OUTPUT
    check_files(output, [".html"])
    if save_data is not None:
        files.check_folder(save_data)
    # The tensors are small: on a busy machine two threads would wait for each other.
    torch.set_num_threads(1)
    data = demo_run.prepare()
    texts = []
    record: dict[str, Any] = {}
    if save_data is not None:
        record["files"] = [str(path) for path in files.save(data, save_data)]
        texts.append(_describe_files(record["files"]))
    if output is not None:
        texts.append(_evaluate_and_report(data, output, record))
    echo_result("\n\n".join(texts), record, json)


def _describe_files(paths: list[str]) -> str:
    """Return the names of the files, and a command to begin with."""
    outputs = next(path for path in paths if Path(path).name == "val.npz")
    written = wrap(f"Wrote {', '.join(paths)}.")
    return f"{written}\nNext: simplexcal calibrate {outputs} -o net.safetensors"


def _evaluate_and_report(data: demo_run.Data, output: Path, record: dict[str, Any]) -> str:
    """Write the report, add the numbers to the record, and return what people read."""
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
        title="A LeNet-5 on Fashion-MNIST, out of fold",
        sources=demo_run.SOURCES,
    )
    record["report"] = str(output)
    record["methods"] = as_records(evaluations)
    return (
        f"{tabulate(evaluations)}\n\n{demo_run.NOTES}\n\n"
        f"The report: {output}. Open it in a browser.\n"
        "Next, your own network: simplexcal calibrate --help, or the quickstart in the README."
    )
