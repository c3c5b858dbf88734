"""``simplexcal evaluate``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from simplexcal import evaluation
from simplexcal._validation import check_fraction
from simplexcal.cli._console import echo_result
from simplexcal.cli._inputs import EvaluationInputs, read_evaluation_inputs
from simplexcal.cli._options import (
    CalibratorOption,
    DataArgument,
    DataKindOption,
    FeaturesOption,
    HeadOption,
    IdOption,
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
    given_names,
    network_spec,
)
from simplexcal.comparison import compare, evaluation_facts
from simplexcal.evaluation import Evaluation, wrap
from simplexcal.io import load_calibrator
from simplexcal.io.native import save_again
from simplexcal.metrics._binning import N_BINS
from simplexcal.report._format import SPACE, method_title
from simplexcal.report.verdict import TOLERANCE, make_verdict


def evaluate(
    data: DataArgument,
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
    tolerance: ToleranceOption = TOLERANCE,
    save: Annotated[
        bool, typer.Option("--save", help="Store the figures in the file of the one --calibrator.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Evaluate against the true classes.

    DATA are predictions; or outputs, which are evaluated before and after each calibrator. The
    verdict is about the last one, and is that of the report.

    Args:
        data: Predictions, outputs or inputs, with labels.
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
        tolerance: An ECE up to this does not matter in practice.
        save: Store the figures in the calibrator's file, for its card.
        json: Print JSON instead of text.
    """
    calibrators = calibrator or []
    check_files(None, [], data, weights, *calibrators)
    if save and len(calibrators) != 1:
        raise ValueError(
            f"--save stores the figures of one --calibrator; got {len(calibrators)}. Give one."
        )
    network = network_spec(model, weights, head, output_name, features_name)
    names = given_names(logits=logits, probs=probs, labels=labels, features=features, id=ids)
    inputs = read_evaluation_inputs(data, kind, calibrators, network, names, must_be_new=save)
    evaluations = {
        name: evaluation.evaluate(prediction, inputs.labels)
        for name, prediction in inputs.predictions.items()
    }
    verdict = _verdict(inputs, evaluations, tolerance)
    table = evaluation.tabulate(evaluations)
    text = f"{table}\n\n{wrap(evaluation.LEGEND)}\n\n{wrap(f'Verdict: {verdict}')}"
    if save:
        _store(calibrators[0], inputs)
        text += f"\nStored in {calibrators[0]}."
    echo_result(text, {"methods": as_records(evaluations), "verdict": verdict}, json)


def _store(path: Path, inputs: EvaluationInputs) -> None:
    """Store the figures of a calibrator in its file."""
    calibrator, header = load_calibrator(path)
    before, after = inputs.predictions.values()
    found = compare(before, after, inputs.labels, calibrator.abbreviation, N_BINS)
    calibrator.keep_evaluation(evaluation_facts(found, N_BINS))
    save_again(calibrator, header, path)


def _verdict(
    inputs: EvaluationInputs, evaluations: Mapping[str, Evaluation], tolerance: float
) -> str:
    """Return the headline that a report on the same inputs has."""
    focus = list(evaluations)[-1]
    verdict = make_verdict(
        inputs.predictions,
        inputs.labels,
        evaluations,
        focus,
        method_title(focus),
        N_BINS,
        check_fraction("tolerance", tolerance),
    )
    return verdict.headline.replace(SPACE, " ")


def as_records(evaluations: Mapping[str, Evaluation]) -> dict[str, dict[str, float | None]]:
    """Return the numbers of each evaluation by name.

    Args:
        evaluations: Evaluations by the methods' names.
    """
    return {name: result.as_dict() for name, result in evaluations.items()}
