"""The moments on a CPU without derivatives agree with the reference, which has them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from simplexcal import Concrete
from simplexcal.concrete import Moments, _turned, _turned_inversion, moments_of_mean
from simplexcal.concrete._chebyshev import NARROW

DOUBLE = torch.float64


def make_case(k: int, dtype: torch.dtype = DOUBLE, n: int = 60) -> tuple[Tensor, Tensor]:
    """Return logits from flat to peaked, a masked class among them, and temperatures."""
    g = torch.Generator().manual_seed(k)
    scale = 10 ** (2.5 * torch.rand(n, 1, generator=g, dtype=DOUBLE) - 1)
    logits = scale * torch.randn(n, k, generator=g, dtype=DOUBLE)
    logits[0, 0] = -1e4
    temperature = 10 ** (6 * torch.rand(n, generator=g, dtype=DOUBLE) - 3)
    return logits.to(dtype), temperature.to(dtype)


def by_the_reference(
    monkeypatch: pytest.MonkeyPatch, function: Callable[[], Tensor | Moments]
) -> Tensor | Moments:
    with monkeypatch.context() as patch:
        patch.setattr(_turned, "applies", lambda *_: False)
        return function()


@pytest.mark.parametrize("k", [2, 10, 32, 33, 100])
@pytest.mark.parametrize(("dtype", "atol"), [(DOUBLE, 1e-13), (torch.float32, 1e-6)])
def test_means_equal_those_of_the_reference(
    k: int, dtype: torch.dtype, atol: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = Concrete(*make_case(k, dtype))
    expected = by_the_reference(monkeypatch, lambda: d.mean)
    assert d.mean.dtype == dtype
    torch.testing.assert_close(d.mean, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("k", [2, 10, 20, 41, 100])
def test_moments_of_a_mean_equal_those_of_the_reference(
    k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, temperature = make_case(k)
    probs = logits.softmax(-1)
    found = moments_of_mean(probs, temperature)
    expected = by_the_reference(monkeypatch, lambda: moments_of_mean(probs, temperature))
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("k", [2, 10, 100, 1000])
def test_the_start_is_close_to_the_solution(k: int) -> None:
    logits, temperature = make_case(k, n=400)
    probs = logits.softmax(-1)
    location = Concrete.from_mean(probs, temperature).logits
    exact = location / temperature.clamp_min(1).unsqueeze(-1)
    log_mean = probs.log()
    largest = log_mean.amax(-1)
    ratio = torch.minimum(temperature, 1 / temperature)
    below = (log_mean - largest.unsqueeze(-1)).T
    means = _turned_inversion.Means(below, largest, None)
    error = (_turned_inversion.start(means, ratio).T - exact).abs()
    # Further down the constant of the kernel's depth decides.
    error = error[below.T > -15]
    assert error.max() < 0.2
    assert error.median() < 0.01


def test_derivatives_are_left_to_the_reference() -> None:
    logits, temperature = make_case(3)
    assert _turned.applies(logits, temperature)
    logits.requires_grad_()
    assert not _turned.applies(logits, temperature)
    with torch.no_grad():
        assert _turned.applies(logits, temperature)
    with torch.autograd.forward_ad.dual_level():
        assert not _turned.applies(logits.detach(), temperature)

    def in_a_transform(x: Tensor) -> Tensor:
        assert not _turned.applies(x, temperature)
        return x

    torch.func.vmap(in_a_transform)(logits.detach())


@pytest.mark.parametrize("k", [3, 32, 33])
def test_the_layout_in_memory_changes_no_value(k: int) -> None:
    logits, _ = make_case(k)
    turned = _turned.along_memory(logits)
    assert torch.equal(turned, logits)
    assert turned.T.is_contiguous() == (k <= NARROW)
