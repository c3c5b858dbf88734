"""What happens to predictions that no CUDA graph can hold; tests/test_cuda.py has the others."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from simplexcal.calibrators import _cuda_graph
from simplexcal.calibrators._cuda_graph import PredictionGraphs


class Uncapturable(_cuda_graph.CudaGraphed):
    n_calls_made = 0

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        type(self).n_calls_made += 1
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    Uncapturable.n_calls_made = 0
    monkeypatch.setattr(_cuda_graph, "CudaGraphed", Uncapturable)
    stream = SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)


def test_a_function_that_cannot_be_captured_runs_as_it_is() -> None:
    graphs = PredictionGraphs(lambda x: (2 * x,))
    for value in (1.0, 2.0):
        (found,) = graphs((torch.tensor([value]),), [])
        assert found.item() == 2 * value
    assert Uncapturable.n_calls_made == 1


def test_an_error_of_the_function_itself_is_raised() -> None:
    def failing(_: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError("wrong features")

    with pytest.raises(RuntimeError, match="wrong features"):
        PredictionGraphs(failing)((torch.zeros(1),), [])
