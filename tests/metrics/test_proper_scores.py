import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss
from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy

from simplexcal.metrics import accuracy, brier, brier_decomposition, classwise_ece, nll

METRICS = [accuracy, nll, brier, brier_decomposition, classwise_ece]


def calibrated_predictions(
    n: int, k: int, seed: int, sharpness: float = 2.0
) -> tuple[Tensor, Tensor]:
    """Return probabilities and labels drawn from them: perfectly calibrated."""
    generator = torch.Generator().manual_seed(seed)
    probs = (sharpness * torch.randn(n, k, generator=generator, dtype=torch.float64)).softmax(-1)
    return probs, torch.multinomial(probs, 1, generator=generator).squeeze(-1)


def test_scores_agree_with_scikit_learn_and_torchmetrics() -> None:
    probs, labels = calibrated_predictions(500, 7, 0)
    classes = range(7)
    assert nll(probs, labels).item() == pytest.approx(
        log_loss(labels, probs, labels=classes), abs=1e-12
    )
    assert brier(probs, labels).item() == pytest.approx(
        brier_score_loss(labels, probs, labels=classes), abs=1e-12
    )
    theirs = multiclass_accuracy(probs, labels, 7, average="micro")
    assert accuracy(probs, labels).item() == pytest.approx(theirs.item(), abs=1e-6)


def test_scores_by_hand() -> None:
    probs, labels = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]]), torch.tensor([1, 1])
    assert accuracy(probs, labels) == 0.5
    assert nll(probs, labels).item() == pytest.approx(-(math.log(0.3) + math.log(0.8)) / 2)
    # 0.25 + 0.49 + 0.04 and 0.01 + 0.04 + 0.01
    assert brier(probs, labels).item() == pytest.approx((0.78 + 0.06) / 2)


def test_the_binary_brier_score_of_scikit_learn_is_half() -> None:
    probs, labels = torch.tensor([[0.8, 0.2], [0.4, 0.6]]), torch.tensor([1, 1])
    assert brier(probs, labels).item() == pytest.approx(0.8**2 + 0.4**2)
    assert brier_score_loss(labels, probs[:, 1]) == pytest.approx((0.8**2 + 0.4**2) / 2)


def test_an_impossible_label_costs_more_than_in_scikit_learn() -> None:
    for dtype, ours in ((torch.float32, 87.34), (torch.float64, 708.40)):
        probs, labels = torch.tensor([[1.0, 0.0]], dtype=dtype), torch.tensor([1])
        assert nll(probs, labels).item() == pytest.approx(ours, abs=0.01)
        assert log_loss(labels, probs, labels=[0, 1]) == pytest.approx(
            36.04, abs=0.01
        )  # -ln 2.2e-16


def split_by_loops(probs: Tensor, labels: Tensor, n_bins: int) -> float:
    """Sum over classes and bins the products of the residuals of different rows."""
    n, k = probs.shape
    residual, total = (labels[:, None] == torch.arange(k)).double() - probs, 0.0
    bins = np.ceil(probs.numpy() * n_bins).clip(1)
    for c in range(k):
        for b in range(1, n_bins + 1):
            inside = residual[:, c].numpy()[bins[:, c] == b]
            products = np.outer(inside, inside)
            total += (products.sum() - np.trace(products)) / max(1, len(inside) - 1) / n
    return total


@pytest.mark.parametrize("n_bins", [1, 10])
def test_the_split_of_the_brier_score_is_its_definition(n_bins: int) -> None:
    probs, labels = calibrated_predictions(60, 4, 0)
    split = brier_decomposition(probs, labels, n_bins)
    assert split.calibration.item() == pytest.approx(
        split_by_loops(probs, labels, n_bins), abs=1e-12
    )
    torch.testing.assert_close(
        split.calibration + split.refinement, brier(probs, labels), rtol=0, atol=1e-15
    )


def test_calibrated_predictions_have_no_calibration_part_on_average() -> None:
    probs, _ = calibrated_predictions(300, 5, 0)
    generator = torch.Generator().manual_seed(1)
    labels = torch.multinomial(probs, 1000, replacement=True, generator=generator).T
    parts = torch.stack([brier_decomposition(probs, row).calibration for row in labels])
    assert parts.mean().abs() < 5 * parts.std() / math.sqrt(1000)


def test_replacing_probabilities_by_frequencies_makes_the_calibration_part_negative() -> None:
    probs, labels = calibrated_predictions(10_000, 10, 0)
    hits = (labels[:, None] == torch.arange(10)).double()
    frequencies = torch.stack(
        [_frequency(p.contiguous(), y) for p, y in zip(probs.T, hits.T, strict=True)], -1
    )
    textbook = brier(probs, labels) - (frequencies - hits).square().sum(-1).mean()
    assert textbook.item() == pytest.approx(-0.005, abs=0.002)  # of calibrated predictions
    assert brier_decomposition(probs, labels).calibration.item() == pytest.approx(0.0, abs=0.001)


def _frequency(p: Tensor, y: Tensor) -> Tensor:
    """Return how often ``y`` is 1 in the bin of each ``p``."""
    at = torch.bucketize(p, torch.arange(1, 10, dtype=p.dtype) / 10)
    hits = torch.zeros(10, dtype=p.dtype).index_add_(0, at, y)
    return (hits / torch.bincount(at, minlength=10))[at]


def test_a_constant_error_is_all_calibration() -> None:
    probs = torch.tensor([[0.95, 0.05]], dtype=torch.float64).expand(200, 2)
    labels = (torch.arange(200) % 4 == 0).long()  # 75 % of class 0 at a probability of 95 %
    split = brier_decomposition(probs, labels)
    # 2 · (0.2² - 0.75 · 0.25 / 199) and 2 · 0.75 · 0.25 · (1 + 1 / 199)
    assert split.calibration.item() == pytest.approx(2 * (0.04 - 0.1875 / 199))
    assert split.refinement.item() == pytest.approx(2 * 0.1875 * (1 + 1 / 199))


def test_the_size_of_the_chunks_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    probs, labels = calibrated_predictions(100, 6, 0)
    whole = [
        *brier_decomposition(probs, labels),
        brier(probs, labels),
        classwise_ece(probs, labels),
    ]
    monkeypatch.setattr("simplexcal.metrics._binning.CHUNK", 50)
    chunked = [
        *brier_decomposition(probs, labels),
        brier(probs, labels),
        classwise_ece(probs, labels),
    ]
    torch.testing.assert_close(chunked, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (
            [[2.0, -1.0]],
            [0],
            r"`probs` must be between 0 and 1; found 2 at position \(0, 0\)\. If these are logits",
        ),
        (
            [[0.4, 0.4]],
            [0],
            r"`probs` must be rows of probabilities, each with sum 1; found 0.8 at position 0\.",
        ),
        (
            [[math.nan, 1.0]],
            [0],
            r"`probs` must be between 0 and 1; found nan at position \(0, 0\)\.",
        ),
        (
            [[0.5, 0.5]],
            [2],
            r"`labels` must be in 0..1 for 2 classes; found 2 at position 0\. Labels count",
        ),
        ([[0.5, 0.5]], [-1], r"`labels` must be in 0..1 for 2 classes; found -1 at position 0\."),
        (
            [[0.5, 0.5]],
            [0, 1],
            r"`labels` must have shape \(1,\), one value for each input; got \(2,\)\.",
        ),
        ([0.5, 0.5], [0, 1], r"`probs` must have shape \(N, K\) with K >= 2 classes; got \(2,\)\."),
        (np.zeros((0, 2)), [], r"`probs` is empty; a metric needs at least one input\."),
    ],
)
def test_bad_values_are_named(
    metric: Callable[[Tensor, Tensor], object],
    probs: list[list[float]],
    labels: list[int],
    message: str,
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        metric(torch.tensor(probs), torch.tensor(labels, dtype=torch.long))


def test_labels_must_be_integers() -> None:
    with pytest.raises(TypeError, match=r"^`labels` must be integers; got torch.float32\."):
        nll(torch.tensor([[0.5, 0.5]]), torch.tensor([1.0]))


def test_a_probability_that_rounds_above_1_lies_in_the_last_bin() -> None:
    labels = torch.tensor([0, 1, 2])
    for n_bins in (1, 2, 10):
        exact = torch.tensor([[1.0, 0.0, 0.0]]).expand(3, -1)
        rounded = torch.tensor([[1.0000001, 0.0, 0.0]]).expand(3, -1)
        for metric in (classwise_ece, brier_decomposition):
            expected = metric(exact, labels, n_bins)
            torch.testing.assert_close(metric(rounded, labels, n_bins), expected)
