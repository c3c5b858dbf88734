"""A new method is one class and one entry of CALIBRATORS: then every command knows it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pyarrow.parquet as pq
import pytest
import torch
from helpers.command_line import simplexcal
from helpers.user_files import write

from simplexcal import CALIBRATORS, Calibrator, Outputs, Prediction
from simplexcal.calibrators.base import Task
from simplexcal.io import load_calibrator
from simplexcal.io.tables import read_predictions

Arrays = dict[str, npt.NDArray[Any]]


class ToyScaling(Calibrator):
    """softmax(u z), with u from a grid by maximum likelihood."""

    key = "toy"
    abbreviation = "Toy"
    title = "toy scaling"
    scale: torch.Tensor

    def __init__(self, n_steps: int = 10) -> None:
        super().__init__()
        self.n_steps = n_steps

    def _build(self, n_classes: int, n_features: int | None) -> None:
        self.register_buffer("scale", torch.ones(()))

    def _fit(self, task: Task) -> None:
        losses = {}
        for step in range(1, self.n_steps + 1):
            scale = step / self.n_steps
            loss = torch.nn.functional.cross_entropy(scale * task.outputs.logits, task.labels)
            losses[scale] = loss.item()
        self.scale.fill_(min(losses, key=lambda scale: losses[scale]))

    def _predict(self, outputs: Outputs) -> Prediction:
        return Prediction((self.scale * outputs.logits).softmax(-1), outputs.label)


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CALIBRATORS, ToyScaling.key, ToyScaling)


@pytest.fixture
def fitted(folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The current folder, with the toy method in toy.safetensors."""
    assert simplexcal("calibrate val.npz --method toy -o toy.safetensors") == 0
    capsys.readouterr()
    return folder


def expected_probs(arrays: Arrays) -> torch.Tensor:
    calibrator, _ = load_calibrator("toy.safetensors")
    probs: torch.Tensor = calibrator(Outputs(torch.from_numpy(arrays["logits"]))).probs
    return probs


def test_the_help_lists_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert simplexcal("calibrate --help") == 0
    help_text = " ".join(capsys.readouterr().out.split())
    assert "toy (toy scaling)" in help_text
    assert "To reproduce the paper only: dirichlet-ts." in help_text
    assert "dirichlet-ts (" not in help_text  # It is not in the list of methods for users.
    assert "Mixup samples are used by: dirichlet-ts, sts." in help_text


def test_a_method_that_uses_mixup_is_listed_as_such(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToyScaling, "uses_mixup", True)
    assert simplexcal("calibrate --help") == 0
    help_text = " ".join(capsys.readouterr().out.split())
    assert "Mixup samples are used by: dirichlet-ts, sts, toy." in help_text


def test_calibrate_fits_and_saves_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "calibrate val.npz --method toy -o toy.safetensors --json"
    assert simplexcal(command) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["method"] == "toy"
    assert record["nll_after"] < record["nll_before"]
    calibrator, header = load_calibrator(folder / "toy.safetensors")
    assert type(calibrator) is ToyScaling
    assert header["settings"] == {"n_steps": 10}
    assert 0.1 <= float(calibrator.state_dict()["scale"]) < 1


@pytest.mark.usefixtures("fitted")
def test_predict_uses_it(arrays: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    assert simplexcal("predict toy.safetensors val.npz -o out.npz") == 0
    assert capsys.readouterr().out.startswith("out.npz: 300 predictions by toy")
    prediction, _ = read_predictions("out.npz")
    assert torch.equal(prediction.probs, expected_probs(arrays))


@pytest.mark.usefixtures("fitted")
def test_evaluate_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    command = "evaluate val.npz --calibrator toy.safetensors"
    assert simplexcal(f"{command} --json") == 0
    methods = json.loads(capsys.readouterr().out)["methods"]
    assert list(methods) == ["none", "toy"]
    assert methods["toy"]["nll"] < methods["none"]["nll"]
    assert simplexcal(command) == 0
    assert "| toy " in capsys.readouterr().out


def test_report_shows_it(fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "report val.npz --calibrator toy.safetensors -o report.html"
    assert simplexcal(command) == 0
    assert capsys.readouterr().out.startswith("report.html: 300 inputs, none, toy.")
    assert "toy" in (fitted / "report.html").read_text()


def test_export_writes_it(fitted: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    assert simplexcal("export toy.safetensors -o toy.onnx --json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["method"] == "toy"
    assert record["inputs"] == ["logits"]
    session = onnxruntime.InferenceSession(fitted / "toy.onnx")
    (probs,) = session.run(["probs"], {"logits": arrays["logits"]})
    assert probs == pytest.approx(expected_probs(arrays).numpy(), abs=1e-6)
    assert session.get_modelmeta().custom_metadata_map["method"] == "toy"


def test_score_uses_it(fitted: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    write(fitted / "rows.parquet", {"logits": arrays["logits"]})
    command = "score toy.safetensors rows.parquet --output out.parquet --json"
    assert simplexcal(command) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 300
    scored = pq.read_table("out.parquet")
    confidence = expected_probs(arrays).amax(-1).numpy()
    assert scored["confidence"].to_numpy() == pytest.approx(confidence, rel=1e-6)
    assert scored["predicted"].to_pylist() == arrays["logits"].argmax(1).tolist()


def test_without_an_entry_there_is_no_such_method(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(CALIBRATORS, "toy")
    assert simplexcal("calibrate val.npz --method toy -o toy.safetensors") == 2
    assert "'toy' is not one of none, ts" in capsys.readouterr().err
    assert not np.any([path.suffix == ".safetensors" for path in folder.iterdir()])
