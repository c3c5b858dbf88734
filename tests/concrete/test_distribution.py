import math
import warnings
from typing import Any

import pytest
import torch
from helpers.reference import mean_at_one, mean_by_laplace, mean_of_many, two_classes
from hypothesis import given
from hypothesis.strategies import floats, integers, sampled_from
from torch import Tensor

from simplexcal import Concrete

DOUBLE = torch.float64
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
ARGUMENTS = ("logits", "temperature")
MOMENTS = ("mean", "entropy", "expected_entropy", "mutual_information")
SHAPES = ("spread", "ties", "dominant", "equal", "wide")


def make_logits(shape: str, k: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    spread = 3 * torch.randn(k, generator=g, dtype=DOUBLE)
    logits = {
        "spread": spread,
        "ties": spread.round(),
        "dominant": torch.where(torch.arange(k) == seed % k, 50.0, spread),
        "equal": torch.full((k,), float(spread[0]), dtype=DOUBLE),
        "wide": 2000 * torch.rand(k, generator=g, dtype=DOUBLE) - 1000,
    }[shape]
    return logits.to(dtype)


def temperatures() -> Any:
    return floats(-3, 3).map(lambda exponent: 10**exponent)


# --- exact values ---------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)])
@pytest.mark.parametrize(
    ("dtype", "mean", "expected_entropy", "entropy"),
    [(torch.float64, 1e-12, 1e-9, 1e-10), (torch.float32, 1e-6, 5e-6, 2e-6)],
)
def test_moments_equal_the_golden_values(
    golden: list[dict[str, Any]],
    device: str,
    dtype: torch.dtype,
    mean: float,
    expected_entropy: float,
    entropy: float,
) -> None:
    for case in golden:
        logits, temperature = (
            torch.tensor(case[key], dtype=DOUBLE).to(device, dtype) for key in ARGUMENTS
        )
        m = Concrete(logits, temperature).moments()
        torch.testing.assert_close(
            m.mean.cpu().double(), torch.tensor(case["mean"], dtype=DOUBLE), rtol=0, atol=mean
        )
        assert m.expected_entropy.item() == pytest.approx(
            case["expected_entropy"], rel=0, abs=expected_entropy
        )
        assert m.entropy.item() == pytest.approx(case["entropy"], rel=entropy, abs=entropy)


@pytest.mark.parametrize("gap", [0.0, 0.7, 5.0, 20.0])
@pytest.mark.parametrize("temperature", [1e-3, 0.05, 0.5, 1.0, 2.0, 30.0, 1e3])
def test_two_classes_equal_a_direct_quadrature(gap: float, temperature: float) -> None:
    expected = two_classes(gap, temperature)
    m = Concrete(torch.tensor([gap, 0.0], dtype=DOUBLE), temperature).moments()
    assert m.mean[0].item() == pytest.approx(expected["mean"], rel=0, abs=1e-12)
    assert m.expected_entropy.item() == pytest.approx(expected["expected_entropy"], rel=0, abs=1e-9)
    assert m.entropy.item() == pytest.approx(expected["entropy"], rel=1e-11, abs=1e-11)


def test_at_temperature_one_the_mean_equals_the_closed_law() -> None:
    logits = [1.0, -2.0, 0.5, 4.0, -30.0]
    mean = Concrete(torch.tensor(logits, dtype=DOUBLE), 1.0).mean
    torch.testing.assert_close(
        mean, torch.tensor(mean_at_one(logits), dtype=DOUBLE), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("temperature", [0.2, 0.6, 3.0, 12.0])
def test_three_classes_equal_a_nested_quadrature(temperature: float) -> None:
    logits = [1.0, -2.0, 0.5]
    mean = Concrete(torch.tensor(logits, dtype=DOUBLE), temperature).mean
    expected = torch.tensor(mean_by_laplace(logits, temperature), dtype=DOUBLE)
    torch.testing.assert_close(mean, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("k", [2, 1000, 21841])
def test_equal_logits_have_closed_moments(k: int) -> None:
    # by symmetry E[π] = 1/K; for λ = 1, π is Dirichlet-like only for K = 2, where it is uniform on
    # [0, 1]
    m = Concrete(torch.zeros(k, dtype=DOUBLE), 1.0).moments()
    torch.testing.assert_close(m.mean, torch.full((k,), 1 / k, dtype=DOUBLE), rtol=1e-12, atol=0)
    if k == 2:
        assert m.expected_entropy.item() == pytest.approx(0.5, abs=1e-9)  # -2 ∫ p ln p dp
        assert m.entropy.item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("temperature", [0.05, 0.7, 1.0, 4.0])
def test_21841_classes_equal_a_direct_quadrature(
    temperature: float, generator: torch.Generator
) -> None:
    values = 3 * torch.randn(40, dtype=DOUBLE, generator=generator)
    counts = torch.bincount(torch.randint(40, (21801,), generator=generator), minlength=40) + 1
    expected = torch.from_numpy(mean_of_many(values.numpy(), counts.numpy(), temperature))
    logits = values.repeat_interleave(counts)
    places = counts.cumsum(0) - 1  # one class of each value
    torch.testing.assert_close(
        Concrete(logits, temperature).mean[places], expected, rtol=1e-10, atol=1e-14
    )
    torch.testing.assert_close(
        Concrete(logits.float(), temperature).mean[places].double(), expected, rtol=1e-5, atol=1e-12
    )


@pytest.mark.parametrize("k", [100, 1000, 21841])
def test_many_classes_in_float32_equal_float64(k: int, generator: torch.Generator) -> None:
    logits = 3 * torch.randn(30, k, generator=generator)
    temperature = torch.logspace(-3, 3, 30)
    single, double = Concrete(logits, temperature), Concrete(logits.double(), temperature.double())
    torch.testing.assert_close(single.mean.double(), double.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(
        single.expected_entropy().double(), double.expected_entropy(), rtol=0, atol=5e-6
    )
    torch.testing.assert_close(single.entropy().double(), double.entropy(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.float64, 1e-11)])
def test_log_likelihood_is_the_logarithm_of_the_mean(
    dtype: torch.dtype, atol: float, generator: torch.Generator
) -> None:
    logits = 5 * torch.randn(200, 10, generator=generator).to(dtype)
    labels = torch.randint(10, (200,), generator=generator)
    d = Concrete(logits, torch.logspace(-3, 3, 200).to(dtype))
    expected = d.mean.gather(1, labels[:, None]).squeeze(1).log()
    torch.testing.assert_close(d.log_likelihood(labels), expected, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (
            ["a", "b"],
            TypeError,
            r"`labels` must be .* numbers; got list. Number the classes from 0.",
        ),
        (
            torch.zeros(2),
            TypeError,
            r"`labels` must be integers; got torch.float32. .*",
        ),
        (
            torch.tensor([0, 3]),
            ValueError,
            r"`labels` must be in 0..2 for 3 classes; found 3 at position 1. .*",
        ),
        (
            torch.tensor([-1, 0]),
            ValueError,
            r"`labels` must be in 0..2 for 3 classes; found -1 at position 0. .*",
        ),
    ],
)
def test_labels_that_are_no_classes_get_one_clear_sentence(
    labels: Any, error: type[Exception], message: str
) -> None:
    d = Concrete(torch.zeros(2, 3), 1.0)
    with pytest.raises(error, match=f"^{message}$"):
        d.log_likelihood(labels)
    assert d.log_likelihood(torch.tensor([0, 2], dtype=torch.uint8)).shape == (2,)


def test_log_likelihood_survives_where_the_mean_underflows() -> None:
    d = Concrete(torch.tensor([0.0, -500.0]), 0.1)
    assert d.mean[1] == 0
    assert d.log_likelihood(torch.tensor(1)).item() == pytest.approx(-500, rel=1e-3)


def test_small_probabilities_are_relatively_exact(golden: list[dict[str, Any]]) -> None:
    for case in golden:
        expected = torch.tensor(case["mean"], dtype=DOUBLE)
        mean = Concrete(torch.tensor(case["logits"]), case["temperature"]).mean.double()
        seen = expected > 1e-9
        torch.testing.assert_close(mean[seen], expected[seen], rtol=1e-5, atol=0)


def test_moments_agree_with_a_million_samples(generator: torch.Generator) -> None:
    d = Concrete(torch.tensor([1.0, 0.0, -1.0, 2.0], dtype=DOUBLE), 0.7)
    log_pi = d.log_rsample((1_000_000,), generator)
    pi = log_pi.exp()
    m = d.moments()
    samples = [
        (m.mean, pi),
        (m.expected_entropy, -(pi * log_pi).sum(-1)),
        (m.entropy, -d.log_prob_from_log(log_pi)),
    ]
    for exact, values in samples:
        five_errors = 5 * values.std(0) / 1000
        assert ((values.mean(0) - exact).abs() <= five_errors).all()


# --- promises -------------------------------------------------------------------------------------


@given(shape=sampled_from(SHAPES), seed=integers(0, 2**31), k=integers(2, 1000), lam=temperatures())
def test_mean_is_a_distribution_whose_largest_entry_is_at_the_largest_logit(
    shape: str, seed: int, k: int, lam: float
) -> None:
    for dtype in (torch.float32, torch.float64):
        logits = make_logits(shape, k, seed, dtype)
        mean = Concrete(logits, lam).mean
        assert mean.isfinite().all()
        assert (mean >= 0).all()
        assert mean.sum().item() == pytest.approx(1, abs=1e-5 if dtype == torch.float32 else 1e-12)
        assert mean.argmax() == logits.argmax()
        assert (mean[logits < logits.max()] < mean.max()).all()


@given(shape=sampled_from(SHAPES), seed=integers(0, 2**31), k=integers(2, 1000), lam=temperatures())
def test_mean_orders_the_classes_as_the_logits_do(
    shape: str, seed: int, k: int, lam: float
) -> None:
    logits = make_logits(shape, k, seed)
    ordered = Concrete(logits, lam).mean[logits.argsort(descending=True)]
    assert (ordered.diff() <= 1e-6).all()


@given(shape=sampled_from(SHAPES), seed=integers(0, 2**31), k=integers(2, 1000), lam=temperatures())
def test_uncertainties_are_finite_and_within_their_bounds(
    shape: str, seed: int, k: int, lam: float
) -> None:
    m = Concrete(make_logits(shape, k, seed, DOUBLE), lam).moments()
    assert all(x.isfinite().all() for x in m)
    assert 0 <= m.expected_entropy <= math.log(k) + 1e-9
    assert 0 <= m.mutual_information <= math.log(k) + 1e-9
    assert (
        m.entropy <= -math.lgamma(k) + 1e-6 * k
    )  # the uniform law on the simplex has the largest entropy


@given(seed=integers(0, 2**31), k=integers(2, 50), lam=temperatures(), shift=floats(-100, 100))
def test_adding_a_constant_to_the_logits_changes_nothing(
    seed: int, k: int, lam: float, shift: float
) -> None:
    logits = make_logits("spread", k, seed, DOUBLE)
    one, other = Concrete(logits, lam).moments(), Concrete(logits + shift, lam).moments()
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@given(seed=integers(0, 2**31), k=integers(2, 50))
def test_confidence_only_falls_as_the_temperature_grows(seed: int, k: int) -> None:
    logits = make_logits("spread", k, seed, DOUBLE)
    confidence = Concrete(logits.expand(40, k), torch.logspace(-3, 3, 40, dtype=DOUBLE)).mean.amax(
        -1
    )
    assert (confidence.diff() <= 1e-12).all()
    assert confidence[0] <= logits.softmax(-1).amax() + 1e-12


@pytest.mark.parametrize("lam", [1e-30, 1e-8, 1e8, 1e30])
def test_extreme_temperatures_stay_finite_with_their_gradients(lam: float) -> None:
    logits = torch.tensor([[3.0, 1.0, -200.0]], requires_grad=True)
    temperature = torch.tensor([lam], requires_grad=True)
    mean = Concrete(logits, temperature).mean
    gradients = torch.autograd.grad(mean[0, 0], (logits, temperature))
    assert all(x.isfinite().all() for x in (mean, *gradients))


def test_ties_stay_ties_and_keep_their_own_gradients() -> None:
    logits = torch.tensor([2.0, 5.0, 5.0, 1.0], dtype=DOUBLE, requires_grad=True)
    mean = Concrete(logits, 0.8).mean
    assert mean[1] == mean[2]
    rows = torch.stack([torch.autograd.grad(p, logits, retain_graph=True)[0] for p in mean])
    torch.testing.assert_close(
        rows, rows.T
    )  # a Hessian: it is symmetric only if each row is its own
    assert rows[1, 1] > 0 > rows[1, 2]


# --- derivatives ----------------------------------------------------------------------------------


def moment(name: str, logits: Tensor, temperature: Tensor) -> Tensor:
    value: Tensor = getattr(Concrete(logits, temperature).moments(), name)
    return value


@pytest.mark.parametrize("name", MOMENTS)
@pytest.mark.parametrize("k", [2, 7])
def test_gradcheck(name: str, k: int, generator: torch.Generator) -> None:
    logits = (3 * torch.randn(6, k, dtype=DOUBLE, generator=generator)).requires_grad_()
    temperature = torch.tensor([0.01, 0.3, 0.99, 1.01, 3.0, 40.0], dtype=DOUBLE, requires_grad=True)
    assert torch.autograd.gradcheck(lambda g, t: moment(name, g, t), (logits, temperature))
    assert torch.autograd.gradgradcheck(lambda g, t: moment(name, g, t), (logits, temperature))


@pytest.mark.parametrize("name", MOMENTS)
def test_the_two_formulas_meet_smoothly_at_temperature_one(
    name: str, generator: torch.Generator
) -> None:
    logits = torch.randn(4, 5, dtype=DOUBLE, generator=generator)
    one = torch.ones(4, dtype=DOUBLE, requires_grad=True)
    weight = torch.arange(1.0, 6.0, dtype=DOUBLE) if name == "mean" else 1.0
    (slope,) = torch.autograd.grad((weight * moment(name, logits, one)).sum(), one)
    step = 1e-4
    change = (
        weight * (moment(name, logits, one + step) - moment(name, logits, one - step)) / (2 * step)
    )
    torch.testing.assert_close(
        slope, change.sum(-1) if name == "mean" else change, rtol=1e-6, atol=1e-6
    )


def test_gradients_pass_a_saturated_mean() -> None:
    logits = torch.tensor([800.0, 0.0, -500.0], requires_grad=True)
    d = Concrete(logits, 0.1)
    (gradient,) = torch.autograd.grad(d.mutual_information() + d.mean[0], logits)
    assert gradient.isfinite().all()


# --- density and samples --------------------------------------------------------------------------


def test_density_by_hand() -> None:
    # K = 2, g = 0, λ = 1: the density is 1 everywhere
    d = Concrete(torch.zeros(2, dtype=DOUBLE), 1.0)
    value = torch.tensor([[0.1, 0.9], [0.5, 0.5], [0.999, 0.001]], dtype=DOUBLE)
    torch.testing.assert_close(d.log_prob(value), torch.zeros(3, dtype=DOUBLE), rtol=0, atol=1e-13)


def test_density_equals_torchs_for_one_temperature(generator: torch.Generator) -> None:
    logits = torch.randn(4, dtype=DOUBLE, generator=generator)
    d = Concrete(logits, 0.7)
    value = d.sample((10,), generator)
    peer = torch.distributions.RelaxedOneHotCategorical(
        torch.tensor(0.7, dtype=DOUBLE), logits=logits
    )
    torch.testing.assert_close(d.log_prob(value), peer.log_prob(value))


@pytest.mark.parametrize("lam", [0.2, 1.0, 3.0])
def test_density_integrates_to_one(lam: float) -> None:
    d = Concrete(torch.tensor([0.5, -0.5], dtype=DOUBLE), lam)
    t = torch.linspace(-300, 300, 600_001, dtype=DOUBLE)  # π = σ(t), dπ = π(1-π) dt
    log_pi = torch.stack([-torch.nn.functional.softplus(-t), -torch.nn.functional.softplus(t)], -1)
    total = (d.log_prob_from_log(log_pi) + log_pi.sum(-1)).exp().sum() * 1e-3
    assert total.item() == pytest.approx(1, abs=1e-9)


def test_density_survives_points_that_underflow() -> None:
    d = Concrete(torch.tensor([5.0, 0.0, -5.0]), 3.0)
    assert d.log_prob_from_log(torch.tensor([0.0, -300.0, -500.0])).isfinite()


def test_one_temperature_for_each_row_gives_one_density_for_each_row(
    generator: torch.Generator,
) -> None:
    # torch's RelaxedOneHotCategorical returns (5, 5) here (pytorch issue 37162)
    d = Concrete(torch.randn(5, 3, generator=generator), torch.rand(5, generator=generator) + 0.1)
    assert d.log_prob(d.sample(generator=generator)).shape == (5,)


def test_log_samples_are_finite_where_samples_underflow(generator: torch.Generator) -> None:
    d = Concrete(torch.randn(1000, 10, generator=generator), 1e-2)
    log_pi = d.log_rsample(generator=generator)
    assert log_pi.isfinite().all()
    assert (log_pi.exp() == 0).any()


def test_the_same_generator_gives_the_same_samples() -> None:
    d = Concrete(torch.zeros(3), 1.0)
    a, b = (d.sample((5,), torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(a, b)


def test_samples_carry_gradients_only_when_asked(generator: torch.Generator) -> None:
    logits = torch.zeros(3, requires_grad=True)
    d = Concrete(logits, 1.0)
    assert d.rsample((2,), generator).requires_grad
    assert not d.sample((2,), generator).requires_grad


# --- the contract of torch.distributions ----------------------------------------------------------


def test_shapes_follow_torch_distributions(generator: torch.Generator) -> None:
    d = Concrete(torch.zeros(4, 1, 3), torch.ones(5))
    assert d.batch_shape == (4, 5)
    assert d.event_shape == (3,)
    assert d.mean.shape == (4, 5, 3)
    assert d.entropy().shape == d.expected_entropy().shape == d.mutual_information().shape == (4, 5)
    assert d.sample((2, 6), generator).shape == (2, 6, 4, 5, 3)
    assert d.log_prob(d.sample((2,), generator)).shape == (2, 4, 5)
    assert d.expand((7, 4, 5)).mean.shape == (7, 4, 5, 3)


def test_samples_lie_in_the_support(generator: torch.Generator) -> None:
    d = Concrete(torch.zeros(3, dtype=DOUBLE), 1.0)
    assert d.support.check(d.sample((100,), generator)).all()


def test_an_empty_batch_is_a_batch() -> None:
    m = Concrete(torch.zeros(0, 3), torch.ones(0)).moments()
    assert [x.shape for x in m] == [(0, 3), (0,), (0,), (0,)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(
    dtype: torch.dtype, generator: torch.Generator
) -> None:
    logits = torch.randn(8, 5, generator=generator).to(dtype)
    d = Concrete(logits, torch.ones(8, dtype=dtype))
    assert d.mean.dtype == torch.float32
    assert torch.equal(d.mean, Concrete(logits.float(), 1.0).mean)


def test_a_float64_temperature_raises_the_precision() -> None:
    assert Concrete(torch.zeros(3), torch.tensor(1.0, dtype=DOUBLE)).mean.dtype == DOUBLE


def test_fitting_after_inference_mode_works() -> None:
    with torch.inference_mode():
        Concrete(torch.zeros(3), 1.0).moments()
    logits = torch.zeros(3, requires_grad=True)
    Concrete(logits, 1.0).moments().expected_entropy.backward()
    assert logits.grad is not None


# --- errors ---------------------------------------------------------------------------------------

NAN = float("nan")
BAD: list[tuple[Any, Any, type[Exception], str]] = [
    (
        ["a", "b"],
        1.0,
        TypeError,
        r"`logits` must be a tensor, or an array or a list of numbers; got list.",
    ),
    (
        torch.tensor([1, 2]),
        1.0,
        TypeError,
        r"`logits` must be floating-point; got torch.int64. Convert it with .*",
    ),
    (
        torch.zeros(3),
        "hot",
        TypeError,
        r"`temperature` must be a tensor, or an array or a list of numbers; got str.",
    ),
    (
        torch.tensor(1.0),
        1.0,
        ValueError,
        r"`logits` must have shape \(..., K\) with K >= 2 classes; got \(\). .*",
    ),
    (
        torch.zeros(4, 1),
        torch.ones(4),
        ValueError,
        r"`logits` must have shape .*; got \(4, 1\). For a binary .*",
    ),
    (
        torch.zeros(4, 3),
        torch.ones(4, 1),
        ValueError,
        r"`temperature` must have .* \(4,\); got \(4, 1\). .*",
    ),
    (
        torch.zeros(4, 3),
        torch.ones(5),
        ValueError,
        r"`temperature` must have one value .* \(4,\); got \(5,\). .*",
    ),
    (
        torch.tensor([1.0, NAN]),
        1.0,
        ValueError,
        r"`logits` must be finite; found nan at position 1. Look for .*",
    ),
    (
        torch.zeros(2, 2).log(),
        1.0,
        ValueError,
        r"`logits` must be finite; found -inf at position \(0, 0\). .*",
    ),
    (
        torch.zeros(3),
        0.0,
        ValueError,
        r"`temperature` must be positive and finite; found 0. Use softplus .*",
    ),
    (
        torch.zeros(2, 3),
        torch.tensor([1.0, -2.0]),
        ValueError,
        r"`temperature` must be .*; found -2 at position 1. .*",
    ),
    (torch.zeros(3), NAN, ValueError, r"`temperature` must be positive and finite; found nan. .*"),
    (
        torch.zeros(3),
        float("inf"),
        ValueError,
        r"`temperature` must be positive and finite; found inf. .*",
    ),
]


@pytest.mark.parametrize(("logits", "temperature", "error", "message"), BAD)
def test_nonsense_gets_one_clear_sentence(
    logits: Any, temperature: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        Concrete(logits, temperature)


def test_points_outside_the_simplex_are_named() -> None:
    d = Concrete(torch.zeros(3), 1.0)
    with pytest.raises(ValueError, match=r"`value` must have 3 entries .* got shape \(2,\)"):
        d.log_prob(torch.tensor([0.5, 0.5]))
    with pytest.raises(
        ValueError,
        match=r"`value` must be positive: .*; found 0 at position 2. .*log_prob_from_log",
    ):
        d.log_prob(torch.tensor([0.5, 0.5, 0.0]))
    with pytest.raises(
        ValueError, match=r"`value` must be a point of the simplex, with sum 1; found 1.1. Divide"
    ):
        d.log_prob(torch.tensor([0.5, 0.5, 0.1]))


def test_validation_can_be_switched_off() -> None:
    d = Concrete(torch.tensor([NAN, 1.0]), 1.0, validate_args=False)
    assert d.mean.isnan().all()
    assert (
        Concrete(torch.zeros(2), 1.0, validate_args=False)
        .log_prob(torch.tensor([0.5, 0.4]))
        .isfinite()
    )


def test_torchs_own_switch_is_honoured() -> None:
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        Concrete(torch.tensor([1.0, 2.0]), -1.0)
    finally:
        torch.distributions.Distribution.set_default_validate_args(True)


def test_nothing_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Concrete(torch.tensor([1.0, 2.0]), 0.5).moments()
