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
    graph: nn.Module,
    tensors: dict[str, Tensor],
    outputs: Sequence[str],
    dynamic: Sequence[int],
) -> Any:
    """Return a module as an ONNX model.

    Args:
        graph: Called with a list of tensors.
        tensors: Example inputs by name.
        outputs: Names of the results; the first ones are used.
        dynamic: Dimensions of the tensors that have any size.
    """
    from onnxscript import optimizer

    shapes = [_dynamic_shape(tensor, dynamic) for tensor in tensors.values()]
    with torch.no_grad(), _quiet():
        # Traced by torch.export itself: where this fails, torch.onnx.export would fix the size of
        # the batch, silently.
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
            # The optimiser takes a factor of 0.99999 for 1, and an addend of 1e-8, which saves a
            # division, for 0.
            optimize=False,
        )
        optimizer.fold_constants(converted.model, onnx_shape_inference=True)
        optimizer.remove_unused_nodes(converted.model)
        model = converted.model_proto
    _tidy(model.graph)
    return model


def reason(error: BaseException) -> str:
    """Return the first reason that the root of an error of ``convert`` gives.

    Args:
        error: What ``convert`` raised.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip(" -") for line in str(error).splitlines()]
    reasons = [line for line in lines if line and not line.startswith("Constraints violated")]
    if not reasons:
        return type(error).__name__
    return " ".join(reasons[0].split()).rstrip(".")


def _dynamic_shape(
    tensor: Tensor,
    dynamic: Sequence[int],
) -> dict[int, Any]:
    return {dim: _size(dim) for dim in dynamic if dim < tensor.dim()}


def _size(dim: int) -> Any:
    """Return that a batch has any size; of another dimension torch may find the bounds."""
    if dim == 0:
        return torch.export.Dim("batch")
    return torch.export.Dim.DYNAMIC


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch and onnxscript, which report what they deprecate, skip or do not find."""
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
            if not dim.dim_param:
                continue
            name = "batch"
            if i > 0:
                name = f"{value.name}_{i}"
            dim.dim_param = names.setdefault(dim.dim_param, name)
