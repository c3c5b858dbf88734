"""``simplexcal predict``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from simplexcal.cli._console import echo_result, stderr_is_tty
from simplexcal.cli._dense import DenseSource
from simplexcal.cli._inputs import read_data
from simplexcal.cli._options import (
    BatchSizeOption,
    CalibratorArgument,
    DataArgument,
    FeaturesOption,
    HeadOption,
    IdOption,
    JsonOption,
    LabelsOption,
    LogitsOption,
    ModelOption,
    OnnxFeaturesOption,
    OnnxOutputOption,
    OutputKindOption,
    ProbsOption,
    WeightsOption,
    check_files,
    dense_options,
    given_names,
    network_spec,
)
from simplexcal.io.tables import WRITERS, check_holds_maps, write_predictions


def predict(
    calibrator: CalibratorArgument,
    data: DataArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Predictions: .npz .safetensors .parquet .csv")
    ],
    kind: OutputKindOption = None,
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
    batch_size: BatchSizeOption = None,
    json: JsonOption = False,
) -> None:
    """Write calibrated predictions.

    Of every input: predicted class, confidence, uncertainties and calibrated probabilities; and
    whether it is accepted, where the calibrator has thresholds. Of a network of tokens or pixels
    they are maps, in .npz or .safetensors.

    Args:
        calibrator: File of the calibrator.
        data: Outputs or inputs to predict.
        output: File to write the predictions to.
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
        batch_size: Inputs that the network takes at a time.
        json: Print JSON instead of text.
    """
    check_files(output, list(WRITERS), calibrator, data, weights)
    network = network_spec(model, weights, head, output_name, features_name)
    names = given_names(logits=logits, probs=probs, labels=labels, features=features, id=ids)
    options = dense_options(batch_size=batch_size)
    source = read_data(data, kind, network, names, options, progress=stderr_is_tty())
    method, fitted = source.load(calibrator)
    if isinstance(source, DenseSource):
        check_holds_maps(output)
        prediction = source.predict(fitted)
        write_predictions(output, prediction, ids=source.given.ids, labels=source.labels)
    else:
        prediction = fitted(source.table.outputs)
        write_predictions(output, prediction, ids=source.table.ids, labels=source.table.labels)
    n = len(prediction)
    mean = float(prediction.confidence.mean())
    text = f"{output}: {n} predictions by {method}, with a mean confidence of {100 * mean:.1f} %."
    record: dict[str, Any] = {
        "output": str(output),
        "method": method,
        "n": n,
        "confidence": mean,
    }
    if prediction.accepted is not None:
        share = float(prediction.accepted.double().mean())
        text += f"\nThe thresholds accept {100 * share:.1f} % of them."
        record["accepted"] = share
    echo_result(text, record, json)
