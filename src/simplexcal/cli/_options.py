"""What the commands have in common: their options, and what is checked before work begins."""

import os
from collections.abc import Sequence
from enum import StrEnum
from errno import ENOENT
from pathlib import Path
from typing import Annotated

import typer

from simplexcal.calibrators import CALIBRATORS
from simplexcal.network_spec import Network


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
Model = Annotated[
    str | None, typer.Option(help="The network, as package.module:factory, for raw inputs.")
]
Weights = Annotated[
    Path | None, typer.Option(help="Its state dict: .safetensors, or torch's own format.")
]
Head = Annotated[
    str | None,
    typer.Option(help="The name of its last linear layer, if it is not found by itself."),
]
Calibrators = Annotated[
    list[Path] | None, typer.Option("--calibrator", help="A file of `calibrate`; repeatable.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def network(model: str | None, weights: Path | None, head: str | None) -> Network | None:
    """Return the network that the options name, or None."""
    if model is None and (weights is not None or head is not None):
        raise ValueError(
            "--weights and --head belong to a network: give --model package.module:factory too."
        )
    return None if model is None else Network(model, weights, head)


def check_files(output: Path | None, suffixes: Sequence[str], *inputs: Path | None) -> None:
    """Refuse what cannot be read or written, or must not be overwritten, before hours are spent on it."""
    given = [path for path in inputs if path is not None]
    for path in given:
        if not path.exists():
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(path))
    if output is None:
        return
    if output.suffix not in suffixes:
        raise ValueError(f"--output must end in {' or '.join(suffixes)}; got '{output}'.")
    if not output.parent.is_dir():
        raise FileNotFoundError(
            f"--output is to go to '{output.parent}', which is no folder. Make it first."
        )
    if output.is_dir():
        raise IsADirectoryError(f"--output '{output}' is a folder. Give the name of a file.")
    if not os.access(output.parent, os.W_OK):
        raise PermissionError(f"--output is to go to '{output.parent}', where you may not write.")
    if output.exists() and any(output.samefile(path) for path in given):
        raise ValueError(
            f"--output '{output}' is read by this command and would be overwritten. Give another name."
        )
