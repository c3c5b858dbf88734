"""``simplexcal calibrate``."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from simplexcal.calibrators import CALIBRATORS, Calibrator, SimplexTemperatureScaling
from simplexcal.cli._console import echo_result, stderr_is_tty
from simplexcal.cli._dense import DenseSource
from simplexcal.cli._inputs import Source, read_data
from simplexcal.cli._options import (
    BatchSizeOption,
    DataArgument,
    FeaturesOption,
    HeadOption,
    IdOption,
    IgnoreOption,
    JsonOption,
    LabelsOption,
    LogitsOption,
    MethodOption,
    MixupKind,
    MixupOption,
    ModelOption,
    OnnxFeaturesOption,
    OnnxOutputOption,
    OutputKindOption,
    ProbsOption,
    WeightsOption,
    check_files,
    check_seed,
    dense_options,
    given_names,
    network_spec,
    onnx_file,
)
from simplexcal.facts import Facts, FitFacts
from simplexcal.io import save_calibrator
from simplexcal.io.tables import Table
from simplexcal.metrics import nll
from simplexcal.mixup import Mixup
from simplexcal.network_spec import NetworkSpec
from simplexcal.onnx import OnnxNetwork, append_calibrator


def calibrate(
    data: DataArgument,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The calibrator, .safetensors; or .onnx, for a network that is .onnx.",
        ),
    ],
    kind: OutputKindOption = None,
    logits: LogitsOption = None,
    probs: ProbsOption = None,
    labels: LabelsOption = None,
    features: FeaturesOption = None,
    ids: IdOption = None,
    method: MethodOption = SimplexTemperatureScaling.key,
    model: ModelOption = None,
    weights: WeightsOption = None,
    head: HeadOption = None,
    output_name: OnnxOutputOption = None,
    features_name: OnnxFeaturesOption = None,
    mixup: MixupOption = MixupKind.features,
    ignore_index: IgnoreOption = None,
    batch_size: BatchSizeOption = None,
    max_positions: Annotated[
        int | None,
        typer.Option(help="Tokens or pixels that the fit learns from; by default 50000."),
    ] = None,
    seed: Annotated[int, typer.Option(callback=check_seed, help="Seed of all randomness.")] = 0,
    json: JsonOption = False,
) -> None:
    """Fit a calibrator and save it.

    DATA are held-out outputs with their true classes. The network has not seen them in training.

    Args:
        data: Held-out outputs or inputs, with labels.
        output: File to write the calibrator to; or network and calibrator, of an .onnx file.
        kind: What to take from the file.
        logits: Name of the logits in the file.
        probs: Name of the probabilities in the file.
        labels: Name of the true classes in the file.
        features: Name of the features in the file.
        ids: Name of the keys in the file.
        method: Key of the method in CALIBRATORS.
        model: Network for raw inputs, as "package.module:factory" or an .onnx file.
        weights: State dict of the network.
        head: Name of the network's last linear layer.
        output_name: Output of an .onnx file to calibrate.
        features_name: Tensor of an .onnx file that its last linear layer takes.
        mixup: What Multi-Mixup mixes, for methods that use it.
        ignore_index: Labels of tokens or pixels that do not count.
        batch_size: Inputs that the network takes at a time.
        max_positions: Most tokens or pixels that the fit learns from.
        seed: Seed of the generator.
        json: Print JSON instead of text.
    """
    network = network_spec(model, weights, head, output_name, features_name)
    check_files(output, _suffixes(network), data, weights, onnx_file(network))
    start = time.perf_counter()
    progress = stderr_is_tty()
    names = given_names(logits=logits, probs=probs, labels=labels, features=features, id=ids)
    options = dense_options(ignore_index, batch_size, max_positions)
    source = _source_of_fit(
        read_data(data, kind, network, names, options, progress=progress), progress
    )
    outputs = source.table.outputs
    targets = source.labels
    calibrator = CALIBRATORS[method]()
    calibrator.warn_of_changes()
    calibrator.fit(
        outputs,
        targets,
        mixup=_mixup(calibrator, source, mixup),
        generator=torch.Generator().manual_seed(seed),
        progress=progress,
    )
    record: dict[str, Any] = {
        "output": str(output),
        "method": method,
        "n": len(targets),
        "n_classes": outputs.n_classes,
        "nll_before": _nll(outputs.logits.softmax(-1), targets),
        "nll_after": _nll(calibrator(outputs).probs, targets),
    }
    fit = calibrator.facts.fit or FitFacts(len(targets))
    fit = replace(fit, nll_before=record["nll_before"], nll_after=record["nll_after"])
    noun = "inputs"
    if source.is_dense:
        noun = "tokens or pixels"
        fit = replace(fit, noun="positions")
    calibrator.facts = Facts(fit, class_names=source.table.class_names)
    _write(calibrator, output, source)
    record["seconds"] = time.perf_counter() - start
    text = _describe(record, noun)
    if isinstance(source.backbone, OnnxNetwork):
        text += f"\nIt reads {source.backbone.describe()}."
    echo_result(text, record, json)


def _source_of_fit(source: Source | DenseSource, progress: bool) -> Source:
    """Return the outputs that the fit learns from: of tokens or pixels, a sample."""
    if isinstance(source, Source):
        return source
    outputs, labels = source.sample(progress)
    head = None
    if outputs.features is not None:
        head = source.backbone.head
    table = Table(outputs, labels, head, class_names=source.given.class_names)
    return Source(source.path, table, source.network, source.inputs, is_dense=True)


def _suffixes(network: NetworkSpec | None) -> list[str]:
    """Return the formats of the output: an .onnx file can also be written with its calibrator."""
    if onnx_file(network) is None:
        return [".safetensors"]
    return [".safetensors", ".onnx"]


def _write(calibrator: Calibrator, output: Path, source: Source) -> None:
    if output.suffix == ".onnx" and isinstance(source.backbone, OnnxNetwork):
        append_calibrator(source.backbone, calibrator, output)
    else:
        fingerprint = source.fingerprint
        save_calibrator(calibrator, output, fingerprint=fingerprint, is_dense=source.is_dense)


def list_methods() -> str:
    """Return the part of the help that names every method in CALIBRATORS."""
    listed = {k: method for k, method in CALIBRATORS.items() if not method.only_for_reproduction}
    methods = ", ".join(f"{key} ({method.title})" for key, method in listed.items())
    others = ", ".join(key for key in CALIBRATORS if key not in listed)
    with_mixup = ", ".join(key for key, method in CALIBRATORS.items() if method.uses_mixup)
    return (
        f"METHOD is one of: {methods}. To reproduce the paper only: {others}. "
        f"Mixup samples are used by: {with_mixup}. "
        "To mix features takes --model, or features and the last layer in DATA; "
        "without them logits are mixed."
    )


def _mixup(calibrator: Calibrator, source: Source, kind: str) -> Mixup | None:
    if not calibrator.uses_mixup:
        return None
    return source.mixup(kind)


def _nll(probs: Tensor, labels: Tensor) -> float:
    return float(nll(probs, labels))


def _describe(record: dict[str, Any], noun: str) -> str:
    template = (
        "{output}: {method} on {n} {noun} of {n_classes} classes, {seconds:.1f} s.\n"
        "NLL on these {noun}: {nll_before:.4f} before, {nll_after:.4f} after.\n"
        "Next, on other data: simplexcal evaluate DATA --calibrator {output}"
    )
    return template.format(**record, noun=noun)
