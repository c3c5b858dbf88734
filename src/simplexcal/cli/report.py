"""``simplexcal report``."""

from pathlib import Path
from typing import Annotated

import typer

from simplexcal.cli._console import echo_result
from simplexcal.cli._dense import write_dense_report
from simplexcal.cli._inputs import (
    EvaluationInputs,
    pair_methods,
    read_evaluation_inputs,
    read_unlabelled,
)
from simplexcal.cli._options import (
    BatchSizeOption,
    CalibratorOption,
    DataArgument,
    DataKindOption,
    FeaturesOption,
    HeadOption,
    IdOption,
    IgnoreOption,
    JsonOption,
    LabelsOption,
    LogitsOption,
    ModelOption,
    OnnxFeaturesOption,
    OnnxOutputOption,
    ProbsOption,
    ToleranceOption,
    WeightsOption,
    check_files,
    dense_options,
    given_names,
    network_spec,
)
from simplexcal.cli._sources import describe_file
from simplexcal.io._columns import Names
from simplexcal.network_spec import NetworkSpec
from simplexcal.report import write_report
from simplexcal.report.verdict import TOLERANCE
from simplexcal.types import Prediction


def report(
    data: DataArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="The report, .html.")],
    kind: DataKindOption = None,
    logits: LogitsOption = None,
    probs: ProbsOption = None,
    labels: LabelsOption = None,
    features: FeaturesOption = None,
    ids: IdOption = None,
    calibrator: CalibratorOption = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    head: HeadOption = None,
    output_name: OnnxOutputOption = None,
    features_name: OnnxFeaturesOption = None,
    title: Annotated[str, typer.Option(help="The report's title.")] = "Calibration report",
    ood: Annotated[
        Path | None,
        typer.Option(help="A file of out-of-distribution outputs; it needs no labels."),
    ] = None,
    ignore_index: IgnoreOption = None,
    batch_size: BatchSizeOption = None,
    tolerance: ToleranceOption = TOLERANCE,
    json: JsonOption = False,
) -> None:
    """Write a report to open in a browser.

    One file that works offline: a verdict, a table, charts, and the most confident mistakes. DATA
    are outputs or predictions, with their true classes.

    Args:
        data: Predictions, outputs or inputs, with labels.
        output: File to write the report to.
        kind: What to take from the file.
        logits: Name of the logits in the file.
        probs: Name of the probabilities in the file.
        labels: Name of the true classes in the file.
        features: Name of the features in the file.
        ids: Name of the keys in the file.
        calibrator: Calibrators to evaluate beside the network itself.
        model: Network for raw inputs, as "package.module:factory" or an .onnx file.
        weights: State dict of the network.
        head: Name of the network's last linear layer.
        output_name: Output of an .onnx file to calibrate.
        features_name: Tensor of an .onnx file that its last linear layer takes.
        title: Title of the report.
        ood: Out-of-distribution data.
        ignore_index: Labels of tokens or pixels that do not count.
        batch_size: Inputs that the network takes at a time.
        tolerance: An ECE up to this does not matter in practice.
        json: Print JSON instead of text.
    """
    calibrators = calibrator or []
    check_files(output, [".html"], data, weights, ood, *calibrators)
    network = network_spec(model, weights, head, output_name, features_name)
    names = given_names(logits=logits, probs=probs, labels=labels, features=features, id=ids)
    options = dense_options(ignore_index, batch_size)
    inputs = read_evaluation_inputs(data, kind, calibrators, network, names, options, images=True)
    sources = _sources(data, ood, calibrators, model, weights, inputs.fingerprint)
    if not isinstance(inputs, EvaluationInputs):
        _check_no_ood(ood)
        written = write_dense_report(inputs, output, title, sources, tolerance)
        _echo(output, written.n_inputs, written.methods, json)
        return
    write_report(
        output,
        inputs.predictions,
        inputs.labels,
        images=inputs.images,
        class_names=inputs.class_names,
        thresholds=inputs.thresholds,
        title=title,
        ids=inputs.ids,
        ood=_read_ood(ood, inputs, kind, calibrators, network, names),
        sources=sources,
        tolerance=tolerance,
    )
    _echo(output, len(inputs.labels), list(inputs.predictions), json)


def _echo(output: Path, n: int, methods: list[str], json: bool) -> None:
    text = f"{output}: {n} inputs, {', '.join(methods)}.\nOpen it in a browser."
    echo_result(text, {"report": str(output), "n": n, "methods": methods}, json)


def _check_no_ood(ood: Path | None) -> None:
    if ood is not None:
        raise ValueError(
            "--ood is about whole inputs, and DATA are of tokens or pixels. Leave it out."
        )


def _read_ood(
    path: Path | None,
    inputs: EvaluationInputs,
    kind: str | None,
    calibrators: list[Path],
    network: NetworkSpec | None,
    names: Names,
) -> dict[str, Prediction] | None:
    """Return the predictions of the same methods for OOD inputs."""
    if path is None:
        return None
    ood = read_unlabelled(path, kind, calibrators, network, names)
    return pair_methods(path, inputs.predictions, ood)


def _sources(
    data: Path,
    ood: Path | None,
    calibrators: list[Path],
    model: str | None,
    weights: Path | None,
    fingerprint: str | None,
) -> dict[str, str]:
    """Return the files of the report, by what they are."""
    found = {"Data": describe_file(data)}
    if ood is not None:
        found["Out-of-distribution data"] = describe_file(ood)
    if calibrators:
        found["Calibrators"] = "; ".join(map(describe_file, calibrators))
    if model is not None:
        found["Network"] = model
    if weights is not None:
        found["Weights"] = describe_file(weights)
    if fingerprint is not None:
        found["Fingerprint of the network"] = fingerprint
    return found
