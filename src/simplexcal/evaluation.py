"""A prediction and its labels in, one flat record of numbers out; records side by side in a table."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Generator, Tensor

from simplexcal import metrics
from simplexcal._validation import check_probs_and_labels
from simplexcal.types import Prediction

HEADER = (
    "method",
    "accuracy %",
    "ECE %",
    "95 % interval",
    "floor (95 %)",
    "smooth %",
    "NLL",
    "Brier",
    "AURC %",
)


@dataclass(frozen=True)
class Evaluation:
    """What a prediction is worth. Plain numbers; errors are fractions, logarithms natural.

    ``ece`` stands beside what chance alone makes of it: ``ece_floor`` and ``ece_floor_95`` are mean and 95 % quantile
    of the ECE of a perfectly calibrated model with the same confidences, and [``ece_low``, ``ece_high``] is a 95 %
    interval for the true error, without the upward bias of the ECE itself. Each number is described where it is
    computed, in ``simplexcal.metrics``. ``aleatoric`` and ``epistemic`` are means, None where a method has none.
    """

    n: int
    n_classes: int
    accuracy: float
    confidence: float
    nll: float
    brier: float
    brier_calibration: float
    brier_refinement: float
    ece: float
    ece_floor: float
    ece_floor_95: float
    ece_low: float
    ece_high: float
    adaptive_ece: float
    classwise_ece: float
    maximum_ce: float
    debiased_ece: float
    smooth_ece: float
    aurc: float
    aleatoric: float | None = None
    epistemic: float | None = None

    def as_dict(self) -> dict[str, int | float | None]:
        """Return names and numbers, in the order above."""
        return asdict(self)


@dataclass(frozen=True)
class OODEvaluation:
    """How well each uncertainty tells unknown inputs, the positive class, from known ones.

    Known by area under the ROC curve, average precision and the false-positive rate at 95 % true positives. A score
    that one of the predictions does not have is None; confidence counts with a minus sign.
    """

    n_in: int
    n_out: int
    confidence_auroc: float
    confidence_aupr: float
    confidence_fpr_95: float
    expected_entropy_auroc: float | None = None
    expected_entropy_aupr: float | None = None
    expected_entropy_fpr_95: float | None = None
    differential_entropy_auroc: float | None = None
    differential_entropy_aupr: float | None = None
    differential_entropy_fpr_95: float | None = None
    mutual_information_auroc: float | None = None
    mutual_information_aupr: float | None = None
    mutual_information_fpr_95: float | None = None

    def as_dict(self) -> dict[str, int | float | None]:
        """Return names and numbers, in the order above."""
        return asdict(self)


@torch.no_grad()
def evaluate(
    prediction: Prediction, labels: Tensor, n_bins: int = 10, generator: Generator | None = None
) -> Evaluation:
    """Judge a prediction by labels (N,) that it has not seen.

    Correct is what ``prediction.label`` says, the network's own class, also where probabilities round to a tie. The
    noise floor and the interval are simulated with ``generator``, or else with a fixed seed: the same input gives the
    same record, and the global random state is left alone.
    """
    probs, labels = check_probs_and_labels(prediction.probs, labels)
    labels = labels.to(probs.device)
    confidence, correct = prediction.confidence, prediction.label == labels
    split = metrics.brier_split(probs, labels, n_bins)
    floor = metrics.noise_floor(confidence, n_bins, generator=generator)
    interval = metrics.ece_interval(confidence, correct, n_bins, generator=generator)
    return Evaluation(
        n=len(prediction),
        n_classes=probs.shape[1],
        accuracy=correct.double().mean().item(),
        confidence=confidence.double().mean().item(),
        nll=metrics.nll(probs, labels).item(),
        brier=metrics.brier(probs, labels).item(),
        brier_calibration=split.calibration.item(),
        brier_refinement=split.refinement.item(),
        ece=metrics.ece(confidence, correct, n_bins).item(),
        ece_floor=floor.mean.item(),
        ece_floor_95=floor.upper.item(),
        ece_low=interval.low.item(),
        ece_high=interval.high.item(),
        adaptive_ece=metrics.adaptive_ece(confidence, correct, n_bins).item(),
        classwise_ece=metrics.classwise_ece(probs, labels, n_bins).item(),
        maximum_ce=metrics.maximum_ce(confidence, correct, n_bins).item(),
        debiased_ece=metrics.debiased_ece(confidence, correct, n_bins).item(),
        smooth_ece=metrics.smooth_ece(confidence, correct).item(),
        aurc=metrics.aurc(confidence, correct).item(),
        aleatoric=_mean(prediction.aleatoric),
        epistemic=_mean(prediction.epistemic),
    )


@torch.no_grad()
def evaluate_ood(in_distribution: Prediction, out_of_distribution: Prediction) -> OODEvaluation:
    """Judge how well the uncertainties of two predictions, for known and for unknown inputs, tell them apart."""
    known, unknown = in_distribution, out_of_distribution
    return OODEvaluation(
        len(known),
        len(unknown),
        *_told_apart(-known.confidence, -unknown.confidence),
        *_told_apart_if_any(known.aleatoric, unknown.aleatoric),
        *_told_apart_if_any(known.epistemic, unknown.epistemic),
        *_told_apart_if_any(known.mutual_information, unknown.mutual_information),
    )


def tabulate(evaluations: Mapping[str, Evaluation]) -> str:
    """Return one line for each named evaluation, as a Markdown table that is aligned in plain text too."""
    rows = [list(HEADER), *([name, *_cells(e)] for name, e in evaluations.items())]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [[name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])] for name, *cells in rows]
    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])


def _cells(e: Evaluation) -> tuple[str, ...]:
    return (
        f"{100 * e.accuracy:.2f}",
        f"{100 * e.ece:.2f}",
        f"{100 * e.ece_low:.2f} to {100 * e.ece_high:.2f}",
        f"{100 * e.ece_floor:.2f} ({100 * e.ece_floor_95:.2f})",
        f"{100 * e.smooth_ece:.2f}",
        f"{e.nll:.4f}",
        f"{e.brier:.4f}",
        f"{100 * e.aurc:.2f}",
    )


def _mean(values: Tensor | None) -> float | None:
    return None if values is None else values.double().mean().item()


def _told_apart(known: Tensor, unknown: Tensor) -> tuple[float, float, float]:
    score = torch.cat([known, unknown.to(known)])
    positive = torch.arange(len(score), device=score.device) >= len(known)
    auroc, aupr, fpr = (
        f(score, positive).item() for f in (metrics.auroc, metrics.aupr, metrics.fpr_at_tpr)
    )
    return auroc, aupr, fpr


def _told_apart_if_any(
    known: Tensor | None, unknown: Tensor | None
) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if known is None or unknown is None else _told_apart(known, unknown)
