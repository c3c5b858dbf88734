import numpy as np
import pytest
import torch
from numpy.polynomial.chebyshev import chebvander

from simplexcal import Concrete, _kernel, _noise
from simplexcal._kernel import RESOLUTIONS, Kernel, kernel_for

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-11}


def small_kernel(dtype: torch.dtype) -> Kernel:
    return kernel_for(torch.zeros(1, 10, dtype=dtype))


@pytest.mark.parametrize("dtype", RESOLUTIONS)
@pytest.mark.parametrize("ratio", [0.02, 0.5, 1.0])
def test_the_factors_reproduce_the_noise_law(dtype: torch.dtype, ratio: float) -> None:
    kernel = small_kernel(dtype)
    r = kernel.resolution
    series = chebvander(2 * ratio / _noise.LAST_RATIO - 1, r.terms - 1)
    nodes = np.einsum("nt,trq->rq", series, kernel.nodes.numpy().reshape(r.terms, r.rank, -1))
    z = r.first_node + kernel.spacing * np.arange(nodes.shape[1])
    for step in (0, 8, 40):  # classes at a = 0, -1, -5
        a = -step * _noise.SPACING
        hazard = np.exp(a) * kernel.spread.numpy()[step + r.padding] @ nodes
        exact = np.exp(-(z - a) - _noise.excess(ratio, z - a))
        weight = np.exp(-np.exp(-z - _noise.excess(ratio, z)))  # P(largest class ≤ z) bounds what an error at z does
        assert np.max(weight * np.abs(hazard - exact)) < TOLERANCE[dtype]


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
    assert not small_kernel(torch.float32).nodes.is_inference()


def test_a_float32_lattice_as_mps_needs_it_is_still_accurate(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    assert _kernel._lattice_dtype(torch.device("mps")) == torch.float32
    logits, temperature = 3 * torch.randn(200, 10, generator=generator), torch.logspace(-3, 3, 200)
    exact = Concrete(logits.double(), temperature.double()).mean
    monkeypatch.setattr(_kernel, "_lattice_dtype", lambda _: torch.float32)
    _kernel._kernel.cache_clear()
    try:
        torch.testing.assert_close(Concrete(logits, temperature).mean.double(), exact, rtol=0, atol=1e-5)
    finally:
        _kernel._kernel.cache_clear()
