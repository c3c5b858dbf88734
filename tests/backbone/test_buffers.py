"""What is checked once of a network that changes nothing, and what in every call."""

from typing import cast

import pytest
import torch
from torch import Tensor, nn

import simplexcal as sc
from simplexcal.backbone import _forward


class CountsLater(nn.Module):
    """Its forward pass changes a buffer from the third call on."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.linear = nn.Linear(5, 3)
        self.n_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n_calls += 1
        if self.n_calls > 2:
            self.count += 1
        logits: Tensor = self.linear(x)
        return logits


def test_a_buffer_that_changes_in_a_later_call_has_its_value_again() -> None:
    net = CountsLater().eval()
    backbone = sc.Backbone(net)
    for _ in range(6):
        backbone(torch.randn(8, 5))
        assert torch.equal(net.count, torch.zeros(3))


def test_buffers_are_compared_once_where_no_call_changes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[Tensor] = []
    equal = _forward._equal

    def counted(buffer: Tensor, copy: Tensor) -> bool:
        compared.append(buffer)
        return equal(buffer, copy)

    monkeypatch.setattr(_forward, "_equal", counted)
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).eval()
    backbone = sc.Backbone(net)
    x = torch.randn(8, 5)
    backbone(x)
    assert len(compared) == 3
    backbone(x)
    assert len(compared) == 3
    with torch.no_grad():
        cast(nn.BatchNorm1d, net[1]).weight.fill_(2.0)
        cast(Tensor, net[1].running_mean).fill_(1.0)  # the owner's own change stays
    changed = backbone(x)
    assert len(compared) == 6
    torch.testing.assert_close(changed.logits, net(x))
    assert torch.equal(cast(Tensor, net[1].running_mean), torch.ones(4))
    backbone(x)
    assert len(compared) == 6


def test_features_of_a_known_head_are_those_of_a_new_backbone() -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)).eval()
    backbone = sc.Backbone(net)
    x = torch.randn(8, 5)
    first = backbone(x)
    again = backbone(x)
    assert again.features is not None
    assert first.features is not None
    assert torch.equal(again.features, first.features)
    assert torch.equal(again.logits, first.logits)
    masked = sc.Backbone(ChangesItsLogits(), head="linear")
    for _ in range(2):
        with pytest.raises(ValueError, match="are changed after it"):
            masked(x)


class ChangesItsLogits(nn.Module):
    """It changes the tensor of its last layer in place, differently for each input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x)
        return logits.mul_(x[:, :1].exp())
