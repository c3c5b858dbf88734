"""``simplexcal score``."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from simplexcal.cli._console import say, stderr_is_tty
from simplexcal.cli._options import Head, Held, Json, Model, Weights, check_files, network


class Engine(StrEnum):
    """Where rows are scored."""

    local, ray = "local", "ray"


def score(
    calibrator: Annotated[
        Path, typer.Argument(help="A file that `calibrate` wrote.", metavar="CALIBRATOR")
    ],
    input: Annotated[Path, typer.Option("--input", help="A Parquet file, or a folder of them.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The result, .parquet.")],
    kind: Annotated[
        Held | None, typer.Option(help="Which to take, where the columns hold both.")
    ] = None,
    model: Model = None,
    weights: Weights = None,
    head: Head = None,
    key: Annotated[
        str | None, typer.Option(help="The column that names a row; `id` where there is one.")
    ] = None,
    probs: Annotated[
        bool, typer.Option("--probs", help="Write the probabilities of all classes too.")
    ] = False,
    engine: Annotated[Engine, typer.Option(help="Here, in one process, or on Ray.")] = Engine.local,
    address: Annotated[
        str | None, typer.Option(help="A Ray cluster, host:port; otherwise this machine.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Rows that are scored at a time.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Forget what an earlier run left.")
    ] = False,
    json: Json = False,
) -> None:
    """Score Parquet of any size.

    Memory does not grow with the rows. Run again after an interruption, the same command goes on where it stopped. Bad
    rows go to a file beside the output, with the reason.
    """
    from simplexcal import scoring  # needs pyarrow

    check_files(output, [".parquet"], calibrator, input, weights)
    summary = scoring.score(
        calibrator,
        input,
        output,
        kind=kind,
        network=network(model, weights, head),
        key=key,
        probs=probs,
        engine=engine,
        address=address,
        batch_size=batch_size,
        restart=restart,
        progress=stderr_is_tty(),
    )
    rejected = (
        f"; {summary.n_rejected} rejected, in {summary.rejected}" if summary.n_rejected else ""
    )
    resumed = f", {summary.n_resumed} of them by an earlier run" if summary.n_resumed else ""
    text = f"{output}: {summary.rows} rows{resumed}, {summary.seconds:.1f} s{rejected}."
    record = {
        "output": str(summary.output),
        "rows": summary.rows,
        "n_rejected": summary.n_rejected,
        "rejected": None if summary.rejected is None else str(summary.rejected),
        "n_resumed": summary.n_resumed,
        "seconds": summary.seconds,
    }
    say(text, record, json)
