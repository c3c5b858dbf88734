"""``Concrete.from_mean``: the distribution with a given mean."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, sampled_from
from torch import Tensor

from simplexcal import Concrete
from simplexcal.concrete import _inversion, _turned, _turned_inversion, moments_of_mean

DOUBLE = torch.float64
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
# Largest error of the mean, as promised.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-6}
LARGEST_K = 21841


def make_probs(k: int, seed: int, scale: float, dtype: torch.dtype = DOUBLE) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(k, generator=g, dtype=DOUBLE)).softmax(-1).to(dtype)


def temperatures() -> Any:
    return floats(-3, 3).map(lambda exponent: 10**exponent)


def scales() -> Any:
    return floats(-1, 2).map(lambda exponent: 10**exponent)


@settings(max_examples=40)
@given(
    seed=integers(0, 2**31),
    k=integers(2, 200),
    lam=temperatures(),
    scale=scales(),
    dtype=sampled_from([torch.float64, torch.float32]),
)
def test_the_mean_is_the_given_one(
    seed: int, k: int, lam: float, scale: float, dtype: torch.dtype
) -> None:
    probs = make_probs(k, seed, scale, dtype)
    found = Concrete.from_mean(probs, lam)
    assert found.logits.dtype == dtype
    torch.testing.assert_close(found.mean, probs, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("k", [2, 10, 1000, LARGEST_K])
def test_the_mean_is_the_given_one_for_every_number_of_classes(
    k: int, dtype: torch.dtype, device: str
) -> None:
    every = [(lam, scale) for lam in (1e-3, 0.3, 1.0, 3.0, 1e3) for scale in (0.1, 3.0, 30.0)]
    lams = torch.tensor([lam for lam, _ in every], dtype=dtype, device=device)
    rows = [make_probs(k, i, scale, dtype) for i, (_, scale) in enumerate(every)]
    probs = torch.stack(rows).to(device)
    mean = Concrete.from_mean(probs, lams).mean
    torch.testing.assert_close(mean, probs, rtol=0, atol=TOLERANCE[dtype])


@settings(max_examples=40)
@given(seed=integers(0, 2**31), k=integers(2, 100), lam=temperatures())
def test_the_location_comes_back_up_to_a_constant(seed: int, k: int, lam: float) -> None:
    g = torch.Generator().manual_seed(seed)
    # Further down than 25 in these units a probability has the right order of magnitude alone.
    logits = 20 * max(1.0, lam) * torch.rand(k, generator=g, dtype=DOUBLE)
    logits = logits - logits.amax()
    found = Concrete.from_mean(Concrete(logits, lam).mean, lam).logits
    assert found.amax() == 0
    torch.testing.assert_close(found / max(1.0, lam), logits / max(1.0, lam), rtol=0, atol=1e-6)


def test_the_location_of_the_golden_means(golden: list[dict[str, Any]]) -> None:
    """The golden means come from an independent implementation and are good to 1e-12."""
    compared = 0
    for case in golden:
        probs = torch.tensor(case["mean"], dtype=DOUBLE)
        if probs.min() < 1e-6:  # The golden value has too few digits of the logit.
            continue
        compared += 1
        lam = float(case["temperature"])
        logits = torch.tensor(case["logits"], dtype=DOUBLE)
        found = Concrete.from_mean(probs, lam).logits
        expected = logits - logits.amax()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * max(1.0, lam))
    assert compared >= 20


@settings(max_examples=40)
@given(seed=integers(0, 2**31), k=integers(2, 300), lam=temperatures(), scale=scales())
def test_a_larger_probability_has_a_larger_logit(
    seed: int, k: int, lam: float, scale: float
) -> None:
    probs = make_probs(k, seed, scale)
    order = probs.argsort()
    found = Concrete.from_mean(probs, lam).logits[order]
    assert (found.diff() >= 0).all()
    # Where probabilities differ by more than rounding, so do the logits.
    apart = probs[order].diff() > 1e-9 * probs[order][1:]
    assert (found.diff()[apart] > 0).all()


@settings(max_examples=40)
@given(seed=integers(0, 2**31), k=integers(2, 100), lam=temperatures(), scale=scales())
def test_permuted_probabilities_have_permuted_logits(
    seed: int, k: int, lam: float, scale: float
) -> None:
    probs = make_probs(k, seed, scale)
    order = torch.randperm(k, generator=torch.Generator().manual_seed(seed))
    found = Concrete.from_mean(probs, lam).logits
    permuted = Concrete.from_mean(probs[order], lam).logits
    torch.testing.assert_close(permuted, found[order], rtol=1e-9, atol=1e-9 * max(1.0, lam))


def test_a_small_temperature_leaves_the_logarithm_of_the_mean() -> None:
    probs = make_probs(10, 0, 3.0)
    found = Concrete.from_mean(probs, 1e-6).logits
    expected = probs.log() - probs.log().amax()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("lam", [1e-3, 0.5, 1.0, 20.0, 1e3])
def test_a_class_with_probability_0_stays_at_0(lam: float, dtype: torch.dtype) -> None:
    some = make_probs(5, 1, 2.0, dtype)
    probs = torch.cat([some[:2], torch.zeros(3, dtype=dtype), some[2:]])
    found = Concrete.from_mean(probs, lam)
    assert (found.mean[2:5] == 0).all()
    torch.testing.assert_close(found.mean, probs, rtol=0, atol=TOLERANCE[dtype])
    # The other classes have the distribution that they have without the masked ones.
    alone = Concrete.from_mean(some, lam)
    kept = torch.cat([found.logits[:2], found.logits[5:]])
    tolerance = 1e3 * max(1.0, lam) * torch.finfo(dtype).eps
    torch.testing.assert_close(kept, alone.logits, rtol=1e-5, atol=tolerance)


@pytest.mark.parametrize("lam", [1e-3, 1.0, 1e3])
def test_a_certain_class_has_finite_logits(lam: float) -> None:
    found = Concrete.from_mean(torch.tensor([0.0, 1.0, 0.0], dtype=DOUBLE), lam)
    assert found.logits.isfinite().all()
    assert found.mean.tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("k", "lam"), [(2, 0.05), (2, 30.0), (3, 0.9), (10, 0.3), (10, 1.1), (45, 0.9)]
)
def test_derivatives_equal_finite_differences(k: int, lam: float) -> None:
    logits = torch.randn(2, k, generator=torch.Generator().manual_seed(k), dtype=DOUBLE)
    temperature = torch.tensor([lam, 1.3 * lam], dtype=DOUBLE)

    def location(z: Tensor, t: Tensor) -> Tensor:
        return Concrete.from_mean(z.softmax(-1), t, validate_args=False).logits

    arguments = (logits.requires_grad_(), temperature.requires_grad_())
    assert torch.autograd.gradcheck(location, arguments, rtol=1e-4, atol=1e-6)


def test_the_derivative_of_the_round_trip_is_that_of_the_identity() -> None:
    """d mean(from_mean(p, λ)) / dp = 1 on the simplex, and the derivative in λ is 0."""
    probs = make_probs(6, 3, 1.5).requires_grad_()
    temperature = torch.tensor(0.8, dtype=DOUBLE, requires_grad=True)
    weights = torch.randn(6, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    mean = Concrete.from_mean(probs, temperature, validate_args=False).mean
    by_probs, by_temperature = torch.autograd.grad((weights * mean).sum(), (probs, temperature))
    # from_mean divides by the sum, so that what is left is the part along the simplex.
    expected = weights - (weights * probs.detach()).sum()
    torch.testing.assert_close(by_probs, expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(by_temperature, torch.zeros_like(by_temperature), rtol=0, atol=1e-8)


def test_few_evaluations_of_the_mean_map_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """At K = 10, 3 in float32 on a CPU, 4 in the reference; the last one gives the moments."""
    probs = make_probs(10, 0, 3.0, torch.float32)
    for module, expected in ((_turned_inversion, 3), (_inversion, 4)):
        calls: list[int] = []
        evaluate = module._integrate

        def counted(*arguments: Any, evaluate: Any = evaluate, calls: Any = calls) -> Any:
            calls.append(1)
            return evaluate(*arguments)

        monkeypatch.setattr(module, "_integrate", counted)
        Concrete.from_mean(probs, 0.7)
        assert len(calls) == expected
        monkeypatch.setattr(_turned, "applies", lambda *_: False)


@settings(max_examples=40)
@given(seed=integers(0, 2**31), k=integers(2, 100), lam=temperatures(), scale=scales())
def test_expected_entropy_and_mutual_information_add_up_to_the_entropy_of_the_mean(
    seed: int, k: int, lam: float, scale: float
) -> None:
    probs = make_probs(k, seed, scale)
    found = Concrete.from_mean(probs, lam).moments()
    entropy = -torch.special.xlogy(probs, probs).sum()
    both = found.expected_entropy + found.mutual_information
    torch.testing.assert_close(both, entropy, rtol=0, atol=1e-9)
    assert found.expected_entropy >= 0
    assert found.expected_entropy <= entropy + 1e-12


@pytest.mark.parametrize(
    ("dtype", "mean", "expected_entropy", "entropy"),
    [(torch.float64, 1e-12, 1e-9, 1e-10), (torch.float32, 1e-6, 5e-6, 2e-6)],
)
def test_the_moments_of_a_mean_are_those_of_its_distribution(
    dtype: torch.dtype, mean: float, expected_entropy: float, entropy: float
) -> None:
    """The tolerances are those of the golden values of ``Concrete`` itself.

    No class is further than 24 below the largest, where one φ serves all (docs/theory.md).
    """
    lams = torch.tensor([1e-3, 0.1, 0.5, 0.8, 1.0, 1.25, 2.0, 10.0, 1e3], dtype=dtype)
    for k in (2, 10, 100):
        for scale in (0.3, 1.0, 3.0):
            probs = torch.stack([make_probs(k, i, scale, dtype) for i in range(len(lams))])
            found = moments_of_mean(probs, lams)
            exact = Concrete.from_mean(probs.double(), lams.double()).moments()
            assert found.mean is probs or torch.equal(found.mean, probs)
            close = {
                "expected_entropy": (0.0, expected_entropy),
                "mutual_information": (0.0, expected_entropy),
                "entropy": (entropy, entropy),
            }
            for name, (rtol, atol) in close.items():
                value = getattr(found, name).double()
                torch.testing.assert_close(value, getattr(exact, name), rtol=rtol, atol=atol)
            through_logits = Concrete.from_mean(probs, lams).mean
            torch.testing.assert_close(through_logits, probs, rtol=0, atol=mean)


@pytest.mark.parametrize(
    ("probs", "temperature", "message"),
    [
        ([0.5, 0.6], 1.0, "`probs`"),
        ([1.5, -0.5], 1.0, "`probs`"),
        ([0.5, 0.5], 0.0, "`temperature` must be positive"),
        ([1.0], 1.0, r"`probs` must have shape \(\.\.\., K\)"),
    ],
)
def test_what_is_no_mean_gets_one_clear_sentence(
    probs: list[float], temperature: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Concrete.from_mean(torch.tensor(probs), temperature, validate_args=True)


def test_shapes_are_those_of_torch_distributions() -> None:
    probs = make_probs(4, 0, 1.0).expand(3, 2, 4)
    found = Concrete.from_mean(probs, torch.ones(2, dtype=DOUBLE))
    assert found.batch_shape == (3, 2)
    assert found.event_shape == (4,)
    assert Concrete.from_mean(probs[0, 0], 1.0).batch_shape == ()
    assert Concrete.from_mean(probs[:0], 1.0).logits.shape == (0, 2, 4)
