"""Functions of tensors as CUDA graphs: steps of a training, and predictions.

A step has hundreds of small kernels; launched one by one they cost more time than they take. A
graph runs the same kernels on the same memory each time, so what changes from call to call is
copied to where the graph reads it.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from threading import RLock
from typing import NamedTuple

import torch
from torch import Tensor

# In the calls before a capture torch and its libraries set up what a capture forbids.
N_WARM_UP = 3
# Predictions of so many forms of input are kept as graphs; the one captured first goes first.
MAX_GRAPHS = 8
# A prediction that holds more numbers takes longer than its launches.
MAX_NUMBERS = 2**23

Results = tuple[Tensor, ...]
Key = tuple[object, ...]


class Captured(NamedTuple):
    """A graph and its memory.

    Args:
        graph: The graph.
        buffers: Where it reads its inputs.
        results: Where it writes its results; empty for a function without any.
    """

    graph: torch.cuda.CUDAGraph
    buffers: list[Tensor]
    results: Results


class CudaGraphed:
    """A function of tensors on one GPU, captured for each form of its inputs and then replayed.

    Args:
        function: Called for its effects, or for its results.
        max_graphs: So many graphs are kept; None keeps all.
    """

    def __init__(
        self, function: Callable[..., Results | None], max_graphs: int | None = None
    ) -> None:
        self.function = function
        self.max_graphs = max_graphs
        self.n_calls: Counter[Key] = Counter()
        self.captured: dict[Key, Captured] = {}

    def __call__(self, *inputs: Tensor) -> Results:
        """Do what the function does, and return its results.

        Those of a replay lie in the memory of the graph, which the next replay overwrites.

        Args:
            inputs: The arguments of the function.
        """
        key = tuple((x.shape, x.dtype) for x in inputs)
        if key not in self.captured:
            self.n_calls[key] += 1
            if self.n_calls[key] <= N_WARM_UP:
                return self.function(*inputs) or ()
            self.captured[key] = self._capture(inputs)
            self._forget()
        graph, buffers, results = self.captured[key]
        for buffer, x in zip(buffers, inputs, strict=True):
            buffer.copy_(x)
        graph.replay()
        return results

    def _capture(self, inputs: tuple[Tensor, ...]) -> Captured:
        graph = torch.cuda.CUDAGraph()
        buffers = [x.clone() for x in inputs]
        with (
            torch.cuda.device(buffers[0].device),
            torch.cuda.graph(graph, capture_error_mode="thread_local"),
        ):
            results = self.function(*buffers)
        return Captured(graph, buffers, results or ())

    def _forget(self) -> None:
        """Drop the oldest graph where there are too many, and counts of forms that were rare."""
        if self.max_graphs is None or len(self.captured) <= self.max_graphs:
            return
        del self.captured[next(iter(self.captured))]
        self.n_calls.clear()


class PredictionGraphs:
    """Predictions of one calibrator on GPUs, as graphs for small batches that come again.

    A graph reads the calibrator's tensors where they lay when it was captured. If they lie
    elsewhere, all graphs are dropped. Each stream has graphs of its own, since two streams could
    use the memory of one at the same time. A function that no graph can hold, such as one that
    waits for a number, runs as it is.

    Args:
        function: From some rows of each input to the results for them.
    """

    def __init__(self, function: Callable[..., Results]) -> None:
        self.function = function
        self.lock = RLock()
        self.can_capture = True
        self.addresses: list[int] = []
        self.of_streams: dict[int, CudaGraphed] = {}

    def __call__(self, inputs: tuple[Tensor, ...], state: Iterable[Tensor]) -> Results:
        """Return the results for all rows.

        Args:
            inputs: Tensors on one GPU.
            state: The tensors of the calibrator.
        """
        addresses = [tensor.data_ptr() for tensor in state]
        # Buffers made in inference mode could not be written to outside of it.
        with self.lock, torch.inference_mode(False), torch.no_grad():
            if addresses != self.addresses:
                self.of_streams.clear()
                self.addresses = addresses
            stream = torch.cuda.current_stream(inputs[0].device).cuda_stream
            if stream not in self.of_streams:
                self.of_streams[stream] = CudaGraphed(self.function, MAX_GRAPHS)
            results = self._results(self.of_streams[stream], inputs)
            return tuple(result.clone() for result in results)

    def _results(self, graphed: CudaGraphed, inputs: tuple[Tensor, ...]) -> Results:
        if self.can_capture:
            try:
                return graphed(*inputs)
            except RuntimeError:  # An error of the function itself comes again below.
                self.can_capture = False
        return self.function(*inputs)


def suits_a_graph(inputs: tuple[Tensor, ...], width: int) -> bool:
    """Return whether a prediction is replayed as a graph: on a GPU, small, and without gradients.

    Args:
        inputs: The inputs of the prediction.
        width: How many numbers it holds for a row.
    """
    first = inputs[0]
    if first.device.type != "cuda" or not 0 < len(first) * width <= MAX_NUMBERS:
        return False
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        return False
    if torch.cuda.is_current_stream_capturing():
        return False
    return not torch._C._are_functorch_transforms_active()
