"""``simplexcal evaluate``."""

from collections.abc import Mapping

from simplexcal import evaluation
from simplexcal.cli._console import echo_result
from simplexcal.cli._inputs import read_evaluation_inputs
from simplexcal.cli._options import (
    CalibratorOption,
    DataArgument,
    EvaluationKindOption,
    HeadOption,
    JsonOption,
    ModelOption,
    WeightsOption,
    check_files,
    network_spec,
)
from simplexcal.evaluation import Evaluation


def evaluate(
    data: DataArgument,
    kind: EvaluationKindOption = None,
    calibrator: CalibratorOption = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    head: HeadOption = None,
    json: JsonOption = False,
) -> None:
    """Evaluate against the true classes.

    DATA are predictions, or outputs, which are evaluated before and after each calibrator.

    Args:
        data: Predictions, outputs or inputs, with labels.
        kind: What the file holds.
        calibrator: Calibrators to evaluate beside the network itself.
        model: Network for raw inputs, as "package.module:factory".
        weights: State dict of the network.
        head: Name of the network's last linear layer.
        json: Print JSON instead of text.
    """
    calibrators = calibrator or []
    check_files(None, [], data, weights, *calibrators)
    network = network_spec(model, weights, head)
    inputs = read_evaluation_inputs(data, kind, calibrators, network)
    evaluations = {
        name: evaluation.evaluate(prediction, inputs.labels)
        for name, prediction in inputs.predictions.items()
    }
    record = {"methods": as_records(evaluations)}
    echo_result(evaluation.tabulate(evaluations), record, json)


def as_records(evaluations: Mapping[str, Evaluation]) -> dict[str, dict[str, float | None]]:
    """Return the numbers of each evaluation by name.

    Args:
        evaluations: Evaluations by the methods' names.
    """
    return {name: result.as_dict() for name, result in evaluations.items()}
