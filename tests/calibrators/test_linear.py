"""Vector scaling and Dirichlet calibration: the minimum is scipy's."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax
from torch import Generator, Tensor

from simplexcal import DirichletCalibration, TemperatureScaling, VectorScaling
from simplexcal.calibrators._linear_calibrator import LinearCalibrator
from simplexcal.calibrators._linear_fit import (
    Affine,
    Data,
    _inverse_curvature,
    choose_strength,
    folds,
)

Floats = NDArray[np.float64]


def simulate(n: int, k: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return logits, and labels that follow softmax(W z + b)."""
    g = Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=g, dtype=torch.float64)
    bias = torch.linspace(-1, 1, k).double()
    mixed = torch.eye(k).double() / 2 + torch.eye(k).double().roll(1, 0) / 4
    labels = (logits @ mixed + bias).softmax(-1).multinomial(1, generator=g).squeeze(1)
    return logits, labels


def nll(z: Floats, labels: Tensor, weights: Floats) -> float:
    log_p = log_softmax(z, axis=1)
    return float(-(weights * log_p[np.arange(len(z)), labels.numpy()]).sum())


def normalised(weights: Tensor) -> tuple[Floats, float]:
    w = (weights / weights.sum()).numpy()
    return w, 1 / (w**2).sum()


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("weighted", [False, True])
def test_vector_scaling_is_scipys_minimum(k: int, weighted: bool) -> None:
    logits, labels = simulate(200, k)
    weights = torch.ones(200, dtype=torch.float64)
    if weighted:
        weights = torch.arange(1, 201).double() % 5 + 1
    calibrator = VectorScaling(strength=3.0).double()
    calibrator.fit(logits, labels, sample_weight=weights)
    assert calibrator.global_temperature is not None
    z = logits.numpy() / calibrator.global_temperature
    x = z - z.mean(1, keepdims=True)
    w, n = normalised(weights)

    def objective(theta: Floats) -> float:
        penalty = ((theta[:k] - 1) ** 2).sum() + (theta[k:] ** 2).sum()
        return float(nll(x * theta[:k] + theta[k:], labels, w) + 3 / (2 * n) * penalty)

    start = np.concatenate([np.ones(k), np.zeros(k)])
    expected = minimize(objective, start, tol=1e-12)
    found = torch.cat([calibrator.weight, calibrator.bias]).double().numpy()
    assert objective(found) <= expected.fun + 1e-7
    np.testing.assert_allclose(found, expected.x, rtol=0, atol=2e-3)
    probs = np.exp(log_softmax(x * found[:k] + found[k:], axis=1))
    np.testing.assert_allclose(calibrator(logits).probs, probs, atol=1e-5)


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("weighted", [False, True])
def test_dirichlet_calibration_is_scipys_minimum(k: int, weighted: bool) -> None:
    logits, labels = simulate(200, k)
    weights = torch.ones(200, dtype=torch.float64)
    if weighted:
        weights = torch.arange(1, 201).double() % 5 + 1
    calibrator = DirichletCalibration(strength=0.1).double()
    calibrator.fit(logits, labels, sample_weight=weights)
    assert calibrator.global_temperature is not None
    x = log_softmax(logits.numpy(), axis=1) / calibrator.global_temperature
    w, n = normalised(weights)

    def parts(theta: Floats) -> tuple[Floats, Floats]:
        return theta[: k * k].reshape(k, k), theta[k * k :]

    def objective(theta: Floats) -> float:
        v, b = parts(theta)
        off = (v**2).sum() - (np.diag(v) ** 2).sum()
        own = ((np.diag(v) - 1) ** 2).sum()
        penalty = 0.1 * (off / (k * (k - 1)) + (b**2).sum() / k) + own / (2 * n)
        return float(nll(x @ v.T + b, labels, w) + penalty)

    start = np.concatenate([np.eye(k).flatten(), np.zeros(k)])
    expected = minimize(objective, start, tol=1e-12)
    found = torch.cat([calibrator.weight.flatten(), calibrator.bias]).double().numpy()
    assert objective(found) <= expected.fun + 1e-7
    np.testing.assert_allclose(found, expected.x, rtol=0, atol=5e-3)
    v, b = parts(found)
    probs = np.exp(log_softmax(x @ v.T + b, axis=1))
    np.testing.assert_allclose(calibrator(logits).probs, probs, atol=1e-5)


@pytest.mark.parametrize("make", [VectorScaling, DirichletCalibration])
def test_with_a_strong_penalty_they_are_temperature_scaling(
    make: type[LinearCalibrator],
) -> None:
    g = Generator().manual_seed(0)
    logits = 3 * torch.randn(20_000, 4, generator=g)
    labels = (logits / 2).softmax(-1).multinomial(1, generator=g).squeeze(1)
    probs = make(strength=1e5).fit(logits, labels)(logits).probs
    expected = TemperatureScaling().fit(logits, labels)(logits).probs
    torch.testing.assert_close(probs, expected, rtol=0, atol=0.03)


@pytest.mark.parametrize("make", [VectorScaling, DirichletCalibration])
def test_where_classes_are_biased_they_are_better_than_temperature_scaling(
    make: type[LinearCalibrator],
) -> None:
    logits, labels = simulate(10_000, 4)
    losses = []
    for calibrator in (TemperatureScaling(), make()):
        prediction = calibrator.fit(logits[:2000], labels[:2000])(logits[2000:])
        losses.append(-prediction.probs.gather(1, labels[2000:, None]).log())
    gain = losses[0] - losses[1]
    assert gain.mean() > 5 * gain.std() / 8000**0.5
    assert torch.equal(prediction.label, prediction.probs.argmax(-1))
    assert (prediction.label != logits[2000:].argmax(-1)).double().mean() > 0.05


@pytest.mark.filterwarnings("ignore:All 60 inputs")
@pytest.mark.parametrize("make", [VectorScaling, DirichletCalibration])
def test_where_every_label_is_predicted_the_parameters_stay_finite(
    make: type[LinearCalibrator],
) -> None:
    logits, _ = simulate(60, 3)
    calibrator = make().fit(logits, logits.argmax(-1))
    assert all(value.abs().max() < 100 for value in calibrator.state_dict().values() if value.dim())
    assert calibrator(logits).confidence.mean() > 0.9


def test_each_class_is_dealt_out_to_the_folds() -> None:
    labels = torch.tensor([2, 0, 1, 0, 2, 0, 1, 1, 2])
    fold = folds(labels, 3)
    for k in range(3):
        assert sorted(fold[labels == k].tolist()) == [0, 1, 2]


def test_the_strength_is_that_of_the_lowest_loss_of_held_out_folds() -> None:
    logits, labels = simulate(90, 3)
    k = 3
    data = Data(logits, labels, torch.full((90,), 1 / 90, dtype=torch.float64))
    identity = Affine(torch.ones(k).double(), torch.zeros(k).double())
    fold = folds(labels, 3)
    strengths = (0.01, 0.1, 1.0, 100.0)
    scores = []
    for strength in strengths:
        total = 0.0
        for i in range(3):
            rows = fold != i
            w = np.full(int(rows.sum()), 1 / int(rows.sum()))
            x = logits[rows].numpy()

            def objective(
                theta: Floats,
                x: Floats = x,
                w: Floats = w,
                y: Tensor = labels[rows],
                strength: float = strength,
            ) -> float:
                penalty = ((theta[:k] - 1) ** 2).sum() + (theta[k:] ** 2).sum()
                return float(nll(x * theta[:k] + theta[k:], y, w) + strength / 2 * penalty)

            theta = minimize(objective, np.r_[np.ones(k), np.zeros(k)], tol=1e-10).x
            held_out = logits[~rows].numpy() * theta[:k] + theta[k:]
            total += nll(held_out, labels[~rows], np.full(len(held_out), 1 / 90))
        scores.append(total)
    chosen = choose_strength(data, identity, lambda s: torch.full((6,), s).double(), strengths)
    assert chosen == strengths[int(np.argmin(scores))]


def test_the_preconditioner_of_a_full_matrix_is_the_inverse_row_by_row() -> None:
    logits, _ = simulate(50, 3)
    x = logits[:, [0, 1, 0]]  # two classes alike, so that the third is not
    data = Data(x, torch.zeros(50).long(), torch.full((50,), 1 / 50, dtype=torch.float64))
    penalty = Affine(torch.full((3, 3), 0.7).double(), torch.full((3,), 0.2).double())
    penalty.weight.fill_diagonal_(0.01)
    identity = Affine(torch.eye(3).double(), torch.zeros(3).double())
    p = x.softmax(-1)
    v = p * (1 - p) / 50
    columns = torch.cat([x, torch.ones(50, 1)], 1)
    all_rows = columns.T @ (columns * v.sum(1, keepdim=True))
    gradient = torch.randn(12, generator=Generator().manual_seed(0), dtype=torch.float64)
    given = identity.like(gradient)
    found = identity.like(_inverse_curvature(data, identity, penalty.flat())(gradient))
    for k in range(3):
        own = torch.cat([penalty.weight[k], penalty.bias[k : k + 1]]).diag()
        hessian = all_rows * v[:, k].sum() / v.sum() + own
        row = torch.cat([given.weight[k], given.bias[k : k + 1]])
        expected = torch.linalg.solve(hessian, row)
        torch.testing.assert_close(torch.cat([found.weight[k], found.bias[k : k + 1]]), expected)


@pytest.mark.parametrize("make", [VectorScaling, DirichletCalibration])
@pytest.mark.parametrize("strength", [0.0, -1.0, float("nan")])
def test_a_strength_must_be_positive(make: type[LinearCalibrator], strength: float) -> None:
    with pytest.raises(ValueError, match="`strength` must be positive or None; got"):
        make(strength)
