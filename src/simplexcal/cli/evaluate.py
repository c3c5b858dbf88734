"""``simplexcal evaluate``."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from simplexcal import evaluation
from simplexcal._validation import check_fraction
from simplexcal.calibrators import Uncalibrated
from simplexcal.cli._console import echo_result
from simplexcal.cli._dense import describe_dense
from simplexcal.cli._inputs import EvaluationInputs, read_evaluation_inputs
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
from simplexcal.comparison import Comparison, compare, compare_dense, evaluation_facts
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
    ignore_index: IgnoreOption = None,
    batch_size: BatchSizeOption = None,
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
        ignore_index: Labels of tokens or pixels that do not count.
        batch_size: Inputs that the network takes at a time.
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
    options = dense_options(ignore_index, batch_size)
    inputs = read_evaluation_inputs(
        data, kind, calibrators, network, names, options, must_be_new=save
    )
    if not isinstance(inputs, EvaluationInputs):
        scores = inputs.scores()
        text, record = describe_dense(inputs, scores, check_fraction("tolerance", tolerance))
        if save:
            before, after = scores.values()
            text += _store(calibrators[0], partial(compare_dense, before, after))
        echo_result(text, record, json)
        return
    evaluations = {
        name: evaluation.evaluate(prediction, inputs.labels)
        for name, prediction in inputs.predictions.items()
    }
    verdict = _verdict(inputs, evaluations, tolerance)
    table = evaluation.tabulate(evaluations)
    changed = _changed_predictions(inputs)
    text = f"{table}\n\n{wrap(evaluation.LEGEND)}\n\n{wrap(f'Verdict: {verdict}')}"
    for name, n in changed.items():
        text += f"\n{wrap(evaluation.describe_changes(method_title(name), n))}"
    if save:
        first, last = inputs.predictions.values()
        text += _store(calibrators[0], partial(compare, first, last, inputs.labels))
    record = {
        "methods": as_records(evaluations),
        "changed_predictions": changed,
        "verdict": verdict,
    }
    echo_result(text, record, json)


def _changed_predictions(inputs: EvaluationInputs) -> dict[str, int]:
    """Return how many predictions of the network each method changes, for those that do."""
    before = inputs.predictions.get(Uncalibrated.key)
    if before is None:
        return {}
    counts = {
        name: evaluation.count_changes(before, after) for name, after in inputs.predictions.items()
    }
    return {name: n for name, n in counts.items() if n > 0}


def _store(path: Path, comparison: Callable[[str], Comparison]) -> str:
    """Store the figures of a calibrator in its file, and return a line that says so."""
    calibrator, header = load_calibrator(path)
    found = comparison(calibrator.abbreviation)
    calibrator.keep_evaluation(evaluation_facts(found, N_BINS))
    save_again(calibrator, header, path)
    return f"\nStored in {path}."


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
