"""A training step as one CUDA graph: its hundreds of small kernels, launched one by one, cost more time than they take.

A graph runs the same kernels on the same memory each time, so what changes from step to step, the batch, is copied to
where the graph reads it.
"""

from collections import Counter
from collections.abc import Callable

import torch
from torch import Size, Tensor

WARM_UP = (
    3  # calls before a capture, in which torch and its libraries set up what a capture forbids
)

Shapes = tuple[Size, ...]


class CudaGraphed:
    """A function of tensors on one GPU, called for its effects: captured for each set of shapes, and then replayed."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function
        self.n_calls: Counter[Shapes] = Counter()
        self.captured: dict[Shapes, tuple[torch.cuda.CUDAGraph, list[Tensor]]] = {}

    def __call__(self, *inputs: Tensor) -> None:
        """Do what the function does."""
        shapes = tuple(x.shape for x in inputs)
        self.n_calls[shapes] += 1
        if self.n_calls[shapes] <= WARM_UP:
            self.function(*inputs)
        else:
            self._replay(shapes, inputs)

    def _replay(self, shapes: Shapes, inputs: tuple[Tensor, ...]) -> None:
        if shapes not in self.captured:
            self.captured[shapes] = self._capture(inputs)
        graph, places = self.captured[shapes]
        for place, x in zip(places, inputs, strict=True):
            place.copy_(x)
        graph.replay()

    def _capture(self, inputs: tuple[Tensor, ...]) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
        graph, places = torch.cuda.CUDAGraph(), [x.clone() for x in inputs]
        with (
            torch.cuda.device(places[0].device),
            torch.cuda.graph(graph, capture_error_mode="thread_local"),
        ):
            self.function(*places)
        return graph, places
