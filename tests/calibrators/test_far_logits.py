"""Logits far from 0: a constant in a row does not matter, however large it is."""

from collections.abc import Callable

import pytest
import torch
from helpers.methods import METHODS
from helpers.quick_branches import quick_branches
from torch import Generator, Tensor

from simplexcal import Calibrator, FeatureMixup, Outputs
from simplexcal.calibrators._optim import FAR, divide_logits

K = 3
FLOAT32 = [1e10, 1e20, 1e38]
# Isotonic regression gives the share of the surest inputs, and a bias of a class outweighs a tie.
NEVER_CERTAIN = ("isotonic", "vector", "dirichlet")


@pytest.fixture(scope="module")
def calibrators() -> dict[str, Calibrator]:
    g = Generator().manual_seed(0)
    head = torch.nn.Linear(4, K)
    torch.nn.init.normal_(head.weight, generator=g)
    torch.nn.init.zeros_(head.bias)
    features = torch.randn(90, 4, generator=g)
    outputs = Outputs(head(features).detach(), features)
    labels = outputs.logits.softmax(-1).multinomial(1, generator=g).squeeze(1)
    mixup = FeatureMixup(head, outputs, labels)
    fitted = {}
    with pytest.MonkeyPatch.context() as patch:
        quick_branches(patch, 10)
        for name, make in METHODS.items():
            fitted[name] = make().fit(outputs, labels, mixup=mixup, generator=g)
    return fitted


@pytest.mark.parametrize("method", [name for name in METHODS if name not in NEVER_CERTAIN])
@pytest.mark.parametrize(
    ("size", "dtype"),
    [*((size, torch.float32) for size in FLOAT32), (1e10, torch.float64), (1e300, torch.float64)],
)
def test_a_class_that_is_far_ahead_is_certain(
    method: str, size: float, dtype: torch.dtype, calibrators: dict[str, Calibrator]
) -> None:
    logits = size * torch.tensor(
        [[1.0, 0.0, -1.0], [-1.0, -2.0, -1.5], [3.0, 3.0, -3.0], [0.5, 0.9, 0.7]], dtype=dtype
    )
    prediction = calibrators[method](Outputs(logits, torch.zeros(4, 4, dtype=dtype)))
    expected = torch.tensor(
        [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0]], dtype=dtype
    )
    if method == "sts":  # Its head may know which of two equal classes is more often the true one.
        tied = prediction.probs[2]
        assert tied[0] >= tied[1] > 0.4
        expected[2, :2] = tied[:2] / tied[:2].sum()
    torch.testing.assert_close(prediction.probs, expected, rtol=0, atol=1e-6)
    assert torch.equal(prediction.label, torch.tensor([0, 0, 0, 1]))
    for value in vars(prediction).values():
        assert value is None or not value.isnan().any()


@pytest.mark.parametrize("method", NEVER_CERTAIN)
@pytest.mark.parametrize("size", FLOAT32)
def test_far_logits_are_as_good_as_near_ones_for_the_others(
    method: str, size: float, calibrators: dict[str, Calibrator]
) -> None:
    logits = size * torch.tensor([[1.0, 0.0, -1.0], [0.5, 0.5, -1.0], [-1.0, -2.0, 0.9]])
    probs = calibrators[method](Outputs(logits)).probs
    assert probs.argmax(-1).tolist()[::2] == [0, 2]
    torch.testing.assert_close(probs.sum(-1), torch.ones(3))
    assert (probs.amin(-1) < 0.2).all()


@pytest.mark.parametrize("method", [name for name in METHODS if name != "pts"])
def test_a_constant_that_float64_can_hold_changes_nothing(
    method: str, calibrators: dict[str, Calibrator]
) -> None:
    g = Generator().manual_seed(1)
    logits = torch.randint(-8, 8, (50, K), generator=g).double()
    features = torch.randn(50, 4, generator=g).double()
    expected = calibrators[method](Outputs(logits, features)).probs
    for constant in (2.0**20, -(2.0**40)):
        found = calibrators[method](Outputs(logits + constant, features)).probs
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("make", [METHODS[name] for name in ("ts", "ets", "adats", "sts")])
def test_a_fit_to_logits_with_a_large_constant_is_the_same(
    make: Callable[[], Calibrator], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_branches(monkeypatch, 10)
    g = Generator().manual_seed(0)
    logits = torch.randint(-4, 4, (90, K), generator=g).float()
    labels = logits.softmax(-1).multinomial(1, generator=g).squeeze(1)
    features = torch.randn(90, 4, generator=g)
    constants = (0.0, 2.0**20)  # where float32 still holds integers
    fits = [make().fit(Outputs(logits + c, features), labels) for c in constants]
    plain = Outputs(logits, features)
    torch.testing.assert_close(fits[1](plain).probs, fits[0](plain).probs, rtol=1e-3, atol=1e-4)


def test_logits_near_zero_are_divided_and_nothing_else(generator: Generator) -> None:
    logits = 30 * torch.randn(2000, 5, generator=generator)
    temperature = torch.tensor(1.7)
    near = logits.amax(-1).abs() <= FAR * temperature
    assert near.all()
    assert torch.equal(divide_logits(logits, temperature), logits / temperature)


def test_far_logits_are_shifted_before_they_are_divided() -> None:
    logits = torch.tensor([[1e10, 1e10 - 1024, -torch.inf], [3e38, -3e38, 3e38]])
    found = divide_logits(logits, torch.tensor(0.5))
    expected = torch.tensor([[0.0, -2048.0, -torch.inf], [0.0, -torch.inf, 0.0]])
    assert torch.equal(found, expected)


def test_far_logits_have_finite_gradients() -> None:
    logits: Tensor = torch.tensor([[3e38, 1e38, -1e38], [1.0, 2.0, 3.0]], requires_grad=True)
    divide_logits(logits, torch.tensor(0.5)).softmax(-1)[:, 0].sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
