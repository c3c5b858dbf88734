"""torchmetrics: the metric over batches is what `evaluate` gives for all inputs at once."""

import pickle

import pytest
import torch
import torchmetrics
from torch import Generator, Tensor

from simplexcal import evaluate
from simplexcal.integrations.torchmetrics import CalibrationErrorWithFloor


def make_data(n: int) -> tuple[Tensor, Tensor]:
    generator = Generator().manual_seed(0)
    logits = 2 * torch.randn(n, 4, generator=generator)
    labels = (logits / 2).softmax(-1).multinomial(1, generator=generator).squeeze(1)
    return logits.softmax(-1), labels


def test_batches_give_what_evaluate_gives() -> None:
    probs, labels = make_data(500)
    metric = CalibrationErrorWithFloor(n_bins=10)
    for rows in torch.arange(500).split(64):
        metric.update(probs[rows], labels[rows])
    found = metric.compute()
    expected = evaluate(probs, labels, 10)
    assert set(found) == {"ece", "ece_floor", "ece_floor_95", "ece_low", "ece_high"}
    for name, value in found.items():
        assert value.item() == pytest.approx(getattr(expected, name), rel=1e-6), name


def test_the_ece_is_that_of_torchmetrics() -> None:
    probs, labels = make_data(500)
    theirs = torchmetrics.classification.MulticlassCalibrationError(4, n_bins=15)
    metric = CalibrationErrorWithFloor()
    both = torchmetrics.MetricCollection({"theirs": theirs, "own": metric})
    both.update(probs, labels)
    found = both.compute()
    assert found["ece"].item() == pytest.approx(found["theirs"].item(), abs=1e-6)


def test_a_metric_is_reset_and_pickled() -> None:
    probs, labels = make_data(100)
    metric = CalibrationErrorWithFloor()
    metric.update(probs, labels)
    first = metric.compute()
    again = pickle.loads(pickle.dumps(metric))
    assert again.compute() == first
    metric.reset()
    metric.update(probs[:50], labels[:50])
    assert metric.compute()["ece"].item() == pytest.approx(evaluate(probs[:50], labels[:50]).ece)


def test_logits_are_refused() -> None:
    _, labels = make_data(10)
    with pytest.raises(ValueError, match="`probs` must"):
        CalibrationErrorWithFloor().update(torch.randn(10, 4), labels)
