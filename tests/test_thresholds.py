"""Thresholds: exact small cases, the guarantees by simulation, and what a user may pass."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import Generator, Tensor

from simplexcal.thresholds import (
    SCORES,
    Threshold,
    _first_count,
    _p_values,
    find_prediction_threshold,
    find_threshold,
    from_records,
    score_values,
    with_accepted,
)
from simplexcal.types import Prediction


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def descending(n: int) -> Tensor:
    """Return n distinct confidences, the highest first."""
    return torch.linspace(0.99, 0.5, n)


def wrong_at(n: int, *positions: int) -> Tensor:
    """Return whether each of n predictions is right: all but those at the positions."""
    correct = torch.ones(n, dtype=torch.bool)
    correct[list(positions)] = False
    return correct


# --- a target accuracy ---


@pytest.mark.parametrize("risk", [0.01, 0.1, 0.37])
def test_p_values_are_those_of_scipy(risk: float) -> None:
    wrong = torch.rand(3000, generator=seeded()) < 0.1
    errors = np.concatenate([[0], wrong.long().cumsum(0)])
    expected = binom.cdf(errors, np.arange(3001), risk)
    np.testing.assert_allclose(_p_values(wrong, risk), expected, rtol=0, atol=1e-11)


def test_p_values_hold_where_all_are_wrong() -> None:
    assert _p_values(torch.ones(5, dtype=torch.bool), 0.3).tolist() == pytest.approx([1.0] * 6)


@pytest.mark.parametrize(
    ("n", "target", "first"),
    [
        (59, 0.95, None),  # 0.95^58 > 0.05 >= 0.95^59, and one more input is to be accepted
        (60, 0.95, 59),
        (372, 0.95, 93),  # binom.cdf(1, 93, 0.05) <= 0.05
        (371, 0.95, 59),  # 93 would be more than a quarter
        (10**4, 0.95, 208),  # binom.cdf(5, 208, 0.05) <= 0.05: no start allows more errors
    ],
)
def test_the_first_count_by_hand(n: int, target: float, first: int | None) -> None:
    assert _first_count(n, 1 - target, 0.05) == first
    if first is not None:
        allowed = {59: 0, 93: 1, 208: 5}[first]
        assert (
            binom.cdf(allowed, first, 1 - target)
            <= 0.05
            < binom.cdf(allowed, first - 1, 1 - target)
        )


@pytest.mark.parametrize("risk", [0.5, 0.05, 0.001])
@pytest.mark.parametrize("delta", [0.45, 0.05, 1e-6])
def test_with_many_inputs_the_first_count_allows_5_errors(risk: float, delta: float) -> None:
    first = _first_count(10**6, risk, delta)
    assert first is not None
    assert binom.cdf(5, first, risk) <= delta < binom.cdf(5, first - 1, risk)


def test_a_target_accuracy_by_hand() -> None:
    # Without an error, 59 inputs are enough for 95 % with certainty 95 %. One error among 93 is
    # allowed, and so 92 inputs fail once the 70th is wrong.
    scores = descending(100)
    found = find_threshold(scores, wrong_at(100, 69), target_accuracy=0.95)
    assert int((scores >= found.value).sum()) == 69
    assert found.value > scores[69]
    assert found.accepted_share == 0.69
    assert found.accuracy == 1.0
    assert (found.n, found.delta, found.level, found.bound) == (100, 0.05, 0.95, 0.95)
    assert found.value == np.nextafter(np.float32(scores[69]), np.float32(1))


def test_every_input_is_accepted_where_all_are_certified() -> None:
    found = find_threshold(descending(60), wrong_at(60), target_accuracy=0.95)
    assert found.value == -math.inf
    assert found.rule == "Accept every input."
    assert found.accepts(torch.tensor([-1e30, 0.0])).all()


def test_an_uncertainty_accepts_its_low_values() -> None:
    confidence = descending(100).double()
    correct = wrong_at(100, 69)
    by_confidence = find_threshold(confidence, correct, target_accuracy=0.95)
    by_entropy = find_threshold(-confidence, correct, target_accuracy=0.95, score="entropy")
    assert by_entropy.value == -by_confidence.value
    assert by_entropy.accept == "low"
    assert torch.equal(by_entropy.accepts(-confidence), by_confidence.accepts(confidence))


def test_the_order_of_the_rows_does_not_matter() -> None:
    scores = (10 * torch.rand(600, generator=seeded())).round() / 10  # many ties
    correct = torch.rand(600, generator=seeded(1)) < 0.4 + 0.6 * scores
    found = find_threshold(scores, correct, target_accuracy=0.8)
    rows = torch.randperm(600, generator=seeded(2))
    assert find_threshold(scores[rows], correct[rows], target_accuracy=0.8) == found


def test_equal_scores_are_accepted_together_or_not_at_all() -> None:
    # 59 right inputs at 0.9 would do, but of the 100 at 0.8 every second is wrong.
    scores = torch.cat([torch.full((80,), 0.9), torch.full((100,), 0.8)])
    correct = wrong_at(180, *range(80, 180, 2))
    found = find_threshold(scores, correct, target_accuracy=0.95)
    assert found.accepts(torch.tensor([0.9, 0.8])).tolist() == [True, False]
    assert found.accepted_share == 80 / 180


# Scores, their probabilities and the accuracy of each. The accuracy of accepted inputs falls, or
# it rises and falls again, or it lies just below the target wherever the threshold is.
POPULATIONS = {
    "good, then bad": (torch.arange(200.0).neg(), [0.97] * 60 + [0.7] * 140, 0.9),
    "not monotone": (torch.arange(208.0).neg(), ([0.5] * 4 + [1.0] * 12) * 13, 0.88),
    "never enough": (torch.arange(1000.0), [0.9] * 1000, 0.9000001),
    "two values": (torch.tensor([1.0, 0.0]), [0.92, 0.6], 0.9),
}


@pytest.mark.parametrize("name", POPULATIONS)
def test_the_accuracy_is_missed_in_no_more_than_delta_of_data_sets(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The sentence of a failure looks for the best promise, which takes ten times as long.
    monkeypatch.setattr("simplexcal.thresholds._explain_failure", lambda *_: "none")
    values, right, target = POPULATIONS[name]
    accuracy = torch.tensor(right)
    delta = 0.2
    trials = 400
    generator = seeded()
    missed = 0
    for _ in range(trials):
        drawn = torch.randint(len(values), (300,), generator=generator)
        correct = torch.rand(300, generator=generator) < accuracy[drawn]
        found = try_to_find(values[drawn], correct, target, delta)
        if found is not None:
            missed += bool(accuracy[found.accepts(values)].mean() < target)
    assert missed / trials <= delta + 5 * (delta * (1 - delta) / trials) ** 0.5
    if name == "never enough":  # every threshold misses, and a valid test finds some
        assert missed > 0


def try_to_find(scores: Tensor, correct: Tensor, target: float, delta: float) -> Threshold | None:
    try:
        return find_threshold(
            scores, correct, target_accuracy=target, delta=delta, score="own", accept="high"
        )
    except ValueError:
        return None


def test_the_best_promise_is_named_and_kept() -> None:
    scores = descending(500)
    correct = wrong_at(500, *range(5, 500, 10))
    with pytest.raises(ValueError, match="No threshold on confidence promises") as caught:
        find_threshold(scores, correct, target_accuracy=0.95)
    best = float(str(caught.value).split("promise is ")[1].split(";")[0])
    assert 0.8 < best < 0.9
    assert find_threshold(scores, correct, target_accuracy=best).accepted_share > 0
    with pytest.raises(ValueError, match="No threshold"):
        find_threshold(scores, correct, target_accuracy=best + 0.001)


# --- coverage and false alarms ---


def test_coverage_by_hand() -> None:
    # ⌊(19 + 1) · 0.1⌋ = 2: the second smallest score is the last one accepted.
    scores = torch.arange(19.0) / 19
    found = find_threshold(scores, coverage=0.9)
    assert found.value == scores[1].item()
    assert found.accepted_share == 18 / 19
    assert found.bound == pytest.approx(0.9)
    assert found.delta is None
    assert found.accuracy is None


def test_false_alarms_are_the_other_side_of_coverage() -> None:
    scores = torch.randn(200, generator=seeded())
    alarm = find_threshold(scores, false_alarm=0.05, score="epistemic")
    cover = find_threshold(scores, coverage=0.95, score="epistemic")
    assert alarm.value == cover.value == scores.sort().values[-10]  # ⌊201 · 0.05⌋ = 10
    assert alarm.bound == pytest.approx(10 / 201)
    assert cover.bound == pytest.approx(1 - 10 / 201)


@pytest.mark.parametrize("n", [9, 19, 99])
def test_a_share_that_divides_the_data_exactly_is_not_rounded_away(n: int) -> None:
    # In floating point (n + 1) · (1 - 0.9) is less than (n + 1) / 10.
    found = find_threshold(torch.arange(float(n)) / n, coverage=0.9)
    assert found.accepted_share == pytest.approx(1 - ((n + 1) / 10 - 1) / n)


@pytest.mark.parametrize("n_values", [3, 10**6], ids=["ties", "no ties"])
def test_new_inputs_are_accepted_as_often_as_promised(n_values: int) -> None:
    trials = 1000
    n = 30
    scores = torch.randint(n_values, (trials, n + 1), generator=seeded()).double() / n_values
    accepted = 0
    for row in scores:
        found = find_threshold(row[:n], coverage=0.8)
        accepted += int(found.accepts(row[n:]).sum())
    rate = accepted / trials
    spread = 5 * (0.8 * 0.2 / trials) ** 0.5
    assert rate >= 0.8 - spread
    if n_values > n:
        assert rate <= 1 - 6 / 31 + spread  # ⌊31 · 0.2⌋ = 6


# --- arguments ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of `target_accuracy`, `coverage` and `false_alarm`; got none"),
        ({"coverage": 0.9, "false_alarm": 0.1}, "got `coverage` and `false_alarm`"),
        ({"coverage": 1.0}, "`coverage` must be between 0 and 1; got 1"),
        ({"target_accuracy": 95}, "`target_accuracy` must be between 0 and 1; got 95"),
        ({"target_accuracy": 0.9}, "`correct` must be given"),
        ({"coverage": 0.99}, "needs at least 99 held-out inputs; got 20"),
        ({"false_alarm": 0.01}, "needs at least 99 held-out inputs; got 20"),
        ({"coverage": 0.9, "score": "margin"}, '`accept` must be "high" or "low"'),
        ({"coverage": 0.9, "accept": "up"}, '`accept` must be "high" or "low"; got \'up\''),
        ({"coverage": 0.9, "accept": "low"}, "of confidence the high values are certain"),
    ],
)
def test_errors_are_one_clear_sentence(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        find_threshold(torch.linspace(0, 1, 20), **arguments)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([[0.5, 0.5]], r"shape \(N,\), one number for each held-out input; got \(1, 2\)"),
        ([], r"got \(0,\)"),
        ([0.5, math.nan], "found nan at position 1"),
        ([0.5, 1.5], "`confidence` must be between 0 and 1; found 1.5 at position 1"),
    ],
)
def test_scores_must_be_numbers_and_confidences_probabilities(scores: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_threshold(scores, coverage=0.9)


def test_too_few_inputs_say_how_many_are_needed() -> None:
    with pytest.raises(ValueError, match="needs at least 300 held-out inputs") as caught:
        find_threshold(descending(100), wrong_at(100), target_accuracy=0.99)
    assert "The best that they promise is 0.97" in str(caught.value)  # 0.05^(1 / 99) = 0.9702
    with pytest.raises(ValueError, match="These data promise nothing"):
        find_threshold(descending(100), ~wrong_at(100), target_accuracy=0.9)
    with pytest.raises(ValueError, match="`delta` must be between 0 and 1"):
        find_threshold(descending(100), wrong_at(100), target_accuracy=0.9, delta=0)


@pytest.mark.parametrize("convert", [list, np.asarray, Tensor.half])
def test_what_torch_can_take_is_taken(convert: Any) -> None:
    scores = torch.arange(64.0) / 64  # exact in half precision
    found = find_threshold(convert(scores), convert(torch.ones(64)), target_accuracy=0.9)
    assert found.value == -math.inf
    assert find_threshold(convert(scores), coverage=0.9).value == 5 / 64


# --- predictions ---


def prediction(n: int = 50) -> Prediction:
    probs = torch.randn(n, 4, generator=seeded()).softmax(-1)
    aleatoric, epistemic, information = torch.randn(3, n, generator=seeded(1))
    return Prediction(probs, probs.argmax(-1), aleatoric, epistemic, information)


def test_every_score_is_that_of_the_prediction() -> None:
    p = prediction()
    entropy = torch.distributions.Categorical(p.probs).entropy()
    torch.testing.assert_close(score_values(p, "entropy"), entropy)
    assert torch.equal(score_values(p, "confidence"), p.probs.amax(-1))
    for name in ("aleatoric", "epistemic", "mutual_information"):
        assert torch.equal(score_values(p, name), getattr(p, name))
    certain = Prediction(torch.eye(2), torch.arange(2))
    assert score_values(certain, "entropy").tolist() == [0, 0]
    with pytest.raises(ValueError, match="`score` is 'epistemic', which this method does not have"):
        score_values(certain, "epistemic")
    with pytest.raises(ValueError, match="`score` must be one of confidence, aleatoric"):
        score_values(certain, "margin")


def test_the_score_suits_the_promise() -> None:
    p = prediction()
    assert find_prediction_threshold(p, false_alarm=0.1).score == "epistemic"
    assert find_prediction_threshold(p, coverage=0.9).score == "confidence"
    assert find_prediction_threshold(p, p.label, target_accuracy=0.9).score == "confidence"
    plain = Prediction(p.probs, p.label)
    assert find_prediction_threshold(plain, false_alarm=0.1).score == "confidence"
    for name in SCORES:
        assert find_prediction_threshold(p, coverage=0.9, score=name).score == name
    with pytest.raises(ValueError, match="`labels` must be given for `target_accuracy`"):
        find_prediction_threshold(p, target_accuracy=0.9)


def test_an_input_is_accepted_if_all_thresholds_accept_it() -> None:
    p = prediction()
    assert with_accepted(p, {}).accepted is None
    first = find_prediction_threshold(p, coverage=0.8)
    second = find_prediction_threshold(p, false_alarm=0.3)
    both = with_accepted(p, {"coverage": first, "false_alarm": second}).accepted
    assert both is not None
    confident = p.confidence >= first.value
    assert p.epistemic is not None
    assert torch.equal(both, confident & (p.epistemic <= second.value))
    assert both.any()
    assert not torch.equal(both, confident)


def test_a_score_that_is_not_a_number_is_not_accepted() -> None:
    for accept in ("high", "low"):
        found = find_threshold(torch.rand(50, generator=seeded()), coverage=0.9)
        found = replace(found, accept=accept)
        assert found.accepts(torch.tensor([math.nan])).tolist() == [False]


def test_a_record_is_what_it_was() -> None:
    found = find_threshold(descending(60), wrong_at(60), target_accuracy=0.95)
    assert from_records([found.as_dict()]) == {"target_accuracy": found}


def test_a_record_in_words() -> None:
    accuracy = find_threshold(descending(100), wrong_at(100, 69), target_accuracy=0.95)
    assert str(accuracy) == (
        "Accept where confidence is at least 0.648485. "
        "Then at least 95 % of accepted predictions are right, with 95 % certainty. "
        "Of the 100 held-out inputs, 69.0 % are accepted, and 100.00 % of these are right."
    )
    scores = torch.arange(19.0)
    alarm = find_threshold(scores, false_alarm=0.1, score="epistemic")
    assert str(alarm) == (
        "Accept where epistemic is at most 17. "
        "Then at most 10 % of new in-distribution inputs are rejected, on average. "
        "Of the 19 held-out inputs, 94.7 % are accepted."
    )
    assert "at least 90 % of new inputs are accepted" in str(
        find_threshold(scores / 19, coverage=0.9)
    )
