"""``simplexcal predict``."""

from pathlib import Path
from typing import Annotated

import typer

from simplexcal.cli._console import say, stderr_is_tty
from simplexcal.cli._inputs import read_source
from simplexcal.cli._options import Data, Head, Input, Json, Model, Weights, check_files, network
from simplexcal.io.tables import WRITERS, write_predictions


def predict(
    calibrator: Annotated[
        Path, typer.Argument(help="A file that `calibrate` wrote.", metavar="CALIBRATOR")
    ],
    data: Data,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Predictions: .npz .safetensors .parquet .csv")
    ],
    input: Input = None,
    model: Model = None,
    weights: Weights = None,
    head: Head = None,
    json: Json = False,
) -> None:
    """Write calibrated predictions.

    Of every input: predicted class, confidence, uncertainties and calibrated probabilities.
    """
    check_files(output, list(WRITERS), calibrator, data, weights)
    source = read_source(data, input, network(model, weights, head), progress=stderr_is_tty())
    method, fitted = source.load(calibrator)
    prediction = fitted(source.table.outputs)
    write_predictions(output, prediction, ids=source.table.ids, labels=source.table.labels)
    mean = float(prediction.confidence.mean())
    text = f"{output}: {len(prediction)} predictions by {method}, confidence {100 * mean:.1f} % on average."
    say(
        text,
        {"output": str(output), "method": method, "n": len(prediction), "confidence": mean},
        json,
    )
