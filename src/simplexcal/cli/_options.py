"""Options that several commands share, and the checks before a command's work begins."""

import os
from collections.abc import Sequence
from enum import StrEnum
from errno import ENOENT
from pathlib import Path
from typing import Annotated

import typer

from simplexcal._validation import check_count
from simplexcal.calibrators import CALIBRATORS
from simplexcal.cli._dense import DenseOptions
from simplexcal.io._atomic import check_output_path
from simplexcal.io._columns import Names
from simplexcal.network_spec import NetworkSpec


class OutputKind(StrEnum):
    """What is taken from a file of saved outputs. It is never guessed."""

    logits = "logits"
    probs = "probs"


class DataKind(StrEnum):
    """What is taken from a file: outputs, or predictions that `simplexcal predict` wrote."""

    logits = "logits"
    probs = "probs"
    predictions = "predictions"


class MixupKind(StrEnum):
    """What Multi-Mixup mixes."""

    features = "features"
    inputs = "inputs"
    logits = "logits"


def check_method(method: str) -> str:
    """Return the method if it is a key of CALIBRATORS when the command runs.

    Args:
        method: What the user typed.

    Raises:
        typer.BadParameter: There is no such method.
    """
    if method not in CALIBRATORS:
        raise typer.BadParameter(f"{method!r} is not one of {', '.join(CALIBRATORS)}.")
    return method


def check_seed(seed: int) -> int:
    """Return a seed that torch takes.

    Args:
        seed: What the user typed.

    Raises:
        typer.BadParameter: It is negative or has more than 63 bits.
    """
    if not 0 <= seed < 2**63:
        raise typer.BadParameter(f"the seed must be a number from 0 on, below 2^63; got {seed}.")
    return seed


DataArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="A file of outputs; .npz .safetensors .parquet .csv .npy .pt",
    ),
]
CalibratorArgument = Annotated[
    Path,
    typer.Argument(metavar="CALIBRATOR", help="A file that `calibrate` wrote."),
]
CalibratorOption = Annotated[
    list[Path] | None,
    typer.Option("--calibrator", help="A file that `calibrate` wrote; repeatable."),
]
KIND_HELP = "Which to take, where a file holds more than one or names none."
OutputKindOption = Annotated[OutputKind | None, typer.Option("--kind", help=KIND_HELP)]
DataKindOption = Annotated[DataKind | None, typer.Option("--kind", help=KIND_HELP)]
LogitsOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="What the file calls logits; z_ means z_0, z_1, …."),
]
ProbsOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="What it calls probabilities.")
]
LabelsOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="What it calls the true classes.")
]
FeaturesOption = Annotated[str | None, typer.Option(metavar="NAME", help="What it calls features.")]
IdOption = Annotated[
    str | None, typer.Option("--id", metavar="NAME", help="What it calls the keys of its rows.")
]
MethodOption = Annotated[
    str,
    typer.Option(callback=check_method, metavar="METHOD", help="The method; see below."),
]
MixupOption = Annotated[
    MixupKind,
    typer.Option(help="What is mixed, for a method that uses mixup samples; see below."),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The network, package.module:factory or a file .onnx; DATA are its raw inputs.",
    ),
]
WeightsOption = Annotated[
    Path | None,
    typer.Option(help="Its state dict: .safetensors, or torch's own format."),
]
HeadOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The name of its last linear layer, if it is not found by itself."
    ),
]
OnnxOutputOption = Annotated[
    str | None,
    typer.Option("--onnx-output", metavar="NAME", help="Of a file .onnx, the output to calibrate."),
]
OnnxFeaturesOption = Annotated[
    str | None,
    typer.Option(
        "--onnx-features",
        metavar="NAME",
        help="Of a file .onnx, the tensor that its last linear layer takes.",
    ),
]
ToleranceOption = Annotated[
    float,
    typer.Option(help="An ECE up to this hardly matters in practice; 0.01 is 1 %."),
]
IgnoreOption = Annotated[
    list[int] | None,
    typer.Option(
        "--ignore-index",
        help="A label of tokens or pixels that do not count; repeatable. By default -100 and 255.",
    ),
]
BatchSizeOption = Annotated[
    int | None,
    typer.Option(help="Inputs that the network takes at a time."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def network_spec(
    model: str | None,
    weights: Path | None,
    head: str | None,
    output_name: str | None = None,
    features_name: str | None = None,
) -> NetworkSpec | None:
    """Return the network that the options name, or None if they name none.

    Args:
        model: The value of --model.
        weights: The value of --weights.
        head: The value of --head.
        output_name: The value of --onnx-output.
        features_name: The value of --onnx-features.

    Raises:
        FileNotFoundError: The model is an .onnx file that does not exist.
        ValueError: There are options for a network, and no model.
    """
    if model is not None:
        network = NetworkSpec(model, weights, head, output_name, features_name)
        check_files(None, [], network.onnx_file)
        return network
    if weights is not None or head is not None:
        raise ValueError(
            "--weights and --head belong to a network: give --model package.module:factory too."
        )
    if output_name is not None or features_name is not None:
        raise ValueError(
            "--onnx-output and --onnx-features belong to a network: give --model FILE.onnx too."
        )
    return None


def dense_options(
    ignore_index: list[int] | None = None,
    batch_size: int | None = None,
    max_positions: int | None = None,
) -> DenseOptions:
    """Return what the options say about tokens and pixels.

    Args:
        ignore_index: The values of --ignore-index.
        batch_size: The value of --batch-size.
        max_positions: The value of --max-positions.

    Raises:
        ValueError: A number is less than 1.
    """
    for name, value in (("batch_size", batch_size), ("max_positions", max_positions)):
        if value is not None:
            check_count(name, value)
    if not ignore_index:
        return DenseOptions(None, batch_size, max_positions)
    return DenseOptions(tuple(ignore_index), batch_size, max_positions)


def onnx_file(network: NetworkSpec | None) -> Path | None:
    """Return the .onnx file of a network, or None.

    Args:
        network: The network, if there is one.
    """
    if network is None:
        return None
    return network.onnx_file


def given_names(**names: str | None) -> Names:
    """Return the names of arrays that the user gave, by the arrays' own names.

    Args:
        **names: The values of --logits, --labels and so on; None is left out.
    """
    return {array: name for array, name in names.items() if name is not None}


def check_files(output: Path | None, suffixes: Sequence[str], *inputs: Path | None) -> None:
    """Reject files that cannot be read or written before the work begins.

    Args:
        output: The file to write, if there is one.
        suffixes: The formats in which ``output`` can be written.
        *inputs: Files to read, which must exist and are not overwritten; None is skipped.

    Raises:
        FileNotFoundError: One of ``inputs`` does not exist.
        ValueError: ``output`` has a wrong suffix, or is one of ``inputs``.
        OSError: ``output`` cannot be written.
    """
    given = [path for path in inputs if path is not None]
    for path in given:
        if not path.exists():
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(path))
    if output is not None:
        check_output_path(output, suffixes, given)
