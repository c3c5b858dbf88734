"""``simplexcal threshold``."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from simplexcal.cli._console import echo_result, stderr_is_tty
from simplexcal.cli._inputs import Source, check_is_of_inputs, read_source
from simplexcal.cli._options import (
    DataKindOption,
    FeaturesOption,
    HeadOption,
    IdOption,
    JsonOption,
    LabelsOption,
    LogitsOption,
    ModelOption,
    OnnxFeaturesOption,
    OnnxOutputOption,
    ProbsOption,
    WeightsOption,
    check_files,
    given_names,
    network_spec,
)
from simplexcal.evaluation import wrap
from simplexcal.io import load_calibrator
from simplexcal.io._columns import Names
from simplexcal.io._kinds import PREDICTIONS
from simplexcal.io.native import save_again
from simplexcal.io.tables import check_named, read_predictions
from simplexcal.network_spec import NetworkSpec
from simplexcal.thresholds import Threshold, find_prediction_threshold


class Score(StrEnum):
    """What a threshold can be set on."""

    confidence = "confidence"
    aleatoric = "aleatoric"
    epistemic = "epistemic"
    mutual_information = "mutual_information"
    entropy = "entropy"


def threshold(
    calibrator: Annotated[
        Path,
        typer.Argument(
            metavar="CALIBRATOR",
            help="A file that `calibrate` wrote; or, without DATA, one that `predict` wrote.",
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Argument(metavar="DATA", help="A file of held-out outputs."),
    ] = None,
    target_accuracy: Annotated[
        float | None, typer.Option(help="Of accepted inputs at least this share is right.")
    ] = None,
    coverage: Annotated[
        float | None, typer.Option(help="Of new inputs at least this share is accepted.")
    ] = None,
    false_alarm: Annotated[
        float | None, typer.Option(help="Of in-distribution inputs at most this is rejected.")
    ] = None,
    delta: Annotated[
        float, typer.Option(help="Probability with which the accuracy may be missed.")
    ] = 0.05,
    score: Annotated[
        Score | None,
        typer.Option(help="Confidence by default; for --false-alarm epistemic, if there is one."),
    ] = None,
    save: Annotated[
        bool, typer.Option("--save", help="Store the threshold in CALIBRATOR itself.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Store it in this copy, .safetensors.")
    ] = None,
    kind: DataKindOption = None,
    logits: LogitsOption = None,
    probs: ProbsOption = None,
    labels: LabelsOption = None,
    features: FeaturesOption = None,
    ids: IdOption = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    head: HeadOption = None,
    output_name: OnnxOutputOption = None,
    features_name: OnnxFeaturesOption = None,
    json: JsonOption = False,
) -> None:
    """Find the threshold that keeps a promise.

    DATA are held-out and new to the calibrator; --target-accuracy needs their true classes. Once
    the threshold is stored, predictions have a column `accepted`.

    Args:
        calibrator: File of the calibrator, or predictions.
        data: Held-out outputs or inputs.
        target_accuracy: Promised accuracy of accepted inputs.
        coverage: Promised share of accepted inputs.
        false_alarm: Promised largest share of rejected inputs.
        delta: Probability with which the accuracy may be missed.
        score: What the threshold is set on.
        save: Store the threshold in the calibrator's file.
        output: File to write the calibrator with its threshold to.
        kind: What to take from the file.
        logits: Name of the logits in the file.
        probs: Name of the probabilities in the file.
        labels: Name of the true classes in the file.
        features: Name of the features in the file.
        ids: Name of the keys in the file.
        model: Network for raw inputs, as "package.module:factory" or an .onnx file.
        weights: State dict of the network.
        head: Name of the network's last linear layer.
        output_name: Output of an .onnx file to calibrate.
        features_name: Tensor of an .onnx file that its last linear layer takes.
        json: Print JSON instead of text.
    """
    check_files(output, [".safetensors"], calibrator, data, weights)
    network = network_spec(model, weights, head, output_name, features_name)
    names = given_names(logits=logits, probs=probs, labels=labels, features=features, id=ids)
    score_name = None
    if score is not None:
        score_name = score.value
    promise = {
        "target_accuracy": target_accuracy,
        "coverage": coverage,
        "false_alarm": false_alarm,
        "delta": delta,
        "score": score_name,
    }
    if save:
        if output is not None:
            raise ValueError("--save and --output both say where to store. Give one of the two.")
        output = calibrator
    if data is None:
        _check_predictions_alone(output, kind, network)
        found = _of_predictions(calibrator, kind, names, promise)
    else:
        source = read_source(data, kind, network, names, progress=stderr_is_tty())
        found = _of_calibrator(calibrator, source, promise, output)
    text = wrap(str(found))
    if output is not None:
        text += f"\nStored in {output}."
    echo_result(text, found.as_dict(), json)


def _check_predictions_alone(
    output: Path | None, kind: str | None, network: NetworkSpec | None
) -> None:
    if output is not None or kind not in (None, PREDICTIONS) or network is not None:
        raise ValueError(
            "Predictions are taken as they are, and cannot hold a threshold: leave out --save, "
            "--output, --kind and --model, or give CALIBRATOR and DATA."
        )


def _of_predictions(
    path: Path, kind: str | None, names: Names, promise: dict[str, Any]
) -> Threshold:
    """Return the threshold for saved predictions."""
    if kind is None:
        check_named(path, [PREDICTIONS])
    prediction, labels = read_predictions(path, names=names)
    check_is_of_inputs(path, prediction)
    return find_prediction_threshold(prediction, labels, **promise)


def _of_calibrator(
    path: Path, source: Source, promise: dict[str, Any], output: Path | None
) -> Threshold:
    """Return the threshold of a calibrator, and store it where there is an output."""
    _, fitted = source.load(path)
    labels = None
    if source.table.labels is not None:
        labels = source.labels
    found = fitted.threshold(source.table.outputs, labels, **promise)
    if output is not None:
        _, header = load_calibrator(path)
        save_again(fitted, header, output)
    return found
