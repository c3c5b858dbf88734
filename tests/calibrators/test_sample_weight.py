"""Weights of inputs: an integer weight is a repeated row, and weight 0 an absent one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.methods import METHODS
from helpers.quick_branches import quick_branches
from hypothesis import given
from hypothesis.strategies import integers
from torch import Generator, Tensor

from simplexcal import (
    Calibrator,
    DiagonalIntraOrderPreserving,
    DirichletCalibration,
    IsotonicCalibration,
    Outputs,
    SimplexTemperatureScaling,
    TemperatureScaling,
    VectorScaling,
)
from simplexcal.calibrators._weights import effective_number, normalise, weighted_mean
from simplexcal.calibrators.ensemble import EnsembleTemperatureScaling
from simplexcal.calibrators.temperature import fit_log_temperature

WEIGHTED: dict[str, Callable[[], Calibrator]] = {
    "ts": TemperatureScaling,
    "ets, mse": lambda: EnsembleTemperatureScaling(max_temperature=50.0),
    "ets, nll": lambda: EnsembleTemperatureScaling("nll"),
    "sts": lambda: SimplexTemperatureScaling(n_steps=5, pool_size=100, widths=(4,)),
    "iop-diag": DiagonalIntraOrderPreserving,
    "isotonic": IsotonicCalibration,
    "vector": VectorScaling,
    "dirichlet": lambda: DirichletCalibration(strength=1.0),
}
# The others count evidence too, which a repeated row adds to.
DETERMINED = {key: WEIGHTED[key] for key in ("ts", "ets, mse", "ets, nll")}
every_weighted = pytest.mark.parametrize("make", WEIGHTED.values(), ids=WEIGHTED)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_branches(monkeypatch, 10)


def simulate(n: int, k: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, k, generator=g, dtype=torch.float64)
    labels = (logits / 2).softmax(-1).multinomial(1, generator=g).squeeze(1)
    labels[:2] = (logits[:2].argmax(-1) + 1) % k  # two errors at least, of two classes
    labels[1] = (labels[0] + 1) % k
    return logits, labels


def same_state(one: Calibrator, other: Calibrator) -> bool:
    states = [calibrator.state_dict() for calibrator in (one, other)]
    return all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.parametrize("make", DETERMINED.values(), ids=DETERMINED)
@pytest.mark.parametrize("k", [2, 5])
def test_an_integer_weight_is_a_repeated_row(make: Callable[[], Calibrator], k: int) -> None:
    logits, labels = simulate(80, k)
    times = torch.arange(80) % 4
    repeated = make().fit(logits.repeat_interleave(times, 0), labels.repeat_interleave(times))
    weighted = make().fit(logits, labels, sample_weight=times)
    # A golden section finds the minimum of a squared error to the root of the rounding.
    torch.testing.assert_close(weighted(logits).probs, repeated(logits).probs, rtol=1e-6, atol=1e-8)


@given(seed=integers(0, 2**31), k=integers(2, 12))
def test_the_most_likely_temperature_of_integer_weights_is_that_of_repeated_rows(
    seed: int, k: int
) -> None:
    logits, labels = simulate(50, k, seed)
    times = torch.randint(1, 5, (50,), generator=Generator().manual_seed(seed))
    rows = (logits.repeat_interleave(times, 0), labels.repeat_interleave(times))
    weighted = fit_log_temperature(logits, labels, weights=normalise(times.double()))
    assert weighted == pytest.approx(fit_log_temperature(*rows), rel=0, abs=1e-11)


@every_weighted
def test_weights_that_are_all_the_same_are_no_weights_bit_for_bit(
    make: Callable[[], Calibrator],
) -> None:
    logits, labels = simulate(90, 4)
    plain = make().fit(logits, labels)
    for constant in (1, 0.3, 1e30):
        assert same_state(plain, make().fit(logits, labels, sample_weight=[constant] * 90))


@every_weighted
def test_a_weight_of_zero_is_an_absent_row_bit_for_bit(make: Callable[[], Calibrator]) -> None:
    logits, labels = simulate(90, 4)
    absent = torch.arange(90) % 3 == 2
    logits[absent] = torch.nan
    labels[absent] = 99
    fewer = make().fit(logits[~absent], labels[~absent])
    assert same_state(fewer, make().fit(logits, labels, sample_weight=(~absent).float()))
    weights = torch.linspace(1, 2, 90).where(~absent, 0)
    fewer = make().fit(logits[~absent], labels[~absent], sample_weight=weights[~absent])
    assert same_state(fewer, make().fit(logits, labels, sample_weight=weights.numpy()))


@every_weighted
def test_the_scale_of_the_weights_does_not_matter(make: Callable[[], Calibrator]) -> None:
    logits, labels = simulate(90, 4)
    weights = torch.linspace(1, 2, 90)
    fits = [make().fit(logits, labels, sample_weight=c * weights) for c in (1.0, 2.0**20)]
    assert same_state(*fits)


@every_weighted
def test_weights_move_the_fit_towards_the_inputs_that_count(
    make: Callable[[], Calibrator],
) -> None:
    # Half of the inputs are over-confident, the other half under-confident.
    logits, labels = simulate(400, 3)
    logits[::2] *= 4
    first_half = torch.tensor([1.0, 1e-3]).repeat(200)
    confidence = []
    for weights in (first_half, 1.001 - first_half):
        calibrator = make().fit(logits, labels, sample_weight=weights)
        confidence.append(calibrator(logits).confidence.mean())
    assert confidence[0] < confidence[1] - 0.05


def test_a_weighted_mean_by_hand() -> None:
    # Weights 1 and 3 of the values 0 and 4: n = 16/10.
    weights = normalise(torch.tensor([1.0, 3.0], dtype=torch.float64))
    values = torch.tensor([0.0, 4.0], dtype=torch.float64)
    assert effective_number(2, weights) == pytest.approx(1.6)
    assert weighted_mean(values, weights).item() == pytest.approx(3)


@pytest.mark.parametrize("method", ["none", "pts", "adats", "dirichlet-ts", "paper"])
def test_methods_that_count_all_inputs_alike_say_so(method: str) -> None:
    logits, labels = simulate(60, 3)
    make = METHODS.get(method, SimplexTemperatureScaling.paper)
    calibrator = make()
    assert not calibrator.uses_sample_weight
    with pytest.raises(
        ValueError,
        match=r"^`sample_weight` must be None: this .* counts all inputs alike. Use Temp.*ts, ets",
    ):
        calibrator.fit(Outputs(logits, logits), labels, sample_weight=torch.ones(60))


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "negative": ([1.0] * 59 + [-1.0], ValueError, "at least 0 and finite; found -1 at position 59"),
    "nan": ([torch.nan] + [1.0] * 59, ValueError, "at least 0 and finite; found nan at position 0"),
    "infinite": ([torch.inf] + [1.0] * 59, ValueError, "at least 0 and finite; found inf"),
    "all zero": ([0.0] * 60, ValueError, "must be positive somewhere; all 60 weights are 0"),
    "too few": ([1.0] * 59, ValueError, r"must have shape \(60,\)"),
    "text": ("heavy", TypeError, "must be a tensor, or an array or a list of numbers"),
    "complex": ([1j] * 60, TypeError, "must hold real numbers"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_weight_gets_one_clear_sentence(case: str) -> None:
    logits, labels = simulate(60, 3)
    weights, error, message = BAD[case]
    with pytest.raises(error, match=f"^`sample_weight` .*{message}"):
        TemperatureScaling().fit(logits, labels, sample_weight=weights)


def test_the_classes_of_a_fit_are_those_with_a_weight() -> None:
    logits, labels = simulate(60, 3)
    with pytest.raises(ValueError, match="`labels` must hold at least two classes; all"):
        TemperatureScaling().fit(logits, labels, sample_weight=(labels == 1).float())


def test_the_data_of_a_weighted_fit_are_known_again() -> None:
    logits, labels = simulate(60, 3)
    weights = torch.arange(60) % 3
    calibrator = TemperatureScaling().fit(logits, labels, sample_weight=weights)
    assert calibrator.was_fitted_to(Outputs(logits))
