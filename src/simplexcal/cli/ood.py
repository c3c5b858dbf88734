"""``simplexcal ood``."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from simplexcal.calibrators import Uncalibrated
from simplexcal.cli._console import echo_result
from simplexcal.cli._inputs import pair_methods, read_unlabelled
from simplexcal.cli._options import (
    CalibratorOption,
    DataArgument,
    DataKindOption,
    FeaturesOption,
    HeadOption,
    JsonOption,
    LogitsOption,
    ModelOption,
    OnnxFeaturesOption,
    OnnxOutputOption,
    ProbsOption,
    WeightsOption,
    check_files,
    given_names,
    network_spec,
)
from simplexcal.evaluation import (
    OOD_HEADER,
    OOD_NUMBERS,
    OOD_SCORES,
    OODEvaluation,
    evaluate_ood,
    markdown_table,
    ood_legend,
    shorten,
    wrap,
)
from simplexcal.report._format import method_title
from simplexcal.report._ood import check_ood
from simplexcal.types import Prediction

CHANCE = 3  # standard deviations: of the best of some scores, fewer are no evidence
NAME_WIDTH = 20


def ood(
    data: DataArgument,
    ood: Annotated[
        Path, typer.Argument(metavar="OOD", help="A file of the same kind for OOD inputs.")
    ],
    kind: DataKindOption = None,
    logits: LogitsOption = None,
    probs: ProbsOption = None,
    features: FeaturesOption = None,
    calibrator: CalibratorOption = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    head: HeadOption = None,
    output_name: OnnxOutputOption = None,
    features_name: OnnxFeaturesOption = None,
    json: JsonOption = False,
) -> None:
    """Measure the detection of out-of-distribution inputs.

    DATA are in-distribution, OOD are out-of-distribution: predictions; or outputs, of which each
    calibrator gives confidence and uncertainties. Labels are not needed.

    Args:
        data: Predictions, outputs or inputs, in-distribution.
        ood: The same for OOD inputs.
        kind: What to take from the files.
        logits: Name of the logits in the files.
        probs: Name of the probabilities in the files.
        features: Name of the features in the files.
        calibrator: Calibrators whose uncertainties are evaluated beside the network's confidence.
        model: Network for raw inputs, as "package.module:factory" or an .onnx file.
        weights: State dict of the network.
        head: Name of the network's last linear layer.
        output_name: Output of an .onnx file to calibrate.
        features_name: Tensor of an .onnx file that its last linear layer takes.
        json: Print JSON instead of text.
    """
    calibrators = calibrator or []
    check_files(None, [], data, ood, weights, *calibrators)
    network = network_spec(model, weights, head, output_name, features_name)
    names = given_names(logits=logits, probs=probs, features=features)
    inside = read_unlabelled(data, kind, calibrators, network, names)
    others = read_unlabelled(ood, kind, calibrators, network, names)
    outside = pair_methods(ood, inside, others)
    check_ood(outside, inside)
    evaluations = _evaluate(inside, outside)
    verdict = _verdict(evaluations)
    text = f"{_tabulate(evaluations)}\n\n{_legend(evaluations)}\n\n{wrap(f'Verdict: {verdict}')}"
    record: dict[str, Any] = {
        "methods": {name: found.as_dict() for name, found in evaluations.items()},
        "verdict": verdict,
    }
    echo_result(text, record, json)


def _evaluate(
    inside: Mapping[str, Prediction], outside: Mapping[str, Prediction]
) -> dict[str, OODEvaluation]:
    return {name: evaluate_ood(inside[name], outside[name]) for name in inside}


def _tabulate(evaluations: Mapping[str, OODEvaluation]) -> str:
    """Return a table with a row for each score that a method has."""
    rows: list[tuple[str, ...]] = [("method", *OOD_HEADER)]
    for name, score, found in _present(evaluations):
        numbers = [f"{100 * found[f'{score}_{number}']:.1f}" for number in OOD_NUMBERS]
        rows.append((shorten(name, NAME_WIDTH), OOD_SCORES[score], *numbers))
    return markdown_table(rows)


def _legend(evaluations: Mapping[str, OODEvaluation]) -> str:
    return wrap(ood_legend(next(iter(evaluations.values()))))


def _verdict(evaluations: Mapping[str, OODEvaluation]) -> str:
    """Return which score has the highest AUROC, or that none is clearly better than chance."""
    rows = _present(evaluations)
    name, score, found = max(rows, key=lambda row: round(row[2][f"{row[1]}_auroc"], 3))
    auroc = found[f"{score}_auroc"]
    if auroc <= 0.5 + CHANCE * _chance_deviation(found["n_in"], found["n_out"]):
        return "No score detects these OOD inputs clearly better than chance."
    owner = "the network before calibration"
    if name != Uncalibrated.key:
        owner = method_title(name)
    return (
        f"The {OOD_SCORES[score]} of {owner} detects these OOD inputs with the highest AUROC, "
        f"{100 * auroc:.1f} %."
    )


def _chance_deviation(n_in: int, n_out: int) -> float:
    """Return √((n + m + 1) / 12 n m), the deviation of an AUROC that is 1/2 (Mann and Whitney)."""
    return math.sqrt((n_in + n_out + 1) / (12 * n_in * n_out))


def _present(evaluations: Mapping[str, OODEvaluation]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the method, the score and the numbers of each score that a method has."""
    found = [(name, score, e.as_dict()) for name, e in evaluations.items() for score in OOD_SCORES]
    return [row for row in found if row[2][f"{row[1]}_auroc"] is not None]
