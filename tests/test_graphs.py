"""A CalibratedModel under torch.compile and torch.export, and where someone converts its dtype."""

from collections.abc import Callable

import pytest
import torch
from helpers.methods import METHODS, state
from torch import Generator, Tensor, nn
from torch.export import Dim, export

from simplexcal import CalibratedModel, SimplexTemperatureScaling, calibrate
from simplexcal.backbone import Backbone

TRACED = ["ts", "ets", "pts", "adats", "sts"]
Data = tuple[Tensor, Tensor]


@pytest.fixture(scope="module")
def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)]
        return nn.Sequential(*layers).eval()


@pytest.fixture(scope="module")
def data(net: nn.Module) -> Data:
    g = Generator().manual_seed(0)
    x = torch.randn(60, 6, generator=g)
    probs = (4 * net(x).detach()).softmax(-1)
    return x, probs.multinomial(1, generator=g).squeeze(1)


@pytest.fixture(scope="module")
def models(net: nn.Module, data: Data) -> dict[str, CalibratedModel]:
    sts = SimplexTemperatureScaling(n_steps=5, pool_size=100, widths=(4,))
    methods = {**{name: METHODS[name]() for name in TRACED}, "sts": sts}
    return {name: calibrate(net, data, method) for name, method in methods.items()}


# Of torch's own, where it traces a Function with a gradient.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("method", TRACED)
def test_a_compiled_model_gives_the_probabilities_of_the_model(
    method: str, models: dict[str, CalibratedModel], data: Data
) -> None:
    torch.compiler.reset()
    model = models[method]
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(data[0]), model(data[0]), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("method", TRACED)
def test_an_exported_model_takes_batches_of_any_size(
    method: str, models: dict[str, CalibratedModel], data: Data
) -> None:
    model = models[method]
    before = state(model.backbone.net)
    program = export(model, (data[0],), dynamic_shapes=({0: Dim.DYNAMIC},))
    assert state(model.backbone.net) == before
    for n in (60, 7):
        x = data[0][:n]
        torch.testing.assert_close(program.module()(x), model(x), rtol=1e-6, atol=1e-7)


def test_a_graph_reads_the_features_of_the_picked_token(generator: Generator) -> None:
    class FirstToken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.fc(x)
            return logits[:, 0]

    backbone = Backbone(FirstToken().eval())
    x = torch.randn(5, 2, 4, generator=generator)
    expected = backbone(x)
    assert torch.equal(expected.features, x[:, 0])

    class Features(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            features: Tensor = backbone(x).features
            return features

    assert torch.equal(export(Features(), (x,)).module()(x), x[:, 0])


def test_a_network_in_training_mode_is_no_graph(
    models: dict[str, CalibratedModel], data: Data
) -> None:
    model = models["ts"]
    model.backbone.net.train()
    try:
        with pytest.raises(RuntimeError, match=r"`net` must be in evaluation mode to be compiled"):
            export(model, (data[0],))
    finally:
        model.backbone.net.eval()


CONVERSIONS: dict[str, Callable[[nn.Module], object]] = {
    "half": lambda model: model.half(),
    "bfloat16": lambda model: model.bfloat16(),
    "double": lambda model: model.double(),
    "type": lambda model: model.type(torch.float64),
    "to dtype": lambda model: model.to(torch.float16),
    "to device and dtype": lambda model: model.to("cpu", torch.float16),
    "as a part": lambda model: nn.Sequential(nn.Identity(), model).half(),
}


@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_the_dtype_of_a_frozen_network_cannot_be_converted(
    conversion: str, models: dict[str, CalibratedModel]
) -> None:
    model = models["sts"]
    before = [state(part) for part in (model.backbone.net, model.calibrator)]
    with pytest.raises(TypeError, match=r"The network is frozen, .* Convert a copy of the network"):
        CONVERSIONS[conversion](model)
    assert [state(part) for part in (model.backbone.net, model.calibrator)] == before


def test_moving_and_a_conversion_that_changes_nothing_are_possible(
    models: dict[str, CalibratedModel], data: Data
) -> None:
    model = models["ts"]
    before = model(data[0])
    same = model.float().cpu().to("cpu").to(torch.float32)
    assert torch.equal(same(data[0]), before)


def test_the_network_and_the_calibrator_move_together() -> None:
    net = nn.Linear(4, 3)
    x = torch.randn(60, 4, generator=Generator().manual_seed(0))
    wrong = torch.arange(60) % 4 == 0
    labels = (net(x).argmax(-1) + wrong) % 3
    model = calibrate(net, (x, labels), "ts").to("meta")
    assert next(net.parameters()).device.type == "meta"
    assert next(model.calibrator.parameters()).device.type == "meta"
