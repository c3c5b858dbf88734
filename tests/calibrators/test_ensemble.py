import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers, sampled_from
from scipy.optimize import minimize
from torch import Generator, Tensor

from simplexcal.calibrators._line_search import minimise_on_grid
from simplexcal.calibrators.ensemble import (
    EnsembleTemperatureScaling,
    compare,
    fit_log_temperature_by_error,
    quadratic_on_simplex,
    weights_by_error,
    weights_by_likelihood,
)
from simplexcal.calibrators.temperature import TemperatureScaling
from simplexcal.types import Outputs

DOUBLE = torch.float64
LOSSES = ("mse", "nll")


def simulate(
    n: int, k: int, temperature: float, noise: float, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Return logits, and labels that follow softmax(z / T) but for a share ``noise`` of uniform
    ones."""
    logits = 4 * torch.randn(n, k, generator=generator, dtype=DOUBLE)
    probs = (1 - noise) * (logits / temperature).softmax(-1) + noise / k
    return logits, torch.multinomial(probs, 1, generator=generator).squeeze(1)


def mixture(weights: np.ndarray, scaled: Tensor, plain: Tensor) -> np.ndarray:
    parts = [p.numpy() for p in (scaled, plain, torch.full_like(plain, 1 / plain.shape[1]))]
    return np.tensordot(weights, np.stack(parts), 1)


def squared_error(weights: np.ndarray, scaled: Tensor, plain: Tensor, labels: Tensor) -> float:
    one_hot = np.eye(plain.shape[1])[labels.numpy()]
    return float(((mixture(weights, scaled, plain) - one_hot) ** 2).sum(1).mean())


def nll(weights: np.ndarray, scaled: Tensor, plain: Tensor, labels: Tensor) -> float:
    return float(
        -np.log(mixture(weights, scaled, plain)[np.arange(len(labels)), labels.numpy()]).mean()
    )


SOLVERS = {"mse": (weights_by_error, squared_error), "nll": (weights_by_likelihood, nll)}


@given(
    loss=sampled_from(LOSSES),
    seed=integers(0, 2**31),
    k=integers(2, 12),
    temperature=sampled_from([0.5, 1.0, 2.0, 8.0]),
    noise=sampled_from([0.0, 0.1, 0.6]),
)
def test_no_weights_are_better_by_scipys_search(
    loss: str, seed: int, k: int, temperature: float, noise: float
) -> None:
    logits, labels = simulate(60, k, temperature, noise, Generator().manual_seed(seed))
    scaled, plain = (logits / 2).softmax(-1), logits.softmax(-1)
    solve, objective = SOLVERS[loss]
    weights = solve(compare(scaled, plain, labels)).numpy()
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1, abs=1e-14)
    peer = minimize(
        objective, [1 / 3] * 3, (scaled, plain, labels), "SLSQP", bounds=[(1e-12, 1)] * 3,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, options={"ftol": 1e-12},
    )  # fmt: skip
    peer_weights = peer.x.clip(0) / peer.x.clip(0).sum()
    assert (
        objective(weights, scaled, plain, labels)
        <= objective(peer_weights, scaled, plain, labels) + 1e-11
    )


def test_weights_by_hand() -> None:
    # K = 2, one confident network (1, 0), right three times in four: the mean of the labels is
    # (3/4, 1/4), so the
    # best mixture of (1, 0) and (1/2, 1/2) has w₃ = 1/2, for both losses
    sure = torch.tensor([[1.0, 0.0]], dtype=DOUBLE).repeat(4, 1)
    labels = torch.tensor([0, 0, 0, 1])
    for solve, _ in SOLVERS.values():
        weights = solve(compare(sure, sure, labels))
        assert weights[2].item() == pytest.approx(0.5, abs=1e-6)
        assert weights[:2].sum().item() == pytest.approx(0.5, abs=1e-6)


def test_a_quadratic_takes_its_minimum_inside_on_an_edge_and_at_a_vertex() -> None:
    # ‖w - b‖² on the simplex: the nearest point to b
    cases = {
        (0.2, 0.3, 0.5): (0.2, 0.3, 0.5),
        (0.6, 0.8, -1.0): (0.4, 0.6, 0.0),
        (3.0, 0.0, 0.0): (1.0, 0.0, 0.0),
    }
    for target, nearest in cases.items():
        w = quadratic_on_simplex(torch.eye(3, dtype=DOUBLE), torch.tensor(target, dtype=DOUBLE))
        torch.testing.assert_close(w, torch.tensor(nearest, dtype=DOUBLE), rtol=0, atol=1e-14)


def test_of_equal_parts_the_first_is_taken() -> None:
    # T = 1 makes the first two parts equal, and here they are exact
    sure = torch.eye(2, dtype=DOUBLE)
    assert weights_by_error(compare(sure, sure, torch.tensor([0, 1]))).tolist() == [1.0, 0.0, 0.0]


def test_a_label_that_the_network_excludes_keeps_a_uniform_part() -> None:
    sure = torch.tensor([[1.0, 0.0]], dtype=DOUBLE).repeat(100, 1)
    labels = (
        torch.arange(100) == 0
    ).long()  # once in a hundred the label has probability 0: 1/100 = w₃/2
    assert weights_by_likelihood(compare(sure, sure, labels))[2].item() == pytest.approx(
        0.02, abs=1e-6
    )


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_no_temperature_of_a_fine_grid_has_a_smaller_error(
    temperature: float, generator: Generator
) -> None:
    logits, labels = simulate(300, 5, temperature, 0.1, generator)

    def error(log_t: float) -> float:
        return squared_error(
            np.array([1.0, 0.0, 0.0]), (logits / math.exp(log_t)).softmax(-1), logits, labels
        )

    fine = np.linspace(math.log(0.05), math.log(5), 1001)
    log_t = fit_log_temperature_by_error(logits, labels, math.log(0.05), math.log(5))
    assert error(log_t) <= min(map(error, fine)) + 1e-15
    assert abs(log_t - min(fine, key=error)) <= fine[1] - fine[0]


def test_the_deeper_of_two_valleys_is_found() -> None:
    bottom = minimise_on_grid(lambda x: min((x + 1) ** 2, (x - 1) ** 2 - 0.5), -2.0, 2.0)
    assert bottom == pytest.approx(1, abs=1e-7)


def test_a_temperature_at_its_bound_warns(generator: Generator) -> None:
    logits, labels = simulate(500, 4, 20.0, 0.0, generator)
    with pytest.warns(UserWarning, match=r"smallest at the bound T = 5 of \[0.05, 5\]"):
        ets = EnsembleTemperatureScaling().fit(Outputs(logits), labels)
    assert 0.05 <= ets.temperature <= 5 * (1 + 1e-6)


def test_the_likelihood_variant_is_never_worse_than_temperature_scaling(
    generator: Generator,
) -> None:
    for noise in (0.0, 0.3):
        logits, labels = simulate(300, 5, 2.0, noise, generator)
        outputs = Outputs(logits)
        ts, ets = (
            TemperatureScaling().fit(outputs, labels),
            EnsembleTemperatureScaling("nll").fit(outputs, labels),
        )
        losses = [
            -c(outputs).probs[torch.arange(300), labels].log().mean().item() for c in (ts, ets)
        ]
        assert losses[1] <= losses[0] + 1e-7  # parameters are kept in float32
        assert ets.temperature == ts.temperature


def test_the_mixture_by_hand() -> None:
    ets = EnsembleTemperatureScaling()
    ets.build(2, None)
    ets.log_temperature.data.fill_(math.log(2))
    ets.weights.data.copy_(torch.tensor([0.5, 0.25, 0.25]))
    # z = (2 ln 3, 0): softmax(z/2) = (3/4, 1/4), softmax(z) = (9/10, 1/10)
    probs = ets(Outputs(torch.tensor([[2 * math.log(3), 0.0]]))).probs
    torch.testing.assert_close(
        probs, torch.tensor([[0.375 + 0.225 + 0.125, 0.125 + 0.025 + 0.125]])
    )


# --- promises of every method ---------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_labels_are_the_networks_own_and_probabilities_sum_to_one(
    loss: str, generator: Generator
) -> None:
    logits, labels = simulate(200, 4, 2.0, 0.1, generator)
    for dtype in (torch.float32, DOUBLE):
        outputs = Outputs(logits.round().to(dtype))  # with ties
        prediction = EnsembleTemperatureScaling(loss).fit(outputs, labels)(outputs)
        assert torch.equal(prediction.label, outputs.logits.argmax(-1))
        assert torch.equal(prediction.confidence, prediction.probs.amax(-1))
        torch.testing.assert_close(prediction.probs.sum(-1), torch.ones(200, dtype=dtype))
        assert (prediction.aleatoric, prediction.epistemic) == (None, None)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_second_fit_forgets_the_first_and_nothing_is_random(
    loss: str, generator: Generator
) -> None:
    first, second = simulate(100, 3, 2.0, 0.1, generator), simulate(100, 5, 1.5, 0.1, generator)
    twice, once = (
        EnsembleTemperatureScaling(loss).fit(Outputs(first[0]), first[1]),
        EnsembleTemperatureScaling(loss),
    )
    states = [ets.fit(Outputs(second[0]), second[1]).state_dict() for ets in (twice, once)]
    for a, b in itertools.zip_longest(*(state.values() for state in states)):
        assert torch.equal(a, b)


@pytest.mark.parametrize("loss", LOSSES)
def test_all_correct_stays_finite(loss: str, generator: Generator) -> None:
    logits = torch.randn(50, 4, generator=generator)
    with pytest.warns(UserWarning, match="^All 50 inputs are classified correctly"):
        ets = EnsembleTemperatureScaling(loss).fit(Outputs(logits), logits.argmax(-1))
    assert ets(Outputs(logits)).probs.isfinite().all()


def test_an_unknown_loss_gets_one_clear_sentence() -> None:
    with pytest.raises(ValueError, match=r'^`loss` must be "mse" or "nll"; got \'ece\'.$'):
        EnsembleTemperatureScaling("ece")
