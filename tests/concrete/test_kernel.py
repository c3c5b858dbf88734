import numpy as np
import pytest
import torch
from numpy.polynomial.chebyshev import chebvander

from simplexcal import Concrete
from simplexcal.concrete import _chebyshev, _gumbel_sum, _kernel
from simplexcal.concrete._chebyshev import Resolution
from simplexcal.concrete._gumbel_sum import Array
from simplexcal.concrete._kernel import RESOLUTIONS, Kernel, kernel_for

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-11}


def small_kernel(dtype: torch.dtype) -> Kernel:
    return kernel_for(torch.zeros(1, 10, dtype=dtype))


@pytest.mark.parametrize("dtype", RESOLUTIONS)
@pytest.mark.parametrize("ratio", [0.02, 0.5, 1.0])
def test_the_factors_reproduce_the_distribution_of_the_gumbel_sum(
    dtype: torch.dtype, ratio: float
) -> None:
    kernel = small_kernel(dtype)
    r = kernel.resolution
    series = chebvander(2 * ratio / _gumbel_sum.LAST_RATIO - 1, r.terms - 1)
    matrix = series @ kernel.ratio_functions.numpy() @ kernel.core.numpy()
    nodes = matrix.reshape(r.rank, -1) @ kernel.node_functions.numpy()
    z = r.first_node + kernel.spacing * np.arange(nodes.shape[1])
    for a in (0.0, -1.03, -5.21):
        hazard = (
            np.exp(a)
            * (_chebyshev.polynomials(r, np.array([a])) @ kernel.collect.numpy())[0]
            @ nodes
        )
        exact = np.exp(-(z - a) - _gumbel_sum.excess(ratio, z - a))
        weight = np.exp(
            -np.exp(-z - _gumbel_sum.excess(ratio, z))
        )  # P(largest class ≤ z) bounds what an error at z does
        assert np.max(weight * np.abs(hazard - exact)) < TOLERANCE[dtype]


@pytest.mark.parametrize("r", RESOLUTIONS.values())
def test_the_tangent_differentiates_any_coefficients(r: Resolution) -> None:
    def values(a: Array, n: int) -> Array:
        signs = np.resize([1, 1, -1, -1], n)
        return np.asarray(
            np.exp(0.9 * a)[:, None] * signs * chebvander(r.variable(a), n - 1), np.float64
        )

    a, step, n = np.linspace(-20.0, 0.0, 57), 1e-4, 6
    change = (values(a + step, n) - values(a - step, n)) / (2 * step)
    exact = values(a, n + 1) @ _chebyshev.tangent(r, n, torch.device("cpu")).numpy().T
    np.testing.assert_allclose(
        exact, change, rtol=0, atol=1e-5
    )  # the error of the difference: step² times x‴ / 6


def test_few_kernels_serve_many_numbers_of_classes() -> None:
    kernels = {id(kernel_for(torch.zeros(1, k))) for k in range(2, 200)}
    assert len(kernels) < 12


def test_zero_is_a_node_so_that_the_unit_step_is_exact() -> None:
    for dtype in RESOLUTIONS:
        assert (small_kernel(dtype).unit_step == 0.5).sum() == 1


def test_a_kernel_first_made_in_inference_mode_serves_training_too() -> None:
    _kernel._kernel.cache_clear()
    with torch.inference_mode():
        kernel_for(torch.zeros(1, 10))
    assert not small_kernel(torch.float32).core.is_inference()


def test_a_kernel_first_made_in_a_transform_serves_others_too() -> None:
    def first(logits: torch.Tensor) -> torch.Tensor:
        return Concrete(logits, 1.0, validate_args=False).mean[0]

    logits = torch.tensor([1.0, 0.0, -1.0])
    expected = torch.func.grad(first)(logits)
    for caches in (_kernel._kernel, _chebyshev.tangent):
        caches.cache_clear()
    for transformed in (torch.func.jacrev(torch.func.jacrev(first)), torch.func.grad(first)):
        found = transformed(logits)
    assert torch.equal(found, expected)


def test_float32_matrices_as_mps_needs_them_are_still_accurate(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    assert _chebyshev.matrix_dtype(torch.device("mps")) == torch.float32
    logits, temperature = 3 * torch.randn(200, 10, generator=generator), torch.logspace(-3, 3, 200)
    exact = Concrete(logits.double(), temperature.double()).mean
    monkeypatch.setattr(_chebyshev, "matrix_dtype", lambda _: torch.float32)
    _kernel._kernel.cache_clear()
    try:
        torch.testing.assert_close(
            Concrete(logits, temperature).mean.double(), exact, rtol=0, atol=1e-5
        )
    finally:
        _kernel._kernel.cache_clear()
