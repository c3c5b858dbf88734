"""MLflow: what a real run holds, and the model that it serves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

import simplexcal as sc
from simplexcal.integrations.mlflow import log_calibration, log_model


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    earlier = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        yield run
    mlflow.set_tracking_uri(earlier)


def make_data(net: nn.Module, seed: int) -> tuple[Tensor, Tensor]:
    generator = Generator().manual_seed(seed)
    x = torch.randn(300, 4, generator=generator)
    labels = (net(x) / 3).softmax(-1).multinomial(1, generator=generator).squeeze(1)
    return x, labels


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    with torch.no_grad():
        net.weight.mul_(8)
    return net


def test_a_run_holds_figures_card_and_calibrator(net: nn.Module, run: Any) -> None:
    model = sc.calibrate(net, make_data(net, 1), "ts")
    test = make_data(net, 2)
    found = log_calibration(model, test, report=False)
    assert found is not None
    logged = mlflow.get_run(run.info.run_id).data
    assert logged.params == {"calibration_method": "ts", "calibration_inputs": "300"}
    assert logged.metrics["before_ece"] == found.before.ece
    assert logged.metrics["after_nll"] == found.after.nll
    assert logged.metrics["after_ece_high"] == found.after.ece_high
    uri = f"runs:/{run.info.run_id}/calibration"
    folder = Path(mlflow.artifacts.download_artifacts(uri))
    assert sorted(path.name for path in folder.iterdir()) == ["calibrator.safetensors", "card.md"]
    assert (folder / "card.md").read_text() == f"{model.card()}\n"
    loaded = sc.load(folder / "calibrator.safetensors", net)
    assert torch.equal(loaded.predict(test[0]).probs, model.predict(test[0]).probs)


def test_without_data_there_are_no_figures(net: nn.Module, run: Any) -> None:
    model = sc.calibrate(net, make_data(net, 1), "ts")
    assert log_calibration(model) is None
    assert mlflow.get_run(run.info.run_id).data.metrics == {}


@pytest.mark.slow
def test_a_run_holds_the_report(net: nn.Module, run: Any) -> None:
    model = sc.calibrate(net, make_data(net, 1), "ts")
    log_calibration(model, make_data(net, 2), title="A run")
    uri = f"runs:/{run.info.run_id}/calibration/report.html"
    assert "A run" in Path(mlflow.artifacts.download_artifacts(uri)).read_text()


@pytest.mark.usefixtures("run")
def test_the_logged_model_serves_calibrated_predictions(net: nn.Module) -> None:
    model = sc.calibrate(net, make_data(net, 1), "ts")
    x, _ = make_data(net, 2)
    info = log_model(model, x[:1])
    served = mlflow.pyfunc.load_model(info.model_uri).predict(x.numpy())
    prediction = model.predict(x)
    np.testing.assert_allclose(served["probs"], prediction.probs.numpy(), atol=1e-6)
    np.testing.assert_array_equal(served["label"], prediction.label.numpy())
