"""From a traced graph to an ONNX model, exactly and in silence."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn

OPSET = 18
LOGGERS = (
    "onnxscript.optimizer._constant_folding",
    "torch.export._trace",
    "torch.fx.experimental.symbolic_shapes",
    "torch.onnx._internal.exporter._registration",
)


def convert(
    graph: nn.Module, tensors: dict[str, Tensor], outputs: Sequence[str], dynamic: Sequence[int]
) -> Any:
    """Return ``graph``, called with a list of ``tensors``, as an ONNX model.

    Its results are named by the first of ``outputs``. The ``dynamic`` dimensions of the tensors have any size.
    """
    from onnxscript import optimizer

    shapes = [{dim: _size(dim) for dim in dynamic if dim < x.dim()} for x in tensors.values()]
    with torch.no_grad(), _quiet():
        # Traced by torch.export itself: where this fails, torch.onnx.export would fix the size of the batch, silently.
        program = torch.export.export(
            graph, (list(tensors.values()),), dynamic_shapes=(shapes,), strict=False
        )
        converted: Any = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=list(tensors),
            output_names=outputs[: len(program.graph_signature.user_outputs)],
            optimize=False,  # it takes a factor of 0.99999 for 1, and an addend of 1e-8, which saves a division, for 0
        )
        optimizer.fold_constants(converted.model, onnx_shape_inference=True)
        optimizer.remove_unused_nodes(converted.model)
        model = converted.model_proto
    _tidy(model.graph)
    return model


def reason(error: BaseException) -> str:
    """Return the first thing that the root of an error of ``convert`` gives for a reason."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [
        line.strip(" -")
        for line in str(error).splitlines()
        if not line.startswith("Constraints violated")
    ]
    return " ".join(next(filter(None, lines), type(error).__name__).split()).rstrip(".")


def _size(dim: int) -> Any:
    """Return that a batch has any size; and that of another dimension torch may find the bounds, as a text's length."""
    return torch.export.Dim("batch") if dim == 0 else torch.export.Dim.DYNAMIC


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep to ourselves what torch and onnxscript write: what they deprecate, skip, do not find or cannot trace."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            # torch warns of its own use of its own class
            warnings.filterwarnings(
                "ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning
            )
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _tidy(graph: Any) -> None:
    """Name the dimensions, and drop torch's traces, which hold the paths of this machine."""
    del graph.value_info[:]
    for node in graph.node:
        del node.metadata_props[:]
    names: dict[str, str] = {}
    for value in (*graph.input, *graph.output):
        for i, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param:
                dim.dim_param = names.setdefault(
                    dim.dim_param, f"{value.name}_{i}" if i else "batch"
                )
