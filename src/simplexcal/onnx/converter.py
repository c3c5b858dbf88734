"""From a traced graph to an ONNX model, exactly and in silence."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

OPSET = 18
MAX_BYTES = 2**31  # A protobuf message, and so one ONNX file, stays below.
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
    *,
    subject: str = "This module",
    remedy: str = "",
) -> Any:
    """Return a module as an ONNX model.

    Args:
        graph: Called with a list of tensors.
        tensors: Example inputs by name.
        outputs: Names of the results; the first ones are used.
        dynamic: Dimensions of the tensors that have any size.
        subject: What an error says cannot be exported.
        remedy: What an error says can be done instead.

    Raises:
        ValueError: If the module is too large, or cannot be traced or converted.
    """
    _check_size(graph)
    try:
        with torch.no_grad(), _quiet():
            model = _convert(graph, tensors, outputs, dynamic)
    except Exception as error:
        message = f"{subject} cannot be exported: {_reason(error)}. {remedy}"
        raise ValueError(message) from error
    _tidy(model.graph)
    return model


def _convert(
    graph: nn.Module,
    tensors: dict[str, Tensor],
    outputs: Sequence[str],
    dynamic: Sequence[int],
) -> Any:
    from onnxscript import optimizer

    shapes = [_dynamic_shape(tensor, dynamic) for tensor in tensors.values()]
    # Traced by torch.export itself: where this fails, torch.onnx.export would fix the size of the
    # batch, silently.
    program = torch.export.export(
        graph, (list(tensors.values()),), dynamic_shapes=(shapes,), strict=False
    )
    _shorten(program.graph)
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
    _restore_digits(model.graph, program)
    return model


def _reason(error: BaseException) -> str:
    """Return the first reason that the root of an error gives."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip(" -") for line in str(error).splitlines()]
    reasons = [line for line in lines if line and not line.startswith("Constraints violated")]
    if not reasons:
        return type(error).__name__
    return " ".join(reasons[0].split()).rstrip(".")


def _check_size(graph: nn.Module) -> None:
    size = sum(x.nbytes for x in graph.state_dict().values())
    if size >= MAX_BYTES:
        raise ValueError(
            f"An ONNX file holds less than 2 GiB; these weights take {size / 2**30:.1f} GiB. "
            "Export the calibrator alone with simplexcal.onnx.export_calibrator, and the network "
            "with torch.onnx.export."
        )


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


def _shorten(graph: torch.fx.Graph) -> None:
    """Write x ± a · b as two nodes; the converter would write a factor of ±1 as a third."""
    signs = {1: torch.ops.aten.add.Tensor, -1: torch.ops.aten.sub.Tensor}
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.addcmul.default):
        combine = signs.get(node.kwargs.get("value", 1))
        if combine is None or any(user.op == "output" for user in node.users):
            continue
        if len(node.users) == 0:  # The converter drops it.
            continue
        x, a, b = node.args
        with graph.inserting_before(node):
            product = graph.call_function(torch.ops.aten.mul.Tensor, (a, b))
            product.meta["val"] = a.meta["val"] * b.meta["val"]
            total = graph.call_function(combine, (x, product))
            total.meta = node.meta
        node.replace_all_uses_with(total)
        graph.erase_node(node)


def _restore_digits(graph: Any, program: torch.export.ExportedProgram) -> None:
    """Write float64 scalars with all digits: torch.onnx rounds Python numbers to float32."""
    from onnx import TensorProto, numpy_helper

    floats = {x for node in program.graph.nodes for x in node.args if isinstance(x, float)}
    exact = {float(np.float32(x)): x for x in floats}
    for constant in graph.initializer:
        if constant.data_type != TensorProto.DOUBLE:
            continue
        rounded = numpy_helper.to_array(constant)
        if rounded.size != 1 or rounded.item() in floats:
            continue
        value = np.full_like(rounded, exact.get(rounded.item(), rounded.item()))
        constant.CopyFrom(numpy_helper.from_array(value, constant.name))


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
