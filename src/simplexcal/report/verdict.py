"""The report's verdict: what the numbers of an evaluation mean, in plain words, no surer than the data allow."""

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from simplexcal.evaluation import Evaluation
from simplexcal.types import Prediction

SPACE = "\u202f"  # narrow and unbreakable: it keeps a number and its sign on one line
WEAK = 0.03  # where chance alone shows an ECE above this, a test that is passed proves little
WANTED = 0.02  # the chance level that the advice for few inputs aims at

Tone = Literal["good", "mixed", "bad", "unsure"]


@dataclass(frozen=True)
class Verdict:
    """A judgement of one method: how it went, in one line, and the sentences that say why."""

    tone: Tone
    headline: str
    sentences: tuple[str, ...]


def percent(share: float, digits: int = 1) -> str:
    """Return 0.897 as "89.7 %"."""
    return f"{100 * share:.{digits}f}{SPACE}%"


def count(n: int) -> str:
    """Return 12345 as "12 345"."""
    return f"{n:,}".replace(",", SPACE)


def is_within_chance(e: Evaluation) -> bool:
    """Whether a perfectly calibrated model would show such an ECE in 95 of 100 samples; compared as printed."""
    return round(e.ece, 4) <= round(e.ece_floor_95, 4)


def nll_change(before: Prediction, after: Prediction, labels: Tensor) -> float:
    """Return the mean change of -ln p(label), in standard errors; the inputs are the same, so small changes show."""
    log_p = [
        p.probs.double().gather(-1, labels.unsqueeze(-1)).clamp_min(1e-300).log()
        for p in (before, after)
    ]
    change = log_p[0] - log_p[1]
    z = change.mean() / (change.std(correction=0) / math.sqrt(len(change)))
    return float(z.nan_to_num(0.0))  # no change at all is 0/0


def judge(
    after: Evaluation, name: str | None, before: Evaluation | None = None, nll_shift: float = 0.0
) -> Verdict:
    """Judge the method ``name`` (None: the network as it is), also against the network ``before`` calibration.

    ``nll_shift``, from ``nll_change``, says how clearly the negative log-likelihood has changed.
    """
    if before is None or name is None:
        return _judge_alone(after, name)
    says = (
        _says("Before calibration this network", before),
        _says(f"After {name} it", after),
        _error(after),
    )
    likelihood = _likelihood(before, after, nll_shift)
    return Verdict(*_compared(before, after, name, nll_shift), (*says, *likelihood))


def _judge_alone(e: Evaluation, name: str | None) -> Verdict:
    network = f"With {name}, this network" if name else "This network"
    return Verdict(*_alone(e, network), (_says(network, e), _error(e)))


def _alone(e: Evaluation, network: str) -> tuple[Tone, str]:
    if is_within_chance(e):
        if _is_weak(e):
            return "unsure", f"{_inputs(e)} are too few to tell whether the confidence is right."
        return "good", f"{network}’s confidence can be taken at its word."
    return "bad", f"{network} {_fault(e)}."


def _compared(
    before: Evaluation, after: Evaluation, name: str, nll_shift: float
) -> tuple[Tone, str]:
    if not is_within_chance(after):
        return _compared_above_chance(before, after, name)
    was_off = not is_within_chance(before)
    if _is_weak(after):
        if was_off:
            return (
                "unsure",
                f"After {name} no error is left that {_inputs(after)} could show, but so few show little.",
            )
        return "unsure", f"{_inputs(after)} are too few to tell whether the confidence is right."
    if nll_shift > 1.96:
        return (
            "mixed",
            f"After {name} the confidence is right on average, but says less about each input.",
        )
    if was_off:
        return "good", f"After {name}, this network’s confidence can be taken at its word."
    return "good", f"This network was well calibrated before, and is after {name}."


def _compared_above_chance(before: Evaluation, after: Evaluation, name: str) -> tuple[Tone, str]:
    """Intervals that do not overlap are a clear change; others are none."""
    if after.ece_high < before.ece_low:
        part = "most" if after.ece < before.ece / 2 else "a part"
        return "mixed", f"{name} removes {part} of the calibration error, but not all of it."
    if after.ece_low > before.ece_high:
        return "bad", f"{name} makes this network’s confidence worse."
    return "bad", f"{name} does not help here: the calibration error has not clearly changed."


def _says(subject: str, e: Evaluation) -> str:
    said = f"{subject} says {percent(e.confidence)} on average and is right {percent(e.accuracy)} of the time"
    if is_within_chance(e):
        return f"{said}."
    if _gap_is_clear(e):
        points = abs(
            round(100 * e.confidence, 1) - round(100 * e.accuracy, 1)
        )  # of the numbers as they are printed
        return f"{said}: {_fault(e).removeprefix('is ')} by {points:.1f} points."
    return f"{said}: right on average, but not at each level of confidence."


def _fault(e: Evaluation) -> str:
    if not _gap_is_clear(e):
        return "is right about itself on average, but not at each level of confidence"
    return "is over-confident" if e.confidence > e.accuracy else "is under-confident"


def _gap_is_clear(e: Evaluation) -> bool:
    """|mean confidence - accuracy| > 1.96 √(c (1-c) / n): by Jensen no less than the deviation if p is calibrated."""
    deviation = math.sqrt(max(e.confidence * (1 - e.confidence), 0) / e.n)
    return abs(e.confidence - e.accuracy) > 1.96 * deviation


def _error(e: Evaluation) -> str:
    ece, chance, highest = percent(e.ece, 2), percent(e.ece_floor_95, 2), percent(e.ece_high, 2)
    if not is_within_chance(e):
        return (
            f"The calibration error (ECE) of {ece} is more than chance explains: with {_inputs(e)} a perfectly "
            f"calibrated model would show up to {chance}. "
            f"The true error lies between {100 * e.ece_low:.2f} and {highest} (95{SPACE}% interval)."
        )
    if _is_weak(e):
        return (
            f"The calibration error (ECE) of {ece} says little: with only {_inputs(e)} even a perfectly calibrated "
            f"model would show up to {chance}, and the true error may be anything up to {highest}. About "
            f"{count(_needed(e))} inputs would bring chance down to {percent(WANTED, 0)}."
        )
    return (
        f"The calibration error (ECE) of {ece} is no more than a perfectly calibrated model would show by chance "
        f"with {_inputs(e)} (up to {chance}). The true error is at most {highest} (95{SPACE}% interval)."
    )


def _is_weak(e: Evaluation) -> bool:
    return e.ece_floor_95 > WEAK


def _needed(e: Evaluation) -> int:
    """Chance levels fall as 1/√n; two digits are all that this estimate deserves."""
    n = e.n * (e.ece_floor_95 / WANTED) ** 2
    unit = int(10 ** max(math.floor(math.log10(n)) - 1, 0))
    return math.ceil(n / unit) * unit


def _likelihood(before: Evaluation, after: Evaluation, nll_shift: float) -> tuple[str, ...]:
    change = f"from {before.nll:.3f} to {after.nll:.3f}"
    if nll_shift < -1.96:
        return (
            f"The likelihood, which also rewards telling easy inputs from hard ones, improves: NLL falls {change}.",
        )
    if nll_shift > 1.96:
        return (
            f"But the likelihood, which also rewards telling easy inputs from hard ones, worsens: NLL rises {change}.",
        )
    return ()


def _inputs(e: Evaluation) -> str:
    return f"{count(e.n)} inputs"
