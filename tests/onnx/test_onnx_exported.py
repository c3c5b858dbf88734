"""Graphs of other libraries are calibrated as the models say, and run elsewhere."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from helpers.onnx_graphs import ONNX_CASES, data, expected_probs

import simplexcal as sc
from simplexcal.onnx import OnnxNetwork


@pytest.mark.parametrize("name", ONNX_CASES)
def test_a_graph_of_another_library_is_calibrated(name: str, tmp_path: Path) -> None:
    case = ONNX_CASES[name]
    path = case.make(tmp_path)
    inputs, labels = data()
    expected = expected_probs(name)
    labels = np.minimum(labels, expected.shape[1] - 1)
    if case.sentence is not None:
        with pytest.raises(ValueError, match="does not tell") as error:
            sc.calibrate(path, (inputs, labels), "ts")
        assert str(error.value) == case.sentence.format(path=path)
        network = OnnxNetwork(path, kind="probs")
    else:
        network = OnnxNetwork(path)
    assert network.describe().startswith(f"the {case.reading} ")
    np.testing.assert_allclose(
        network(inputs).logits.softmax(-1).numpy(), expected, rtol=0, atol=1e-6
    )
    model = sc.calibrate(network, (inputs, labels), "ts")
    prediction = model.predict(inputs)
    np.testing.assert_array_equal(prediction.label, network(inputs).logits.argmax(-1))
    model.to_onnx(tmp_path / "calibrated.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "calibrated.onnx")
    names = [x.name for x in session.get_outputs()]
    found = dict(zip(names, session.run(None, {session.get_inputs()[0].name: inputs}), strict=True))
    label, probs = "label", "probs"
    if "calibrated_label" in found:
        label = "calibrated_label"
    if "calibrated_probs" in found:
        probs = "calibrated_probs"
    np.testing.assert_array_equal(found[label], prediction.label)
    np.testing.assert_allclose(found[probs], prediction.probs, rtol=0, atol=1e-5)
