import pytest
import torch
from torch import Generator, Tensor

from simplexcal.calibrators._optim import glorot_uniform, mlp, row_batches
from simplexcal.calibrators.parameterized import ParameterizedTemperatureScaling, squared_error
from simplexcal.types import Outputs


def simulate(n: int, k: int, seed: int = 0) -> tuple[Outputs, Tensor]:
    """Return an overconfident network's outputs: labels follow softmax(z / 3)."""
    generator = Generator().manual_seed(seed)
    logits = 6 * torch.randn(n, k, generator=generator)
    return Outputs(logits), torch.multinomial(
        (logits / 3).softmax(-1), 1, generator=generator
    ).squeeze(1)


def quick(n_steps: int = 20) -> ParameterizedTemperatureScaling:
    return ParameterizedTemperatureScaling(n_steps, learning_rate=1e-2, batch_size=100)


def with_constant_output(t: float, n_classes: int) -> ParameterizedTemperatureScaling:
    pts = ParameterizedTemperatureScaling()
    pts.build(n_classes, None)
    for parameter in pts.parameters():
        parameter.data.zero_()
    list(pts.parameters())[-1].data.fill_(t)
    return pts


@pytest.mark.parametrize(
    ("k", "n_parameters"), [(2, 51), (3, 56), (9, 86), (10, 91), (11, 91), (1000, 91)]
)
def test_there_are_91_parameters_from_ten_classes_on(k: int, n_parameters: int) -> None:
    # 5 (min(K, 10) + 1) + 5 (5 + 1) + (5 + 1)
    pts = ParameterizedTemperatureScaling()
    pts.build(k, None)
    assert sum(parameter.numel() for parameter in pts.parameters()) == n_parameters


def test_the_published_settings_are_the_default() -> None:
    assert ParameterizedTemperatureScaling().settings == {
        "n_steps": 100_000,
        "learning_rate": 5e-5,
        "batch_size": 1000,
        "n_largest": 10,
        "widths": (5, 5),
        "max_logit": 100.0,
    }


@pytest.mark.parametrize(
    ("t", "temperature"), [(2.0, 2.0), (-2.0, 2.0), (0.0, 1e-12), (1e30, 1e12)]
)
def test_the_temperature_is_the_clipped_magnitude_of_the_output(
    t: float, temperature: float
) -> None:
    outputs, _ = simulate(5, 4)
    pts = with_constant_output(t, 4)
    torch.testing.assert_close(pts.temperature(outputs), torch.full((5,), temperature))
    torch.testing.assert_close(
        pts(outputs).probs, (outputs.logits.double() / temperature).softmax(-1).float()
    )


def test_the_network_sees_the_ten_largest_logits_in_order(generator: Generator) -> None:
    outputs, labels = simulate(100, 30)
    pts = quick().fit(outputs, labels, generator=generator)
    order = torch.randperm(30, generator=generator)
    assert torch.equal(pts.temperature(Outputs(outputs.logits[:, order])), pts.temperature(outputs))
    eleventh = outputs.logits.topk(11).values[:, -1:]
    lower = torch.where(outputs.logits <= eleventh, outputs.logits - 1, outputs.logits)
    assert torch.equal(pts.temperature(Outputs(lower)), pts.temperature(outputs))


def test_logits_are_clipped_for_the_network_but_not_for_the_softmax(generator: Generator) -> None:
    pts = quick().fit(*simulate(100, 3), generator=generator)
    far = Outputs(torch.tensor([[300.0, 299.0, -1e30]]))
    near = Outputs(torch.tensor([[100.0, 100.0, -100.0]]))
    assert torch.equal(pts.temperature(far), pts.temperature(near))
    probs = pts(far).probs
    assert probs.isfinite().all()
    assert probs[0, 0] > probs[0, 1]


def test_the_squared_error_is_that_of_the_one_hot_labels() -> None:
    probs, labels = simulate(50, 7)[0].logits.softmax(-1), torch.arange(50) % 7
    expected = torch.nn.functional.mse_loss(probs, torch.nn.functional.one_hot(labels, 7).float())
    torch.testing.assert_close(squared_error(probs, labels), expected)


@pytest.mark.parametrize("k", [2, 3, 20])
def test_training_reduces_the_squared_error(k: int) -> None:
    outputs, labels = simulate(1000, k)
    before, after = (
        quick(n).fit(outputs, labels, generator=Generator().manual_seed(1)) for n in (0, 300)
    )
    assert squared_error(after(outputs).probs, labels) < squared_error(
        before(outputs).probs, labels
    )
    assert squared_error(after(outputs).probs, labels) < squared_error(
        outputs.logits.softmax(-1), labels
    )


def test_a_draw_without_gradient_is_drawn_again() -> None:
    outputs, labels = simulate(100, 20)
    top = outputs.logits.topk(10).values

    def is_dead(seed: int) -> bool:
        network = mlp([10, 5, 5, 1])
        glorot_uniform(network, Generator().manual_seed(seed))
        return not network(top).any()

    seed = next(filter(is_dead, range(1000)))
    pts = quick(0).fit(outputs, labels, generator=Generator().manual_seed(seed))
    assert (pts.temperature(outputs) > 1e-12).any()


@pytest.mark.filterwarnings("ignore:Of .* inputs", "ignore:All .* inputs")
def test_equal_logits_give_a_network_without_output_and_still_end(generator: Generator) -> None:
    outputs = Outputs(torch.zeros(6, 3))
    prediction = quick(2).fit(outputs, torch.arange(6) % 3, generator=generator)(outputs)
    torch.testing.assert_close(prediction.probs, torch.full((6, 3), 1 / 3))


# --- promises of every method ---------------------------------------------------------------------


def test_the_same_generator_gives_the_same_bits_and_a_second_fit_forgets_the_first() -> None:
    outputs, labels = simulate(150, 12)
    twice, once = quick().fit(*simulate(90, 4, seed=5)), quick()
    for pts in (twice, once):
        pts.fit(outputs, labels, generator=Generator().manual_seed(3))
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
    outputs, labels = simulate(200, 4)
    outputs = Outputs(outputs.logits.round().to(dtype))  # with ties
    prediction = quick().fit(outputs, labels, generator=generator)(outputs)
    assert torch.equal(prediction.label, outputs.logits.argmax(-1))
    assert torch.equal(prediction.confidence, prediction.probs.amax(-1))
    torch.testing.assert_close(prediction.probs.sum(-1), torch.ones(200, dtype=dtype))
    assert (prediction.aleatoric, prediction.epistemic) == (None, None)


# --- training machinery ---------------------------------------------------------------------------


def test_batches_are_rounds_of_all_rows_in_a_new_order(generator: Generator) -> None:
    stream = row_batches(10, 4, generator, torch.device("cpu"))
    rounds = [[next(stream) for _ in range(3)] for _ in range(2)]
    assert [[len(rows) for rows in one] for one in rounds] == [[4, 4, 2], [4, 4, 2]]
    orders = [torch.cat(one) for one in rounds]
    assert all(torch.equal(order.sort().values, torch.arange(10)) for order in orders)
    assert not torch.equal(*orders)


def test_first_weights_fill_glorots_interval(generator: Generator) -> None:
    network = mlp([300, 100])
    glorot_uniform(network, generator)
    weight, bias = network.parameters()
    bound = (6 / 400) ** 0.5
    assert weight.abs().max() <= bound
    # the mean square of 30 000 uniform numbers is b²/3 with standard error b² √(4/45) / √30000
    assert abs(weight.square().mean() - bound**2 / 3) <= 5 * bound**2 * (4 / 45 / 30_000) ** 0.5
    assert not bias.any()


def test_progress_is_shown_only_when_asked(
    generator: Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    quick().fit(*simulate(50, 3), generator=generator)
    assert capsys.readouterr() == ("", "")
    quick().fit(*simulate(50, 3), generator=generator, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "Fitting" in err
