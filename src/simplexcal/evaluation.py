"""Evaluation of predictions: records of numbers, and tables of them."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Generator, Tensor

from simplexcal import metrics
from simplexcal._arrays import ArrayLike
from simplexcal._validation import (
    check_count,
    check_generator,
    check_probs,
    check_probs_and_labels,
)
from simplexcal.metrics._binning import N_BINS
from simplexcal.types import Prediction

HEADER = ("method", "acc. %", "ECE %", "95 % interval", "floor %", "NLL", "AURC %")
LEGEND = (
    "ECE: expected calibration error; the interval is for the true error, without the bias of "
    "the ECE. floor: the ECE that a perfectly calibrated model stays below in 95 of 100 samples, "
    "so an ECE within it is no evidence of an error. NLL: negative log-likelihood. AURC: area "
    "under the risk-coverage curve. Lower is better for all; acc. is the accuracy."
)
# Title, factor and digits of each score in the table of one evaluation.
SCORES = {
    "accuracy": ("accuracy %", 100, 2),
    "confidence": ("confidence %", 100, 2),
    "ece": ("ECE %", 100, 2),
    "nll": ("NLL", 1, 4),
    "brier": ("Brier", 1, 4),
}
OOD_SCORES = {
    "confidence": "confidence",
    "aleatoric": "aleatoric uncertainty",
    "epistemic": "epistemic uncertainty",
    "mutual_information": "mutual information",
}
OOD_NUMBERS = ("auroc", "aupr", "fpr_95")
OOD_HEADER = ("score", "AUROC %", "AUPR %", "FPR95 %")
OOD_LEGEND = (
    "AUROC: share of the pairs of which the OOD input is the less certain one; 50 is chance. "
    "AUPR: average precision where OOD inputs are to be found; {base:.1f} is chance. FPR95: share "
    "of the in-distribution inputs that are flagged too where 95 % of the OOD inputs are."
)
WIDTH = 80  # columns of a terminal
GLUE = "\u202f"  # a space at which no line is broken
MIN_NAME_WIDTH = 8


@dataclass(frozen=True)
class Evaluation:
    """How good a prediction is, in plain numbers.

    Errors are fractions, logarithms natural. ``simplexcal.metrics`` describes each number where it
    is computed. Printed, it is a table of the main numbers; `as_dict` has all.

    Args:
        n: Number of inputs, N.
        n_classes: Number of classes, K.
        accuracy: Fraction of inputs whose predicted class is the label.
        confidence: Mean confidence.
        nll: Negative log-likelihood, in nats.
        brier: Brier score.
        brier_calibration: The part of the Brier score that recalibration can remove.
        brier_refinement: The rest of the Brier score.
        ece: Expected calibration error.
        ece_floor: Mean of the noise floor: the ECE of a perfectly calibrated model with the same
            confidences.
        ece_floor_95: 95 % quantile of the noise floor.
        ece_low: Lower end of a 95 % interval for the true error, without the upward bias of the
            ECE itself.
        ece_high: Upper end of that interval.
        adaptive_ece: ECE over bins of equal mass.
        classwise_ece: Mean ECE of the classes.
        mce: Largest gap between accuracy and confidence of a bin.
        rms_ce: Debiased root-mean-square calibration error.
        smooth_ece: Smooth calibration error.
        aurc: Area under the risk-coverage curve.
        aleatoric: Mean aleatoric uncertainty, None where a method has none.
        epistemic: Mean epistemic uncertainty, None where a method has none.
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
    mce: float
    rms_ce: float
    smooth_ece: float
    aurc: float
    aleatoric: float | None = None
    epistemic: float | None = None

    def as_dict(self) -> dict[str, int | float | None]:
        """Return names and numbers, in the order of the arguments."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [("", "value")]
        for score, (title, factor, digits) in SCORES.items():
            rows.append((title, f"{factor * getattr(self, score):.{digits}f}"))
        interval = f"{100 * self.ece_low:.2f} to {100 * self.ece_high:.2f} %"
        notes = f"{describe_sample(self)} The 95 % interval for the true error is {interval}."
        return f"{markdown_table(rows)}\n\n{wrap(notes)}"


@dataclass(frozen=True)
class OODEvaluation:
    """How well each uncertainty detects out-of-distribution (OOD) inputs, the positive class.

    Each score has three numbers: the area under the ROC curve (``auroc``), the average precision
    (``aupr``) and the false-positive rate at a true-positive rate of 95 % (``fpr_95``). They are
    None where one of the predictions lacks the score. Printed, they are a table.

    Args:
        n_in: Number of in-distribution inputs.
        n_out: Number of OOD inputs.
        confidence_auroc: AUROC of the negative confidence.
        confidence_aupr: Average precision of the negative confidence.
        confidence_fpr_95: False-positive rate of the negative confidence.
        aleatoric_auroc: AUROC of the expected entropy (aleatoric).
        aleatoric_aupr: Average precision of the expected entropy.
        aleatoric_fpr_95: False-positive rate of the expected entropy.
        epistemic_auroc: AUROC of the differential entropy (epistemic).
        epistemic_aupr: Average precision of the differential entropy.
        epistemic_fpr_95: False-positive rate of the differential entropy.
        mutual_information_auroc: AUROC of the mutual information.
        mutual_information_aupr: Average precision of the mutual information.
        mutual_information_fpr_95: False-positive rate of the mutual information.
    """

    n_in: int
    n_out: int
    confidence_auroc: float
    confidence_aupr: float
    confidence_fpr_95: float
    aleatoric_auroc: float | None = None
    aleatoric_aupr: float | None = None
    aleatoric_fpr_95: float | None = None
    epistemic_auroc: float | None = None
    epistemic_aupr: float | None = None
    epistemic_fpr_95: float | None = None
    mutual_information_auroc: float | None = None
    mutual_information_aupr: float | None = None
    mutual_information_fpr_95: float | None = None

    def as_dict(self) -> dict[str, int | float | None]:
        """Return names and numbers, in the order of the arguments."""
        return asdict(self)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [OOD_HEADER]
        numbers = self.as_dict()
        for score, title in OOD_SCORES.items():
            found = [numbers[f"{score}_{number}"] for number in OOD_NUMBERS]
            cells = [f"{100 * value:.1f}" for value in found if value is not None]
            if cells:
                rows.append((title, *cells))
        notes = f"{self.n_in} in-distribution and {self.n_out} OOD inputs. {ood_legend(self)}"
        return f"{markdown_table(rows)}\n\n{wrap(notes)}"


@torch.no_grad()
def evaluate(
    prediction: Prediction | ArrayLike,
    labels: ArrayLike,
    n_bins: int = N_BINS,
    generator: Generator | None = None,
) -> Evaluation:
    """Evaluate a prediction on labels that it has not seen.

    An input is correct where ``prediction.label``, mostly the network's own class, is the label,
    also where probabilities round to a tie. The global random state stays as it is.

    Args:
        prediction: Predictions for N inputs, or probabilities, (N, K), as anything that
            ``torch.as_tensor`` takes. Of equal probabilities the first is then the label.
        labels: The class of each input, (N,).
        n_bins: Number of bins of the calibration errors.
        generator: Source of the random numbers for the noise floor and the interval. None is one
            with a fixed seed: the same input gives the same record.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If the labels are not N classes of the prediction.
    """
    if not isinstance(prediction, Prediction):
        probs = check_probs(prediction)
        prediction = Prediction(probs, probs.argmax(-1))
    if prediction.label.dim() > 1:
        raise ValueError(
            "`prediction` is one for tokens or pixels, which are not independent. Use "
            "simplexcal.evaluate_dense."
        )
    probs, labels = check_probs_and_labels(prediction.probs, labels)
    check_count("n_bins", n_bins)
    check_generator(generator)
    labels = labels.to(probs.device)
    confidence = prediction.confidence
    correct = prediction.label == labels
    split = metrics.brier_decomposition(probs, labels, n_bins)
    return Evaluation(
        n=len(labels),
        n_classes=probs.shape[1],
        accuracy=correct.double().mean().item(),
        confidence=confidence.double().mean().item(),
        nll=metrics.nll(probs, labels).item(),
        brier=metrics.brier(probs, labels).item(),
        brier_calibration=split.calibration.item(),
        brier_refinement=split.refinement.item(),
        adaptive_ece=metrics.adaptive_ece(confidence, correct, n_bins).item(),
        classwise_ece=metrics.classwise_ece(probs, labels, n_bins).item(),
        rms_ce=metrics.rms_ce(confidence, correct, n_bins).item(),
        ece=metrics.ece(confidence, correct, n_bins).item(),
        mce=metrics.mce(confidence, correct, n_bins).item(),
        smooth_ece=metrics.smooth_ece(confidence, correct).item(),
        aurc=metrics.aurc(confidence, correct).item(),
        aleatoric=_mean(prediction.aleatoric),
        epistemic=_mean(prediction.epistemic),
        **_ece_inference(confidence, correct, n_bins, generator),
    )


@torch.no_grad()
def evaluate_ood(in_distribution: Prediction, out_of_distribution: Prediction) -> OODEvaluation:
    """Evaluate how well the uncertainties of two predictions detect OOD inputs.

    Args:
        in_distribution: Predictions for in-distribution inputs.
        out_of_distribution: Predictions of the same model for OOD inputs.
    """
    inside = in_distribution
    outside = out_of_distribution
    return OODEvaluation(
        len(inside),
        len(outside),
        *_detection_scores(-inside.confidence, -outside.confidence),
        *_detection_scores_or_none(inside.aleatoric, outside.aleatoric),
        *_detection_scores_or_none(inside.epistemic, outside.epistemic),
        *_detection_scores_or_none(inside.mutual_information, outside.mutual_information),
    )


def tabulate(evaluations: Mapping[str, Evaluation]) -> str:
    """Return a Markdown table that is aligned in plain text too, and at most 80 columns wide.

    Its columns are the accuracy, the ECE with an interval for the true error and with the 95 %
    noise floor, the NLL and the AURC. A name for which there is no room is cut in its middle.

    Args:
        evaluations: Evaluations by the name of their method; each is a row.
    """
    cells = [list(HEADER[1:]), *map(_cells, evaluations.values())]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    room = WIDTH - sum(widths) - 3 * len(HEADER) - 1
    names = [shorten(name, max(room, MIN_NAME_WIDTH)) for name in (HEADER[0], *evaluations)]
    return markdown_table([[name, *row] for name, row in zip(names, cells, strict=True)])


def describe_sample(evaluation: Evaluation) -> str:
    """Return the size of the data, and the ECE that chance alone gives there.

    Args:
        evaluation: An evaluation on the data.
    """
    floor = 100 * evaluation.ece_floor_95
    return (
        f"{evaluation.n} inputs of {evaluation.n_classes} classes. By chance alone, the ECE of a "
        f"perfectly calibrated model would be up to {floor:.2f} %."
    )


def count_changes(before: Prediction, after: Prediction) -> int:
    """Return for how many inputs two predictions have different labels.

    Args:
        before: Predictions before calibration.
        after: Predictions after calibration, for the same inputs.
    """
    return int((before.label.cpu() != after.label.cpu()).sum())


def describe_changes(method: str, n_changed: int) -> str:
    """Return the sentence about a method that has changed predictions.

    Args:
        method: Abbreviation of the method.
        n_changed: Number of predictions that are other ones.
    """
    noun = "predictions"
    if n_changed == 1:
        noun = "prediction"
    return f"{method} changes {n_changed} {noun}."


def ood_legend(evaluation: OODEvaluation) -> str:
    """Return what the numbers of OOD detection mean.

    Args:
        evaluation: An evaluation, whose numbers of inputs give the average precision of chance.
    """
    base = 100 * evaluation.n_out / (evaluation.n_in + evaluation.n_out)
    return OOD_LEGEND.format(base=base)


def wrap(text: str) -> str:
    """Return a paragraph in lines that a terminal of 80 columns shows whole.

    Args:
        text: The paragraph. A number and its percent sign stay on one line.
    """
    text = text.replace(" %", GLUE + "%")
    lines = textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
    return lines.replace(GLUE, " ")


def shorten(name: str, width: int) -> str:
    """Return a name with its middle left out where it is wider than a column.

    Args:
        name: The name.
        width: The width of the column.
    """
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[-tail:]}"


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as a Markdown table that is aligned in plain text too.

    Args:
        rows: The rows; the first is the header.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * (width - 1) + ":" for width in widths]
    rule[0] = ":" + "-" * (widths[0] - 1)
    lines = [_aligned(row, widths) for row in rows]
    lines.insert(1, rule)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _ece_inference(
    confidence: Tensor, correct: Tensor, n_bins: int, generator: Generator | None
) -> dict[str, float]:
    """Return the noise floor of the ECE and the interval for the true error."""
    floor = metrics.noise_floor(confidence, n_bins, generator=generator)
    interval = metrics.ece_interval(confidence, correct, n_bins, generator=generator)
    return {
        "ece_floor": floor.mean.item(),
        "ece_floor_95": floor.upper.item(),
        "ece_low": interval.low.item(),
        "ece_high": interval.high.item(),
    }


def _mean(values: Tensor | None) -> float | None:
    if values is None:
        return None
    return values.double().mean().item()


def _detection_scores(inside: Tensor, outside: Tensor) -> tuple[float, float, float]:
    """Return AUROC, average precision and FPR at 95 % TPR; OOD inputs are the positive class."""
    score = torch.cat([inside, outside.to(inside)])
    is_outside = torch.arange(len(score), device=score.device) >= len(inside)
    auroc = metrics.auroc(score, is_outside)
    aupr = metrics.aupr(score, is_outside)
    fpr_95 = metrics.fpr_at_tpr(score, is_outside)
    return auroc.item(), aupr.item(), fpr_95.item()


def _detection_scores_or_none(
    inside: Tensor | None, outside: Tensor | None
) -> tuple[float | None, float | None, float | None]:
    if inside is None or outside is None:
        return None, None, None
    return _detection_scores(inside, outside)


def _cells(e: Evaluation) -> list[str]:
    return [
        f"{100 * e.accuracy:.2f}",
        f"{100 * e.ece:.2f}",
        f"{100 * e.ece_low:.2f} to {100 * e.ece_high:.2f}",
        f"{100 * e.ece_floor_95:.2f}",
        f"{e.nll:.4f}",
        f"{100 * e.aurc:.2f}",
    ]


def _aligned(row: Sequence[str], widths: list[int]) -> list[str]:
    """Return the cells as wide as their columns, the first flush left, the others flush right."""
    name = row[0].ljust(widths[0])
    return [name, *map(str.rjust, row[1:], widths[1:])]
