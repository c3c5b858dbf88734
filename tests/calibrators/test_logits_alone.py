"""Simplex Temperature Scaling of logits alone: its branch reads, and learns from mixed, logits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.quick_branches import quick_branches
from torch import Generator, Tensor, nn

import simplexcal as sc
from simplexcal.io import load_calibrator, save_calibrator
from simplexcal.types import Outputs, Prediction

K = 4
SMALL: dict[str, Any] = {"widths": (8,), "n_steps": 30, "pool_size": 300, "batch_size": 50}
LEAST = -300.0  # nats, of a sane differential entropy at these logits


def present(prediction: Prediction) -> list[Tensor]:
    return [value for value in vars(prediction).values() if value is not None]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_branches(monkeypatch, 10)


@pytest.fixture(scope="module")
def data() -> tuple[Outputs, Tensor]:
    """Logits that overstate their confidence, and labels."""
    g = Generator().manual_seed(0)
    truth = 2 * torch.randn(200, K, generator=g)
    labels = truth.softmax(-1).multinomial(1, generator=g).squeeze(1)
    labels[:K] = torch.arange(K)
    return Outputs(2 * truth), labels


def fit(outputs: Outputs, labels: Tensor, **more: Any) -> sc.SimplexTemperatureScaling:
    return sc.SimplexTemperatureScaling(**SMALL).fit(outputs, labels, **more)


def check_sane(prediction: Prediction) -> None:
    assert prediction.aleatoric is not None
    assert prediction.epistemic is not None
    for value in present(prediction):
        assert value.isfinite().all()
    assert (prediction.epistemic > LEAST).all()


def same(a: Prediction, b: Prediction) -> bool:
    return all(torch.equal(x, y) for x, y in zip(present(a), present(b), strict=True))


def test_there_is_a_branch_and_its_uncertainties_are_sane(data: tuple[Outputs, Tensor]) -> None:
    outputs, labels = data
    sts = fit(outputs, labels)
    assert sts.branch is not None
    assert not sts.reads_features
    assert sts.n_features is None
    check_sane(sts(outputs))


def test_no_mixup_is_logit_mixup_and_features_do_not_matter(data: tuple[Outputs, Tensor]) -> None:
    outputs, labels = data
    features = torch.randn(len(outputs), 7, generator=Generator().manual_seed(1))
    with_features = Outputs(outputs.logits, features)
    expected = fit(outputs, labels)(outputs)
    for given in (outputs, with_features):
        for mixup in (None, sc.LogitMixup(given, labels)):
            sts = fit(given, labels, mixup=mixup)
            assert same(sts(given), expected)
            assert same(sts(outputs), expected)


def test_a_constant_in_the_logits_does_not_matter(data: tuple[Outputs, Tensor]) -> None:
    outputs, labels = data
    doubled = outputs.to(torch.float64)
    normalised = Outputs(doubled.logits.log_softmax(-1))
    found = fit(doubled, labels)(doubled)
    other = fit(normalised, labels)(normalised)
    for name in ("probs", "aleatoric", "epistemic", "mutual_information"):
        torch.testing.assert_close(getattr(found, name), getattr(other, name), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:`labels` lack")
@pytest.mark.parametrize("always", [True, False])
def test_how_far_down_a_masked_class_is_does_not_matter(
    always: bool, data: tuple[Outputs, Tensor]
) -> None:
    outputs, labels = data
    found = []
    for far in (-1e4, -1e30, torch.finfo(torch.float32).min):
        logits = outputs.logits.clone()
        rows = torch.arange(0, len(outputs), 3)
        logits[rows, (labels[rows] + 1) % K] = far
        if always:
            logits = torch.cat([outputs.logits, torch.full((len(outputs), 1), far)], -1)
        found.append(fit(Outputs(logits), labels)(Outputs(logits)))
    for name in ("aleatoric", "epistemic", "mutual_information"):
        values = [getattr(prediction, name) for prediction in found]
        assert values[0].isfinite().all()
        torch.testing.assert_close(values[0], values[1])
        torch.testing.assert_close(values[0], values[2])


def test_a_missing_class_is_one_warning(data: tuple[Outputs, Tensor]) -> None:
    outputs, labels = data
    kept = labels != 2
    with pytest.warns(UserWarning, match=r"`labels` lack 1 class of 4: 2\. ") as warned:
        sts = fit(outputs[kept], labels[kept])
    assert len(warned) == 1
    check_sane(sts(outputs))


def test_it_comes_back_from_a_file(data: tuple[Outputs, Tensor], tmp_path: Path) -> None:
    outputs, labels = data
    sts = fit(outputs, labels)
    save_calibrator(sts, tmp_path / "sts.safetensors")
    loaded, header = load_calibrator(tmp_path / "sts.safetensors")
    assert header["n_features"] is None
    assert not loaded.reads_features
    assert same(loaded(outputs), sts(outputs))


def test_calibrate_mixes_logits() -> None:
    g = Generator().manual_seed(0)
    net = nn.Linear(6, K)
    nn.init.normal_(net.weight, generator=g)
    inputs = torch.randn(100, 6, generator=g)
    labels = net(inputs).softmax(-1).multinomial(1, generator=g).squeeze(1)
    labels[:K] = torch.arange(K)
    predictions = {}
    for mixup in ("logits", None, "features"):
        method = sc.SimplexTemperatureScaling(**SMALL)
        predictions[mixup] = sc.calibrate(net, (inputs, labels), method, mixup=mixup).predict(
            inputs
        )
    assert same(predictions["logits"], predictions[None])
    assert torch.equal(predictions["logits"].probs, predictions["features"].probs)
    assert not same(predictions["logits"], predictions["features"])
    check_sane(predictions["logits"])
