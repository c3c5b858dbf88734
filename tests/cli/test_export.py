"""From saved files to an ONNX file; and docs/serving.md as it stands."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from helpers.command_line import error_of
from safetensors.torch import save_file
from torch import Tensor

from simplexcal.calibrators import TemperatureScaling
from simplexcal.cli.export import export_file
from simplexcal.demo.lenet5 import normalise
from simplexcal.demo.run import Data, prepare
from simplexcal.io import save_calibrator
from simplexcal.model import CalibratedModel
from simplexcal.network_spec import NetworkSpec

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
WRITE, USE, SERVE, CLIENT, ALONE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
LENET5 = "simplexcal.demo.lenet5:LeNet5"


@pytest.fixture(scope="module")
def data() -> Data:
    return prepare()


@pytest.fixture
def model(data: Data, tmp_path: Path) -> CalibratedModel:
    """A model, whose calibrator, weights and inputs lie in the folder."""
    model = CalibratedModel(data.backbone, TemperatureScaling().fit(data.fit, data.fit_labels))
    model.save(tmp_path / "ts.safetensors")
    save_file(data.backbone.net.state_dict(), tmp_path / "lenet5.safetensors")
    np.savez(tmp_path / "inputs.npz", inputs=images(data).numpy())
    return model


def images(data: Data) -> Tensor:
    return normalise(data.test_images[:9])


def probs(path: Path, name: str, x: Tensor) -> Tensor:
    return torch.from_numpy(onnxruntime.InferenceSession(path).run(["probs"], {name: x.numpy()})[0])


@pytest.mark.parametrize("by_shape", [True, False])
def test_files_become_one_graph_of_network_and_calibrator(
    by_shape: bool, model: CalibratedModel, data: Data, tmp_path: Path
) -> None:
    network = NetworkSpec(LENET5, tmp_path / "lenet5.safetensors")
    told = {"shape": "1,28,28"} if by_shape else {"data": tmp_path / "inputs.npz"}
    written = export_file(tmp_path / "ts.safetensors", tmp_path / "net.onnx", network, **told)
    assert written == ("ts", ["inputs"], ["label", "probs", "confidence"])
    x = images(data)
    torch.testing.assert_close(
        probs(tmp_path / "net.onnx", "inputs", x), model(x), rtol=0, atol=1e-5
    )


@pytest.mark.usefixtures("model")
def test_double_inputs_tell_the_shape_as_well(data: Data, tmp_path: Path) -> None:
    inputs = images(data)
    np.savez(tmp_path / "double.npz", inputs=inputs.double().numpy())
    network = NetworkSpec(LENET5, tmp_path / "lenet5.safetensors")
    path = tmp_path / "net.onnx"
    export_file(tmp_path / "ts.safetensors", path, network, data=tmp_path / "double.npz")
    assert probs(path, "inputs", inputs).dtype == torch.float32


@pytest.mark.usefixtures("model")
def test_data_that_are_no_inputs_get_advice_that_this_command_can_follow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("logits.npz", logits=np.zeros((3, 10), np.float32))
    command = f"export ts.safetensors logits.npz --model {LENET5} -o net.onnx"
    error = error_of(capsys, command)
    assert "'logits.npz' holds `logits` and no `inputs`" in error
    assert "kind" not in error


def test_without_a_network_the_calibrator_is_written_with_the_fingerprint(
    model: CalibratedModel, data: Data, tmp_path: Path
) -> None:
    assert export_file(tmp_path / "ts.safetensors", tmp_path / "ts.onnx").inputs == ["logits"]
    got = probs(tmp_path / "ts.onnx", "logits", data.test.logits)
    torch.testing.assert_close(got, model.calibrator(data.test).probs, rtol=0, atol=1e-6)
    facts = onnxruntime.InferenceSession(tmp_path / "ts.onnx").get_modelmeta().custom_metadata_map
    assert facts["fingerprint"] == data.backbone.fingerprint()


@pytest.mark.parametrize(
    ("network", "told", "message"),
    [
        (None, {"shape": "3"}, "--shape and DATA tell what a network takes: give --model"),
        (
            NetworkSpec(LENET5),
            {},
            "Say what the network takes: --shape of one input, as 1,28,28, or DATA",
        ),
        (NetworkSpec(LENET5), {"shape": "1", "data": Path("x.npz")}, "Say what the network takes"),
        (
            NetworkSpec(LENET5),
            {"shape": "1x28x28"},
            "--shape must be positive numbers with commas .*; got '1x28x28'",
        ),
        (
            NetworkSpec(LENET5),
            {"shape": "1,-28,28"},
            "--shape must be positive numbers with commas .*; got '1,-28,28'",
        ),
        (
            NetworkSpec(LENET5),
            {"shape": f"1,{10**20}"},
            "--shape must be positive numbers with commas .*; got '1,10+'",
        ),
        (
            NetworkSpec(LENET5),
            {"shape": "1,28,28"},
            "was calibrated for another network",
        ),  # of random weights
        (NetworkSpec(LENET5), {"data": Path("missing.npz")}, "missing.npz"),
    ],
)
@pytest.mark.usefixtures("model")
def test_what_does_not_fit_together_is_one_sentence(
    network: NetworkSpec | None, told: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, OSError), match=message):
        export_file(tmp_path / "ts.safetensors", tmp_path / "net.onnx", network, **told)
    assert not (tmp_path / "net.onnx").exists()


def test_a_shape_that_the_network_cannot_take_is_one_sentence(data: Data, tmp_path: Path) -> None:
    save_calibrator(
        TemperatureScaling().fit(data.fit, data.fit_labels), tmp_path / "ts.safetensors"
    )
    with pytest.raises(
        ValueError, match=r"The network cannot take inputs of shape \(1, 5, 5\) and torch.float32: "
    ):
        export_file(
            tmp_path / "ts.safetensors", tmp_path / "net.onnx", NetworkSpec(LENET5), shape="1,5,5"
        )


# --- docs/serving.md -----------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def python(code: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=env, stdout=pipe, stderr=pipe, text=True)


def finished(process: subprocess.Popen[str]) -> str:
    out, error = process.communicate(timeout=300)
    assert (process.returncode, error) == (0, "")
    return out


def without_us(code: str) -> str:
    """Return the code, with torch and simplexcal made impossible to import."""
    return f"import sys\nsys.modules['torch'] = sys.modules['simplexcal'] = None\n{code}"


@pytest.mark.long
def test_the_page_runs_as_it_stands_and_serves_without_torch(tmp_path: Path) -> None:
    finished(python(f"import torch; torch.manual_seed(0)\n{WRITE}", tmp_path))
    lines = finished(python(without_us(USE), tmp_path)).splitlines()
    assert lines[0] == "simplexcal sts"
    assert len(lines) == 6
    port = str(free_port())
    server = python(without_us(SERVE), tmp_path, port)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == f"http://127.0.0.1:{port}\n"
        client = without_us(CLIENT.replace("8000", port))
        answered = finished(python(client, tmp_path))
        assert re.fullmatch(r"\[[012], [012]\] \[0\.\d+, 0\.\d+\]\n", answered)
        refused = python(client.replace("-1.0", "float('nan')"), tmp_path)
        assert "HTTP Error 400" in refused.communicate(timeout=60)[1]
    finally:
        server.kill()
        server.communicate()


@pytest.mark.long
def test_the_calibrator_alone_runs_as_it_stands(tmp_path: Path) -> None:
    check = 'assert answer["probs"].shape == (1, 5)'
    code = f"import torch; torch.manual_seed(0)\n{ALONE}\n{check}"
    inputs, answer = finished(python(code, tmp_path)).splitlines()
    assert inputs == "['logits']"
    assert answer.startswith("[0] [0.2")  # of five equal logits, whose probabilities are equal


def test_the_service_does_not_need_more_than_it_says() -> None:
    imported = set(re.findall(r"^(?:import|from) (\w+)", USE + SERVE + CLIENT, re.MULTILINE))
    assert imported <= {"numpy", "onnxruntime", *sys.stdlib_module_names}
