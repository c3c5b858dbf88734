"""The distance term of λ(x): against distances by hand, and what it may not change."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.quick_branches import quick_branches
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor, nn
from torch.nn.functional import normalize

from simplexcal import FeatureMixup, Outputs, SimplexTemperatureScaling
from simplexcal.calibrators import simplex
from simplexcal.calibrators._feature_distance import (
    CENTRAL,
    DEEPEST,
    FAR,
    NARROWEST,
    STRENGTH,
    FeatureDistance,
)
from simplexcal.io.native import _checksum, load_calibrator, save_calibrator
from simplexcal.mixup import logit_features

K = 3
D = 6


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_branches(monkeypatch, 20)


def clusters(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return features around a direction for each class, and the classes."""
    g = Generator().manual_seed(seed)
    labels = torch.arange(n) % K
    features = 2 * torch.eye(D)[labels] + 0.5 * torch.randn(n, D, generator=g)
    return features, labels


def network() -> tuple[nn.Linear, Outputs, Tensor]:
    features, labels = clusters(300)
    head = nn.Linear(D, K)
    head.weight.data = torch.eye(K, D)
    nn.init.zeros_(head.bias)
    return head, Outputs(head(features).detach(), features), labels


def fit(**settings: Any) -> tuple[SimplexTemperatureScaling, Outputs]:
    head, outputs, labels = network()
    calibrator = SimplexTemperatureScaling(**settings)
    calibrator.fit(outputs, labels, mixup=FeatureMixup(head, outputs, labels))
    return calibrator, outputs


def by_hand(features: Tensor, labels: Tensor, x: Tensor) -> Tensor:
    """Return the distance of each row of x to the nearest class mean of unit features."""
    unit = normalize(features.double(), dim=-1)
    means = torch.stack([unit[labels == k].mean(0) for k in labels.unique()])
    return torch.cdist(normalize(x.double(), dim=-1), means).amin(-1)


def left_out(features: Tensor, labels: Tensor) -> Tensor:
    """Return the distance of each row to the class means of all other rows."""
    found = []
    for i in range(len(features)):
        others = torch.arange(len(features)) != i
        found.append(by_hand(features[others], labels[others], features[i : i + 1]))
    return torch.cat(found)


@pytest.mark.parametrize("n", [6, 60, 200])
def test_the_factor_by_hand(n: int) -> None:
    features, labels = clusters(n)
    new, _ = clusters(50, seed=1)
    distance = FeatureDistance(K, D)
    distance.fit(features, labels)
    ordered = left_out(features, labels).sort().values
    low, high, far = (ordered[round(share * (n - 1))] for share in (*CENTRAL, FAR))
    slope = STRENGTH / max(float(high - low) / 2, NARROWEST)
    expected = (slope * (by_hand(features, labels, new) - far)).clamp(DEEPEST, 0)
    assert distance(new).double().allclose(expected, atol=2e-5)


def test_a_class_with_one_input_or_none_is_left_out() -> None:
    features, labels = clusters(30)
    labels[labels == 2] = 1
    labels[0] = 2
    distance = FeatureDistance(K + 1, D)
    distance.fit(features, labels)
    ordered = left_out(features, labels).sort().values
    assert distance.far.item() == pytest.approx(ordered[round(FAR * 29)].item(), abs=1e-5)
    new, _ = clusters(20, seed=1)
    assert torch.isfinite(distance(new)).all()


def test_inputs_far_from_all_classes_keep_the_temperature_of_the_branch() -> None:
    calibrator, outputs = fit()
    assert calibrator.distance is not None
    far = Outputs(
        outputs.logits, -torch.rand(len(outputs), D, generator=Generator().manual_seed(2))
    )
    assert torch.equal(calibrator._temperature(far), calibrator.branch.temperatures(far)[0])
    near = calibrator._temperature(outputs) / calibrator.branch.temperatures(outputs)[0]
    assert (near <= 1).all()
    assert near.median() < 0.95


def test_probabilities_stay_the_same_bit_for_bit_and_the_law_of_total_entropy_holds() -> None:
    with_term, outputs = fit()
    without, _ = fit(feature_distance=False)
    assert without.distance is None
    found = with_term(outputs)
    assert torch.equal(found.probs, without(outputs).probs)
    assert found.aleatoric is not None
    assert found.mutual_information is not None
    assert found.epistemic is not None
    total = torch.special.entr(found.probs).sum(-1)
    assert (found.aleatoric + found.mutual_information).allclose(total, atol=1e-5)
    assert not torch.equal(found.epistemic, without(outputs).epistemic)


def test_without_the_term_temperatures_are_the_branchs() -> None:
    with_term, outputs = fit()
    without, _ = fit(feature_distance=False)
    branch = with_term.branch.temperatures(outputs)[0]
    assert torch.equal(without._temperature(outputs), branch)


@pytest.mark.parametrize("settings", [{"likelihood_head": False}, {"feature_distance": False}])
def test_no_term_where_it_would_change_probabilities_or_is_off(settings: dict[str, Any]) -> None:
    calibrator, _ = fit(n_steps=20, **settings)
    assert calibrator.distance is None
    assert not any(name.startswith("distance") for name in calibrator.state_dict())


def test_the_papers_method_has_no_term() -> None:
    assert not SimplexTemperatureScaling.paper().feature_distance


def test_from_logits_alone_the_logits_are_the_features() -> None:
    _, outputs, labels = network()
    logits = Outputs(outputs.logits)
    calibrator = SimplexTemperatureScaling().fit(logits, labels)
    assert calibrator.distance is not None
    expected = FeatureDistance(K, K)
    features = logit_features(outputs.logits, calibrator.log_temperature.exp())
    expected.fit(features, labels)
    assert torch.equal(calibrator.distance(features), expected(features))
    ratio = calibrator._temperature(logits) / calibrator._temperature(Outputs(7 + outputs.logits))
    assert ratio.allclose(torch.ones(()), atol=1e-4)  # A constant in the logits does not matter.


def test_no_term_where_the_means_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simplex, "MAX_NUMBERS", K * D - 1)
    assert fit()[0].distance is None


def test_the_term_comes_back_from_a_file(tmp_path: Path) -> None:
    calibrator, outputs = fit()
    save_calibrator(calibrator, tmp_path / "file")
    loaded, _ = load_calibrator(tmp_path / "file")
    expected = calibrator(outputs).epistemic
    found = loaded(outputs).epistemic
    assert found is not None
    assert expected is not None
    assert torch.equal(found, expected)


def test_a_file_of_version_0_2_has_no_term(tmp_path: Path) -> None:
    calibrator, outputs = fit(feature_distance=False)
    path = tmp_path / "file"
    save_calibrator(calibrator, path)
    _, header = load_calibrator(path)
    tensors = load_file(path)
    header["format"] = 4
    del header["settings"]["feature_distance"]
    del header["checksum"]
    header["checksum"] = _checksum(header, tensors)
    save_file(tensors, path, {"simplexcal": json.dumps(header)})
    loaded, _ = load_calibrator(path)
    assert isinstance(loaded, SimplexTemperatureScaling)
    assert not loaded.feature_distance
    expected = calibrator(outputs).epistemic
    found = loaded(outputs).epistemic
    assert found is not None
    assert expected is not None
    assert torch.equal(found, expected)


def test_a_direction_that_the_logits_do_not_see_counts() -> None:
    calibrator, outputs = fit()
    assert outputs.features is not None
    assert calibrator.distance is not None
    moved = outputs.features.clone()
    moved[:, K:] += 8  # The head does not read these features.
    assert (calibrator.distance(moved) == 0).all()
    assert (calibrator.distance(outputs.features) < 0).double().mean() > 0.95
