"""What the graph of an ONNX file says about its outputs: logits or probabilities, and of what."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

LOGITS = "logits"
PROBS = "probs"
ZIP_MAP = "ZipMap"

# These hand on what they get; only its type, shape or precision changes.
PASSING = {
    "Cast",
    "DequantizeLinear",
    "Dropout",
    "Flatten",
    "Identity",
    "QuantizeLinear",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    ZIP_MAP,
}
# These turn logits into probabilities or their logarithms.
ACTIVATIONS = {"Softmax", "LogSoftmax", "Sigmoid"}
# These give each class of a row the same number.
SPREADING = PASSING | {"Expand", "Tile"}
CLASS_AXES = ([1], [-1])
# These give logits where a network ends in them.
LAYERS = {"BatchNormalization", "Conv", "Einsum", "FusedMatMul", "Gemm", "MatMul"}
# These give logits if all that they combine are logits or constants.
COMBINING = {
    "Add",
    "AveragePool",
    "Div",
    "GlobalAveragePool",
    "Mean",
    "Mul",
    "Neg",
    "ReduceMean",
    "Sub",
    "Sum",
}
# These give logits only if one operand is a constant: a product of two may be probabilities.
PRODUCTS = {"Div", "Mul"}


class Reading(NamedTuple):
    """The tensor of a graph that is calibrated.

    Attributes:
        output: The graph's output that it belongs to.
        tensor: Name of the tensor.
        kind: "logits" or "probs"; None where the graph does not tell.
        origin: Where it comes from, in words.
    """

    output: str
    tensor: str
    kind: str | None
    origin: str


class GraphReader:
    """Finds where the tensors of a graph come from.

    Args:
        graph: An onnx.GraphProto.
    """

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.producers = {name: node for node in graph.node for name in node.output if name}
        self.initializers = {constant.name: constant for constant in graph.initializer}

    def read(self, output: str) -> Reading:
        """Return which tensor is behind an output, and what it holds.

        Args:
            output: Name of an output of the graph.
        """
        tensor = self._before_zip_map(output)
        node = self.producers.get(self.source_of(tensor))
        if node is None:
            return Reading(output, tensor, None, "an input or a constant of the graph")
        origin = f"the result of {node.op_type}"
        if node.op_type in ACTIVATIONS:
            return Reading(output, node.input[0], LOGITS, f"the input of {node.op_type}")
        logits = self._before_composed_softmax(node)
        if logits is not None:
            return Reading(output, logits, LOGITS, "the input of a softmax of several nodes")
        if node.domain == "ai.onnx.ml":
            return Reading(output, tensor, _kind_of_classifier(node), origin)
        if self._holds_logits(tensor):
            return Reading(output, tensor, LOGITS, origin)
        return Reading(output, tensor, None, origin)

    def as_is(self, output: str, kind: str) -> Reading:
        """Return an output as what the user says that it holds.

        Args:
            output: Name of an output of the graph.
            kind: "logits" or "probs".
        """
        return Reading(output, self._before_zip_map(output), kind, "as given")

    def linear_layer(self, features: str, logits: str) -> nn.Linear | None:
        """Return the layer that maps features to logits, or None if it is not one with constants.

        Args:
            features: Name of a tensor.
            logits: Name of a tensor.
        """
        node = self.producers.get(self.source_of(logits))
        bias = None
        if node is not None and node.op_type == "Add":
            bias = self._first_constant(node)
            products = [self.source_of(x) for x in node.input if self.constant(x) is None]
            node = next((self.producers.get(name) for name in products), None)
        if node is None or node.op_type not in ("Gemm", "MatMul"):
            return None
        if self.source_of(node.input[0]) != self.source_of(features):
            return None
        return self._as_linear(node, bias)

    def source_of(self, tensor: str, passing: Collection[str] = PASSING) -> str:
        """Return the tensor that is handed on as this one.

        Args:
            tensor: Name of a tensor.
            passing: The nodes that hand it on.
        """
        node = self.producers.get(tensor)
        while node is not None and node.op_type in passing:
            tensor = node.input[0]
            node = self.producers.get(tensor)
        return tensor

    def constant(self, tensor: str) -> Any | None:
        """Return the value of a constant as an array, or None for any other tensor.

        Args:
            tensor: Name of a tensor.
        """
        from onnx import numpy_helper

        if tensor in self.initializers:
            return numpy_helper.to_array(self.initializers[tensor])
        node = self.producers.get(tensor)
        if node is None or node.op_type != "Constant":
            return None
        value = attributes(node).get("value")
        if value is None:
            return None
        return numpy_helper.to_array(value)

    def is_zip_map(self, output: str) -> bool:
        """Return whether an output is a list of dicts, as scikit-learn's converter makes them.

        Args:
            output: Name of an output of the graph.
        """
        node = self.producers.get(output)
        return node is not None and node.op_type == ZIP_MAP

    def _before_zip_map(self, output: str) -> str:
        if self.is_zip_map(output):
            return str(self.producers[output].input[0])
        return output

    def _before_composed_softmax(self, node: Any) -> str | None:
        """Return the logits x where a node gives exp(x) / Σ exp(x) or x - ln Σ exp(x).

        Converters of JAX write a softmax so. The largest logit may be subtracted first.
        """
        if node.op_type == "Div":
            exponential = self.source_of(node.input[0])
            total = self.source_of(node.input[1], SPREADING)
        elif node.op_type == "Sub":
            logarithm = self.producers.get(self.source_of(node.input[1], SPREADING))
            if logarithm is None or logarithm.op_type != "Log":
                return None
            total = self.source_of(logarithm.input[0], SPREADING)
            exponential = self._summand(total)
        else:
            return None
        exp = self.producers.get(exponential)
        if exp is None or exp.op_type != "Exp" or self._summand(total) != exponential:
            return None
        logits = self.source_of(exp.input[0])
        if node.op_type == "Sub" and self.source_of(node.input[0]) != logits:
            return None
        return self._before_shift(logits)

    def _summand(self, total: str) -> str:
        """Return the tensor whose sum over the classes this is; "" if it is no such sum."""
        node = self.producers.get(total)
        if node is None or node.op_type != "ReduceSum":
            return ""
        if self._axes(node) not in CLASS_AXES:
            return ""
        return self.source_of(node.input[0])

    def _before_shift(self, logits: str) -> str:
        """Return the logits from which the largest of each row is subtracted, or these."""
        node = self.producers.get(logits)
        if node is None or node.op_type != "Sub":
            return logits
        shifted = self.source_of(node.input[0])
        largest = self.producers.get(self.source_of(node.input[1], SPREADING))
        if largest is not None and largest.op_type == "Max":
            # One of them is the constant -∞.
            for name in largest.input:
                if not self._is_constant(name):
                    largest = self.producers.get(self.source_of(name, SPREADING))
        if largest is None or largest.op_type != "ReduceMax":
            return logits
        if self._axes(largest) in CLASS_AXES and self.source_of(largest.input[0]) == shifted:
            return shifted
        return logits

    def _axes(self, node: Any) -> list[int] | None:
        """Return the axes that a node reduces, an attribute before opset 13 or 18; None if all."""
        if len(node.input) > 1 and node.input[1]:
            axes = self.constant(node.input[1])
        else:
            axes = attributes(node).get("axes")
        if axes is None:
            return None
        return [int(axis) for axis in axes]

    def _is_constant(self, tensor: str) -> bool:
        tensor = self.source_of(tensor)
        if tensor in self.initializers:
            return True
        node = self.producers.get(tensor)
        return node is not None and node.op_type == "Constant"

    def _holds_logits(self, tensor: str) -> bool:
        """Return whether a tensor comes from a layer, or from sums and multiples of such."""
        node = self.producers.get(self.source_of(tensor))
        if node is None:
            return False
        if node.op_type in LAYERS:
            return True
        if node.op_type not in COMBINING:
            return False
        operands = [name for name in node.input if name and not self._is_constant(name)]
        if node.op_type in PRODUCTS and len(operands) > 1:
            return False
        return len(operands) > 0 and all(self._holds_logits(name) for name in operands)

    def _first_constant(self, node: Any) -> Any | None:
        values = [self.constant(name) for name in node.input]
        return next((value for value in values if value is not None), None)

    def _as_linear(self, node: Any, bias: Any | None) -> nn.Linear | None:
        """Return a Gemm or a MatMul as a layer, if its weights are constant."""
        weight = self.constant(node.input[1])
        if weight is None or weight.ndim != 2:
            return None
        scales = attributes(node)
        if scales.get("transA", 0):
            return None
        if not scales.get("transB", 0):
            weight = weight.T
        weight = weight * scales.get("alpha", 1.0)
        total = np.zeros(len(weight))
        if bias is not None:
            total = total + bias.reshape(-1)
        if node.op_type == "Gemm" and len(node.input) > 2 and node.input[2]:
            own = self.constant(node.input[2])
            if own is None:
                return None
            total = total + own.reshape(-1) * scales.get("beta", 1.0)
        return _linear(weight, total)


def attributes(node: Any) -> dict[str, Any]:
    """Return the attributes of a node.

    Args:
        node: An onnx.NodeProto.
    """
    from onnx import helper

    return {x.name: helper.get_attribute_value(x) for x in node.attribute}


def choose_reading(readings: Sequence[Reading]) -> Reading | None:
    """Return the one tensor that all outputs lead to, or None if there are several.

    Args:
        readings: Of each output that may be meant; at least one.
    """
    if len({reading.tensor for reading in readings}) == 1:
        return readings[0]
    return None


def _kind_of_classifier(node: Any) -> str | None:
    """Return what a node of ai.onnx.ml gives; trees without a transform give probabilities."""
    found = attributes(node)
    if node.op_type == "LinearClassifier":
        if found.get("post_transform", b"NONE") == b"NONE":
            return LOGITS
        return PROBS
    if node.op_type in ("TreeEnsembleClassifier", "TreeEnsemble"):
        return PROBS
    if node.op_type == "SVMClassifier" and len(found.get("prob_a", [])) > 0:
        return PROBS
    if node.op_type == "Normalizer" and found.get("norm", b"MAX") == b"L1":
        return PROBS
    return None


def _linear(weight: Any, bias: Any) -> nn.Linear:
    """Return a frozen layer with these weights."""
    k, d = weight.shape
    layer = nn.Linear(d, k, device="meta")
    values = torch.from_numpy(np.ascontiguousarray(weight))
    if values.dtype != torch.float64:
        values = values.float()
    layer.weight = nn.Parameter(values, requires_grad=False)
    layer.bias = nn.Parameter(torch.from_numpy(bias).to(values), requires_grad=False)
    return layer.eval()
