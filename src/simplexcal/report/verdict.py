"""The verdict of the report: what an evaluation means in plain words, no surer than the data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from simplexcal.dense_evaluation import DenseEvaluation
from simplexcal.evaluation import Evaluation
from simplexcal.report._format import SPACE, count, percent
from simplexcal.report._paired import SIGNIFICANT, Change, ece_change, nll_change
from simplexcal.types import Prediction

WEAK = 0.03  # above this 95 % noise floor, an ECE within it proves little
WANTED = 0.02  # the noise floor that the advice for few inputs aims at
TOLERANCE = 0.01  # an ECE up to this hardly matters in practice

AnyEvaluation = Evaluation | DenseEvaluation
Level = Literal["calibrated", "slight", "clear", "unknown"]
Tone = Literal["good", "mixed", "bad", "unsure"]


@dataclass(frozen=True)
class Summary:
    """Confidence and accuracy of one method.

    Args:
        title: Name on the page.
        confidence: Mean confidence.
        accuracy: Accuracy.
    """

    title: str
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Verdict:
    """The verdict on one method.

    Args:
        tone: How good it is.
        headline: The verdict in one sentence.
        sentences: The numbers behind it.
        summaries: Confidence and accuracy, before calibration where that is known, and after.
    """

    tone: Tone
    headline: str
    sentences: tuple[str, ...]
    summaries: tuple[Summary, ...]


def make_verdict(
    predictions: Mapping[str, Prediction],
    labels: Tensor,
    evaluations: Mapping[str, Evaluation],
    focus: str,
    title: str,
    n_bins: int,
    tolerance: float,
) -> Verdict:
    """Return the verdict on a method, compared with the uncalibrated network where there is one.

    Args:
        predictions: Predictions by the name of their method; "none" is the uncalibrated network.
        labels: The class of each input, (N,).
        evaluations: Evaluations by the name of their method.
        focus: Name of the method that the verdict is about.
        title: Its name on the page.
        n_bins: Number of bins of the ECE.
        tolerance: An ECE up to this does not matter in practice.
    """
    evaluation = evaluations[focus]
    if focus == "none":
        return assess(evaluation, title, "This network", tolerance)
    if "none" not in evaluations:
        return assess(evaluation, title, f"With {title}, this network", tolerance)
    before = predictions["none"]
    after = predictions[focus]
    comparison = Comparison(
        evaluations["none"],
        evaluation,
        ece_change(before, after, labels, n_bins),
        nll_change(before, after, labels),
    )
    return compare(comparison, title, tolerance)


@dataclass(frozen=True)
class Comparison:
    """A method beside the network before calibration, on the same inputs.

    Args:
        before: AnyEvaluation of the network before calibration.
        after: AnyEvaluation of the method.
        ece: Paired change of the ECE.
        nll: Paired change of the NLL.
    """

    before: AnyEvaluation
    after: AnyEvaluation
    ece: Change
    nll: Change

    def ece_direction(self, tolerance: float) -> int:
        """Return -1 where the ECE falls, 1 where it rises, 0 where it hardly changes.

        A change counts where the paired test finds it, and where it is large: at least the
        tolerance, or a quarter of the error before.

        Args:
            tolerance: An ECE up to this does not matter in practice.
        """
        is_large = abs(self.ece.mean) >= min(tolerance, self.before.ece / 4)
        if not (self.ece.is_clear and is_large):
            return 0
        return _sign(self.ece.mean)

    @property
    def nll_direction(self) -> int:
        """-1 where the NLL falls, 1 where it rises, 0 where it hardly changes.

        A change counts where the paired test finds it and the printed numbers show it.
        """
        is_visible = f"{self.before.nll:.3f}" != f"{self.after.nll:.3f}"
        if not (self.nll.is_clear and is_visible):
            return 0
        return _sign(self.nll.mean)


def assess(e: AnyEvaluation, title: str, subject: str, tolerance: float) -> Verdict:
    """Return the verdict on one method alone.

    Args:
        e: Its evaluation.
        title: Its name on the page.
        subject: The subject of the headline, "This network" say.
        tolerance: An ECE up to this does not matter in practice.
    """
    tone, headline = _headline_alone(e, subject, tolerance)
    sentences = (_describe_confidence("The", e, tolerance), _describe_ece(e, tolerance))
    return Verdict(tone, headline, sentences, (Summary(title, e.confidence, e.accuracy),))


def compare(comparison: Comparison, title: str, tolerance: float) -> Verdict:
    """Return the verdict on a method, compared with the network before calibration.

    Args:
        comparison: The two evaluations and the paired changes.
        title: Name of the method on the page.
        tolerance: An ECE up to this does not matter in practice.
    """
    before = comparison.before
    after = comparison.after
    tone, headline = _headline_compared(comparison, title, tolerance)
    sentences = (
        _describe_confidence("Before calibration, the", before, tolerance),
        _describe_confidence(f"After {title}, the", after, tolerance),
        _describe_ece(after, tolerance),
        _describe_ece_change(comparison, title),
        _describe_nll(comparison),
    )
    summaries = (
        Summary("Before", before.confidence, before.accuracy),
        Summary(f"After {title}", after.confidence, after.accuracy),
    )
    return Verdict(tone, headline, sentences, summaries)


def is_within_chance(e: AnyEvaluation) -> bool:
    """Return whether the ECE is within the 95 % noise floor, both as printed.

    Args:
        e: An evaluation.
    """
    return round(e.ece, 4) <= round(e.ece_floor_95, 4)


def calibration_level(e: AnyEvaluation, tolerance: float) -> Level:
    """Return how large the calibration error is, beside chance and beside the tolerance.

    "slight" is an error beyond chance that may still be within the tolerance. "unknown" is an error
    within chance, where chance alone gives large ones, or where one input does not tell chance.

    Args:
        e: An evaluation.
        tolerance: An ECE up to this does not matter in practice.
    """
    if math.isnan(e.ece_floor_95):
        return "unknown"
    if is_within_chance(e) and e.ece_floor_95 > max(WEAK, tolerance):
        return "unknown"
    if is_within_chance(e) or round(e.ece, 4) <= tolerance:
        return "calibrated"
    if e.ece_low <= tolerance:
        return "slight"
    return "clear"


def describe_tolerance(tolerance: float) -> str:
    """Return 0.01 as "1 percentage point".

    Args:
        tolerance: A fraction.
    """
    points = f"{100 * tolerance:.4g}"
    if points == "1":
        return f"1{SPACE}percentage point"
    return f"{points}{SPACE}percentage points"


def _headline_alone(e: AnyEvaluation, subject: str, tolerance: float) -> tuple[Tone, str]:
    level = calibration_level(e, tolerance)
    if level == "unknown":
        return "unsure", _too_few(e)
    if level == "calibrated":
        return "good", f"{subject} is well calibrated."
    if level == "slight":
        return "mixed", f"{subject} is {_fault(e, tolerance)}."
    return "bad", f"{subject} is {_fault(e, tolerance)}."


def _headline_compared(comparison: Comparison, title: str, tolerance: float) -> tuple[Tone, str]:
    level = calibration_level(comparison.after, tolerance)
    if level == "calibrated":
        return _headline_calibrated(comparison, title, tolerance)
    if level == "unknown":
        return _headline_unknown(comparison, title, tolerance)
    tone: Tone = "bad"
    if level == "slight":
        tone = "mixed"
    return _headline_miscalibrated(comparison, title, tolerance, tone)


def _headline_calibrated(comparison: Comparison, title: str, tolerance: float) -> tuple[Tone, str]:
    if comparison.nll_direction > 0:
        return "mixed", f"After {title}, this network is calibrated, but less informative."
    if calibration_level(comparison.before, tolerance) != "calibrated":
        return "good", f"After {title}, this network is well calibrated."
    headline = f"This network is well calibrated, both before and after {title}"
    if comparison.nll_direction < 0:
        return "good", f"{headline}, which lowers its NLL."
    return "good", f"{headline}."


def _headline_unknown(comparison: Comparison, title: str, tolerance: float) -> tuple[Tone, str]:
    after = comparison.after
    if comparison.ece_direction(tolerance) < 0:
        lowered = f"{title} lowers the calibration error"
        return "unsure", f"{lowered}; {_inputs(after)} are too few to tell what is left of it."
    if calibration_level(comparison.before, tolerance) in ("slight", "clear"):
        return "unsure", f"After {title}, {_inputs(after)} show no clear error, but prove little."
    return "unsure", _too_few(after)


def _headline_miscalibrated(
    comparison: Comparison, title: str, tolerance: float, tone: Tone
) -> tuple[Tone, str]:
    direction = comparison.ece_direction(tolerance)
    if direction < 0:
        share = "a part"
        if comparison.after.ece < comparison.before.ece / 2:
            share = "most"
        return "mixed", f"{title} removes {share} of the calibration error, but not all of it."
    if comparison.nll_direction < 0:
        effect = "hardly changes"
        if direction > 0:
            effect = "raises"
        return tone, f"{title} lowers the NLL, but {effect} the calibration error."
    if direction > 0:
        return tone, f"{title} makes the calibration of this network worse."
    return tone, f"{title} does not help here: the calibration error hardly changes."


def _describe_confidence(start: str, e: AnyEvaluation, tolerance: float) -> str:
    numbers = (
        f"{start} mean confidence is {percent(e.confidence)} "
        f"and the accuracy is {percent(e.accuracy)}"
    )
    if calibration_level(e, tolerance) in ("calibrated", "unknown"):
        return f"{numbers}."
    if _gap_is_clear(e):
        # The difference is that of the numbers as they are printed.
        points = abs(round(100 * e.confidence, 1) - round(100 * e.accuracy, 1))
        return f"{numbers}: {_fault(e, tolerance)} by {points:.1f} percentage points."
    return f"{numbers}: {_fault(e, tolerance)}."


def _fault(e: AnyEvaluation, tolerance: float) -> str:
    if not _gap_is_clear(e):
        return "calibrated on average, but not at each level of confidence"
    degree = ""
    if calibration_level(e, tolerance) == "slight":
        degree = "slightly "
    if e.confidence > e.accuracy:
        return f"{degree}over-confident"
    return f"{degree}under-confident"


def _gap_is_clear(e: AnyEvaluation) -> bool:
    """|mean confidence - accuracy| > 1.96 √(c (1-c) / n), where c is the mean confidence.

    By Jensen's inequality the root is no less than the deviation of a calibrated model. Of tokens
    or pixels, it is the standard error over inputs.
    """
    if isinstance(e, DenseEvaluation):
        deviation = e.gap_error
    else:
        variance = max(e.confidence * (1 - e.confidence), 0)
        deviation = math.sqrt(variance / e.n)
    return abs(e.confidence - e.accuracy) > SIGNIFICANT * deviation


def _describe_ece(e: AnyEvaluation, tolerance: float) -> str:
    floor = percent(e.ece_floor_95, 2)
    chance = f"with {_inputs(e)}, a perfectly calibrated model would show up to {floor}"
    low = f"{100 * e.ece_low:.2f}"
    high = percent(e.ece_high, 2)
    if not is_within_chance(e):
        finding = "is more than chance explains"
        truth = f"The true error lies between {low} and {high} (95{SPACE}% interval)"
        truth = f"{truth}; {_beside_tolerance(e, tolerance)}."
    elif calibration_level(e, tolerance) == "unknown":
        finding = "is inconclusive"
        truth = f"The true error may be anything up to {high}. {_advise_more_inputs(e)}"
    else:
        finding = "is no more than chance explains"
        truth = f"The true error is at most {high} (95{SPACE}% interval)."
    ece = percent(e.ece, 2)
    return f"The expected calibration error (ECE) of {ece} {finding}: {chance}. {truth}"


def _beside_tolerance(e: AnyEvaluation, tolerance: float) -> str:
    limit = describe_tolerance(tolerance)
    level = calibration_level(e, tolerance)
    if level == "calibrated":
        return f"an ECE of up to {limit} is tolerated, because it hardly matters in practice"
    if level == "slight":
        return f"it may be within the tolerance of {limit}"
    return f"it is above the tolerance of {limit}"


def _describe_ece_change(comparison: Comparison, title: str) -> str:
    change = comparison.ece
    # The difference is that of the numbers as they are printed.
    before = round(100 * comparison.before.ece, 2)
    after = round(100 * comparison.after.ece, 2)
    points = f"{abs(after - before):.2f}"
    if points == "0.00":
        return f"On the same inputs, {title} leaves the ECE at {after:.2f}{SPACE}%."
    if not change.is_clear:
        return (
            f"On the same inputs, the ECE was {before:.2f}{SPACE}% before. A paired test cannot "
            f"tell the difference of {points} percentage points from chance."
        )
    verb = "lowers"
    if change.mean > 0:
        verb = "raises"
    ends = sorted([abs(change.low), abs(change.high)])
    interval = f"{100 * ends[0]:.2f} to {100 * ends[1]:.2f}"
    return (
        f"On the same inputs, {title} {verb} the ECE from {before:.2f}{SPACE}% by {points} "
        f"percentage points (95{SPACE}% interval of a paired test: {interval})."
    )


def _describe_nll(comparison: Comparison) -> str:
    before = f"{comparison.before.nll:.3f}"
    after = f"{comparison.after.nll:.3f}"
    meaning = "It also rewards separating easy inputs from hard ones."
    if comparison.nll_direction < 0:
        return f"The negative log-likelihood (NLL) falls from {before} to {after}. {meaning}"
    if comparison.nll_direction > 0:
        return f"But the negative log-likelihood (NLL) rises from {before} to {after}. {meaning}"
    if before == after:
        return f"The negative log-likelihood (NLL) stays at {after}."
    return (
        f"The negative log-likelihood (NLL) is {before} before and {after} after, "
        "a difference that a paired test cannot tell from chance."
    )


def _sign(value: float) -> int:
    return int(math.copysign(1, value))


def _advise_more_inputs(e: AnyEvaluation) -> str:
    """Return how many inputs lower the noise floor to ``WANTED``: it falls as 1/√n."""
    n = e.n * (e.ece_floor_95 / WANTED) ** 2
    exponent = max(math.floor(math.log10(n)) - 1, 0)
    unit = int(10**exponent)  # the estimate deserves two digits
    needed = math.ceil(n / unit) * unit
    return f"About {count(needed)} inputs would lower the noise floor to {percent(WANTED, 0)}."


def _too_few(e: AnyEvaluation) -> str:
    if e.n == 1:
        return "One input is too few to tell whether the network is calibrated."
    return f"{_inputs(e)} are too few to tell whether the network is calibrated."


def _inputs(e: AnyEvaluation) -> str:
    return f"{count(e.n)} inputs"
