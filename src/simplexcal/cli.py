"""The command line: a command parses, calls the library, writes one file and says where it is."""

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer

import simplexcal
from simplexcal import _console
from simplexcal._console import is_watched, say
from simplexcal.calibrators import CALIBRATORS
from simplexcal.demo import run as showcase
from simplexcal.demo.fashion_mnist import CLASSES
from simplexcal.evaluate import Evaluation, evaluate, tabulate
from simplexcal.io import save_calibrator
from simplexcal.metrics import nll
from simplexcal.report import write_report
from simplexcal.sources import Network, read_judged, read_source
from simplexcal.tables import write_predictions

app = typer.Typer(
    help="Calibrate a trained classifier's confidence without changing one prediction.",
    add_completion=False,
    rich_markup_mode=None,
)


class Method(StrEnum):
    """The keys of CALIBRATORS."""

    none, ts, ets, pts, adats, dirichlet, sts = CALIBRATORS


class Held(StrEnum):
    """What a file of saved outputs holds. It is never guessed."""

    logits, probs = "logits", "probs"


class Judged(StrEnum):
    """What can be judged: outputs, or the predictions that `simplexcal predict` wrote."""

    logits, probs, predictions = "logits", "probs", "predictions"


class Mixed(StrEnum):
    """What Multi-Mixup mixes."""

    features, inputs, none = "features", "inputs", "none"


DATA = "Saved outputs, or raw inputs for --model; .npz, .safetensors, .parquet or .csv."
Data = Annotated[Path, typer.Argument(help=DATA, metavar="DATA")]
Input = Annotated[Held | None, typer.Option("--input", help="What saved outputs hold.")]
JudgedInput = Annotated[Judged | None, typer.Option("--input", help="What the file holds.")]
Model = Annotated[str | None, typer.Option(help="The network, as package.module:factory, for raw inputs.")]
Weights = Annotated[Path | None, typer.Option(help="Its state dict: .safetensors, or torch's own format.")]
Head = Annotated[str | None, typer.Option(help="The name of its last linear layer, if it is not found by itself.")]
Calibrators = Annotated[list[Path] | None, typer.Option("--calibrator", help="A file of `calibrate`; repeatable.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Calibrate a trained classifier's confidence without changing one prediction."""
    if version:
        say(f"simplexcal {simplexcal.__version__}", {}, as_json=False)
    elif context.invoked_subcommand is None:
        say(context.get_help(), {}, as_json=False)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The report.")] = Path("simplexcal-demo.html"),
    json: Json = False,
) -> None:
    """Show every method on an embedded network.

    A LeNet-5 and the test images of Fashion-MNIST: 5000 to calibrate, 5000 to judge. Prints a table, writes a report.
    """
    _check_output(output, ".html")
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


@app.command()
def calibrate(
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="The calibrator's file, .safetensors.")],
    input: Input = None,  # noqa: A002
    method: Annotated[Method, typer.Option(help="The method.")] = Method.sts,
    model: Model = None,
    weights: Weights = None,
    head: Head = None,
    mixup: Annotated[Mixed, typer.Option(help="What is mixed, for sts and dirichlet.")] = Mixed.features,
    seed: Annotated[int, typer.Option(help="Of all randomness.")] = 0,
    json: Json = False,
) -> None:
    """Fit a calibrator and save it.

    DATA are held-out outputs, or inputs for --model, with their true classes.
    """
    _check_output(output, ".safetensors")
    start = time.perf_counter()
    source = read_source(data, input, _network(model, weights, head), progress=is_watched())
    outputs, labels = source.table.outputs, source.labels
    calibrator = CALIBRATORS[method]()
    mixes = source.mixup(mixup) if calibrator.uses_mixup else None
    generator = torch.Generator().manual_seed(seed)
    calibrator.fit(outputs, labels, mixup=mixes, generator=generator, progress=is_watched())
    save_calibrator(calibrator, output, fingerprint=source.fingerprint)
    before, after = (float(nll(probs, labels)) for probs in (outputs.logits.softmax(-1), calibrator(outputs).probs))
    took = time.perf_counter() - start
    text = (
        f"{output}: {method} on {len(labels)} inputs of {outputs.n_classes} classes, {took:.1f} s. "
        f"NLL on these inputs {before:.4f} before, {after:.4f} after; judge it on others: simplexcal evaluate."
    )
    record = {"output": str(output), "method": str(method), "n": len(labels), "n_classes": outputs.n_classes}
    say(text, record | {"nll_before": before, "nll_after": after, "seconds": took}, json)


@app.command()
def predict(
    calibrator: Annotated[Path, typer.Argument(help="A file that `calibrate` wrote.")],
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="Predictions: .npz .safetensors .parquet .csv")],
    input: Input = None,  # noqa: A002
    model: Model = None,
    weights: Weights = None,
    head: Head = None,
    json: Json = False,
) -> None:
    """Write calibrated predictions.

    Of every input: predicted class, confidence, uncertainties and calibrated probabilities.
    """
    source = read_source(data, input, _network(model, weights, head), progress=is_watched())
    method, fitted = source.load(calibrator)
    prediction = fitted(source.table.outputs)
    write_predictions(output, prediction, ids=source.table.ids, labels=source.table.labels)
    mean = float(prediction.confidence.mean())
    text = f"{output}: {len(prediction)} predictions by {method}, confidence {100 * mean:.1f} % on average."
    say(text, {"output": str(output), "method": method, "n": len(prediction), "confidence": mean}, json)


@app.command(name="evaluate")
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
    judged = read_judged(data, input, calibrator or [], _network(model, weights, head))
    evaluations = {name: evaluate(prediction, judged.labels) for name, prediction in judged.predictions.items()}
    say(tabulate(evaluations), {"methods": _records(evaluations)}, json)


@app.command()
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
    _check_output(output, ".html")
    judged = read_judged(data, input, calibrator or [], _network(model, weights, head), images=True)
    predictions, labels, images, class_names = judged
    write_report(output, predictions, labels, images=images, class_names=class_names, title=title)
    text = f"{output}: {len(labels)} inputs, {', '.join(predictions)}. Open it in a browser."
    say(text, {"report": str(output), "n": len(labels), "methods": list(predictions)}, json)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code: 0, or 2 for bad input."""
    command = typer.main.get_command(app)
    return _console.run(lambda: command.main(arguments, prog_name="simplexcal", standalone_mode=False))


def _network(model: str | None, weights: Path | None, head: str | None) -> Network | None:
    if model is None and (weights is not None or head is not None):
        raise ValueError("--weights and --head belong to a network: give --model package.module:factory too.")
    return None if model is None else Network(model, weights, head)


def _check_output(path: Path, suffix: str) -> None:
    """Refuse what cannot be written before hours are spent on it."""
    if path.suffix != suffix:
        raise ValueError(f"--output must end in {suffix}; got '{path}'.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"--output is to go to '{path.parent}', which is no folder. Make it first.")


def _records(evaluations: dict[str, Evaluation]) -> dict[str, dict[str, float | None]]:
    return {name: evaluation.as_dict() for name, evaluation in evaluations.items()}
