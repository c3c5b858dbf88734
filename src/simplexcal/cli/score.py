"""``simplexcal score``."""

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from simplexcal.cli._console import echo_result, interruptions_explained, stderr_is_tty
from simplexcal.cli._options import (
    CalibratorArgument,
    FeaturesOption,
    HeadOption,
    IdOption,
    JsonOption,
    LogitsOption,
    ModelOption,
    OutputKindOption,
    ProbsOption,
    WeightsOption,
    check_files,
    given_names,
    network_spec,
)


class Engine(StrEnum):
    """Where rows are scored: in this process, or on Ray."""

    local = "local"
    ray = "ray"


def score(
    calibrator: CalibratorArgument,
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A Parquet file, or a folder of them.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The result, .parquet.")],
    kind: OutputKindOption = None,
    logits: LogitsOption = None,
    probs: ProbsOption = None,
    labels: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="True classes, to be written too, as `label`."),
    ] = None,
    features: FeaturesOption = None,
    ids: IdOption = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    head: HeadOption = None,
    with_probs: Annotated[
        bool, typer.Option("--with-probs", help="Write the probabilities of all classes too.")
    ] = False,
    engine: Annotated[Engine, typer.Option(help="Here, in one process, or on Ray.")] = Engine.local,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="A Ray cluster; otherwise this machine."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Threads that score here; one for each core by default.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows that are scored at a time.")] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Discard what an earlier run left.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Score Parquet of any size.

    Memory does not grow with the rows. After an interruption, the same command continues where it
    stopped. Bad rows go to a file beside the output, with the reason.

    Args:
        calibrator: File of the calibrator.
        data: Parquet file, or folder of Parquet files.
        output: Parquet file to write.
        kind: What to take from the columns.
        logits: Name of the logits in the file.
        probs: Name of the probabilities in the file.
        labels: Name of the true classes, which are written too.
        features: Name of the features in the file.
        ids: Name of the column of keys.
        model: Network for raw inputs, as "package.module:factory".
        weights: State dict of the network.
        head: Name of the network's last linear layer.
        with_probs: Write the probabilities of all classes.
        engine: Where rows are scored.
        address: Address of a Ray cluster.
        workers: Threads of this process that score.
        batch_size: Rows that are scored at a time.
        restart: Discard what an earlier run left.
        json: Print JSON instead of text.
    """
    from simplexcal import scoring  # It needs pyarrow, which the other commands can do without.

    check_files(output, [".parquet"], calibrator, data, weights)
    with interruptions_explained():
        summary = scoring.score(
            calibrator,
            data,
            output,
            kind=kind,
            network=network_spec(model, weights, head),
            names=given_names(logits=logits, probs=probs, labels=labels, features=features, id=ids),
            with_probs=with_probs,
            engine=engine,
            address=address,
            workers=workers,
            batch_size=batch_size,
            restart=restart,
            progress=stderr_is_tty(),
        )
    record = asdict(summary)
    for name in ("output", "rejected"):
        if record[name] is not None:
            record[name] = str(record[name])
    echo_result(_describe(record), record, json)


def _describe(record: dict[str, Any]) -> str:
    text = "{output}: {rows} rows"
    if record["n_resumed"]:
        text += ", {n_resumed} of them by an earlier run"
    text += ", {seconds:.1f} s"
    if record["n_rejected"]:
        text += "; {n_rejected} rejected, in {rejected}"
    return f"{text}.".format(**record)
