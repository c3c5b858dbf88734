"""Evaluation of tokens and pixels: exact sums, and noise floors and intervals over inputs."""

import math

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from simplexcal import Comparison, Prediction, calibrate, evaluate, evaluate_dense, metrics
from simplexcal.comparison import compare_dense
from simplexcal.dense_evaluation import DenseEvaluation, DenseScores

K = 4


def predicted(shape: tuple[int, ...], seed: int = 0) -> Prediction:
    """Return a prediction for positions of random logits."""
    generator = Generator().manual_seed(seed)
    dim = 1 if len(shape) > 2 else -1
    full = (shape[0], K, *shape[1:]) if len(shape) > 2 else (*shape, K)
    probs = (2 * torch.randn(full, generator=generator)).softmax(dim)
    return Prediction(probs, probs.argmax(dim), aleatoric=torch.rand(shape, generator=generator))


def rows_of(prediction: Prediction) -> Tensor:
    """Return the probabilities of all positions, (R, K)."""
    probs = prediction.probs
    if probs.dim() > 3:
        probs = probs.movedim(1, -1)
    return probs.reshape(-1, K)


@pytest.mark.parametrize("shape", [(6, 20), (6, 5, 4), (6, 2, 5, 2)])
def test_scores_are_those_of_all_positions_that_count(shape: tuple[int, ...]) -> None:
    p = predicted(shape)
    labels = torch.randint(K, shape, generator=Generator().manual_seed(1))
    labels[0, :1] = -100
    labels[3] = 255
    found = evaluate_dense(p, labels)
    counts = ((labels != -100) & (labels != 255)).flatten()
    expected = evaluate(
        Prediction(rows_of(p)[counts], p.label.flatten()[counts]), labels.flatten()[counts]
    )
    # The fourth input has no position that counts.
    assert (found.n, found.n_positions, found.n_classes) == (5, int(counts.sum()), K)
    for name in ("accuracy", "confidence", "nll", "brier", "ece", "classwise_ece", "mce"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-5), name
    assert p.aleatoric is not None
    assert found.aleatoric == pytest.approx(p.aleatoric.flatten()[counts].mean().item())
    assert found.epistemic is None


def test_scores_of_a_class_by_hand() -> None:
    probs = torch.tensor([[[0.75, 0.25], [0.75, 0.25], [0.25, 0.75], [0.25, 0.75]]])
    labels = torch.tensor([[0, 1, 1, 1]])
    found = evaluate_dense(Prediction(probs, probs.argmax(-1)), labels)
    first, second = found.classes
    assert (first.n, second.n) == (1, 3)
    assert first.accuracy == 1
    assert second.accuracy == pytest.approx(2 / 3)
    assert first.nll == pytest.approx(-math.log(0.75))
    assert second.nll == pytest.approx(-(math.log(0.25) + 2 * math.log(0.75)) / 3)
    # Bins at 0.75: 1 of 2 positions; at 0.25: 0 of 2. So |1 - 1.5| + |0 - 0.5|, over 4.
    assert first.ece == pytest.approx(0.25)
    assert math.isnan(found.ece_low)  # of a single input


def test_a_class_without_a_label_has_no_scores_but_an_error() -> None:
    p = predicted((3, 10))
    found = evaluate_dense(p, torch.randint(2, (3, 10)))
    assert found.classes[3].n == 0
    assert math.isnan(found.classes[3].nll)
    assert found.classes[3].ece > 0
    assert "| 3" in str(found)


def test_batches_give_the_scores_of_the_whole() -> None:
    p = predicted((9, 30))
    labels = torch.randint(K, (9, 30), generator=Generator().manual_seed(2))
    scores = DenseScores()
    for start in range(0, 9, 4):
        part = p[start : start + 4]
        n = len(part)
        image = torch.arange(n).repeat_interleave(30)
        rows = Prediction(rows_of(part), part.label.flatten(), aleatoric=part.aleatoric)
        scores.add(rows, labels[start : start + 4].flatten(), image, n)
    found = scores.evaluation().as_dict()
    for name, value in evaluate_dense(p, labels).as_dict().items():
        if isinstance(value, float):
            assert found[name] == pytest.approx(value, abs=1e-9), name


# --- inputs are resampled ---


def clustered(n: int, size: int, spread: float, seed: int) -> tuple[Prediction, Tensor]:
    """Return N inputs of a calibrated binary classifier whose errors vary from input to input.

    The confidence is 0.7; the accuracy of each input is uniform within 0.7 ± the spread.
    """
    generator = Generator().manual_seed(seed)
    accuracy = 0.7 + spread * (2 * torch.rand(n, 1, generator=generator) - 1)
    correct = torch.rand(n, size, generator=generator) < accuracy
    probs = torch.tensor([0.7, 0.3]).expand(n, size, 2)
    return Prediction(probs, probs.argmax(-1)), (~correct).long()


def test_the_interval_covers_where_inputs_vary_and_that_of_rows_does_not() -> None:
    n_trials = 40
    covered = 0
    covered_by_rows = 0
    for seed in range(n_trials):
        p, labels = clustered(40, 50, 0.3, seed)
        covered += evaluate_dense(p, labels).ece_low <= 0
        rows = metrics.ece_interval(p.confidence.flatten(), labels.flatten() == 0, n_trials=100)
        covered_by_rows += float(rows.low) <= 0
    # The true error is 0. 95 % of 40 are 38, with a standard error of 1.38.
    assert covered >= 38 - 5 * 1.38
    assert covered_by_rows < 38 - 5 * 1.38


def test_without_variation_between_inputs_the_floor_is_that_of_rows() -> None:
    floors = []
    expected = []
    for seed in range(20):
        p, labels = clustered(300, 5, 0, seed)
        floors.append(evaluate_dense(p, labels).ece_floor_95)
        expected.append(metrics.noise_floor(p.confidence.flatten()).upper.item())
    # The standard deviation of 300 inputs is exact to 4 %, so its mean over 20 to 1 %.
    assert sum(floors) == pytest.approx(sum(expected), rel=0.05)


# --- a model ---


def test_a_model_is_evaluated_at_all_positions_batch_by_batch() -> None:
    torch.manual_seed(0)
    net = nn.Conv2d(2, K, 1).eval()
    with torch.no_grad():
        net.weight *= 8
    x = torch.randn(24, 2, 6, 5)
    probs = (net(x) / 3).softmax(1).movedim(1, -1).reshape(-1, K)
    labels = probs.multinomial(1).view(24, 6, 5)
    labels[:, 0] = K
    model = calibrate(net, (x[:12], labels[:12]), "ts", ignore_index=K)
    test = DataLoader(TensorDataset(x[12:], labels[12:]), 5)
    result = model.evaluate(test, ignore_index=K)
    assert isinstance(result, Comparison)
    assert isinstance(result.after, DenseEvaluation)
    expected = evaluate_dense(model.predict(test), labels[12:], ignore_index=K)
    for name, value in expected.as_dict().items():
        if isinstance(value, float):
            assert getattr(result.after, name) == pytest.approx(value, abs=1e-6), name
    assert result.after.n_positions == 12 * 25
    assert result.before.accuracy == result.after.accuracy
    assert result.nll.mean == pytest.approx(result.after.nll - result.before.nll)
    assert result.ece.mean == pytest.approx(result.after.ece - result.before.ece)
    assert result.nll.high < 0
    assert "12 inputs with 300 positions of 4 classes" in str(result)


def test_the_standard_error_of_a_change_is_that_of_inputs() -> None:
    # Two inputs, of 1 and 3 positions, change by 1 and by 6: the mean is 7 / 4, the residuals are
    # 1 - 1.75 and 6 - 5.25.
    scores = [DenseScores(), DenseScores()]
    for score, losses in zip(scores, ([0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 2.0, 2.0]), strict=True):
        p_label = (-torch.tensor(losses, dtype=torch.float64)).exp()
        probs = torch.stack([p_label, 1 - p_label], -1)
        labels = torch.zeros(4, dtype=torch.int64)
        score.add(Prediction(probs, labels), labels, torch.tensor([0, 1, 1, 1]), 2)
    change = compare_dense(scores[0], scores[1], "TS").nll
    assert change.mean == pytest.approx(1.75)
    assert change.standard_error == pytest.approx(math.sqrt(2 * 2 * 0.75**2) / 4)


# --- what is refused ---


def test_each_kind_of_prediction_has_its_function() -> None:
    p = predicted((3, 10))
    with pytest.raises(ValueError, match=r"Use simplexcal\.evaluate_dense"):
        evaluate(p, torch.zeros(3, 10))
    with pytest.raises(ValueError, match=r"got \(30, 4\). Use simplexcal.evaluate\."):
        evaluate_dense(Prediction(rows_of(p), p.label.flatten()), torch.zeros(30))
    with pytest.raises(ValueError, match="no position that counts"):
        evaluate_dense(p, torch.full((3, 10), -100))
