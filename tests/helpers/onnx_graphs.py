"""Graphs of other libraries: files that their converters wrote, and graphs written like theirs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
EXPORTED = Path(__file__).parents[1] / "onnx" / "exported"
D, HIDDEN, K = 4, 8, 3


class OnnxCase(NamedTuple):
    """A graph, what is calibrated in it, and the sentence that asks for more, if any."""

    make: Callable[[Path], Path]
    reading: str
    kind: str
    sentence: str | None = None


def data() -> tuple[Array, Array]:
    """Return inputs and labels of K classes."""
    arrays = np.load(EXPORTED / "data.npz")
    return arrays["inputs"], arrays["labels"]


def expected_probs(name: str) -> Array:
    """Return the probabilities that the model of a graph gives by itself."""
    arrays = np.load(EXPORTED / "data.npz")
    if name in arrays:
        return np.asarray(arrays[name])
    x = arrays["inputs"]
    weights = layers()
    hidden = np.maximum(x @ weights["first"] + weights["first_bias"], 0)
    logits = hidden @ weights["second"] + weights["second_bias"]
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(1, keepdims=True))


def layers() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    shapes = {
        "first": (D, HIDDEN),
        "first_bias": (HIDDEN,),
        "second": (HIDDEN, K),
        "second_bias": (K,),
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def exported(name: str) -> Callable[[Path], Path]:
    return lambda folder: EXPORTED / f"{name}.onnx"


def written(last: list[tuple[str, list[str], str]]) -> Callable[[Path], Path]:
    """Return a function that writes two layers and the nodes that follow the logits."""

    def make(folder: Path) -> Path:
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        nodes = [
            ("MatMul", ["x", "first"], "product"),
            ("Add", ["product", "first_bias"], "sum"),
            ("Relu", ["sum"], "hidden"),
            ("MatMul", ["hidden", "second"], "second_product"),
            ("Add", ["second_product", "second_bias"], "logits"),
            *last,
        ]
        constants = {
            **layers(),
            "lowest": np.array(-np.inf, np.float32),
            "column": np.array([-1, 1]),
            "last_axis": np.array([1]),
        }
        graph = helper.make_graph(
            [_node(kind, inputs, output) for kind, inputs, output in nodes],
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["unk__1", D])],
            [helper.make_tensor_value_info("target", TensorProto.FLOAT, ["unk__2", K])],
            [numpy_helper.from_array(x, name) for name, x in constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
        path = folder / "net.onnx"
        onnx.save(model, path)
        return path

    return make


def _node(kind: str, inputs: list[str], output: str) -> Any:
    from onnx import helper

    settings: dict[str, Any] = {}
    if kind == "ReduceMax":
        settings = {"axes": [1], "keepdims": 0}
    if kind == "ReduceSum":
        settings = {"keepdims": 0}
    return helper.make_node(kind, inputs, [output], **settings)


JAX_SOFTMAX = [
    ("ReduceMax", ["logits"], "max"),
    ("Max", ["lowest", "max"], "largest"),
    ("Reshape", ["largest", "column"], "largest_column"),
    ("Sub", ["logits", "largest_column"], "shifted"),
    ("Exp", ["shifted"], "exponentials"),
    ("ReduceSum", ["exponentials", "last_axis"], "total"),
    ("Reshape", ["total", "column"], "total_column"),
    ("Div", ["exponentials", "total_column"], "target"),
]
ASKED = (
    "'{path}': the output '{output}' is the result of {node}, which does not tell whether it holds "
    'logits or probabilities. Pass `kind="logits"` or `kind="probs"`.'
)
SKLEARN = "ONNX, scikit-learn"
ONNX_CASES: dict[str, OnnxCase] = {
    "logistic_regression": OnnxCase(exported("logistic_regression"), "probabilities", SKLEARN),
    "logistic_regression_binary": OnnxCase(
        exported("logistic_regression_binary"), "probabilities", SKLEARN
    ),
    "random_forest": OnnxCase(exported("random_forest"), "probabilities", SKLEARN),
    "mlp": OnnxCase(exported("mlp"), "logits", SKLEARN),
    "naive_bayes": OnnxCase(
        exported("naive_bayes"),
        "probabilities",
        SKLEARN,
        ASKED.format(path="{path}", output="output_probability", node="Exp"),
    ),
    "lightgbm": OnnxCase(exported("lightgbm"), "probabilities", "ONNX, LightGBM"),
    "as TensorFlow's converter writes it": OnnxCase(
        written([("Softmax", ["logits"], "target")]), "logits", "ONNX, layers"
    ),
    "as JAX's converters write it": OnnxCase(written(JAX_SOFTMAX), "logits", "ONNX, layers"),
    "logits alone": OnnxCase(
        written([("Identity", ["logits"], "target")]), "logits", "ONNX, layers"
    ),
}
