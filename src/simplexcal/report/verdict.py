"""The verdict of the report: what an evaluation means in plain words, no surer than the data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from simplexcal.evaluation import Evaluation
from simplexcal.report._format import SPACE, count, percent
from simplexcal.types import Prediction

WEAK = 0.03  # above this 95 % noise floor, an ECE within it proves little
WANTED = 0.02  # the noise floor that the advice for few inputs aims at
SIGNIFICANT = 1.96  # standard errors

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
) -> Verdict:
    """Return the verdict on a method, compared with the uncalibrated network where there is one.

    Args:
        predictions: Predictions by the name of their method; "none" is the uncalibrated network.
        labels: The class of each input, (N,).
        evaluations: Evaluations by the name of their method.
        focus: Name of the method that the verdict is about.
        title: Its name on the page.
    """
    evaluation = evaluations[focus]
    if focus == "none":
        return assess(evaluation, title, "This network")
    if "none" not in evaluations:
        return assess(evaluation, title, f"With {title}, this network")
    change = nll_change(predictions["none"], predictions[focus], labels)
    return compare(evaluations["none"], evaluation, title, change)


def assess(e: Evaluation, title: str, subject: str) -> Verdict:
    """Return the verdict on one method alone.

    Args:
        e: Its evaluation.
        title: Its name on the page.
        subject: The subject of the headline, "This network" say.
    """
    tone, headline = _headline_alone(e, subject)
    sentences = (_describe_confidence("The", e), _describe_ece(e))
    return Verdict(tone, headline, sentences, (Summary(title, e.confidence, e.accuracy),))


def compare(before: Evaluation, after: Evaluation, title: str, nll_shift: float) -> Verdict:
    """Return the verdict on a method, compared with the network before calibration.

    Args:
        before: Evaluation of the network before calibration.
        after: Evaluation of the method.
        title: Name of the method on the page.
        nll_shift: How clearly the NLL has changed, from ``nll_change``.
    """
    tone, headline = _headline_compared(before, after, title, nll_shift)
    sentences = (
        _describe_confidence("Before calibration, the", before),
        _describe_confidence(f"After {title}, the", after),
        _describe_ece(after),
        *_describe_nll(before, after, nll_shift),
    )
    summaries = (
        Summary("Before", before.confidence, before.accuracy),
        Summary(f"After {title}", after.confidence, after.accuracy),
    )
    return Verdict(tone, headline, sentences, summaries)


def is_within_chance(e: Evaluation) -> bool:
    """Return whether the ECE is within the 95 % noise floor, both as printed.

    Args:
        e: An evaluation.
    """
    return round(e.ece, 4) <= round(e.ece_floor_95, 4)


def nll_change(before: Prediction, after: Prediction, labels: Tensor) -> float:
    """Return the mean change of -ln p(label), in standard errors.

    The inputs are the same, so that the differences are paired and small changes show.

    Args:
        before: Predictions before calibration.
        after: Predictions after calibration.
        labels: The class of each input, (N,).
    """
    change = _log_likelihood(before, labels) - _log_likelihood(after, labels)
    standard_error = change.std(correction=0) / math.sqrt(len(change))
    z = change.mean() / standard_error
    return float(z.nan_to_num(0.0))  # no change at all is 0/0


def _log_likelihood(prediction: Prediction, labels: Tensor) -> Tensor:
    columns = labels.unsqueeze(-1)
    return prediction.probs.double().gather(-1, columns).clamp_min(1e-300).log()


def _headline_alone(e: Evaluation, subject: str) -> tuple[Tone, str]:
    if not is_within_chance(e):
        return "bad", f"{subject} is {_fault(e)}."
    if _is_weak(e):
        return "unsure", _too_few(e)
    return "good", f"{subject} is well calibrated."


def _headline_compared(
    before: Evaluation, after: Evaluation, title: str, nll_shift: float
) -> tuple[Tone, str]:
    if not is_within_chance(after):
        return _headline_above_floor(before, after, title)
    was_calibrated = is_within_chance(before)
    if _is_weak(after):
        if was_calibrated:
            return "unsure", _too_few(after)
        return "unsure", f"After {title}, {_inputs(after)} show no clear error, but prove little."
    if nll_shift > SIGNIFICANT:
        return "mixed", f"After {title}, this network is calibrated, but less informative."
    if was_calibrated:
        return "good", f"This network is well calibrated, both before and after {title}."
    return "good", f"After {title}, this network is well calibrated."


def _headline_above_floor(before: Evaluation, after: Evaluation, title: str) -> tuple[Tone, str]:
    """Only intervals that do not overlap are a clear change."""
    if after.ece_low > before.ece_high:
        return "bad", f"{title} makes the calibration of this network worse."
    if after.ece_high >= before.ece_low:
        return "bad", f"{title} does not help here: the calibration error has not clearly changed."
    if after.ece < before.ece / 2:
        return "mixed", f"{title} removes most of the calibration error, but not all of it."
    return "mixed", f"{title} removes a part of the calibration error, but not all of it."


def _describe_confidence(start: str, e: Evaluation) -> str:
    numbers = (
        f"{start} mean confidence is {percent(e.confidence)} "
        f"and the accuracy is {percent(e.accuracy)}"
    )
    if is_within_chance(e):
        return f"{numbers}."
    if _gap_is_clear(e):
        # The difference is that of the numbers as they are printed.
        points = abs(round(100 * e.confidence, 1) - round(100 * e.accuracy, 1))
        return f"{numbers}: {_fault(e)} by {points:.1f} percentage points."
    return f"{numbers}: {_fault(e)}."


def _fault(e: Evaluation) -> str:
    if not _gap_is_clear(e):
        return "calibrated on average, but not at each level of confidence"
    if e.confidence > e.accuracy:
        return "over-confident"
    return "under-confident"


def _gap_is_clear(e: Evaluation) -> bool:
    """|mean confidence - accuracy| > 1.96 √(c (1-c) / n), where c is the mean confidence.

    By Jensen's inequality the root is no less than the deviation of a calibrated model.
    """
    variance = max(e.confidence * (1 - e.confidence), 0)
    deviation = math.sqrt(variance / e.n)
    return abs(e.confidence - e.accuracy) > SIGNIFICANT * deviation


def _describe_ece(e: Evaluation) -> str:
    floor = percent(e.ece_floor_95, 2)
    chance = f"with {_inputs(e)}, a perfectly calibrated model would show up to {floor}"
    low = f"{100 * e.ece_low:.2f}"
    high = percent(e.ece_high, 2)
    if not is_within_chance(e):
        finding = "is more than chance explains"
        truth = f"The true error lies between {low} and {high} (95{SPACE}% interval)."
    elif _is_weak(e):
        finding = "is inconclusive"
        truth = f"The true error may be anything up to {high}. {_advise_more_inputs(e)}"
    else:
        finding = "is no more than chance explains"
        truth = f"The true error is at most {high} (95{SPACE}% interval)."
    ece = percent(e.ece, 2)
    return f"The expected calibration error (ECE) of {ece} {finding}: {chance}. {truth}"


def _describe_nll(before: Evaluation, after: Evaluation, nll_shift: float) -> tuple[str, ...]:
    change = f"from {before.nll:.3f} to {after.nll:.3f}"
    meaning = "It also rewards separating easy inputs from hard ones."
    if nll_shift < -SIGNIFICANT:
        return (f"The negative log-likelihood (NLL) falls {change}. {meaning}",)
    if nll_shift > SIGNIFICANT:
        return (f"But the negative log-likelihood (NLL) rises {change}. {meaning}",)
    return ()


def _is_weak(e: Evaluation) -> bool:
    return e.ece_floor_95 > WEAK


def _advise_more_inputs(e: Evaluation) -> str:
    """Return how many inputs lower the noise floor to ``WANTED``: it falls as 1/√n."""
    n = e.n * (e.ece_floor_95 / WANTED) ** 2
    exponent = max(math.floor(math.log10(n)) - 1, 0)
    unit = int(10**exponent)  # the estimate deserves two digits
    needed = math.ceil(n / unit) * unit
    return f"About {count(needed)} inputs would lower the noise floor to {percent(WANTED, 0)}."


def _too_few(e: Evaluation) -> str:
    return f"{_inputs(e)} are too few to tell whether the network is calibrated."


def _inputs(e: Evaluation) -> str:
    return f"{count(e.n)} inputs"
