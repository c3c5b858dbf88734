"""Thresholds that decide which predictions are accepted, each with a finite-sample guarantee.

docs/thresholds.md proves the guarantees. They hold for every score, informative or not, and with
ties.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from simplexcal._arrays import ArrayLike, as_tensor
from simplexcal._validation import check_confidence, check_correct, check_fraction, check_labels
from simplexcal.types import Prediction

Accept = Literal["high", "low"]

# Which end of each score is accepted.
SCORES: dict[str, Accept] = {
    "confidence": "high",
    "aleatoric": "low",
    "epistemic": "low",
    "mutual_information": "low",
    "entropy": "low",
}

# Tests begin at the count of inputs that may hold this many errors, if that is no more than this
# share of the data. Measured on real outputs (benchmarks/threshold_guarantees.py), beginning with
# fewer errors lets one unlucky input end the tests too early; beginning later misses small sets.
START_ERRORS = 5
START_SHARE = 0.25


@dataclass(frozen=True)
class Threshold:
    """A threshold on a score, and what it promises for new inputs like the held-out ones.

    Args:
        score: Name of the score.
        value: The threshold itself, which is accepted too. It is infinite where every input is.
        accept: "high" accepts scores of at least `value`, "low" scores of at most `value`.
        promise: "target_accuracy", "coverage" or "false_alarm".
        level: The accuracy, the coverage or the rate of false alarms that is promised.
        delta: Probability that the held-out data are so unrepresentative that the accuracy is
            missed. None for the other promises, which hold on average over held-out data.
        n: Number of held-out inputs.
        accepted_share: Share of them that is accepted.
        accuracy: Accuracy of those accepted; None without labels.
        bound: What is guaranteed: `level`, or a little better where `n` inputs cannot be divided
            exactly.
    """

    score: str
    value: float
    accept: Accept
    promise: str
    level: float
    delta: float | None
    n: int
    accepted_share: float
    accuracy: float | None
    bound: float

    def accepts(self, scores: Any) -> Tensor:
        """Return whether each score is accepted, (N,). A score that is not a number never is.

        Args:
            scores: Scores of new inputs, (N,), as a tensor, an array or a list.
        """
        values = as_tensor(scores)
        if self.accept == "high":
            return values >= self.value
        return values <= self.value

    def as_dict(self) -> dict[str, Any]:
        """Return names and values, in the order of the arguments."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.rule} {self._promise_in_words()} {self._data_in_words()}"

    @property
    def rule(self) -> str:
        """Which inputs are accepted, as a sentence."""
        if math.isinf(self.value):
            return "Accept every input."
        relation = "at most"
        if self.accept == "high":
            relation = "at least"
        return f"Accept where {self.score} is {relation} {self.value:.6g}."

    def _promise_in_words(self) -> str:
        level = _percent(self.level)
        if self.promise == "coverage":
            return f"Then at least {level} of new inputs are accepted, on average."
        if self.promise == "false_alarm":
            return f"Then at most {level} of new in-distribution inputs are rejected, on average."
        sure = _percent(1 - (self.delta or 0))
        return f"Then at least {level} of accepted predictions are right, with {sure} certainty."

    def _data_in_words(self) -> str:
        share = f"{100 * self.accepted_share:.1f} %"
        text = f"Of the {self.n} held-out inputs, {share} are accepted"
        if self.accuracy is None:
            return f"{text}."
        return f"{text}, and {100 * self.accuracy:.2f} % of these are right."


@torch.no_grad()
def find_threshold(
    scores: Any,
    correct: Any = None,
    *,
    target_accuracy: float | None = None,
    coverage: float | None = None,
    false_alarm: float | None = None,
    delta: float = 0.05,
    score: str = "confidence",
    accept: Accept | None = None,
) -> Threshold:
    """Return the threshold that accepts the most inputs and keeps a promise about new ones.

    The held-out inputs must be independent draws from the distribution of the new ones, and none
    may have been used to train the network or to fit the calibrator. Pass exactly one promise.

    - `target_accuracy`: with probability at least 1 - `delta` over the held-out data, the accuracy
      of accepted new inputs is at least this. Accepted sets are tested from the strictest on, by
      exact binomial tests in a fixed sequence (Angelopoulos et al. 2021).
    - `coverage`: a new input is accepted with at least this probability, over the held-out data
      and the new input together (split conformal prediction).
    - `false_alarm`: a new input of the same distribution is rejected with at most this
      probability, in the same sense.

    Args:
        scores: Scores of the held-out inputs, (N,), as a tensor, an array or a list.
        correct: Whether each prediction is right, (N,). Only `target_accuracy` needs it.
        target_accuracy: Promised accuracy of accepted inputs, between 0 and 1.
        coverage: Promised share of accepted inputs, between 0 and 1.
        false_alarm: Promised largest share of rejected inputs, between 0 and 1.
        delta: Probability with which the accuracy may be missed.
        score: Name of the score: "confidence", "aleatoric", "epistemic", "mutual_information",
            "entropy", or a name of your own.
        accept: Which scores are accepted, "high" or "low". None is for the names above, where it
            is known.

    Raises:
        ValueError: If no threshold keeps the promise, or an argument has no meaning.
    """
    promise, level = _check_promise(target_accuracy, coverage, false_alarm)
    accept = _check_accept(score, accept)
    values = _check_scores(score, scores)
    right = None
    if correct is not None:
        right = check_correct(correct, len(values)).to(values.device)
    certainty = values
    if accept == "low":
        certainty = -values
    if promise == "target_accuracy":
        threshold, bound = _certify(certainty, right, level, delta, score)
    else:
        threshold, bound = _conformal(certainty, promise, level)
    if accept == "low":
        threshold = -threshold
    record = Threshold(
        score, threshold, accept, promise, level, None, len(values), 1.0, None, bound
    )
    if promise == "target_accuracy":
        record = replace(record, delta=float(delta))
    return _with_shares(record, values, right)


def find_prediction_threshold(
    prediction: Prediction,
    labels: ArrayLike | None = None,
    *,
    target_accuracy: float | None = None,
    coverage: float | None = None,
    false_alarm: float | None = None,
    delta: float = 0.05,
    score: str | None = None,
) -> Threshold:
    """Return the threshold for a score of predictions; see `find_threshold`.

    Args:
        prediction: Predictions for held-out inputs.
        labels: Their true classes, (N,). Only `target_accuracy` needs them.
        target_accuracy: Promised accuracy of accepted inputs.
        coverage: Promised share of accepted inputs.
        false_alarm: Promised largest share of rejected inputs.
        delta: Probability with which the accuracy may be missed.
        score: A name in SCORES. None is "epistemic" for `false_alarm` where the method has it, and
            otherwise "confidence".

    Raises:
        ValueError: If no threshold keeps the promise, or an argument has no meaning.
    """
    if score is None:
        score = "confidence"
        if false_alarm is not None and prediction.epistemic is not None:
            score = "epistemic"  # which detects OOD inputs better
    correct = None
    if labels is not None:
        labels = check_labels(labels, *prediction.probs.shape)
        correct = prediction.label == labels.to(prediction.label.device)
    elif target_accuracy is not None:
        raise ValueError(
            "`labels` must be given for `target_accuracy`; got None. Pass labelled data."
        )
    return find_threshold(
        score_values(prediction, score),
        correct,
        target_accuracy=target_accuracy,
        coverage=coverage,
        false_alarm=false_alarm,
        delta=delta,
        score=score,
    )


def score_values(prediction: Prediction, score: str) -> Tensor:
    """Return a score of each input, (N,).

    Args:
        prediction: The predictions.
        score: A name in SCORES.

    Raises:
        ValueError: If there is no such score, or the method does not have it.
    """
    if score == "confidence":
        return prediction.confidence
    if score == "entropy":
        smallest = torch.finfo(prediction.probs.dtype).tiny
        return -(prediction.probs * prediction.probs.clamp_min(smallest).log()).sum(-1)
    if score not in SCORES:
        raise ValueError(f"`score` must be one of {', '.join(SCORES)}; got {score!r}.")
    values: Tensor | None = getattr(prediction, score)
    if values is None:
        raise ValueError(
            f"`score` is {score!r}, which this method does not have. "
            'Use "confidence" or "entropy", or calibrate by STS.'
        )
    return values


def with_accepted(prediction: Prediction, thresholds: Mapping[str, Threshold]) -> Prediction:
    """Return the prediction with whether all thresholds accept each input, if there are any.

    Args:
        prediction: The predictions.
        thresholds: Thresholds by their promise.
    """
    if not thresholds:
        return prediction
    each = [t.accepts(score_values(prediction, t.score)) for t in thresholds.values()]
    return replace(prediction, accepted=torch.stack(each).all(0))


def from_records(records: Iterable[Mapping[str, Any]]) -> dict[str, Threshold]:
    """Return thresholds by their promise, from the records of ``as_dict``.

    Args:
        records: The records.
    """
    thresholds = [Threshold(**record) for record in records]
    return {threshold.promise: threshold for threshold in thresholds}


# --- the promises ---


def _certify(
    certainty: Tensor, correct: Tensor | None, target: float, delta: float, score: str
) -> tuple[float, float]:
    """Return the lowest certainty to accept for a target accuracy, and the accuracy promised."""
    if correct is None:
        raise ValueError(
            "`correct` must be given for `target_accuracy`: whether each prediction is right; "
            "got None. Pass label == labels."
        )
    check_fraction("delta", delta)
    ordered, wrong = _most_certain_first(certainty, ~correct)
    count = _certified_count(ordered, wrong, 1 - target, delta)
    if count == 0:
        raise ValueError(_explain_failure(ordered, wrong, target, delta, score))
    if count == len(ordered):
        return -math.inf, target
    # The inputs above a score were counted, without the score itself.
    above = torch.nextafter(ordered[count], torch.full_like(ordered[count], math.inf))
    return above.item(), target


def _conformal(certainty: Tensor, promise: str, level: float) -> tuple[float, float]:
    """Return the lowest certainty to accept, and the share of new inputs that is guaranteed."""
    n = len(certainty)
    rejected = Fraction(str(level))
    if promise == "coverage":
        rejected = 1 - rejected
    k = math.floor((n + 1) * rejected)
    if k == 0:
        needed = math.ceil(1 / rejected) - 1
        raise ValueError(
            f"`{promise}` of {level:g} needs at least {needed} held-out inputs; got {n}. "
            "Pass more, or a promise that is easier to keep."
        )
    # At most k of n + 1 exchangeable scores lie below the k-th smallest of n.
    value = certainty.kthvalue(k).values.item()
    bound = k / (n + 1)
    if promise == "coverage":
        bound = 1 - bound
    return value, bound


def _most_certain_first(certainty: Tensor, wrong: Tensor) -> tuple[Tensor, Tensor]:
    """Return certainties and errors in the order of tests; ties are in random order.

    The order of the data has no influence, and the generator is one of its own: the same data give
    the same threshold.
    """
    order = wrong.byte().argsort(stable=True)
    shuffled = torch.randperm(len(order), generator=torch.Generator().manual_seed(0))
    order = order[shuffled.to(order.device)]
    order = order[certainty[order].argsort(descending=True, stable=True)]
    return certainty[order], wrong[order]


def _certified_count(ordered: Tensor, wrong: Tensor, risk: float, delta: float) -> int:
    """Return how many of the most certain inputs can be accepted, 0 if none.

    Counts are tested one after the other, from the first on. The first count that fails its test
    ends the sequence. Only a count between two different scores can be a threshold.
    """
    n = len(ordered)
    first = _first_count(n, risk, delta)
    if first is None:
        return 0
    fails = torch.nonzero(_p_values(wrong, risk)[first:] > delta)
    last = n
    if len(fails) > 0:
        last = first + int(fails[0]) - 1
    counts = torch.arange(1, n + 1, device=ordered.device)
    separates = torch.ones_like(counts, dtype=torch.bool)
    separates[:-1] = ordered[:-1] > ordered[1:]
    possible = counts[separates & (counts > first) & (counts <= last)]
    if len(possible) == 0:
        return 0
    return int(possible[-1])


@lru_cache(maxsize=1000)
def _first_count(n: int, risk: float, delta: float) -> int | None:
    """Return the count of inputs that is tested first, None if n inputs are too few.

    The count depends on nothing but the arguments, so it is fixed before the data are seen.
    """
    # By Chernoff's bound P(B ≤ e) ≤ exp(-(kρ - e)² / 2kρ), no count beyond this one is needed.
    log = -math.log(delta)
    last = (START_ERRORS + log + math.sqrt(log * (log + 2 * START_ERRORS))) / risk
    counts = torch.arange(min(n, math.ceil(last) + 1), dtype=torch.float64)
    cdf = torch.zeros_like(counts)
    first = None
    for errors in range(START_ERRORS + 1):
        cdf = cdf + _log_pmf(counts, torch.full_like(counts, errors), risk).exp()
        passing = torch.nonzero(cdf <= delta)
        if len(passing) == 0:
            break
        count = int(passing[0])
        if first is None or count <= START_SHARE * n:
            first = count
    return first


def _p_values(wrong: Tensor, risk: float) -> Tensor:
    """Return P(B ≤ errors among the first k) with B ~ Binomial(k, risk), for k = 0..N.

    From one k to the next, P(B ≤ e) falls by risk · P(B = e), and after another error it rises by
    (1 - risk) · P(B = e + 1) instead.
    """
    k = torch.arange(len(wrong), dtype=torch.float64, device=wrong.device)
    is_wrong = wrong.double()
    step = (is_wrong - risk) * _log_pmf(k, is_wrong.cumsum(0), risk).exp()
    return torch.cat([step.new_ones(1), 1 + step.cumsum(0)])


def accuracy_interval(right: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return an exact interval of the accuracy (Clopper and Pearson 1934).

    Args:
        right: Inputs that are classified correctly.
        n: All inputs.
        level: Probability with which such an interval holds the accuracy, at least.
    """
    tail = (1 - level) / 2
    return _lower_bound(right, n, tail), 1 - _lower_bound(n - right, n, tail)


def _lower_bound(successes: int, n: int, tail: float) -> float:
    """Return the p at which P(B ≥ successes) = tail with B ~ Binomial(n, p), by bisection."""
    if successes == 0:
        return 0.0
    counts = torch.arange(successes, n + 1, dtype=torch.float64)
    total = torch.full_like(counts, n)
    low = 0.0
    high = 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if _log_pmf(total, counts, middle).exp().sum() < tail:
            low = middle
        else:
            high = middle
    return low


def _log_pmf(n: Tensor, k: Tensor, risk: float) -> Tensor:
    """Return ln P(B = k) with B ~ Binomial(n, risk), -inf where k > n."""
    ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    return ways + k * math.log(risk) + (n - k) * math.log1p(-risk)


def _explain_failure(
    ordered: Tensor, wrong: Tensor, target: float, delta: float, score: str
) -> str:
    n = len(ordered)
    needed = math.ceil(math.log(delta) / math.log(target)) + 1
    reason = f"No threshold on {score} promises a `target_accuracy` of {target:g}"
    if n < needed:
        reason = f"`target_accuracy` of {target:g} needs at least {needed} held-out inputs"
    best = _best_target(ordered, wrong, target, delta)
    remedy = "These data promise nothing; pass more of them."
    if best is not None:
        remedy = f"The best that they promise is {best:g}; pass that, or more data."
    return f"{reason} with `delta` {delta:g}; got {n} held-out inputs. {remedy}"


def _best_target(ordered: Tensor, wrong: Tensor, target: float, delta: float) -> float | None:
    """Return the largest target below, in steps of 0.001, that has a threshold."""
    low = 0
    high = math.ceil(1000 * target)
    while high - low > 1:
        middle = (low + high) // 2
        if _certified_count(ordered, wrong, 1 - middle / 1000, delta) > 0:
            low = middle
        else:
            high = middle
    if low == 0:
        return None
    return low / 1000


def _with_shares(record: Threshold, values: Tensor, correct: Tensor | None) -> Threshold:
    """Return the record with the share of accepted inputs and, with labels, their accuracy."""
    accepted = record.accepts(values)
    record = replace(record, accepted_share=accepted.double().mean().item())
    if correct is None:
        return record
    return replace(record, accuracy=correct[accepted].double().mean().item())


def _percent(share: float) -> str:
    return f"{100 * share:.6g} %"


# --- checks of the arguments ---


def _check_promise(
    target_accuracy: float | None, coverage: float | None, false_alarm: float | None
) -> tuple[str, float]:
    """Return the name and the level of the one promise that is given."""
    promises = {
        "target_accuracy": target_accuracy,
        "coverage": coverage,
        "false_alarm": false_alarm,
    }
    given = [(name, float(level)) for name, level in promises.items() if level is not None]
    if len(given) != 1:
        names = " and ".join(f"`{name}`" for name, _ in given) or "none"
        raise ValueError(
            "Pass exactly one of `target_accuracy`, `coverage` and `false_alarm`; "
            f"got {names}. Several thresholds are made by several calls."
        )
    check_fraction(*given[0])
    return given[0]


def _check_accept(score: str, accept: Accept | None) -> Accept:
    if accept is None:
        if score in SCORES:
            return SCORES[score]
        raise ValueError(
            f'`accept` must be "high" or "low" for the score {score!r}, which is none of '
            f"{', '.join(SCORES)}; got None."
        )
    if accept not in get_args(Accept):
        raise ValueError(f'`accept` must be "high" or "low"; got {accept!r}.')
    if SCORES.get(score, accept) != accept:
        raise ValueError(
            f"`accept` is {accept!r}, but of {score} the {SCORES[score]} values are certain. "
            "Leave it out, or give the score a name of its own."
        )
    return accept


def _check_scores(score: str, scores: Any) -> Tensor:
    """Return the scores as a vector of numbers; a confidence must be one."""
    values = as_tensor(scores)
    if not values.is_floating_point():
        values = values.double()
    elif values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()
    if values.dim() != 1 or len(values) == 0:
        raise ValueError(
            "`scores` must have shape (N,), one number for each held-out input; "
            f"got {tuple(values.shape)}."
        )
    if bool(values.isnan().any()):
        position = int(values.isnan().int().argmax())
        raise ValueError(
            f"`scores` must be numbers; found nan at position {position}. Drop such inputs."
        )
    if score == "confidence":
        check_confidence(values)
    return values
