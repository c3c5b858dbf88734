"""A network that is an .onnx file: which tensor is calibrated, what is written, what is refused."""

import copy
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from helpers.command_line import error_of, simplexcal
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import simplexcal as sc
from simplexcal.onnx import OnnxNetwork, append_calibrator
from simplexcal.types import Prediction

Array = NDArray[Any]
D, K, N = 5, 4, 300
TYPES = {np.float16: TensorProto.FLOAT16, np.float32: 1, np.float64: TensorProto.DOUBLE}


class Data(NamedTuple):
    inputs: Array
    labels: Array


def layer() -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    weight = 2 * rng.normal(size=(D, K))
    return weight.astype(np.float32), rng.normal(size=K).astype(np.float32)


@pytest.fixture(scope="module")
def data() -> Data:
    """Inputs whose logits are twice as large as they should be, and labels."""
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(N, D)).astype(np.float32)
    weight, bias = layer()
    truth = (inputs @ weight + bias) / 2
    return Data(inputs, (truth + rng.gumbel(size=(N, K))).argmax(1))


def logits_of(data: Data) -> torch.Tensor:
    weight, bias = layer()
    return torch.from_numpy(data.inputs @ weight + bias)


def tensor(name: str, shape: Sequence[Any], dtype: Any = np.float32) -> Any:
    return helper.make_tensor_value_info(name, TYPES[dtype], shape)


def save(
    path: Path,
    nodes: Sequence[Any],
    outputs: Sequence[Any],
    *,
    batch: Any = "n",
    dtype: Any = np.float32,
    opset: int = 18,
    ir: int = 8,
    constants: dict[str, Array] | None = None,
    metadata: dict[str, str] | None = None,
) -> Path:
    """Write a graph that begins with z = x W + b."""
    weight, bias = layer()
    arrays = {"W": weight.astype(dtype), "b": bias.astype(dtype), **(constants or {})}
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "W", "b"], ["z"]), *nodes],
        "net",
        [tensor("x", [batch, D], dtype)],
        outputs,
        [numpy_helper.from_array(x, name) for name, x in arrays.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir, producer_name="vendor")
    helper.set_model_props(model, metadata or {})
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def softmax_net(path: Path, **settings: Any) -> Path:
    nodes = [helper.make_node("Softmax", ["z"], ["p"], axis=1)]
    return save(path, nodes, [tensor("p", [settings.get("batch", "n"), K])], **settings)


def zip_map() -> Any:
    return helper.make_node(
        "ZipMap", ["p"], ["dicts"], domain="ai.onnx.ml", classlabels_int64s=list(range(K))
    )


def dicts() -> Any:
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    of_maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, value))
    return helper.make_value_info("dicts", of_maps)


def run(path: Path, inputs: Array) -> dict[str, Array]:
    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    name = session.get_inputs()[0].name
    return dict(zip(names, session.run(names, {name: inputs}), strict=True))


def assert_same(found: dict[str, Array], expected: Prediction, prefix: str = "") -> None:
    np.testing.assert_array_equal(found[f"{prefix}label"], expected.label)
    np.testing.assert_allclose(found[f"{prefix}probs"], expected.probs, rtol=0, atol=1e-5)


# --- which tensor is calibrated ---

NODES = {
    "Softmax": [helper.make_node("Softmax", ["z"], ["y"])],
    "LogSoftmax": [helper.make_node("LogSoftmax", ["z"], ["y"])],
    "Sigmoid": [helper.make_node("Sigmoid", ["z"], ["y"])],
    "Softmax, then a cast": [
        helper.make_node("Softmax", ["z"], ["half"]),
        helper.make_node("Identity", ["half"], ["same"]),
        helper.make_node("Cast", ["same"], ["y"], to=TensorProto.FLOAT),
    ],
}


@pytest.mark.parametrize("name", NODES)
def test_the_logits_before_an_activation_are_taken(name: str, tmp_path: Path, data: Data) -> None:
    network = OnnxNetwork(save(tmp_path / "net.onnx", NODES[name], [tensor("y", ["n", K])]))
    assert network.reading.tensor == "z"
    assert f"the logits 'z', the input of {name.partition(',')[0]}" in repr(network)
    np.testing.assert_allclose(network(data.inputs).logits, logits_of(data), atol=1e-5)


def composed_softmax(
    *, axis: int = 1, shifted: bool = True, logarithm: bool = False, summand: str = "e"
) -> tuple[list[Any], dict[str, Array]]:
    """Return the nodes and constants of a softmax, as converters of JAX's graphs write it."""
    exponent = "shifted" if shifted else "z"
    nodes = [
        helper.make_node("ReduceMax", ["z"], ["m"], axes=[axis], keepdims=0),
        helper.make_node("Max", ["lowest", "m"], ["largest"]),
        helper.make_node("Unsqueeze", ["largest", "axis"], ["column"]),
        helper.make_node("Sub", ["z", "column"], ["shifted"]),
        helper.make_node("Exp", [exponent], ["e"]),
        helper.make_node("Mul", ["e", "e"], ["square"]),
        helper.make_node("ReduceSum", [summand, "axis"], ["total"]),
    ]
    if logarithm:
        nodes.append(helper.make_node("Log", ["total"], ["log_total"]))
        nodes.append(helper.make_node("Sub", [exponent, "log_total"], ["y"]))
    else:
        nodes.append(helper.make_node("Div", ["e", "total"], ["y"]))
    return nodes, {"lowest": np.array(-np.inf, np.float32), "axis": np.array([axis])}


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize("logarithm", [True, False])
def test_a_softmax_of_several_nodes_is_recognised(
    axis: int, shifted: bool, logarithm: bool, tmp_path: Path, data: Data
) -> None:
    nodes, constants = composed_softmax(axis=axis, shifted=shifted, logarithm=logarithm)
    outputs = [tensor("y", ["n", K])]
    path = save(tmp_path / "net.onnx", nodes, outputs, constants=constants, opset=15)
    network = OnnxNetwork(path, features_name="x")
    assert network.describe() == "the logits 'z', the input of a softmax of several nodes"
    np.testing.assert_allclose(network(data.inputs).logits, logits_of(data), atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"axis": 0, "shifted": False},
        {"summand": "square"},
        {"summand": "square", "logarithm": True},
    ],
)
def test_what_resembles_a_softmax_is_none(settings: dict[str, Any], tmp_path: Path) -> None:
    nodes, constants = composed_softmax(**settings)
    outputs = [tensor("y", ["n", K])]
    path = save(tmp_path / "net.onnx", nodes, outputs, constants=constants, opset=15)
    with pytest.raises(ValueError, match="which does not tell whether it holds logits or prob"):
        OnnxNetwork(path)


def test_a_scaled_sum_of_a_layer_is_logits(tmp_path: Path, data: Data) -> None:
    nodes = [
        helper.make_node("Add", ["z", "shift"], ["shifted"]),
        helper.make_node("Div", ["shifted", "scale"], ["y"]),
    ]
    constants = {"shift": np.ones(K, np.float32), "scale": np.full(1, 4, np.float32)}
    path = save(tmp_path / "net.onnx", nodes, [tensor("y", ["n", K])], constants=constants)
    found = OnnxNetwork(path)(data.inputs).logits
    np.testing.assert_allclose(found, (logits_of(data) + 1) / 4, atol=1e-5)


def test_probabilities_that_are_no_softmax_are_taken_as_such(tmp_path: Path, data: Data) -> None:
    weight, bias = layer()
    classifier = helper.make_node(
        "LinearClassifier",
        ["x"],
        ["label", "p"],
        domain="ai.onnx.ml",
        coefficients=weight.T.flatten().tolist(),
        intercepts=bias.tolist(),
        classlabels_ints=list(range(K)),
        post_transform="SOFTMAX",
    )
    label = helper.make_tensor_value_info("label", TensorProto.INT64, ["n"])
    path = save(tmp_path / "net.onnx", [classifier, zip_map()], [label, dicts()])
    network = OnnxNetwork(path)
    assert network.reading.kind == "probs"
    expected = logits_of(data).log_softmax(-1)
    torch.testing.assert_close(network(data.inputs).logits, expected, rtol=0, atol=1e-4)


def test_two_names_of_one_tensor_leave_no_choice(tmp_path: Path) -> None:
    outputs = [tensor("z", ["n", K]), tensor("y", ["n", K])]
    assert OnnxNetwork(save(tmp_path / "net.onnx", NODES["Softmax"], outputs)).reading.tensor == "z"


def test_of_several_outputs_one_is_named(tmp_path: Path, data: Data) -> None:
    nodes = [helper.make_node("Mul", ["z", "two"], ["doubled"])]
    outputs = [tensor("z", ["n", K]), tensor("doubled", ["n", K])]
    constants = {"two": np.full(1, 2, np.float32)}
    path = save(tmp_path / "net.onnx", nodes, outputs, constants=constants)
    with pytest.raises(ValueError, match=r"several outputs .*: 'z', 'doubled'. Name one with `out"):
        OnnxNetwork(path)
    with pytest.raises(ValueError, match=r"must name an output of .*; got 'p'. It has 'z', 'doub"):
        OnnxNetwork(path, output_name="p")
    found = OnnxNetwork(path, output_name="doubled")(data.inputs).logits
    np.testing.assert_allclose(found, 2 * logits_of(data), atol=1e-5)


@pytest.mark.parametrize(
    "nodes",
    [
        [helper.make_node("Relu", ["z"], ["y"])],
        [  # a softmax in parts: a quotient of two tensors
            helper.make_node("Exp", ["z"], ["e"]),
            helper.make_node("Softmax", ["z"], ["p"]),
            helper.make_node("Div", ["e", "p"], ["y"]),
        ],
        [  # the mean of two softmaxes
            helper.make_node("Softmax", ["z"], ["p"]),
            helper.make_node("Mean", ["p", "p"], ["y"]),
        ],
    ],
    ids=["Relu", "Div", "Mean"],
)
def test_what_a_graph_does_not_tell_is_asked_for(
    nodes: list[Any], tmp_path: Path, data: Data
) -> None:
    path = save(tmp_path / "net.onnx", nodes, [tensor("y", ["n", K])])
    with pytest.raises(
        ValueError,
        match=rf"the output 'y' is the result of {nodes[-1].op_type}, which does not tell "
        r'whether it holds logits or probabilities. Pass `kind="logits"` or `kind="probs"`.$',
    ):
        OnnxNetwork(path)
    assert OnnxNetwork(path, kind="logits")(data.inputs).n_classes == K


def test_the_user_is_believed_but_not_blindly(tmp_path: Path, data: Data) -> None:
    path = softmax_net(tmp_path / "net.onnx")
    network = OnnxNetwork(path, kind="probs")
    assert network.reading.tensor == "p"
    expected = logits_of(data).log_softmax(-1)
    torch.testing.assert_close(network(data.inputs).logits, expected, rtol=0, atol=1e-4)
    wrong = save(tmp_path / "wrong.onnx", [], [tensor("z", ["n", K])])
    with pytest.raises(ValueError, match=r"'z' must hold probabilities, and does not: `probs` mu"):
        OnnxNetwork(wrong, kind="probs")(data.inputs)
    with pytest.raises(ValueError, match=r'`kind` must be "logits", "probs" or None; got True.'):
        OnnxNetwork(path, kind=True)  # type: ignore[arg-type]


# --- inputs ---


@pytest.mark.parametrize("batch", [1, 7])
def test_a_graph_for_a_fixed_number_of_inputs_takes_any(
    batch: int, tmp_path: Path, data: Data
) -> None:
    network = OnnxNetwork(softmax_net(tmp_path / "net.onnx", batch=batch))
    for n in (1, 7, 20):
        found = network(data.inputs[:n]).logits
        np.testing.assert_allclose(found, logits_of(data)[:n], atol=1e-5)


def test_dimensions_of_size_1_are_dropped(tmp_path: Path, data: Data) -> None:
    nodes = [
        helper.make_node("Reshape", ["z", "shape"], ["image"]),
        helper.make_node("Softmax", ["image"], ["p"], axis=1),
        helper.make_node("Squeeze", ["p", "axes"], ["y"]),
    ]
    constants = {"shape": np.array([-1, K, 1, 1]), "axes": np.array([2, 3])}
    path = save(tmp_path / "net.onnx", nodes, [tensor("y", ["n", K])], constants=constants)
    network = OnnxNetwork(path)
    assert network.reading.tensor == "image"
    np.testing.assert_allclose(network(data.inputs).logits, logits_of(data), atol=1e-5)


def two_inputs(path: Path) -> Path:
    nodes = [helper.make_node("Sum", ["left", "right"], ["s"])]
    nodes.append(helper.make_node("Gemm", ["s", "W", "b"], ["z"]))
    weight, bias = layer()
    constants = [numpy_helper.from_array(weight, "W"), numpy_helper.from_array(bias, "b")]
    inputs = [tensor("left", ["n", D]), tensor("right", ["n", D])]
    graph = helper.make_graph(nodes, "net", inputs, [tensor("z", ["n", K])], constants)
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_several_inputs_come_by_name(
    tmp_path: Path, data: Data, capsys: pytest.CaptureFixture[str]
) -> None:
    path = two_inputs(tmp_path / "net.onnx")
    parts = {"left": 0.5 * data.inputs, "right": 0.5 * data.inputs}
    model = sc.calibrate(path, {**parts, "labels": data.labels}, "ts")
    expected = sc.TemperatureScaling().fit(sc.Outputs(logits_of(data)), data.labels)
    torch.testing.assert_close(
        model.predict(parts).probs, expected(sc.Outputs(logits_of(data))).probs
    )
    with pytest.raises(TypeError, match=r"must be called with a dict of its inputs, 'left', 'ri"):
        model.predict(data.inputs)
    with pytest.raises(ValueError, match=r"takes the inputs 'left', 'right'; got 'left'. Name th"):
        model.predict({"left": data.inputs})
    with pytest.raises(ValueError, match=r"the same number in every input; got \[3, 4\]."):
        model.predict({"left": data.inputs[:3], "right": data.inputs[:4]})
    np.savez(tmp_path / "x.npz", labels=data.labels, left=parts["left"], right=parts["right"])
    output = tmp_path / "cal.safetensors"
    command = f"calibrate {tmp_path / 'x.npz'} --model {path} --method ts -o {output} --json"
    assert simplexcal(command) == 0
    assert json.loads(capsys.readouterr().out)["n_classes"] == K
    np.savez(tmp_path / "x.npz", labels=data.labels, left=data.inputs)
    assert "must hold the network's inputs 'left', 'right'; it holds" in error_of(capsys, command)


def test_inputs_that_a_graph_cannot_take_are_one_sentence(tmp_path: Path, data: Data) -> None:
    network = OnnxNetwork(softmax_net(tmp_path / "net.onnx"))
    torch.testing.assert_close(
        network(data.inputs.astype(np.float64)).logits, network(torch.tensor(data.inputs)).logits
    )
    with pytest.raises(ValueError, match=r"net.onnx' cannot take 'x' \(300, 3\): .*") as error:
        network(data.inputs[:, :3])
    assert "\n" not in str(error.value)
    with pytest.raises(TypeError, match=r"the input 'x' must hold float32; got complex64\."):
        network(data.inputs.astype(np.complex64))
    with pytest.raises(ValueError, match=r"with one or more rows, the same number .*; got \[0\]."):
        network(data.inputs[:0])


# --- features ---


@pytest.mark.parametrize("kind", ["Gemm", "MatMul"])
def test_features_come_with_the_layer_that_takes_them(
    kind: str, tmp_path: Path, data: Data
) -> None:
    rng = np.random.default_rng(2)
    last = rng.normal(size=(3, K)).astype(np.float32)
    constants = {"V": last.T.copy() if kind == "Gemm" else last, "c": np.ones(3, np.float32)}
    tail = [helper.make_node("Gemm", ["h", "V", "c"], ["y"], transB=1, alpha=0.5, beta=2.0)]
    if kind == "MatMul":
        tail = [
            helper.make_node("MatMul", ["h", "V"], ["product"]),
            helper.make_node("Add", ["c", "product"], ["y"]),
        ]
    constants["c"] = np.arange(K, dtype=np.float32)
    nodes = [helper.make_node("Slice", ["z", "zero", "three", "one"], ["h"]), *tail]
    constants |= {"zero": np.array([0]), "three": np.array([3]), "one": np.array([1])}
    path = save(tmp_path / "net.onnx", nodes, [tensor("y", ["n", K])], constants=constants)
    network = OnnxNetwork(path, features_name="h")
    outputs = network(data.inputs)
    assert outputs.features is not None
    assert network.head is not None
    torch.testing.assert_close(network.head(outputs.features), outputs.logits)
    assert sc.FeatureMixup(network.head, outputs, torch.from_numpy(data.labels)).n_classes == K
    with pytest.raises(ValueError, match=r"`features_name` must name a tensor of .*; got 'none'"):
        OnnxNetwork(path, features_name="none")
    with pytest.raises(ValueError, match=r"must name the input of the last linear .*; got 'z'. Na"):
        OnnxNetwork(path, features_name="z")


# --- what is written ---


def test_the_calibrator_is_appended_to_the_graph(tmp_path: Path, data: Data) -> None:
    # An old graph for single inputs, whose output is called as one of ours.
    nodes = [helper.make_node("Softmax", ["z"], ["probs"], axis=1)]
    path = save(
        tmp_path / "net.onnx",
        nodes,
        [tensor("probs", [1, K])],
        batch=1,
        opset=11,
        ir=6,
        metadata={"owner": "me", "method": "theirs"},
    )
    before = path.read_bytes()
    model = sc.calibrate(path, (data.inputs, data.labels), "ts")
    model.threshold((data.inputs[:200], data.labels[:200]), coverage=0.5)
    model.to_onnx(tmp_path / "out.onnx", class_names=list("abcd"))
    assert path.read_bytes() == before
    expected = model.predict(data.inputs[:4])
    for i in range(4):
        found = run(tmp_path / "out.onnx", data.inputs[i : i + 1])
        assert list(found) == [
            "probs", "label", "calibrated_probs", "confidence", "accepted",
        ]  # fmt: skip
        own = run(path, data.inputs[i : i + 1])
        np.testing.assert_allclose(found["probs"], own["probs"], atol=1e-6)
        found["probs"] = found["calibrated_probs"]
        assert_same(found, expected[i : i + 1])
        assert own["probs"].argmax() == found["label"]
    written = onnx.load(tmp_path / "out.onnx")
    facts = {entry.key: entry.value for entry in written.metadata_props}
    assert written.producer_name == "vendor"
    assert (facts["owner"], facts["method"], facts["simplexcal_method"]) == ("me", "theirs", "ts")
    assert facts["fingerprint"] == model.backbone.fingerprint()
    assert json.loads(facts["class_names"]) == list("abcd")
    assert "threshold_coverage" in facts


def test_a_softmax_of_several_nodes_is_appended_to(tmp_path: Path, data: Data) -> None:
    nodes, constants = composed_softmax()
    outputs = [tensor("y", ["n", K])]
    path = save(tmp_path / "net.onnx", nodes, outputs, constants=constants, opset=15)
    model = sc.calibrate(path, (data.inputs, data.labels), "ts")
    model.to_onnx(tmp_path / "out.onnx")
    found = run(tmp_path / "out.onnx", data.inputs)
    assert_same(found, model.predict(data.inputs))
    np.testing.assert_allclose(found["y"], logits_of(data).softmax(-1), atol=1e-6)


def test_a_new_graph_in_float64_that_ends_in_dicts(tmp_path: Path, data: Data) -> None:
    nodes = [
        helper.make_node("Softmax", ["z"], ["double"]),
        helper.make_node("Cast", ["double"], ["p"], to=TensorProto.FLOAT),
        zip_map(),
    ]
    path = save(tmp_path / "net.onnx", nodes, [dicts()], dtype=np.float64, opset=21, ir=10)
    network = OnnxNetwork(path)
    assert network.reading.tensor == "z"
    model = sc.calibrate(network, (data.inputs, data.labels), "ts")
    model.to_onnx(tmp_path / "out.onnx")
    found = run(tmp_path / "out.onnx", data.inputs.astype(np.float64))
    assert list(found) == ["label", "probs", "confidence"]
    assert found["probs"].dtype == np.float64
    assert_same(found, model.predict(data.inputs))


def test_probabilities_and_ties_are_appended_to(tmp_path: Path, data: Data) -> None:
    # Two classes share the probability of the first logit, so that the first of them is the label.
    nodes = [
        helper.make_node("Softmax", ["z"], ["p"]),
        helper.make_node("Gather", ["p", "order"], ["g"], axis=1),
        helper.make_node("Mul", ["g", "half"], ["y"]),
    ]
    constants = {
        "order": np.array([0, 0, 1, 1, 2, 2, 3, 3]),
        "half": np.full(1, 0.5, np.float32),
    }
    path = save(tmp_path / "net.onnx", nodes, [tensor("y", ["n", 2 * K])], constants=constants)
    network = OnnxNetwork(path, kind="probs")
    model = sc.calibrate(network, (data.inputs, 2 * data.labels), "ts")
    model.to_onnx(tmp_path / "out.onnx")
    found = run(tmp_path / "out.onnx", data.inputs)
    assert_same(found, model.predict(data.inputs))
    np.testing.assert_array_equal(found["label"], run(path, data.inputs)["y"].argmax(1))


def test_a_calibrator_that_reads_features_is_appended(tmp_path: Path, data: Data) -> None:
    path = softmax_net(tmp_path / "net.onnx")
    network = OnnxNetwork(path, features_name="x")
    method = sc.AdaptiveTemperatureScaling(n_epochs=1)
    model = sc.calibrate(network, (data.inputs, data.labels), method)
    model.to_onnx(tmp_path / "out.onnx", data.inputs[:3])
    assert_same(run(tmp_path / "out.onnx", data.inputs), model.predict(data.inputs))


def test_a_graph_that_would_give_something_else_is_not_written(
    tmp_path: Path, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = sc.calibrate(softmax_net(tmp_path / "net.onnx"), (data.inputs, data.labels), "none")

    def wrong(*_: Any) -> list[Array]:
        return [np.zeros(2, np.int64), np.full((2, K), 0.25, np.float32)]

    monkeypatch.setattr("simplexcal.onnx.append._run_once", wrong)
    with pytest.raises(ValueError, match="gives other predictions than the library"):
        model.to_onnx(tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_places_that_cannot_be_written_are_named_first(tmp_path: Path, data: Data) -> None:
    path = softmax_net(tmp_path / "net.onnx")
    model = sc.calibrate(path, (data.inputs, data.labels), "ts")
    with pytest.raises(ValueError, match="is read by this call and would be overwritten"):
        model.to_onnx(path)
    with pytest.raises(ValueError, match=r"`output` must end in .onnx; got"):
        model.to_onnx(tmp_path / "out.pb")
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(IsADirectoryError, match="is a folder"):
        model.to_onnx(tmp_path / "folder.onnx")
    with pytest.raises(sc.NotFittedError):
        append_calibrator(OnnxNetwork(path), sc.TemperatureScaling(), tmp_path / "out.onnx")


# --- the model ---


def test_a_model_does_what_that_of_a_torch_network_does(tmp_path: Path, data: Data) -> None:
    path = softmax_net(tmp_path / "net.onnx")
    model = sc.calibrate(str(path), (data.inputs, data.labels), "ets")
    outputs = sc.Outputs(logits_of(data))
    expected = sc.EnsembleTemperatureScaling().fit(outputs, data.labels)
    torch.testing.assert_close(model(data.inputs), expected(outputs).probs)
    torch.testing.assert_close(copy.deepcopy(model)(data.inputs), model(data.inputs))
    fresh = data.inputs + np.float32(0.1)
    assert "NLL" in str(model.evaluate((fresh, data.labels)))
    assert model.threshold(fresh, coverage=0.5).promise == "coverage"
    assert model.predict(data.inputs).accepted is not None
    model.save(tmp_path / "cal.safetensors")
    again = sc.load(tmp_path / "cal.safetensors", path)
    torch.testing.assert_close(again(data.inputs), model(data.inputs))
    other = softmax_net(tmp_path / "other.onnx", opset=17)
    with pytest.raises(ValueError, match="was calibrated for another network"):
        sc.load(tmp_path / "cal.safetensors", other)


def test_arguments_for_torch_networks_are_refused(tmp_path: Path, data: Data) -> None:
    path = softmax_net(tmp_path / "net.onnx")
    with pytest.raises(ValueError, match="`head` names a layer of a PyTorch network"):
        sc.calibrate(path, data, head="fc")
    with pytest.raises(ValueError, match=r'`mixup` must be "features" or "logits" for an ONNX'):
        sc.calibrate(path, data, mixup="inputs")


def test_a_torch_network_needs_example_inputs(tmp_path: Path, data: Data) -> None:
    model = sc.calibrate(torch.nn.Sequential(torch.nn.Linear(D, K)), data, "none")
    with pytest.raises(TypeError, match="`example_inputs` must be inputs of the network; got None"):
        model.to_onnx(tmp_path / "out.onnx")


# --- what is refused ---


def test_one_column_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ReduceMean", ["z", "axes"], ["m"]),
        helper.make_node("Sigmoid", ["m"], ["y"]),
    ]
    constants = {"axes": np.array([1])}
    path = save(tmp_path / "net.onnx", nodes, [tensor("y", ["n", 1])], constants=constants)
    sentence = r"'m' must have a column for each class; it gives one number for each input. Write"
    with pytest.raises(ValueError, match=sentence):
        OnnxNetwork(path)


def test_outputs_that_are_no_rows_are_refused(tmp_path: Path, data: Data) -> None:
    nodes = [helper.make_node("Reshape", ["z", "shape"], ["y"])]
    constants = {"shape": np.array([-1, 2, 2])}
    path = save(tmp_path / "net.onnx", nodes, [tensor("y", ["n", 2, 2])], constants=constants)
    with pytest.raises(ValueError, match=r"'y' must have shape \(N, K\), .* got \(300, 2, 2\)."):
        OnnxNetwork(path)(data.inputs)
    nodes = [helper.make_node("ArgMax", ["z"], ["label"], axis=1, keepdims=0)]
    label = helper.make_tensor_value_info("label", TensorProto.INT64, ["n"])
    with pytest.raises(ValueError, match="must have an output of logits or probabilities"):
        OnnxNetwork(save(tmp_path / "net.onnx", nodes, [label]))


@pytest.mark.parametrize("content", [b"", b"no protobuf", "half"])
def test_a_damaged_file_is_one_sentence(content: bytes | str, tmp_path: Path) -> None:
    path = softmax_net(tmp_path / "net.onnx")
    if isinstance(content, str):
        content = path.read_bytes()[:150]
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"net.onnx' cannot be read as .onnx \(.*: write it ag"
    ) as e:
        OnnxNetwork(path)
    assert "\n" not in str(e.value)


def test_paths_that_are_no_files_are_named(tmp_path: Path, data: Data) -> None:
    with pytest.raises(FileNotFoundError, match=r"none.onnx' does not exist or is no file"):
        sc.calibrate(tmp_path / "none.onnx", data)
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(IsADirectoryError, match=r"folder.onnx' is a folder. Give the name of an"):
        sc.calibrate(tmp_path / "folder.onnx", data)
    with pytest.raises(ValueError, match=r"the path of a file that ends in .onnx; got 'net.pt'."):
        sc.calibrate("net.pt", data)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named_with_the_command(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ImportError, match=rf'network needs {package}, .* Run pip install "simplexcal\[onnx\]".$'
    ):
        sc.calibrate("net.onnx", ())


# --- the command line ---


@pytest.fixture
def folder(tmp_path: Path, data: Data, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", inputs=data.inputs, labels=data.labels)
    nodes = [helper.make_node("Mul", ["z", "two"], ["doubled"])]
    outputs = [tensor("z", ["n", K]), tensor("doubled", ["n", K])]
    save(Path("two.onnx"), nodes, outputs, constants={"two": np.full(1, 2, np.float32)})
    softmax_net(Path("net.onnx"))
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_commands_take_an_onnx_file(data: Data, capsys: pytest.CaptureFixture[str]) -> None:
    assert simplexcal("calibrate x.npz --model net.onnx --method ts -o c.safetensors") == 0
    assert capsys.readouterr().out.endswith("It reads the logits 'z', the input of Softmax.\n")
    model = sc.load("c.safetensors", "net.onnx")
    expected = model.predict(data.inputs)
    for command in (
        "calibrate x.npz --model net.onnx --method ts -o out.onnx",
        "predict c.safetensors x.npz --model net.onnx -o p.npz",
        "evaluate x.npz --model net.onnx --calibrator c.safetensors",
        "report x.npz --model net.onnx --calibrator c.safetensors -o r.html",
    ):
        assert simplexcal(command) == 0, capsys.readouterr().err
    np.testing.assert_allclose(np.load("p.npz")["probs"], expected.probs, atol=1e-6)
    assert_same(run(Path("out.onnx"), data.inputs), expected)


@pytest.mark.usefixtures("folder")
def test_the_output_and_the_features_of_a_graph_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = "calibrate x.npz --model two.onnx --method ts -o c.safetensors"
    assert error_of(capsys, command).endswith("'z', 'doubled'. Name one with --onnx-output.\n")
    assert simplexcal(f"{command} --onnx-output z --onnx-features x") == 0
    assert sc.load_calibrator("c.safetensors").n_classes == K
    capsys.readouterr()
    wrong = error_of(capsys, f"{command} --onnx-output z --kind probs")
    assert wrong.startswith("'two.onnx': 'z' must hold probabilities")
    assert wrong.endswith("If they are logits, pass --kind logits.\n")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("--model no.onnx -o c.safetensors", "'no.onnx': No such file or directory."),
        ("--model net.onnx -o net.onnx", "--output 'net.onnx' is read by this call"),
        ("--model net.onnx --head fc -o c.safetensors", "--weights and --head are about a PyTorch"),
        ("--model a:b --onnx-output z -o c.safetensors", "--onnx-output and --onnx-features are a"),
        ("--onnx-output z -o c.safetensors", "--onnx-output and --onnx-features belong to"),
        ("--model net.onnx --logits z -o c.safetensors", "--model takes raw inputs"),
        ("-o out.onnx", "--output must end in .safetensors; got 'out.onnx'."),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(
    command: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error_of(capsys, f"calibrate x.npz --method ts {command}").startswith(sentence)
