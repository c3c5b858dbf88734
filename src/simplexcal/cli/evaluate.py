"""``simplexcal evaluate``."""

from simplexcal import evaluation
from simplexcal.cli._console import say
from simplexcal.cli._inputs import read_judged
from simplexcal.cli._options import (
    Calibrators,
    Data,
    Head,
    Json,
    JudgedInput,
    Model,
    Weights,
    check_files,
    network,
)
from simplexcal.evaluation import Evaluation


def evaluate(
    data: Data,
    input: JudgedInput = None,
    calibrator: Calibrators = None,
    model: Model = None,
    weights: Weights = None,
    head: Head = None,
    json: Json = False,
) -> None:
    """Judge against the true classes.

    DATA are predictions, or outputs, which are judged before and after each calibrator.
    """
    check_files(None, [], data, weights, *(calibrator or []))
    judged = read_judged(data, input, calibrator or [], network(model, weights, head))
    evaluations = {
        name: evaluation.evaluate(prediction, judged.labels)
        for name, prediction in judged.predictions.items()
    }
    say(evaluation.tabulate(evaluations), {"methods": as_records(evaluations)}, json)


def as_records(evaluations: dict[str, Evaluation]) -> dict[str, dict[str, float | None]]:
    """Return the numbers of each evaluation by name."""
    return {name: own.as_dict() for name, own in evaluations.items()}
