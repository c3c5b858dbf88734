from typing import Any

import numpy as np
import pytest
import torch
from numpy.polynomial.chebyshev import chebvander

from simplexcal import Concrete, _chunking
from simplexcal.concrete import _kernel, _potential

GAMMA = float(np.euler_gamma)


def test_chebyshev_polynomials_equal_numpys() -> None:
    x = torch.linspace(-1, 1, 101, dtype=torch.float64)
    np.testing.assert_allclose(
        _potential.chebyshev_series(x, 48).numpy(), chebvander(x.numpy(), 47), atol=1e-12
    )


@pytest.mark.parametrize("temperature", [1e-30, 1e-3, 0.5, 1.0, 2.0, 1e3, 1e30])
def test_ratio_and_scale_rebuild_the_temperature(temperature: float) -> None:
    t = torch.tensor(temperature, requires_grad=True)
    ratio = _potential.ratio(t)
    assert ratio.item() == pytest.approx(min(temperature, 1 / temperature), rel=1e-6)
    (slope,) = torch.autograd.grad(ratio, t)
    assert slope.isfinite()


def test_without_a_second_gumbel_the_potential_is_logsumexp(generator: torch.Generator) -> None:
    logits = 3 * torch.randn(20, 7, dtype=torch.float64, generator=generator)
    value = _potential.potential(logits, torch.full((20,), 1e-12, dtype=torch.float64)).value
    torch.testing.assert_close(
        value, logits.logsumexp(-1) - logits.amax(-1) + GAMMA, rtol=0, atol=1e-11
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mean_and_the_slope_are_the_gradient_of_the_potential(
    dtype: torch.dtype, generator: torch.Generator
) -> None:
    logits = (2 * torch.randn(5, 6, dtype=dtype, generator=generator)).requires_grad_()
    temperature = torch.tensor([0.05, 0.3, 0.6, 0.9, 0.99], dtype=dtype, requires_grad=True)
    value, mean, slope = _potential.potential(logits, temperature)
    d_logits, d_temperature = torch.autograd.grad(value.sum(), (logits, temperature))
    atol = {torch.float32: 2e-5, torch.float64: 1e-10}[dtype]
    # max_i a_i is held at 0, so the gradient of the value is that of m minus one at the largest
    # logit
    top = torch.nn.functional.one_hot(logits.argmax(-1), 6)
    torch.testing.assert_close(d_logits + top, mean, rtol=0, atol=atol)
    torch.testing.assert_close(d_temperature, slope, rtol=0, atol=atol)


def test_chunks_do_not_change_the_result(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    logits = torch.randn(50, 9, generator=generator)
    temperature = 3 * torch.rand(50, generator=generator) + 0.1
    whole = _potential.potential(logits, temperature)
    monkeypatch.setitem(_chunking.CHUNK, "cpu", 1000)
    calls = []

    def counted(g: torch.Tensor, t: torch.Tensor) -> _potential.Potential:
        calls.append(len(g))
        return _potential.potential(g, t)

    width = _kernel.row_width(logits)
    parts = _chunking.in_chunks(counted, logits, temperature, width=width)
    assert len(calls) > 10
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-7)


def test_no_autocast_reaches_the_matrices(generator: torch.Generator) -> None:
    logits = torch.randn(50, 9, generator=generator)
    temperature = 3 * torch.rand(50, generator=generator) + 0.1
    plain = _potential.mean(logits, temperature)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(_potential.mean(logits, temperature), plain)


def test_no_autocast_reaches_the_matrices_of_the_inversion(generator: torch.Generator) -> None:
    probs = torch.randn(50, 9, generator=generator).softmax(-1)
    plain = Concrete.from_mean(probs, 0.7).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(Concrete.from_mean(probs, 0.7).logits, plain)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_no_switch_for_faster_products_reaches_the_matrices(
    precision: str, generator: torch.Generator
) -> None:
    logits = torch.randn(5000, 9, generator=generator)
    exact = _potential.mean(logits.double(), torch.ones(5000, dtype=torch.float64))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        # Not every processor obeys, so that an accurate mean alone does not prove it.
        assert _kernel.kernel_for(logits).core.dtype == torch.float64
        mean = _potential.mean(logits, torch.ones(5000))
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(mean.double(), exact, rtol=0, atol=5e-7)


@pytest.mark.skipif(
    not hasattr(torch.backends.mkldnn, "matmul"), reason="needs the switches of PyTorch 2.9"
)
def test_nor_does_a_switch_of_a_backend() -> None:
    logits = torch.zeros(1, 9)
    backends: Any = torch.backends
    matmul = backends.mkldnn.matmul
    owners = (backends, backends.mkldnn, matmul)
    before = [owner.fp32_precision for owner in owners]
    try:
        for owner in owners:
            # A switch that is not set follows the one above it.
            matmul.fp32_precision = "none"
            owner.fp32_precision = "bf16"
            assert _kernel.product_dtype(logits) == torch.float64
            owner.fp32_precision = "none"
    finally:
        for owner, precision in zip(owners, before, strict=True):
            owner.fp32_precision = precision


def test_a_graph_which_may_run_anywhere_has_float64_matrices() -> None:
    compiled = torch.compile(_kernel.product_dtype, backend="eager")
    assert compiled(torch.zeros(1, 9)) == torch.float64


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)  # torch's own use of it
def test_derivatives_in_forward_mode_equal_those_in_backward_mode_where_logits_tie() -> None:
    logits, temperature = (
        torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64),
        torch.ones(2).double(),
    )

    def mean(rows: torch.Tensor) -> torch.Tensor:
        return _potential.mean(rows, temperature)

    forward, backward = torch.func.jacfwd(mean)(logits), torch.func.jacrev(mean)(logits)
    torch.testing.assert_close(forward, backward, rtol=0, atol=1e-13)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)  # torch's own use of it
def test_second_derivatives_may_be_forward_over_backward(generator: torch.Generator) -> None:
    logits, temperature = (
        torch.randn(1, 4, generator=generator, dtype=torch.float64),
        torch.ones(1).double(),
    )

    def first(rows: torch.Tensor) -> torch.Tensor:
        return _potential.mean(rows, temperature)[0, 0]

    twice_backward = torch.func.jacrev(torch.func.jacrev(first))(logits)
    torch.testing.assert_close(
        torch.func.hessian(first)(logits), twice_backward, rtol=0, atol=1e-13
    )
