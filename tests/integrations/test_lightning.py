"""Lightning: a real Trainer calls the callback at the end of a real fit."""

from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from torch import Generator, Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import simplexcal as sc
from simplexcal.integrations.lightning import CalibrationCallback

K = 3


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, K))

    def forward(self, x: Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Any:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.training_step(batch, index)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 0.05)


def loader(n: int, seed: int) -> Any:
    generator = Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator)
    labels = x[:, :K].softmax(-1).multinomial(1, generator=generator).squeeze(1)
    return DataLoader(TensorDataset(x, labels), 50)


@pytest.fixture
def module() -> Any:
    torch.manual_seed(0)
    return Module()


def trainer(callback: Any, folder: Path) -> Any:
    return lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=[callback],
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def test_the_module_is_calibrated_on_the_validation_data(module: Any, tmp_path: Path) -> None:
    held_out = loader(200, 1)
    path = tmp_path / "net.safetensors"
    callback = CalibrationCallback(method="ts", path=path, class_names=["a", "b", "c"])
    assert callback.model is None
    trainer(callback, tmp_path).fit(module, loader(100, 0), held_out)
    model = callback.model
    assert model is not None
    expected = sc.calibrate(module, held_out, "ts")
    x = torch.randn(20, 4)
    assert torch.equal(model.predict(x).probs, expected.predict(x).probs)
    assert model.class_names == ["a", "b", "c"]
    loaded = sc.load(path, module)
    assert torch.equal(loaded.predict(x).probs, expected.predict(x).probs)


def test_the_module_is_calibrated_on_given_data(module: Any, tmp_path: Path) -> None:
    x, labels = loader(80, 2).dataset.tensors
    callback = CalibrationCallback((x, labels), sc.TemperatureScaling())
    trainer(callback, tmp_path).fit(module, loader(100, 0), loader(60, 1))
    assert callback.model is not None
    fit = callback.model.card().fit
    assert fit is not None
    assert fit.n == 80


def test_without_data_the_error_says_what_to_pass(module: Any, tmp_path: Path) -> None:
    callback = CalibrationCallback(method="ts")
    module.validation_step = None
    with pytest.raises(ValueError, match=r"found 0. Pass CalibrationCallback\(data=...\)"):
        trainer(callback, tmp_path).fit(module, loader(100, 0))
