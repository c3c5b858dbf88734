from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers.command_line import simplexcal

Arrays = dict[str, npt.NDArray[Any]]


@pytest.fixture
def arrays() -> Arrays:
    """Overconfident outputs of a linear network with 3 classes and 4 features, and labels."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(3, 4)).astype(np.float32)
    bias = rng.normal(size=3).astype(np.float32)
    features = rng.normal(size=(300, 4)).astype(np.float32)
    truth = features @ weight.T + bias
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(1)
    return {
        "logits": truth * 3,
        "features": features,
        "labels": labels,
        "head_weight": 3 * weight,
        "head_bias": bias * 3,
    }


@pytest.fixture
def folder(tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the outputs in val.npz."""
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "val.npz", **arrays)  # type: ignore[arg-type]
    return tmp_path


@pytest.fixture
def fitted(folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The current folder, with temperature scaling of val.npz in net.safetensors."""
    assert simplexcal("calibrate val.npz --method ts -o net.safetensors") == 0
    capsys.readouterr()
    return folder
