import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers
from torch import Tensor

from simplexcal.metrics import (
    ece,
    ece_inference,
    ece_interval,
    noise_floor,
)

EDGES = torch.arange(1, 10, dtype=torch.float64) / 10


def confidences(n: int, generator: torch.Generator) -> Tensor:
    return (2.5 + 2 * torch.randn(n, generator=generator, dtype=torch.float64)).sigmoid()


def true_ece(confidence: Tensor, chance: Tensor) -> float:
    excess = torch.zeros(10, dtype=torch.float64).index_add_(
        0, torch.bucketize(confidence, EDGES), chance - confidence
    )
    return float(excess.abs().sum()) / len(confidence)


def test_calibrated_predictions_exceed_the_95_percent_floor_in_5_percent_of_trials(
    generator: torch.Generator,
) -> None:
    exceeded = 0
    for _ in range(40):  # as many floors, so that their own noise averages out
        confidence = confidences(500, generator)
        upper = noise_floor(confidence, generator=generator).upper
        correct = torch.rand(50, 500, generator=generator) < confidence
        exceeded += sum(bool(ece(confidence, row) > upper) for row in correct)
    assert exceeded / 2000 == pytest.approx(0.05, abs=0.015)


def test_the_floor_is_the_expectation_over_all_outcomes(generator: torch.Generator) -> None:
    confidence = torch.tensor([0.55, 0.58, 0.75, 0.72, 0.71, 0.93, 0.97, 1.0], dtype=torch.float64)
    outcomes = torch.tensor(list(itertools.product([False, True], repeat=8)))
    chance = torch.where(outcomes, confidence, 1 - confidence).prod(-1)
    errors = torch.stack([ece(confidence, row) for row in outcomes])
    mean = (chance * errors).sum()
    deviation = (chance * (errors - mean).square()).sum().sqrt()
    floor = noise_floor(confidence, n_trials=20_000, generator=generator)
    assert floor.mean.item() == pytest.approx(
        mean.item(), abs=5 * deviation.item() / math.sqrt(20_000)
    )
    order = errors.argsort()
    # The distribution of the ECE is discrete: between its quantiles at 95 % ± 5 standard errors.
    below = chance[order].cumsum(0)
    margin = 5 * math.sqrt(0.05 * 0.95 / 20_000)
    low, high = (
        errors[order][torch.searchsorted(below, q)] for q in (0.95 - margin, 0.95 + margin)
    )
    assert low - 1e-9 <= floor.upper <= high + 1e-9


def test_the_floor_is_zero_where_nothing_is_left_to_chance() -> None:
    assert [value.item() for value in noise_floor(torch.ones(10))] == [0, 0]


def overconfident(confidence: Tensor, by: float) -> Tensor:
    return (confidence - by * (4 * confidence * (1 - confidence) + 0.1)).clamp(0, 1)


@pytest.mark.parametrize("by", [0.0, 0.02, 0.06, 0.15])
def test_the_interval_covers_the_true_error_at_its_level(
    by: float, generator: torch.Generator
) -> None:
    confidence = confidences(500, generator)
    chance = overconfident(confidence, by)
    truth, trials, covered = true_ece(confidence, chance), 200, 0
    for _ in range(trials):
        correct = torch.rand(500, generator=generator) < chance
        low, high = ece_interval(confidence, correct, n_trials=300, generator=generator)
        covered += bool(low <= truth <= high)
    assert covered / trials >= 0.95 - 5 * math.sqrt(0.05 * 0.95 / trials)


def test_the_percentile_bootstrap_misses_what_the_interval_holds(
    generator: torch.Generator,
) -> None:
    confidence = confidences(500, generator)
    chance = overconfident(confidence, 0.02)
    correct = torch.rand(500, generator=generator) < chance
    rows = torch.randint(500, (400, 500), generator=generator)
    resampled = torch.stack([ece(confidence[r], correct[r]) for r in rows])
    truth, (low, high) = true_ece(confidence, chance), ece_interval(confidence, correct)
    assert low <= truth <= high
    assert resampled.quantile(0.025) > truth


def test_the_interval_begins_at_zero_just_when_the_ece_is_within_the_floor(
    generator: torch.Generator,
) -> None:
    confidence = confidences(300, generator)
    upper = noise_floor(confidence).upper
    chance = overconfident(confidence, 0.05)  # about as often within as beyond
    outcomes = set()
    for _ in range(30):
        correct = torch.rand(300, generator=generator) < chance
        within = bool(ece(confidence, correct) <= upper)
        assert (ece_interval(confidence, correct).low < 1e-4) == within
        outcomes.add(within)
    assert outcomes == {True, False}


def test_more_data_narrow_the_interval_as_the_root_of_their_number(
    generator: torch.Generator,
) -> None:
    width = []
    for n in (1_000, 16_000):
        confidence = confidences(n, generator)
        correct = torch.rand(n, generator=generator) < overconfident(confidence, 0.3)
        low, high = ece_interval(confidence, correct)
        width.append((high - low).item())
    assert width[0] / width[1] == pytest.approx(4, rel=0.25)


def test_saturated_confidences_without_an_error_leave_room_for_errors() -> None:
    low, high = ece_interval(torch.ones(100), torch.ones(100))
    assert low == 0
    assert 0.02 < high < 0.05  # the exact 97.5 % limit of 0 errors in 100 is 0.036
    low, high = ece_interval(torch.ones(100), torch.zeros(100))
    assert 0.95 < low < high == 1


@settings(max_examples=60)
@given(seed=integers(0, 2**31), n=integers(1, 40), n_bins=integers(1, 15))
def test_every_data_set_has_an_interval_in_0_1(seed: int, n: int, n_bins: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    confidence = torch.randint(11, (n,), generator=generator) / 10
    correct = torch.rand(n, generator=generator) < torch.rand(1, generator=generator)
    low, high = ece_interval(confidence, correct, n_bins, n_trials=50)
    assert 0 <= low <= high <= 1


def test_a_higher_level_gives_a_wider_interval(generator: torch.Generator) -> None:
    confidence = confidences(500, generator)
    correct = torch.rand(500, generator=generator) < overconfident(confidence, 0.2)
    narrow, wide = (ece_interval(confidence, correct, level=level) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_the_same_data_give_the_same_numbers_and_the_global_state_is_left_alone(
    generator: torch.Generator,
) -> None:
    confidence = confidences(100, generator)
    correct = torch.rand(100, generator=generator) < confidence
    state = torch.get_rng_state()
    assert noise_floor(confidence) == noise_floor(confidence)
    assert ece_interval(confidence, correct) == ece_interval(confidence, correct)
    assert torch.equal(torch.get_rng_state(), state)
    assert noise_floor(confidence, generator=generator) != noise_floor(
        confidence, generator=generator
    )


def test_the_number_of_trials_at_a_time_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    confidence = confidences(64, torch.Generator().manual_seed(0))
    whole = noise_floor(confidence)
    monkeypatch.setattr(ece_inference, "CHUNK", 6_400)
    assert noise_floor(confidence) == whole


def test_bad_values_are_named() -> None:
    with pytest.raises(
        ValueError, match=r"^`confidence` must be between 0 and 1; found 2 at position 0\."
    ):
        noise_floor(torch.tensor([2.0]))
    with pytest.raises(ValueError, match=r"^`n_trials` must be at least 1; got 0\.$"):
        noise_floor(torch.tensor([0.5]), n_trials=0)
    with pytest.raises(
        ValueError, match=r"^`level` must be between 0 and 1; got 95\. Write 95 % as 0\.95\.$"
    ):
        ece_interval(torch.tensor([0.5]), torch.tensor([True]), level=95)
