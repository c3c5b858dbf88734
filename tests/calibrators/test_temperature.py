import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import floats, integers
from scipy.optimize import minimize_scalar
from torch import Generator, Tensor

from simplexcal.calibrators._line_search import root
from simplexcal.calibrators.temperature import (
    TemperatureScaling,
    fit_log_temperature,
    jeffreys_weight,
)
from simplexcal.types import Outputs

DOUBLE = torch.float64


def simulate(n: int, k: int, temperature: float, generator: Generator) -> tuple[Tensor, Tensor]:
    """Return logits, and labels that follow softmax(z / T)."""
    logits = 4 * torch.randn(n, k, generator=generator, dtype=DOUBLE)
    labels = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator).squeeze(
        1
    )
    return logits, labels


def exact_nll(log_t: float, logits: list[list[float]], labels: list[int]) -> mpmath.mpf:
    """Return Σ -ln softmax(z / T)_y in 30 digits: a float64 loss would hide its minimum in 1e-8 of
    rounding."""
    scale = mpmath.exp(-mpmath.mpf(log_t))
    pairs = zip(logits, labels, strict=True)
    return mpmath.fsum(
        mpmath.log(mpmath.fsum(mpmath.exp((z - row[y]) * scale) for z in row)) for row, y in pairs
    )


@pytest.mark.parametrize(("k", "temperature"), [(2, 1.5), (3, 0.4), (5, 3.0)])
def test_the_minimum_equals_scipys(k: int, temperature: float, generator: Generator) -> None:
    logits, labels = simulate(40, k, temperature, generator)
    rows, classes = logits.tolist(), labels.tolist()
    with mpmath.workdps(30):
        near = minimize_scalar(lambda x: float(exact_nll(x, rows, classes))).x
        origin = exact_nll(near, rows, classes)  # differences from here keep their digits as floats
        peer = minimize_scalar(
            lambda x: float(exact_nll(x, rows, classes) - origin), options={"xtol": 1e-11}
        )
    assert fit_log_temperature(logits, labels) == pytest.approx(peer.x, rel=0, abs=1e-8)


def test_one_wrong_in_four_by_hand() -> None:
    # z = (1, 0), right three times in four: σ(1/T) = 3/4, so 1/T = ln 3
    logits, labels = torch.tensor([[1.0, 0.0]]).repeat(4, 1), torch.tensor([0, 0, 0, 1])
    assert fit_log_temperature(logits, labels) == pytest.approx(
        -math.log(math.log(3)), rel=0, abs=1e-14
    )


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5, 10.0])
def test_a_known_temperature_is_recovered(temperature: float, generator: Generator) -> None:
    logits, labels = simulate(20_000, 10, temperature, generator)
    log_t = fit_log_temperature(logits, labels)
    scaled = logits / math.exp(log_t)
    probs = scaled.softmax(-1)
    information = (probs * scaled.square()).sum(-1) - (probs * scaled).sum(
        -1
    ).square()  # of ln T, for each input
    assert abs(log_t - math.log(temperature)) <= 5 / math.sqrt(information.sum().item())


@given(seed=integers(0, 2**31), k=integers(2, 20), c=floats(-3, 3).map(lambda x: 10**x))
def test_scaling_the_logits_scales_the_temperature(seed: int, k: int, c: float) -> None:
    logits, labels = simulate(100, k, 2.0, Generator().manual_seed(seed))
    moved = fit_log_temperature(c * logits, labels) - fit_log_temperature(logits, labels)
    assert moved == pytest.approx(math.log(c), rel=0, abs=1e-12)


def test_adding_a_constant_to_the_logits_changes_nothing(generator: Generator) -> None:
    logits, labels = simulate(100, 5, 2.0, generator)
    moved = fit_log_temperature(logits + 50.0, labels)
    assert moved == pytest.approx(fit_log_temperature(logits, labels), rel=0, abs=1e-11)


def test_float32_logits_give_the_temperature_of_their_float64_values(generator: Generator) -> None:
    logits, labels = simulate(500, 5, 2.0, generator)
    single = fit_log_temperature(logits.float(), labels)
    assert single == fit_log_temperature(logits.float().double(), labels)
    assert single == pytest.approx(fit_log_temperature(logits, labels), rel=0, abs=1e-6)


def test_all_correct_warns_and_has_the_temperature_of_a_prior_worth_half_an_error(
    generator: Generator,
) -> None:
    logits = torch.randn(50, 4, generator=generator)
    labels = logits.argmax(-1)
    with pytest.warns(UserWarning, match="All 50 inputs are classified correctly"):
        ts = TemperatureScaling().fit(Outputs(logits), labels)
    assert ts.log_temperature.item() == pytest.approx(
        fit_log_temperature(logits, labels, jeffreys_weight(50, 4)), rel=1e-6
    )


def test_one_error_among_many_is_enough_for_the_most_likely_temperature() -> None:
    logits = torch.tensor([[1.0, 0.0]], dtype=DOUBLE).repeat(1000, 1)
    labels = torch.zeros(1000, dtype=torch.int64)
    labels[0] = 1
    log_t = fit_log_temperature(logits, labels)
    assert log_t == pytest.approx(-math.log(math.log(999)), rel=0, abs=1e-13)


def test_half_an_error_in_five_by_hand() -> None:
    # z = (1, 0), three right, one wrong, and half a sample of each class: σ(1/T) = 3.5 / 5, so 1/T
    # = ln(7/3)
    logits, labels = torch.tensor([[1.0, 0.0]]).repeat(4, 1), torch.tensor([0, 0, 0, 1])
    log_t = fit_log_temperature(logits, labels, prior_weight=1 / 4)
    assert log_t == pytest.approx(-math.log(math.log(7 / 3)), rel=0, abs=1e-14)


@pytest.mark.parametrize(("k", "times"), [(2, 1), (3, 40), (5, 7)])
def test_the_prior_is_samples_of_every_class(k: int, times: int, generator: Generator) -> None:
    logits, labels = simulate(40, k, 1.5, generator)
    added = (
        logits.repeat_interleave(k, 0),
        torch.arange(k).repeat(40),
    )  # each input once in each class
    all_logits = torch.cat([logits.repeat(times, 1), added[0]])
    all_labels = torch.cat([labels.repeat(times), added[1]])
    expected = fit_log_temperature(all_logits, all_labels)
    assert fit_log_temperature(logits, labels, prior_weight=k / times) == pytest.approx(
        expected, rel=0, abs=1e-12
    )


@given(seed=integers(0, 2**31), k=integers(2, 20), prior_weight=floats(-4, 0).map(lambda x: 10**x))
def test_the_prior_raises_the_temperature(seed: int, k: int, prior_weight: float) -> None:
    logits, labels = simulate(100, k, 2.0, Generator().manual_seed(seed))
    assert fit_log_temperature(logits, labels) < fit_log_temperature(logits, labels, prior_weight)


@given(seed=integers(0, 2**31), k=integers(2, 20))
def test_a_small_prior_weight_moves_the_temperature_in_proportion(seed: int, k: int) -> None:
    # where d/du of the loss stays 0: du (mean Var_p z) = -w (mean E_p z - mean z), and d ln T =
    # -du / u
    logits, labels = simulate(100, k, 2.0, Generator().manual_seed(seed))
    log_t = fit_log_temperature(logits, labels)
    probs = (logits / math.exp(log_t)).softmax(-1)
    mean = (probs * logits).sum(-1)
    variance = (probs * logits.square()).sum(-1) - mean.square()
    rate = math.exp(log_t) * ((mean - logits.mean(-1)).mean() / variance.mean()).item()
    moved = fit_log_temperature(logits, labels, prior_weight=1e-6) - log_t
    assert moved == pytest.approx(1e-6 * rate, rel=1e-3)


def test_all_correct_warns_and_has_the_temperature_of_the_prior_by_hand() -> None:
    # n right and, of the prior, half a sample of each class: σ(1/T) = (n + ½) / (n + 1), so 1/T =
    # ln(2n + 1)
    logits, labels = (
        torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(25, 1),
        torch.tensor([0, 1]).repeat(25),
    )
    with pytest.warns(
        UserWarning, match=r"All 50 inputs are classified correctly.* set by the prior\."
    ):
        ts = TemperatureScaling().fit(Outputs(logits), labels)
    assert ts.log_temperature.item() == pytest.approx(-math.log(math.log(101)), rel=1e-6)
    for prior_weight in (0.0, 1 / 50):
        log_t = fit_log_temperature(logits, labels, prior_weight)
        assert log_t == pytest.approx(-math.log(math.log(101)), rel=0, abs=1e-12)


def test_labels_without_information_warn_and_give_uniform_probabilities(
    generator: Generator,
) -> None:
    logits = torch.randn(20, 3, generator=generator)
    every_label = torch.arange(3).repeat_interleave(
        20
    )  # each input has been seen once in each class
    with pytest.warns(UserWarning, match="The logits say nothing about the labels"):
        ts = TemperatureScaling().fit(Outputs(logits.repeat(3, 1)), every_label)
    torch.testing.assert_close(
        ts(Outputs(logits)).probs, torch.full((20, 3), 1 / 3), rtol=0, atol=1e-6
    )


def test_logits_that_are_too_small_for_the_bounds_are_called_so(generator: Generator) -> None:
    logits = torch.randn(200, 3, generator=generator)
    labels = (3 * logits).softmax(-1).multinomial(1, generator=generator).squeeze(1)
    with pytest.warns(
        UserWarning, match=r"^The logits are so small that T was set to its lower bound, e\^-16."
    ):
        TemperatureScaling().fit(Outputs(1e-8 * logits), labels)


def test_the_label_is_the_networks_own_also_in_ties(generator: Generator) -> None:
    logits = torch.randn(200, 4, generator=generator).round()  # many ties
    outputs = Outputs(logits)
    labels = torch.multinomial((logits / 2).softmax(-1), 1, generator=generator).squeeze(1)
    prediction = TemperatureScaling().fit(outputs, labels)(outputs)
    assert torch.equal(prediction.label, logits.argmax(-1))
    assert torch.equal(prediction.confidence, prediction.probs.amax(-1))
    assert (prediction.aleatoric, prediction.epistemic) == (None, None)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_probabilities_sum_to_one_in_the_dtype_of_the_logits(
    dtype: torch.dtype, generator: Generator
) -> None:
    logits, labels = simulate(100, 7, 2.0, generator)
    outputs = Outputs(logits.to(dtype))
    probs = TemperatureScaling().fit(outputs, labels)(outputs).probs
    torch.testing.assert_close(probs.sum(-1), torch.ones(100, dtype=dtype))


def test_a_second_fit_forgets_the_first(generator: Generator) -> None:
    first, second = simulate(100, 3, 2.0, generator), simulate(100, 5, 0.5, generator)
    twice, once = TemperatureScaling().fit(Outputs(first[0]), first[1]), TemperatureScaling()
    for ts in (twice, once):
        ts.fit(Outputs(second[0]), second[1])
    assert torch.equal(twice.log_temperature, once.log_temperature)


def test_a_root_is_found_in_few_calls_and_else_an_end_of_the_interval() -> None:
    calls = []

    def saturated(x: float) -> float:
        calls.append(x)
        return math.tanh(30 * (x - 0.3)) + 1e-3 * (x - 0.3)

    assert root(saturated, -16.0, 16.0) == pytest.approx(0.3, abs=1e-15)
    assert len(calls) <= 24
    assert root(lambda x: x - 0.3, 0.0, 1.0) == pytest.approx(0.3, abs=1e-15)
    assert root(lambda _: 1.0, 0.0, 1.0) == 0.0
    assert root(lambda _: -1.0, 0.0, 1.0) == 1.0
