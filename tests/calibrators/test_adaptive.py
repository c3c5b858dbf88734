import math

import pytest
import torch
from torch import Generator, Tensor
from torch.nn.functional import softplus

from simplexcal._chunking import CHUNK as NUMBERS
from simplexcal.calibrators._optim import default_uniform, mlp
from simplexcal.calibrators.adaptive import MIN_WIDTH, AdaptiveTemperatureScaling, _normal
from simplexcal.types import Outputs


def simulate(n: int, k: int, d: int, seed: int = 0) -> tuple[Outputs, Tensor]:
    """Return features around a centre of each class, and an overconfident linear classifier's
    logits."""
    generator = Generator().manual_seed(seed)
    labels = torch.arange(n) % k
    centres = torch.randn(k, d, generator=generator)
    features = centres[labels] + torch.randn(n, d, generator=generator)
    return Outputs(3 * features @ centres.T, features), labels


def quick(n_epochs: int = 1) -> AdaptiveTemperatureScaling:
    return AdaptiveTemperatureScaling(n_epochs, batch_size=32)


def loss_of(
    adats: AdaptiveTemperatureScaling, outputs: Outputs, labels: Tensor, seed: int = 9
) -> float:
    assert outputs.features is not None
    noise = torch.randn(len(outputs), 16, generator=Generator().manual_seed(seed))
    return adats._loss(outputs.features, outputs.logits, labels, noise).item()


def test_the_published_settings_are_the_default() -> None:
    assert AdaptiveTemperatureScaling().settings == {
        "n_epochs": 100,
        "learning_rate": 5e-4,
        "batch_size": 128,
        "n_latent": 16,
        "widths": (1024, 512, 512),
        "temperature_widths": (128, 128),
    }


def test_layers_have_the_published_sizes() -> None:
    adats = AdaptiveTemperatureScaling()
    adats.build(10, 64)
    sizes = {
        name: [w.shape[1] for w in part.parameters() if w.dim() == 2]
        for name, part in adats.named_children()
    }
    assert sizes == {
        "encoder": [64, 1024, 512],
        "posterior": [512],
        "decoder": [16, 1024, 512, 512],
        "prior": [10],
        "head": [10, 128, 128],
    }
    assert [len(list(part.parameters())[-1]) for part in adats.children()] == [512, 32, 64, 32, 1]


def test_the_loss_by_its_formula(generator: Generator) -> None:
    outputs, labels = simulate(20, 3, 5)
    adats = quick(0).fit(outputs, labels, generator=generator)
    assert outputs.features is not None
    f, z = outputs.features, outputs.logits
    m, raw = adats.posterior(softplus(adats.encoder(f))).chunk(2, -1)
    s = softplus(raw)
    v = m + s * torch.randn(20, 16, generator=Generator().manual_seed(9))
    prior = adats.prior(torch.eye(3))
    n, r = prior[:, :16], softplus(prior[:, 16:])
    reconstruction = (f - adats.decoder(v)).abs().sum(-1) + 5 * math.log(2)
    divergence = (
        (r[labels] / s).log() + (s**2 + (m - n[labels]) ** 2) / (2 * r[labels] ** 2) - 0.5
    ).sum(-1)
    log_density = torch.stack(
        [(-0.5 * ((v - n[c]) / r[c]) ** 2 - r[c].log()).sum(-1) for c in range(3)], -1
    )
    t = softplus(adats.head(log_density - 8 * math.log(2 * math.pi)))  # 16 · ln √(2π)
    surprise = -(z / t).log_softmax(-1)[torch.arange(20), labels]
    expected = (reconstruction + divergence + surprise).mean()
    assert loss_of(adats, outputs, labels) == pytest.approx(expected.item(), rel=1e-5)


def test_training_reduces_the_loss_and_the_cross_entropy() -> None:
    outputs, labels = simulate(96, 3, 8)
    before, after = (
        quick(n).fit(outputs, labels, generator=Generator().manual_seed(1)) for n in (0, 8)
    )
    assert loss_of(after, outputs, labels) < loss_of(before, outputs, labels)
    nll = [-c(outputs).probs[torch.arange(96), labels].log().mean() for c in (before, after)]
    assert nll[1] < nll[0]


def test_prediction_is_deterministic_and_uses_the_posterior_mean(generator: Generator) -> None:
    outputs, labels = simulate(40, 3, 4)
    adats = quick().fit(outputs, labels, generator=generator)
    before = torch.get_rng_state()
    first, second = adats(outputs).probs, adats(outputs).probs
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)
    assert outputs.features is not None
    mean = adats.posterior(softplus(adats.encoder(outputs.features)))[:, :16]
    torch.testing.assert_close(adats.temperature(outputs), adats._temperature(mean))


def test_large_inputs_are_predicted_in_parts(generator: Generator) -> None:
    n_rows = NUMBERS["cpu"] // MIN_WIDTH  # in a chunk
    outputs, labels = simulate(n_rows + 7, 2, 3)
    adats = quick(0).fit(outputs, labels, generator=generator)
    torch.testing.assert_close(
        adats.temperature(outputs)[n_rows:], adats.temperature(outputs[slice(n_rows, None)])
    )
    assert adats(outputs[:0]).probs.shape == (0, 2)


@pytest.mark.filterwarnings("ignore:Of .* inputs", "ignore:All .* inputs")
def test_scales_and_temperatures_have_a_floor(generator: Generator) -> None:
    assert _normal(torch.full((2,), -100.0)).stddev.item() == pytest.approx(1e-3)
    outputs, labels = simulate(10, 2, 3)
    adats = quick(0).fit(outputs, labels, generator=generator)
    list(adats.head.parameters())[-1].data.fill_(-1e4)
    assert adats.temperature(outputs).tolist() == pytest.approx([1e-3] * 10)
    assert adats(outputs).probs.isfinite().all()


@pytest.mark.filterwarnings("ignore:Of .* inputs", "ignore:All .* inputs")
def test_features_are_needed(generator: Generator) -> None:
    outputs, labels = simulate(10, 2, 3)
    with pytest.raises(
        ValueError, match=r"^`outputs` must have features, .* got logits alone. Extract them .*$"
    ):
        quick().fit(Outputs(outputs.logits), labels)
    adats = quick(0).fit(outputs, labels, generator=generator)
    with pytest.raises(ValueError, match=r"^`outputs` must have features, .*$"):
        adats(Outputs(outputs.logits))
    with pytest.raises(
        ValueError, match=r"^`features` must have the 3 columns of the fit; got 5. Take them .*$"
    ):
        adats(Outputs(outputs.logits, torch.zeros(10, 5)))


def test_outputs_of_inference_mode_can_be_learned_from(generator: Generator) -> None:
    outputs, labels = simulate(40, 3, 4)
    with torch.inference_mode():
        frozen = Outputs(
            outputs.logits + 0, None if outputs.features is None else outputs.features + 0
        )
    assert quick().fit(frozen, labels, generator=generator)(outputs).probs.isfinite().all()


# --- promises of every method ---------------------------------------------------------------------


def test_the_same_generator_gives_the_same_bits_and_a_second_fit_forgets_the_first() -> None:
    outputs, labels = simulate(50, 3, 4)
    twice, once = quick().fit(*simulate(40, 2, 6)), quick()
    for adats in (twice, once):
        adats.fit(outputs, labels, generator=Generator().manual_seed(3))
    assert twice.state_dict().keys() == once.state_dict().keys()
    assert all(
        torch.equal(twice.state_dict()[name], value) for name, value in once.state_dict().items()
    )
    assert torch.equal(twice(outputs).probs, once(outputs).probs)
    other = quick().fit(outputs, labels, generator=Generator().manual_seed(4))
    assert not torch.equal(other(outputs).probs, once(outputs).probs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_labels_are_the_networks_own_and_probabilities_sum_to_one(
    dtype: torch.dtype, generator: Generator
) -> None:
    outputs, labels = simulate(60, 4, 5)
    assert outputs.features is not None
    outputs = Outputs(outputs.logits.round().to(dtype), outputs.features.to(dtype))  # with ties
    prediction = quick().fit(outputs, labels, generator=generator)(outputs)
    assert torch.equal(prediction.label, outputs.logits.argmax(-1))
    assert torch.equal(prediction.confidence, prediction.probs.amax(-1))
    torch.testing.assert_close(prediction.probs.sum(-1), torch.ones(60, dtype=dtype))
    assert (prediction.aleatoric, prediction.epistemic) == (None, None)


def test_first_weights_have_torchs_default_law(generator: Generator) -> None:
    network = mlp([400, 100])
    default_uniform(network, generator)
    weight, bias = network.parameters()
    assert max(weight.abs().max(), bias.abs().max()) <= 0.05  # 1/√400
    # the mean square of n uniform numbers is b²/3 with standard error b² √(4/45) / √n; torch's own
    # layer agrees
    with torch.random.fork_rng(devices=[]):
        peer = torch.nn.Linear(400, 100)
    for values in (weight, bias, peer.weight, peer.bias):
        error = 0.05**2 * (4 / 45 / values.numel()) ** 0.5
        assert abs(values.square().mean() - 0.05**2 / 3) <= 5 * error
