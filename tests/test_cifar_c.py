"""Outputs for CIFAR-10-C are those of the right images, and their record is complete."""

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from experiments.datasets.loading import Dataset, calibration_test_split
from experiments.datasets.normalisation import NORMALISATION, normalise
from experiments.pretraining.architectures import Classifier
from torch import Tensor, nn

import simplexcal as sc
from simplexcal.metrics import nll

ROOT = Path(__file__).parents[1]
N = 24
N_CORRUPTED = 6
PART = 4  # The last part is smaller.
SEVERITIES = (1, 2, 3, 4, 5)


@pytest.fixture
def outputs_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("cifar_c_outputs")
    monkeypatch.setattr(module, "N_IMAGES", N_CORRUPTED)
    monkeypatch.setattr(module, "PART", PART)
    return module


@pytest.fixture
def data() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (N, 3, 8, 8), generator=generator).byte()
    labels = torch.randint(10, (N,), generator=generator)
    return Dataset(images[:0], labels[:0], images, labels, tuple("abcdefghij"))


def network() -> Classifier:
    torch.manual_seed(0)
    return Classifier([nn.Conv2d(3, 4, 3)], 4, 10).eval()


def darken(images: Any, severity: int) -> Any:
    return images // (severity + 1)


def logits_of(images: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = network()(normalise(images, NORMALISATION["cifar10"]))
    return found


def test_outputs_are_those_of_the_corrupted_images(
    outputs_module: Any, data: Dataset, tmp_path: Path
) -> None:
    evaluation = importlib.import_module("shift_cifar")
    outputs_module.write_images(data, tmp_path)
    written = np.load(tmp_path / "images.npy")
    rows = calibration_test_split(N)[1][:N_CORRUPTED]
    assert (written.transpose(0, 3, 1, 2) == data.test_images[rows].numpy()).all()
    (tmp_path / "corrupted").mkdir()
    stack = np.stack([darken(written, severity) for severity in SEVERITIES])
    np.save(tmp_path / "corrupted" / "dark.npy", stack)
    outputs_module.write_outputs(network(), "cifar10", data, tmp_path)
    found = list(evaluation.corrupted_sets(tmp_path / "outputs", "dark"))
    assert [part.severity for part in found] == list(SEVERITIES)
    for part in found:
        expected = logits_of(darken(data.test_images[rows], part.severity))
        torch.testing.assert_close(part.outputs.logits, expected)
        assert part.labels.equal(data.test_labels[rows])
    calibration, _ = evaluation.read_outputs(tmp_path / "outputs" / "calibration.safetensors")
    fitted = calibration_test_split(N)[0]
    torch.testing.assert_close(calibration.logits, logits_of(data.test_images[fitted]))
    assert not set(rows.tolist()) & set(fitted.tolist())


def test_an_interrupted_run_keeps_its_parts(
    outputs_module: Any, data: Dataset, tmp_path: Path
) -> None:
    outputs_module.write_images(data, tmp_path)
    (tmp_path / "corrupted").mkdir()
    np.save(tmp_path / "corrupted" / "dark.npy", np.stack([np.load(tmp_path / "images.npy")] * 5))
    (tmp_path / "outputs").mkdir()
    kept = tmp_path / "outputs" / "dark-0.safetensors"
    kept.write_bytes(b"kept")
    outputs_module.write_outputs(network(), "cifar10", data, tmp_path)
    assert kept.read_bytes() == b"kept"
    names = {path.name for path in (tmp_path / "outputs").iterdir()}
    parts = {f"dark-{start}.safetensors" for start in range(0, N_CORRUPTED, PART)}
    assert names == {"calibration.safetensors", "test.safetensors", *parts}


def test_the_parts_of_the_nll_add_up_to_it(outputs_module: Any) -> None:
    del outputs_module  # It puts the benchmarks on the path.
    evaluation = importlib.import_module("shift_cifar")
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2]])
    prediction = sc.Prediction(probs, probs.argmax(-1))
    found = evaluation.divided_scores(prediction, torch.tensor([0, 2]))
    assert found["right_or_wrong"] == pytest.approx(-(math.log(0.7) + math.log(0.5)) / 2)
    assert found["which_other"] == pytest.approx(-math.log(0.2 / 0.5) / 2)
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(200, 5, generator=generator).softmax(-1)
    labels = torch.randint(5, (200,), generator=generator)
    found = evaluation.divided_scores(sc.Prediction(probs, probs.argmax(-1)), labels)
    whole = found["right_or_wrong"] + found["which_other"]
    assert whole == pytest.approx(float(nll(probs, labels)), rel=1e-6)


def test_the_straight_head_leaves_the_order_and_scale_of_the_other_classes(
    outputs_module: Any,
) -> None:
    del outputs_module
    evaluation = importlib.import_module("shift_cifar")
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2000, 4, generator=generator)
    labels = logits.sigmoid().multinomial(1, generator=generator).squeeze(1)
    outputs = sc.Outputs(logits)
    settings = {**evaluation.REFITS["sts-straight"], "bias": 1e9, "confusion": 1e9, "slope": 1e9}
    straight = sc.SimplexTemperatureScaling(head_settings=settings, n_steps=1)
    straight.fit(outputs, labels, generator=generator)
    probs = straight.probs_alone(outputs)
    # With m the identity, the other classes keep the ratios of temperature scaling.
    temperature = straight.global_temperature
    assert temperature is not None
    for first, second in ((0, 1), (2, 3)):
        rows = (logits.argmax(-1) != first) & (logits.argmax(-1) != second)
        ratio = (probs[rows, first] / probs[rows, second]).log()
        expected = (logits[rows, first] - logits[rows, second]) / temperature
        torch.testing.assert_close(ratio, expected, atol=1e-3, rtol=1e-3)
    curved = sc.SimplexTemperatureScaling(n_steps=1).fit(outputs, labels, generator=generator)
    changed = (curved.probs_alone(outputs)[rows, 2] / curved.probs_alone(outputs)[rows, 3]).log()
    assert (changed - expected).abs().max() > 0.1
