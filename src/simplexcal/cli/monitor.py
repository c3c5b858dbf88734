"""``simplexcal monitor``."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from simplexcal import monitoring
from simplexcal.accuracy_estimation import Method
from simplexcal.cli._console import echo_result
from simplexcal.cli._options import JsonOption, check_files
from simplexcal.cli._sources import describe_file
from simplexcal.monitoring import TOLERANCE


class Estimate(StrEnum):
    """How the accuracy is estimated."""

    shift_aware = "shift-aware"
    atc = "atc"
    confidence = "confidence"


def monitor(
    reference: Annotated[
        Path,
        typer.Argument(
            metavar="REFERENCE",
            help="Predictions for known inputs, that `predict` or `score` wrote; better with the "
            "true classes.",
        ),
    ],
    batch: Annotated[
        Path, typer.Argument(metavar="BATCH", help="The same for new inputs, without classes.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a page too, .html.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="A distance of two distributions up to this does not matter.")
    ] = TOLERANCE,
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    method: Annotated[
        Estimate | None,
        typer.Option(
            metavar="METHOD",
            help="How the accuracy is estimated: shift-aware, atc or confidence. By default the "
            "first where REFERENCE has the true classes, and the last where not.",
        ),
    ] = None,
    title: Annotated[str, typer.Option(help="The title of the page.")] = "Monitoring report",
    json: JsonOption = False,
) -> None:
    """Say whether new predictions have drifted.

    It also says what accuracy to expect, and when to calibrate again: "recalibrate" where, for
    confidence or an uncertainty, the interval of the distance lies wholly above --tolerance;
    "steady" where all intervals lie within it; "undecided" otherwise.

    Args:
        reference: Predictions for known inputs.
        batch: Predictions for new inputs.
        output: File to write the page to.
        tolerance: A distance up to this does not matter.
        level: Confidence level of the intervals.
        method: How the accuracy is estimated.
        title: Title of the page.
        json: Print JSON instead of text.
    """
    check_files(output, [".html"], reference, batch)
    chosen: Method | None = None
    if method is not None:
        chosen = method.value
    found = monitoring.monitor(reference, batch, tolerance=tolerance, level=level, method=chosen)
    text = str(found)
    if output is not None:
        sources = {"Reference": describe_file(reference), "Batch": describe_file(batch)}
        found.write_report(output, title=title, sources=sources)
        text += f"\n\nWrote {output}. Open it in a browser."
    echo_result(text, found.as_dict(), json)
