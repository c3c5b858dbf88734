"""IOP-DIAG: the minimum is scipy's, and the order of the classes stays."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax
from torch import Generator, Tensor

from simplexcal import DiagonalIntraOrderPreserving, Outputs, TemperatureScaling
from simplexcal.calibrators._centred import centred
from simplexcal.calibrators.order_preserving import MIN_SLOPE

Floats = NDArray[np.float64]


def simulate(n: int, k: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return logits, and labels that follow the softmax of an uneven function of them."""
    g = Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, k, generator=g, dtype=torch.float64)
    truth = logits.clamp_max(2) + 0.2 * logits.clamp_min(2)
    return logits, truth.softmax(-1).multinomial(1, generator=g).squeeze(1)


def piecewise(x: Floats, knots: Floats, slopes: Floats) -> Floats:
    """Return m(x), by numpy's interpolation between the knots and straight lines beyond."""
    heights = slopes[0] * knots[0] + np.concatenate(
        [[0.0], np.cumsum(slopes[1:-1] * np.diff(knots))]
    )
    inside = np.interp(x, knots, heights)
    below = np.minimum(x - knots[0], 0)
    total: Floats = inside + slopes[0] * below + slopes[-1] * np.maximum(x - knots[-1], 0)
    return total


def objective(
    slopes: Floats, x: Floats, labels: NDArray[np.int64], knots: Floats, weights: Floats, n: float
) -> float:
    log_p = log_softmax(piecewise(x, knots, slopes), axis=1)
    penalty = (np.diff(slopes) ** 2).sum() + (slopes.mean() - 1) ** 2
    return float(-(weights * log_p[np.arange(len(x)), labels]).sum() + penalty / n)


@pytest.mark.parametrize("k", [2, 3, 12])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_slopes_are_those_of_scipys_bounded_minimum(k: int, weighted: bool) -> None:
    logits, labels = simulate(150, k)
    weights = torch.ones(150, dtype=torch.float64)
    if weighted:
        weights = torch.arange(1, 151).double() % 5 + 1
    calibrator = DiagonalIntraOrderPreserving(n_knots=6).double()
    calibrator.fit(logits, labels, sample_weight=weights)
    z = logits.numpy() / calibrator.temperature.item()
    x = z - z.mean(1, keepdims=True)
    w = (weights / weights.sum()).numpy()
    knots = calibrator.knots.numpy()
    n = 1 / (w**2).sum()
    arguments = (x, labels.numpy(), knots, w, n)
    expected = minimize(
        objective, np.ones(7), arguments, "L-BFGS-B", bounds=[(MIN_SLOPE, None)] * 7, tol=1e-13
    )
    found = calibrator.slopes.double().numpy()
    assert objective(found, *arguments) <= expected.fun + 1e-8
    np.testing.assert_allclose(found, expected.x, rtol=0, atol=2e-3)
    probs = np.exp(log_softmax(piecewise(x, knots, found), axis=1))
    np.testing.assert_allclose(calibrator(logits).probs, probs, atol=1e-5)


def test_a_slope_stays_at_its_bound_where_the_truth_falls() -> None:
    g = Generator().manual_seed(0)
    logits = 3 * torch.randn(400, 3, generator=g, dtype=torch.float64)
    truth = logits.minimum(2 - logits)  # falls from 1 on
    labels = truth.softmax(-1).multinomial(1, generator=g).squeeze(1)
    slopes = DiagonalIntraOrderPreserving(n_knots=5, smoothness=1e-6).fit(logits, labels).slopes
    assert (slopes >= MIN_SLOPE * (1 - 1e-6)).all()
    assert (slopes <= MIN_SLOPE * (1 + 1e-6)).any()
    assert (slopes > 0.1).any()


@settings(max_examples=30)
@given(seed=integers(0, 2**31), k=sampled_from([2, 3, 10]), n=integers(5, 200))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_order_of_the_classes_stays(seed: int, k: int, n: int) -> None:
    logits, labels = simulate(n, k, seed)
    logits = logits.float().round(decimals=1)  # with ties
    labels[0] = (labels[1] + 1) % k  # two classes at least
    calibrator = DiagonalIntraOrderPreserving().fit(logits, labels)
    new = 5 * torch.randn(300, k, generator=Generator().manual_seed(seed))
    prediction = calibrator(new)
    order = new.argsort(-1)
    sorted_probs = prediction.probs.gather(1, order)
    assert (sorted_probs.diff(dim=-1) >= 0).all()
    assert torch.equal(prediction.label, new.argmax(-1))


def test_it_is_better_than_temperature_scaling_where_the_truth_is_uneven() -> None:
    logits, labels = simulate(10_000, 5)
    losses = []
    for make in (TemperatureScaling, DiagonalIntraOrderPreserving):
        probs = make().fit(logits[:2000], labels[:2000])(logits[2000:]).probs
        losses.append(-probs.gather(1, labels[2000:, None]).log())
    gain = losses[0] - losses[1]
    assert gain.mean() > 5 * gain.std() / 8000**0.5


def test_where_temperature_scaling_is_the_truth_it_is_that() -> None:
    g = Generator().manual_seed(0)
    logits = 3 * torch.randn(20_000, 4, generator=g)
    labels = (logits / 2).softmax(-1).multinomial(1, generator=g).squeeze(1)
    calibrator = DiagonalIntraOrderPreserving(smoothness=100.0).fit(logits, labels)
    expected = (logits / 2).softmax(-1)
    torch.testing.assert_close(calibrator(logits).probs, expected, rtol=0, atol=0.03)


@pytest.mark.filterwarnings("ignore:All 60 inputs")
def test_where_every_label_is_predicted_the_slopes_stay_finite() -> None:
    logits, _ = simulate(60, 3)
    calibrator = DiagonalIntraOrderPreserving().fit(logits, logits.argmax(-1))
    confidence = calibrator(logits).confidence
    assert calibrator.slopes.max() < 10
    assert confidence.mean() > 0.9


def test_a_class_of_which_there_is_no_label_and_1000_classes_are_no_problem() -> None:
    logits, labels = simulate(300, 1000)
    outputs = Outputs(logits.float())
    probs = DiagonalIntraOrderPreserving().fit(outputs, labels.clamp_max(900))(outputs).probs
    assert probs.isfinite().all()
    torch.testing.assert_close(probs.sum(-1), torch.ones(300))


def test_a_masked_class_may_be_any_distance_down() -> None:
    logits, labels = simulate(300, 4)
    probs = []
    for far in (-1e4, torch.finfo(torch.float32).min):
        masked = torch.cat([logits.float(), torch.full((300, 1), far)], -1)
        probs.append(DiagonalIntraOrderPreserving().fit(masked, labels)(masked).probs)
    torch.testing.assert_close(*probs)
    assert probs[0][:, -1].max() < 1e-10


def test_centred_logits_have_mean_0_whatever_their_constant() -> None:
    logits, _ = simulate(50, 7)
    found = centred(logits + 1000, 2.0)
    torch.testing.assert_close(found, logits / 2 - logits.mean(-1, keepdim=True) / 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_knots": 0}, "`n_knots` must be at least 1; got 0"),
        ({"smoothness": 0.0}, r"`smoothness` must be positive; got 0\.0"),
    ],
)
def test_settings_without_meaning_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DiagonalIntraOrderPreserving(**arguments)  # type: ignore[arg-type]
