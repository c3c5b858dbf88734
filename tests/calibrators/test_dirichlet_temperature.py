import pytest
import torch
from torch import Generator, Tensor, nn
from torch.distributions import Dirichlet

from simplexcal.calibrators import CALIBRATORS
from simplexcal.calibrators.dirichlet_temperature import DirichletTemperatureScaling, dirichlet_nll
from simplexcal.metrics import ece
from simplexcal.mixup import FeatureMixup
from simplexcal.types import Outputs

DOUBLE = torch.float64


def simulate(
    n: int, k: int, d: int, scale: float = 1.0, seed: int = 0
) -> tuple[Outputs, Tensor, FeatureMixup]:
    """Return a linear head's outputs for features around each class's own direction, and a mixup of
    them."""
    generator = Generator().manual_seed(seed)
    head = nn.utils.skip_init(nn.Linear, d, k)
    head.weight.data.copy_(scale * torch.randn(k, d, generator=generator))
    head.bias.data.zero_()
    labels = torch.arange(n) % k
    features = head.weight.data[labels] / scale + torch.randn(n, d, generator=generator)
    outputs = Outputs(features @ head.weight.data.T, features)
    return outputs, labels, FeatureMixup(head, outputs, labels, per_class=5)


def quick(
    n_steps: int = 5, learning_rate: float = 1e-3, batch_size: int = 20
) -> DirichletTemperatureScaling:
    return DirichletTemperatureScaling(
        n_steps=n_steps, learning_rate=learning_rate, batch_size=batch_size, widths=(16, 8)
    )


def test_its_name_is_not_that_of_dirichlet_calibration() -> None:
    assert CALIBRATORS["dirichlet-ts"] is DirichletTemperatureScaling
    assert CALIBRATORS["dirichlet"] is not DirichletTemperatureScaling  # Kull et al. (2019)


def test_the_papers_settings_are_the_default() -> None:
    assert DirichletTemperatureScaling().settings == {
        "betas": (1.0,),
        "widths": (1024, 1024, 512, 256),
        "n_steps": 25_000,
        "batch_size": 100,
        "learning_rate": 1e-6,
        "weight_decay": 5e-4,
        "pool_size": 10_000,
        "resample": True,
        "lr_decay": False,
    }
    calibrator = DirichletTemperatureScaling()
    calibrator.build(10, 64)
    assert calibrator.branch is not None
    assert [w.shape[1] for w in calibrator.branch.weights] == [64, 1024, 1024, 512, 256]


# --- the likelihood -------------------------------------------------------------------------------


def test_the_likelihood_by_hand() -> None:
    log_pi = torch.tensor([[0.2, 0.3, 0.5]]).log()
    # μ = (1, 1, 1) is uniform with density Γ(3) = 2; μ = (1, 2, 1) has density Γ(4) π₂ = 6 · 0.3
    scaled = torch.tensor([[1.0, 1.0, 1.0], [1.0, 2.0, 1.0]]).log()
    expected = -torch.tensor([2.0, 6 * 0.3], dtype=DOUBLE).log()
    torch.testing.assert_close(dirichlet_nll(scaled, log_pi), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("k", [2, 7, 100])
def test_the_likelihood_equals_torchs(k: int, generator: Generator) -> None:
    scaled = 4 * torch.randn(50, k, generator=generator, dtype=DOUBLE)
    pi = torch.rand(50, k, generator=generator, dtype=DOUBLE).log_softmax(-1).exp()
    expected = -Dirichlet(scaled.exp()).log_prob(pi)
    torch.testing.assert_close(dirichlet_nll(scaled, pi.log()), expected, rtol=1e-10, atol=1e-8)


def test_the_likelihood_has_the_right_gradient(generator: Generator) -> None:
    scaled = (3 * torch.randn(5, 4, generator=generator, dtype=DOUBLE)).requires_grad_()
    log_pi = torch.randn(5, 4, generator=generator, dtype=DOUBLE).log_softmax(-1)
    assert torch.autograd.gradcheck(lambda x: dirichlet_nll(x, log_pi), scaled)


def test_beyond_30_the_concentration_grows_along_the_tangent_and_nothing_overflows() -> None:
    log_pi = torch.full((1, 2), 0.5, dtype=DOUBLE).log()
    below, above = (
        torch.tensor([[x, 0.0]], dtype=DOUBLE, requires_grad=True) for x in (30 - 1e-9, 30 + 1e-9)
    )
    slopes = [torch.autograd.grad(dirichlet_nll(x, log_pi), x)[0][0, 0] for x in (below, above)]
    assert slopes[0].item() == pytest.approx(slopes[1].item(), rel=1e-6)
    for value in (1e4, -1e4):
        extreme = torch.tensor([[value, 0.0], [value, value]], requires_grad=True)
        loss = dirichlet_nll(extreme, log_pi)
        (gradient,) = torch.autograd.grad(loss.sum(), extreme)
        assert loss.isfinite().all()
        assert gradient.isfinite().all()
        assert gradient.any(-1).all()  # a way back is left
        assert gradient.abs().max() <= 1e19  # whose square fits into float32


# --- training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 100])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_training_stays_finite(k: int, scale: float, generator: Generator) -> None:
    outputs, labels, mixup = simulate(2 * k, k, 8, scale)
    calibrator = quick(20).fit(outputs, labels, mixup=mixup, generator=generator)
    assert all(value.isfinite().all() for value in calibrator.state_dict().values())
    assert calibrator(outputs).probs.isfinite().all()


def test_training_reduces_the_likelihood_loss() -> None:
    outputs, labels, mixup = simulate(60, 3, 6)
    mixed, log_weights = mixup.sample(1.0, 500, Generator().manual_seed(7))
    before, after = (
        quick(n).fit(outputs, labels, mixup=mixup, generator=Generator().manual_seed(1))
        for n in (0, 200)
    )
    losses = [
        dirichlet_nll(mixed.logits / c.temperature(mixed)[:, None], log_weights).mean()
        for c in (before, after)
    ]
    assert losses[1] < losses[0]


def test_a_calibrated_network_becomes_underconfident(generator: Generator) -> None:
    # the paper's point: a network that is nearly calibrated by itself loses its confidence in the
    # fit to mixed samples
    outputs, labels, mixup = simulate(500, 10, 32, scale=0.5)
    calibrator = quick(500, learning_rate=1e-2).fit(
        outputs, labels, mixup=mixup, generator=generator
    )
    prediction = calibrator(outputs)
    accuracy = (prediction.label == labels).double().mean()
    assert abs(outputs.logits.softmax(-1).amax(-1).mean() - accuracy) < 0.01
    assert prediction.confidence.mean() < accuracy - 0.2


def test_the_temperature_is_the_softplus_of_the_branch_with_a_floor() -> None:
    outputs, _, _ = simulate(4, 2, 3)
    calibrator = quick()
    calibrator.build(2, 3)
    for parameter in calibrator.parameters():
        parameter.data.zero_()
    torch.testing.assert_close(
        calibrator.temperature(outputs), torch.full((4,), 2.0).log()
    )  # softplus(0) = ln 2
    torch.testing.assert_close(
        calibrator(outputs).probs, (outputs.logits / torch.tensor(2.0).log()).softmax(-1)
    )
    list(calibrator.parameters())[-1].data.fill_(-1e4)
    assert calibrator.temperature(outputs).tolist() == pytest.approx([1e-3] * 4)


def test_of_several_betas_the_one_with_the_smallest_ece_stays() -> None:
    outputs, labels, mixup = simulate(60, 3, 6)
    calibrator = DirichletTemperatureScaling((0.2, 1.0, 5.0), (8,), 50, 20, 1e-2, pool_size=200)
    calibrator.fit(outputs, labels, mixup=mixup, generator=Generator().manual_seed(1))
    correct = outputs.label == labels
    errors = {
        beta: float(ece(one(outputs).confidence, correct))
        for beta, one in calibrator.each_beta().items()
    }
    assert len(set(errors.values())) == 3
    assert float(ece(calibrator(outputs).confidence, correct)) == min(errors.values())
    assert float(calibrator.beta) == pytest.approx(min(errors, key=lambda beta: errors[beta]))


def test_mixup_and_features_are_needed(generator: Generator) -> None:
    outputs, labels, mixup = simulate(10, 2, 3)
    with pytest.raises(
        ValueError, match=r"^`mixup` must be given: .*; got None. Pass InputMixup or FeatureMixup.$"
    ):
        quick().fit(outputs, labels)
    with pytest.raises(
        ValueError, match=r"^`outputs` must have features, .* got logits alone. Extract them .*$"
    ):
        quick().fit(Outputs(outputs.logits), labels, mixup=mixup)
    calibrator = quick().fit(outputs, labels, mixup=mixup, generator=generator)
    with pytest.raises(
        ValueError,
        match=r"^`features` must have the 3 columns of the fit; got 5. Take them, and .*$",
    ):
        calibrator(Outputs(outputs.logits, torch.zeros(10, 5)))


# --- promises of every method ---------------------------------------------------------------------


def test_the_same_generator_gives_the_same_bits_and_a_second_fit_forgets_the_first() -> None:
    outputs, labels, mixup = simulate(50, 3, 4)
    earlier = simulate(40, 2, 6)
    twice, once = quick().fit(earlier[0], earlier[1], mixup=earlier[2]), quick()
    for calibrator in (twice, once):
        calibrator.fit(outputs, labels, mixup=mixup, generator=Generator().manual_seed(3))
    assert twice.state_dict().keys() == once.state_dict().keys()
    assert all(
        torch.equal(twice.state_dict()[name], value) for name, value in once.state_dict().items()
    )
    assert torch.equal(twice(outputs).probs, once(outputs).probs)
    other = quick().fit(outputs, labels, mixup=mixup, generator=Generator().manual_seed(4))
    assert not torch.equal(other(outputs).probs, once(outputs).probs)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_labels_are_the_networks_own_and_probabilities_sum_to_one(
    dtype: torch.dtype, generator: Generator
) -> None:
    outputs, labels, mixup = simulate(60, 4, 5)
    outputs = Outputs(outputs.logits.round(), outputs.features).to(dtype)  # with ties
    prediction = quick().fit(outputs, labels, mixup=mixup, generator=generator)(outputs)
    assert torch.equal(prediction.label, outputs.logits.argmax(-1))
    assert torch.equal(prediction.confidence, prediction.probs.amax(-1))
    torch.testing.assert_close(prediction.probs.sum(-1), torch.ones(60, dtype=dtype))
    assert (prediction.aleatoric, prediction.epistemic) == (None, None)
