"""``simplexcal predict``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from simplexcal.cli._console import echo_result, stderr_is_tty
from simplexcal.cli._inputs import read_source
from simplexcal.cli._options import (
    CalibratorArgument,
    DataArgument,
    HeadOption,
    JsonOption,
    KindOption,
    ModelOption,
    WeightsOption,
    check_files,
    network_spec,
)
from simplexcal.io.tables import WRITERS, write_predictions


def predict(
    calibrator: CalibratorArgument,
    data: DataArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Predictions: .npz .safetensors .parquet .csv")
    ],
    kind: KindOption = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    head: HeadOption = None,
    json: JsonOption = False,
) -> None:
    """Write calibrated predictions.

    Of every input: predicted class, confidence, uncertainties and calibrated probabilities; and
    whether it is accepted, where the calibrator has thresholds.

    Args:
        calibrator: File of the calibrator.
        data: Outputs or inputs to predict.
        output: File to write the predictions to.
        kind: What saved outputs hold.
        model: Network for raw inputs, as "package.module:factory".
        weights: State dict of the network.
        head: Name of the network's last linear layer.
        json: Print JSON instead of text.
    """
    check_files(output, list(WRITERS), calibrator, data, weights)
    network = network_spec(model, weights, head)
    source = read_source(data, kind, network, progress=stderr_is_tty())
    method, fitted = source.load(calibrator)
    prediction = fitted(source.table.outputs)
    write_predictions(output, prediction, ids=source.table.ids, labels=source.table.labels)
    n = len(prediction)
    mean = float(prediction.confidence.mean())
    text = f"{output}: {n} predictions by {method}, confidence {100 * mean:.1f} % on average."
    record: dict[str, Any] = {
        "output": str(output),
        "method": method,
        "n": n,
        "confidence": mean,
    }
    if prediction.accepted is not None:
        share = float(prediction.accepted.double().mean())
        text += f" The thresholds accept {100 * share:.1f} % of them."
        record["accepted"] = share
    echo_result(text, record, json)
