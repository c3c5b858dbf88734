"""Work in chunks of rows: the same numbers as without, and no other array that grows with N."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from helpers.quick_branches import quick_branches
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simplexcal import (
    EnsembleTemperatureScaling,
    SimplexTemperatureScaling,
    TemperatureScaling,
    _chunking,
    mixup,
)
from simplexcal._chunking import in_chunks, join
from simplexcal.calibrators import Calibrator, _likelihood_head_fit
from simplexcal.calibrators import _branch_network as _branch
from simplexcal.types import Outputs

CHUNK = 150_000
N, K = 1500, 150  # more rows than a chunk or a training step has
METHODS: dict[str, Callable[[], Calibrator]] = {
    "ts": TemperatureScaling,
    "ets": EnsembleTemperatureScaling,
    "ets nll": lambda: EnsembleTemperatureScaling("nll"),
    "sts": SimplexTemperatureScaling,
}


class Made(TorchDispatchMode):
    """Records how many numbers each new tensor has."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        old = {
            x.untyped_storage().data_ptr()
            for x in tree_leaves((args, kwargs))
            if isinstance(x, Tensor)
        }
        new = [
            x
            for x in tree_leaves(result)
            if isinstance(x, Tensor) and x.untyped_storage().data_ptr() not in old
        ]
        self.sizes += [x.numel() for x in new]
        return result


@cache
def simulate() -> tuple[Outputs, Tensor]:
    g = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(N, K, generator=g)
    return Outputs(logits), torch.multinomial((logits / 2).softmax(-1), 1, generator=g).squeeze(1)


def fit(make: Callable[[], Calibrator]) -> Calibrator:
    return make().fit(*simulate(), generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=METHODS)
def make(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Calibrator]:
    quick_branches(monkeypatch, 2)
    simulate()
    return METHODS[request.param]


def test_rows_are_worked_on_in_chunks_and_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_chunking.CHUNK, "cpu", 12)
    seen = []

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(len(x))
        return 2 * x, x.sum(-1) + y

    x, y = torch.arange(21.0).view(7, 3), torch.arange(7.0)
    for rows in (x, x.clone().requires_grad_()):
        twice, total = in_chunks(function, rows, y, width=6)
        assert torch.equal(twice, 2 * x)
        assert torch.equal(total, x.sum(-1) + y)
        assert total.requires_grad == rows.requires_grad
    assert seen == [2, 2, 2, 1] * 2
    assert [part.shape for part in in_chunks(function, x[:0], y[:0], width=6)] == [(0, 3), (0,)]


def test_a_compiled_graph_has_no_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_chunking.CHUNK, "cpu", 2)

    class Twice(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            (result,) = in_chunks(lambda rows: (2 * rows,), x, width=1)
            return result

    x = torch.arange(6.0).view(6, 1)
    rows = torch.export.Dim("rows")
    program = torch.export.export(Twice(), (x,), dynamic_shapes=({0: rows},))
    operations = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert operations == [torch.ops.aten.mul.Tensor]
    assert torch.equal(program.module()(x[:5]), 2 * x[:5])


def test_what_is_too_much_is_cut_off() -> None:
    parts = [(torch.full((3,), float(i)),) for i in range(3)]
    assert join(iter(parts), 7)[0].tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert join(iter(parts), 2)[0].tolist() == [0, 0]


def test_no_fit_makes_an_array_larger_than_the_logits(
    make: Callable[[], Calibrator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_chunking.CHUNK, "cpu", CHUNK)
    for module, name in ((mixup, "MAX_MATRIX"), (mixup, "MAX_AT_A_TIME"), (_branch, "MAX_POOL")):
        monkeypatch.setattr(module, name, 1200 * K)
    # Each of these values has a row of about 70 numbers.
    monkeypatch.setattr(_likelihood_head_fit, "N_FOR_CURVATURE", 2 * N)
    with Made() as made:
        calibrator = fit(make)
    largest = 1200 * K
    if calibrator.uses_mixup:
        largest = N * K  # The logits that are mixed, after temperature scaling.
    assert max(made.sizes) <= largest


def test_a_prediction_makes_its_result_alone_as_large_as_the_logits(
    make: Callable[[], Calibrator], monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrator, outputs = fit(make), simulate()[0]
    monkeypatch.setitem(_chunking.CHUNK, "cpu", CHUNK)
    with Made() as made:
        calibrator(outputs)
    assert sorted(made.sizes)[-1] == N * K
    assert sorted(made.sizes)[-2] <= CHUNK  # of one chunk


def test_chunks_change_no_fit_and_no_prediction(
    make: Callable[[], Calibrator], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = simulate()[0]
    whole = fit(make)
    monkeypatch.setitem(_chunking.CHUNK, "cpu", CHUNK)
    parts = fit(make)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    one, other = vars(whole(outputs)), vars(parts(outputs))
    for name, value in one.items():
        assert (value is None) == (other[name] is None)
        if value is not None:
            torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-4)
