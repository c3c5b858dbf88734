"""A training step as one CUDA graph.

A step has hundreds of small kernels; launched one by one they cost more time than they take. A
graph runs the same kernels on the same memory each time, so what changes from step to step, the
batch, is copied to where the graph reads it.
"""

from collections import Counter
from collections.abc import Callable

import torch
from torch import Size, Tensor

# In the calls before a capture torch and its libraries set up what a capture forbids.
N_WARM_UP = 3

Shapes = tuple[Size, ...]
Captured = tuple[torch.cuda.CUDAGraph, list[Tensor]]


class CudaGraphed:
    """A function of tensors on one GPU, captured for each set of shapes and then replayed.

    Args:
        function: Called for its effects.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function
        self.n_calls: Counter[Shapes] = Counter()
        self.captured: dict[Shapes, Captured] = {}

    def __call__(self, *inputs: Tensor) -> None:
        """Do what the function does.

        Args:
            inputs: The arguments of the function.
        """
        shapes = tuple(x.shape for x in inputs)
        self.n_calls[shapes] += 1
        if self.n_calls[shapes] <= N_WARM_UP:
            self.function(*inputs)
        else:
            self._replay(shapes, inputs)

    def _replay(
        self,
        shapes: Shapes,
        inputs: tuple[Tensor, ...],
    ) -> None:
        if shapes not in self.captured:
            self.captured[shapes] = self._capture(inputs)
        graph, buffers = self.captured[shapes]
        for buffer, x in zip(buffers, inputs, strict=True):
            buffer.copy_(x)
        graph.replay()

    def _capture(self, inputs: tuple[Tensor, ...]) -> Captured:
        graph = torch.cuda.CUDAGraph()
        buffers = [x.clone() for x in inputs]
        with (
            torch.cuda.device(buffers[0].device),
            torch.cuda.graph(graph, capture_error_mode="thread_local"),
        ):
            self.function(*buffers)
        return graph, buffers
