from itertools import repeat

import pytest
import torch
from helpers.quick_branches import quick_branches
from torch import nn

from simplexcal.calibrators._optim import minimise
from simplexcal.calibrators.simplex import SimplexTemperatureScaling
from simplexcal.types import Outputs


def test_autocast_around_a_fit_does_not_change_it(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Autocast keeps its bfloat16 copies of the weights until its end, so training inside it would
    # see the first ones.
    quick_branches(monkeypatch, 20)
    logits = 3 * torch.randn(300, 5, generator=generator)
    labels = (logits / 2).softmax(-1).multinomial(1, generator=generator).squeeze(1)
    plain, cast = SimplexTemperatureScaling(), SimplexTemperatureScaling()
    plain.fit(Outputs(logits), labels, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast.fit(Outputs(logits), labels, generator=torch.Generator().manual_seed(1))
    for name, value in plain.state_dict().items():
        assert torch.equal(value, cast.state_dict()[name]), name


def test_a_stream_gives_each_step_its_batch_and_is_read_no_further() -> None:
    weight = nn.Parameter(torch.tensor(0.0))
    stream = iter([(torch.tensor(float(i)),) for i in range(5)])
    seen: list[float] = []

    def loss(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.item())
        return (weight - x) ** 2

    minimise(loss, stream, [weight], n_steps=3, learning_rate=0.1)
    assert seen == [0.0, 1.0, 2.0]
    assert next(stream)[0] == 3.0


def test_no_gradient_is_left_behind() -> None:
    weight = nn.Parameter(torch.tensor(1.0))
    minimise(lambda: weight**2, repeat(()), [weight], n_steps=2, learning_rate=0.1)
    assert weight.grad is None
    assert weight < 1.0
