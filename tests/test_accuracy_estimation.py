"""The accuracy without labels: by hand, against exact optimal transport, and on simulated data."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

import simplexcal as sc
from simplexcal.accuracy_estimation import (
    AccuracyEstimate,
    Reference,
    estimate_from_scores,
    make_reference,
    match_classes,
    threshold_scores,
)

CONFIDENCE = torch.tensor([0.9, 0.6, 0.8, 0.5])
CORRECT = torch.tensor([True, False, True, True])


def calibrated(n: int, seed: int, n_classes: int = 3) -> tuple[Tensor, Tensor]:
    """Return probabilities and labels that are drawn from them."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, n_classes, generator=generator, dtype=torch.float64)
    probs = logits.softmax(-1)
    return probs, torch.multinomial(probs, 1, generator=generator).squeeze(-1)


def accuracy(probs: Tensor, labels: Tensor) -> float:
    return float((probs.argmax(-1) == labels).double().mean())


def test_mean_confidence_by_hand() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)
    found = sc.estimate_accuracy(probs)
    half = 1.959964 * math.sqrt(0.9 * 0.1 + 0.6 * 0.4) / 2
    assert (found.method, found.n, found.n_reference) == ("confidence", 2, 0)
    assert found.estimate == pytest.approx(0.75)
    assert found.interval == (found.low, found.high)
    assert found.low == pytest.approx(0.75 - half)
    assert found.high == 1


def test_atc_by_hand() -> None:
    # One in four is wrong: three confidences reach the threshold 0.6, the fourth does not.
    new = torch.tensor([0.95, 0.7, 0.55, 0.1, 0.6])
    scores, known = threshold_scores(new, Reference(CONFIDENCE, CORRECT))
    assert scores.tolist() == [1, 1, 0, 0, 1]
    assert known.tolist() == [1, 1, 1, 0]
    found = estimate_from_scores(new, None, Reference(CONFIDENCE, CORRECT), "atc")
    assert found.estimate == pytest.approx(0.6)


def test_atc_of_equal_confidences_is_the_accuracy_of_the_reference() -> None:
    same = torch.full((4,), 0.7)
    scores, known = threshold_scores(same[:2], Reference(same, CORRECT))
    assert scores.tolist() == [0.75, 0.75]
    assert known.tolist() == [0.75] * 4


def test_atc_of_a_reference_without_mistakes_counts_its_least_confident_input() -> None:
    scores, _ = threshold_scores(
        torch.tensor([0.5, 0.49]), Reference(CONFIDENCE, torch.ones(4, dtype=torch.bool))
    )
    assert scores.tolist() == [1, 0]


@pytest.mark.parametrize("seed", range(3))
def test_matching_is_optimal_transport(seed: int) -> None:
    probs, _ = calibrated(120, seed, n_classes=4)
    shares = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    classes = np.repeat(np.arange(4), (120 * shares).round().int().tolist())
    rows, columns = linear_sum_assignment(-probs.numpy()[:, classes])
    exact = probs.numpy()[rows, classes[columns]].mean()
    # The entropy of the plan changes the optimum by at most the temperature times ln K.
    assert float(match_classes(probs, shares).mean()) == pytest.approx(
        exact, abs=0.02 * math.log(4)
    )


def test_matching_sees_predictions_that_collapse_into_one_class() -> None:
    probs, labels = calibrated(600, 0)
    shifted, truth = calibrated(600, 1)
    shifted = shifted.clone()
    moved = torch.arange(600) < 200  # These are all taken for class 0, with great confidence.
    shifted[moved] = torch.tensor([0.98, 0.01, 0.01], dtype=torch.float64)
    true_accuracy = accuracy(shifted, truth)
    found = sc.estimate_accuracy(shifted, reference=(probs, labels))
    error = abs(found.estimate - true_accuracy)
    assert error < abs(found.components["confidence"] - true_accuracy)
    assert error < abs(found.components["atc"] - true_accuracy)
    assert found.low <= found.components["matching"] <= found.components["confidence"] <= found.high


@pytest.mark.parametrize("method", ["atc", "confidence"])
def test_intervals_hold_the_accuracy_without_shift(method: Any) -> None:
    n_trials = 300
    probs, labels = calibrated(1000, 0)
    reference = make_reference(sc.Prediction(probs, probs.argmax(-1)), labels)
    hits = 0
    for seed in range(1, n_trials + 1):
        new, truth = calibrated(200, seed)
        found = estimate_from_scores(new.amax(-1), new, reference, method)
        hits += found.low <= accuracy(new, truth) <= found.high
    # The reference is one for all: intervals that hold its variation too are a little wide.
    assert hits / n_trials > 0.95 - 5 * math.sqrt(0.95 * 0.05 / n_trials)


def test_the_shift_aware_estimate_has_no_bias_on_small_batches() -> None:
    probs, labels = calibrated(1000, 0)
    reference = make_reference(sc.Prediction(probs, probs.argmax(-1)), labels)
    shares = labels.bincount().double() / 1000
    errors = []
    raw = []
    for seed in range(1, 16):
        new, truth = calibrated(40, seed)
        found = estimate_from_scores(new.amax(-1), new, reference)
        assert found.low <= accuracy(new, truth) + 0.1
        errors.append(found.estimate - accuracy(new, truth))
        raw.append(float(match_classes(new, shares).mean()) - accuracy(new, truth))
    standard_error = np.std(errors) / math.sqrt(15)
    # The reference has its own sampling error.
    assert abs(np.mean(errors)) < 4 * (standard_error + math.sqrt(0.25 / 1000))
    assert np.mean(raw) < np.mean(errors)


def test_few_labels_a_class_are_not_matched() -> None:
    probs, labels = calibrated(59, 0)
    found = sc.estimate_accuracy(probs, reference=(probs, labels))
    assert set(found.components) == {"confidence", "atc"}
    assert found.estimate == found.components["atc"] == pytest.approx(accuracy(probs, labels))


def test_of_large_batches_a_part_is_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    probs, labels = calibrated(300, 0)
    whole = sc.estimate_accuracy(probs, reference=(probs, labels))
    monkeypatch.setattr("simplexcal.accuracy_estimation.MAX_CELLS", 3 * 100)
    part = sc.estimate_accuracy(probs, reference=(probs, labels))
    assert part.estimate != whole.estimate
    assert part.estimate == pytest.approx(whole.estimate, abs=0.1)


def test_a_model_and_its_predictions_give_the_same_estimate() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(300, 4, generator=generator)
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    labels = (net(inputs).detach() + torch.randn(300, 3, generator=generator)).argmax(-1)
    model = sc.calibrate(net, (inputs[:100], labels[:100]), "ts")
    reference = (inputs[:100], labels[:100])
    found = sc.estimate_accuracy(model, inputs[100:], reference=reference)
    known = (model.predict(inputs[:100]), labels[:100])
    assert found == sc.estimate_accuracy(model.predict(inputs[100:]), reference=known)
    assert found == sc.estimate_accuracy(model, [inputs[100:]], reference=reference)
    assert sc.estimate_accuracy(model, inputs[100:]).method == "confidence"
    prediction, same = model.predict_labelled(reference)
    torch.testing.assert_close(prediction.probs, known[0].probs)
    assert torch.equal(same, labels[:100])


def test_the_estimate_reads_well() -> None:
    found = AccuracyEstimate(0.9, 0.85, 0.95, "atc", 0.95, 100, 50, {})
    assert str(found) == "accuracy 90.0 %, 95 % interval 85.0 to 95.0 % (atc, 100 inputs)"
    assert found.as_dict()["estimate"] == 0.9


PROBS = torch.full((2, 2), 0.5)
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"method": "atc"}, ValueError, "`reference` must be given for the method 'atc'"),
        ({"method": "best"}, ValueError, "`method` must be one of shift-aware, atc, confidence"),
        ({"reference": PROBS}, TypeError, "`reference` must be a pair"),
        ({"inputs": PROBS}, ValueError, "`inputs` are for a model"),
        ({"level": 1.5}, ValueError, "`level`"),
        ({"reference": (PROBS, LABELS[:1])}, ValueError, "`labels`"),
    ],
)
def test_errors_say_what_to_do(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        sc.estimate_accuracy(PROBS, **arguments)


def test_other_classes_in_the_reference_are_an_error() -> None:
    probs, labels = calibrated(100, 0)
    new, _ = calibrated(100, 1, n_classes=4)
    with pytest.raises(ValueError, match="must have the 4 classes"):
        sc.estimate_accuracy(new, reference=(torch.cat([probs] * 2), torch.cat([labels] * 2)))


def test_a_model_needs_inputs() -> None:
    inputs = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    model = sc.calibrate(nn.Linear(2, 2), (inputs, torch.arange(20) % 2), "none")
    with pytest.raises(ValueError, match="`inputs` must be given"):
        sc.estimate_accuracy(model)
