import numpy as np
import pytest
import torch
from numpy.polynomial.chebyshev import chebvander

from simplexcal.concrete import _chebyshev
from simplexcal.concrete._chebyshev import locate, sum_over_classes, value_at_classes
from simplexcal.concrete._kernel import kernel_for

DOUBLE = torch.float64
KERNEL = kernel_for(torch.empty(1, 9, dtype=DOUBLE))


@pytest.mark.parametrize("n", [3, 4, 18, 39])
def test_sums_and_values_of_the_polynomials_equal_numpys(
    n: int, generator: torch.Generator
) -> None:
    r = KERNEL.resolution
    classes = locate(-5 * torch.rand(2, 9, dtype=DOUBLE, generator=generator), r, KERNEL.fading)
    s = (
        np.resize([1, 1, -1, -1], n)
        * chebvander(classes.u.numpy(), n - 1)
        * classes.weight.numpy()[..., None]
    )
    factor = torch.randn(2, 9, dtype=DOUBLE, generator=generator)
    sums = sum_over_classes(factor, *classes, r, n)
    np.testing.assert_allclose(sums.numpy(), (factor.numpy()[..., None] * s).sum(1), atol=1e-12)
    c = torch.randn(2, n, dtype=DOUBLE, generator=generator)
    values = value_at_classes(c, *classes, r)
    np.testing.assert_allclose(values.numpy(), (c.numpy()[:, None] * s).sum(-1), atol=1e-12)


@pytest.mark.parametrize("n", [3, 18])
def test_derivatives_of_both(n: int, generator: torch.Generator) -> None:
    r = KERNEL.resolution
    shifted = (-5 * torch.rand(2, 4, dtype=DOUBLE, generator=generator)).requires_grad_()
    factor = torch.randn(2, 4, dtype=DOUBLE, generator=generator).requires_grad_()
    c = torch.randn(2, n, dtype=DOUBLE, generator=generator).requires_grad_()
    functions = [
        (lambda a, f: sum_over_classes(f, *locate(a, r, KERNEL.fading), r, n), (shifted, factor)),
        (lambda a, c: value_at_classes(c, *locate(a, r, KERNEL.fading), r), (shifted, c)),
    ]
    for function, inputs in functions:
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)


def test_many_inputs_at_once_and_one_by_one_agree_under_torchs_transforms(
    generator: torch.Generator,
) -> None:
    r = KERNEL.resolution
    shifted = -5 * torch.rand(3, 2, 4, dtype=DOUBLE, generator=generator)
    c = torch.randn(2, 5, dtype=DOUBLE, generator=generator)

    def total(a: torch.Tensor) -> torch.Tensor:
        return (value_at_classes(c, *locate(a, r, KERNEL.fading), r) ** 2).sum()

    together = torch.func.vmap(torch.func.grad(total))(shifted)
    torch.testing.assert_close(together, torch.stack([torch.func.grad(total)(a) for a in shifted]))


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)  # torch's own use of it
def test_forward_and_backward_derivatives_agree(generator: torch.Generator) -> None:
    r = KERNEL.resolution
    shifted = -5 * torch.rand(2, 4, dtype=DOUBLE, generator=generator)
    step = torch.randn(2, 4, dtype=DOUBLE, generator=generator)

    def total(a: torch.Tensor) -> torch.Tensor:
        c = sum_over_classes(a, *locate(a, r, KERNEL.fading), r, 5)
        return value_at_classes(c, *locate(a, r, KERNEL.fading), r).sum()

    forward = torch.func.jvp(total, (shifted,), (step,))[1]
    torch.testing.assert_close(forward, (torch.func.grad(total)(shifted) * step).sum())


def test_newtons_form_is_another_basis_of_the_same_polynomials_and_stays_small() -> None:
    n = 20
    u = np.linspace(-1, _chebyshev.TOP, 101)
    newton = _chebyshev.newton_polynomials(u, n)
    expected = chebvander(u, n - 1) * _chebyshev.signs(n)
    matrix = _chebyshev.newton_matrix(n)
    np.testing.assert_allclose(newton @ matrix.T, expected, rtol=0, atol=1e-9)
    assert np.abs(newton).max() < 10
    assert np.abs(matrix).max() < 100
