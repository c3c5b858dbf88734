"""The minimum of convex functions."""

import pytest
import torch
from scipy.optimize import minimize
from torch import Generator, Tensor

from simplexcal.calibrators._lbfgs import minimise_convex


def unchanged(gradient: Tensor) -> Tensor:
    return gradient


def logistic(n: int, d: int) -> tuple[Tensor, Tensor]:
    g = Generator().manual_seed(0)
    x = torch.randn(n, d, generator=g, dtype=torch.float64) * torch.logspace(-1, 1, d)
    y = torch.where(x[:, 0] + torch.randn(n, generator=g) > 0, 1.0, -1.0).double()
    return x, y


def test_a_quadratic_function_with_its_own_hessian_takes_one_step() -> None:
    scales = torch.logspace(-3, 3, 7, dtype=torch.float64)
    calls = []

    def function(x: Tensor) -> tuple[float, Tensor]:
        calls.append(x)
        return (0.5 * scales * (x - 1).square()).sum().item(), scales * (x - 1)

    start = torch.zeros(7, dtype=torch.float64)
    found = minimise_convex(function, start, lambda g: g / scales, n_steps=50, tolerance=1e-12)
    torch.testing.assert_close(found, torch.ones(7, dtype=torch.float64))
    assert len(calls) == 2


@pytest.mark.parametrize("wall", [0.0, 1e4])
def test_it_finds_scipys_minimum(wall: float) -> None:
    x, y = logistic(200, 5)

    def function(w: Tensor) -> tuple[float, Tensor]:
        with torch.enable_grad():
            w = w.clone().requires_grad_()
            loss = torch.nn.functional.softplus(-y * (x @ w)).sum() + 0.5 * w.square().sum()
            loss = loss + wall * (w - 0.1).clamp_max(0.0).square().sum()
            loss.backward()
        assert w.grad is not None
        return loss.item(), w.grad

    start = torch.zeros(5, dtype=torch.float64)
    found = minimise_convex(function, start, unchanged, n_steps=500, tolerance=1e-13)

    def for_scipy(w: object) -> tuple[float, object]:
        value, slope = function(torch.as_tensor(w))
        return value, slope.numpy()

    best = minimize(for_scipy, start.numpy(), jac=True, tol=1e-12)
    assert function(found)[0] == pytest.approx(best.fun, rel=1e-9)


def test_no_step_goes_up_and_the_number_of_steps_is_bounded() -> None:
    x, y = logistic(50, 3)
    values = []

    def function(w: Tensor) -> tuple[float, Tensor]:
        margin = y * (x @ w)
        value = torch.nn.functional.softplus(-margin).sum().item()
        values.append(value)
        return value, -(x * (y * torch.sigmoid(-margin)).unsqueeze(1)).sum(0)

    start = torch.zeros(3, dtype=torch.float64)
    points = [minimise_convex(function, start, unchanged, n_steps=n, tolerance=0) for n in range(4)]
    reached = [function(point)[0] for point in points]
    assert reached == sorted(reached, reverse=True)
    assert torch.equal(points[0], start)


def test_at_the_minimum_nothing_moves() -> None:
    start = torch.ones(3, dtype=torch.float64)
    found = minimise_convex(
        lambda x: (0.0, torch.zeros_like(x)), start, unchanged, n_steps=5, tolerance=1e-9
    )
    assert torch.equal(found, start)
