"""``simplexcal info``."""

from pathlib import Path
from typing import Annotated

import typer

from simplexcal.card import CalibrationCard
from simplexcal.cli._console import echo_result
from simplexcal.cli._options import JsonOption, check_files


def info(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `calibrate` wrote.")],
    json: JsonOption = False,
) -> None:
    """Print the calibration card of a file.

    It is Markdown, for the model card of the network: method, data, figures before and after,
    thresholds and limits of use. The figures are those that `evaluate --save` stored.

    Args:
        file: File of the calibrator.
        json: Print JSON instead of text.
    """
    check_files(None, [], file)
    card = CalibrationCard.read(file)
    echo_result(str(card), card.as_dict(), json)
