"""Evaluation of a class for each token or pixel: exact sums, and intervals over inputs.

The positions of one input are not independent: a segmentation is wrong about whole objects. So all
sums are kept for each input, and inputs are resampled, not positions.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from simplexcal._validation import check_count, check_generator
from simplexcal.backbone import Backbone
from simplexcal.backbone.extraction import dense_batches
from simplexcal.calibrators import Calibrator
from simplexcal.dense import DenseOutputs, position_labels, to_rows
from simplexcal.evaluation import SCORES, markdown_table, wrap
from simplexcal.metrics._binning import (
    N_BINS,
    equal_width_edges,
    label_probability,
    row_chunks,
    sum_class_bins,
)
from simplexcal.metrics._test_inversion import Observed, accepted_range, candidate_excesses
from simplexcal.types import Prediction

HEADER = ("method", "acc. %", "ECE %", "95 % interval", "NLL", "Brier")
N_TRIALS = 2000
LEVEL = 0.95
CHUNK = 2**22  # numbers of a resampling that are held at a time
SMALLEST = 1e-12


@dataclass(frozen=True)
class ClassScores:
    """How good a prediction is for one class.

    Args:
        n: Number of positions with this label.
        accuracy: Fraction of them that are predicted correctly; NaN where there are none.
        nll: Negative log-likelihood of them, in nats; NaN where there are none.
        ece: Expected calibration error of the probability of this class, over all positions.
    """

    n: int
    accuracy: float
    nll: float
    ece: float


@dataclass(frozen=True)
class DenseEvaluation:
    """How good a prediction is that gives each token or pixel a class.

    All scores are exact means over the positions that count. The noise floor and the interval of
    the ECE come from resampling inputs; they are NaN for a single input. Printed, it is a table of
    the main numbers and one of the classes.

    Args:
        n: Number of inputs with a position that counts, N.
        n_positions: Number of tokens or pixels that count.
        n_classes: Number of classes, K.
        accuracy: Fraction of positions whose predicted class is the label.
        confidence: Mean confidence.
        gap_error: Standard error of the mean confidence - accuracy, over inputs.
        nll: Negative log-likelihood, in nats.
        brier: Brier score.
        ece: Expected calibration error.
        ece_floor: Mean of the noise floor: the ECE of a perfectly calibrated model whose excess
            confidence varies as much from input to input.
        ece_floor_95: 95 % quantile of the noise floor.
        ece_low: Lower end of a 95 % interval for the true error.
        ece_high: Upper end of that interval.
        classwise_ece: Mean ECE of the classes.
        mce: Largest gap between accuracy and confidence of a bin.
        classes: Scores of each class.
        aleatoric: Mean aleatoric uncertainty, None where a method has none.
        epistemic: Mean epistemic uncertainty, None where a method has none.
    """

    n: int
    n_positions: int
    n_classes: int
    accuracy: float
    confidence: float
    gap_error: float
    nll: float
    brier: float
    ece: float
    ece_floor: float
    ece_floor_95: float
    ece_low: float
    ece_high: float
    classwise_ece: float
    mce: float
    classes: tuple[ClassScores, ...]
    aleatoric: float | None = None
    epistemic: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return names and numbers, in the order of the arguments."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [("", "value")]
        for score, (title, factor, digits) in SCORES.items():
            rows.append((title, f"{factor * getattr(self, score):.{digits}f}"))
        notes = describe_positions(self)
        if self.n > 1:
            notes += f" The 95 % interval for the true error is {_interval(self)} %."
        return f"{markdown_table(rows)}\n\n{class_table(self.classes)}\n\n{wrap(notes)}"


def describe_positions(evaluation: DenseEvaluation) -> str:
    """Return the size of the data, and the ECE that chance alone gives there.

    Args:
        evaluation: An evaluation on the data.
    """
    e = evaluation
    size = f"with {e.n_positions} positions of {e.n_classes} classes."
    if e.n < 2:
        return f"1 input {size} An interval and a noise floor need two."
    return (
        f"{e.n} inputs {size} As inputs vary, "
        f"the ECE of a perfectly calibrated model would be up to {100 * e.ece_floor_95:.2f} %."
    )


def tabulate_dense(evaluations: Mapping[str, DenseEvaluation]) -> str:
    """Return a Markdown table with a row for each method.

    Args:
        evaluations: Evaluations by the name of their method.
    """
    rows: list[tuple[str, ...]] = [HEADER]
    for name, e in evaluations.items():
        percents = [f"{100 * x:.2f}" for x in (e.accuracy, e.ece)]
        rows.append((name, *percents, _interval(e), f"{e.nll:.4f}", f"{e.brier:.4f}"))
    return markdown_table(rows)


def _interval(e: DenseEvaluation) -> str:
    """Return the interval of the ECE in percent, "" of a single input."""
    if e.n < 2:
        return ""
    return f"{100 * e.ece_low:.2f} to {100 * e.ece_high:.2f}"


def class_table(classes: Sequence[ClassScores], names: Sequence[str] | None = None) -> str:
    """Return the scores of the classes as a Markdown table.

    Args:
        classes: Scores of each class.
        names: Names of the classes; None numbers them.
    """
    rows = [("class", "positions", "accuracy %", "NLL", "ECE %")]
    for i, scores in enumerate(classes):
        name = str(i)
        if names is not None:
            name = names[i]
        accuracy = f"{100 * scores.accuracy:.2f}"
        rows.append((name, str(scores.n), accuracy, f"{scores.nll:.4f}", f"{100 * scores.ece:.2f}"))
    return markdown_table(rows)


class ImageSums(NamedTuple):
    """Sums over the positions of each of N inputs, in float64.

    Args:
        n: Number of positions in each bin, (N, B).
        confidence: Σ confidence in each bin, (N, B).
        correct: Σ correct in each bin, (N, B).
        nll: Σ -ln p(label), (N,).
        brier: Σ of the Brier scores, (N,).
    """

    n: Tensor
    confidence: Tensor
    correct: Tensor
    nll: Tensor
    brier: Tensor


class DenseScores:
    """Sums over predictions for tokens or pixels, batch by batch, without the predictions.

    Args:
        n_bins: Number of bins of the calibration errors.
    """

    def __init__(self, n_bins: int = N_BINS) -> None:
        self.n_bins = check_count("n_bins", n_bins)
        self._parts: list[ImageSums] = []
        self._n_classes = 0
        self._excess = torch.zeros(0)
        self._by_label = torch.zeros(0)
        self._uncertainties: dict[str, float] = {}
        self.n_changed = 0  # Predictions that are not the network's own, where that is known.

    def add(self, prediction: Prediction, labels: Tensor, image: Tensor, n: int) -> None:
        """Add the positions that count of a batch.

        Args:
            prediction: Predictions for rows, one for each position.
            labels: The class of each position, (R,).
            image: The number of each position's input in the batch, (R,).
            n: Number of inputs in the batch, N.
        """
        probs = prediction.probs
        labels = labels.to(probs.device)
        image = image.to(probs.device)
        if self._n_classes == 0:
            self._n_classes = probs.shape[1]
            self._excess = torch.zeros(self._n_classes, self.n_bins, dtype=torch.float64)
            self._by_label = torch.zeros(3, self._n_classes, dtype=torch.float64)
        confidence = prediction.confidence
        correct = (prediction.label == labels).double()
        bins = torch.bucketize(confidence, equal_width_edges(confidence, self.n_bins))
        values = torch.stack([torch.ones_like(correct), confidence.double(), correct])
        by_bin = _sums(values, image * self.n_bins + bins, n * self.n_bins)
        smallest = torch.finfo(probs.dtype).tiny
        p_label = label_probability(probs, labels).double()
        loss = -p_label.clamp_min(smallest).log()
        squares = torch.cat([chunk.double().square().sum(-1) for chunk in row_chunks(probs)])
        by_input = _sums(torch.stack([loss, squares + 1 - 2 * p_label]), image, n)
        self._parts.append(ImageSums(*by_bin.view(3, n, self.n_bins).cpu(), *by_input.cpu()))
        if len(labels) == 0:
            return
        self._excess += sum_class_bins(probs, labels, self.n_bins).excess.cpu()
        by_label = _sums(torch.stack([values[0], correct, loss]), labels, self._n_classes)
        self._by_label += by_label.cpu()
        for name in ("aleatoric", "epistemic"):
            uncertainty = getattr(prediction, name)
            if uncertainty is not None:
                total = self._uncertainties.get(name, 0.0) + uncertainty.double().sum().item()
                self._uncertainties[name] = total

    def last_sums(self) -> ImageSums:
        """Return the sums of each input of the last batch, also of those without a position."""
        return self._parts[-1]

    def image_sums(self) -> ImageSums:
        """Return the sums of each input that has a position that counts.

        Raises:
            ValueError: If no position counts.
        """
        if not self._parts or float(self._by_label[0].sum()) == 0:
            raise ValueError(
                "`data` hold no position that counts. Check `ignore_index`, and that an iterator "
                "was not read before."
            )
        sums = [torch.cat(column) for column in zip(*self._parts, strict=True)]
        counts = sums[0].sum(1) > 0
        return ImageSums(*[column[counts] for column in sums])

    def evaluation(self, generator: Generator | None = None) -> DenseEvaluation:
        """Return the evaluation of all that was added.

        Args:
            generator: Source of the random numbers for the noise floor and the interval. None is
                one with a fixed seed.
        """
        sums = self.image_sums()
        n_positions = sums.n.sum()
        _, gap_error = mean_change(sums.correct.sum(1), sums.confidence.sum(1), sums.n.sum(1))
        gaps = excess(sums).abs() * n_positions / sums.n.sum(0).clamp_min(1)
        class_ece = self._excess.abs().sum(-1) / n_positions
        n_label, correct, loss = self._by_label
        columns = (n_label.int(), correct / n_label, loss / n_label, class_ece)
        rows = zip(*[column.tolist() for column in columns], strict=True)
        return DenseEvaluation(
            n=len(sums.nll),
            n_positions=int(n_positions),
            n_classes=self._n_classes,
            accuracy=float(sums.correct.sum() / n_positions),
            confidence=float(sums.confidence.sum() / n_positions),
            gap_error=gap_error,
            nll=float(sums.nll.sum() / n_positions),
            brier=float(sums.brier.sum() / n_positions),
            ece=float(excess(sums).abs().sum()),
            **_ece_inference(sums, generator),
            classwise_ece=float(class_ece.mean()),
            mce=float(gaps.max()),
            classes=tuple(ClassScores(*row) for row in rows),
            **{name: total / float(n_positions) for name, total in self._uncertainties.items()},
        )


@torch.no_grad()
def evaluate_dense(
    prediction: Prediction,
    labels: Any,
    n_bins: int = N_BINS,
    *,
    ignore_index: int | Sequence[int] | None = None,
    attention_mask: Any = None,
    generator: Generator | None = None,
) -> DenseEvaluation:
    """Evaluate a prediction for tokens or pixels on labels that it has not seen.

    Args:
        prediction: Predictions for N inputs: probabilities (N, T, K) or (N, K, H, W).
        labels: The class of each token or pixel, (N, T) or (N, H, W).
        n_bins: Number of bins of the calibration errors.
        ignore_index: Labels of positions that do not count, one or several. None is -100, and 255
            where that is no class.
        attention_mask: Tokens with 0 do not count, (N, T). None: all count.
        generator: Source of the random numbers for the noise floor and the interval. None is one
            with a fixed seed: the same input gives the same record.

    Raises:
        TypeError: If labels are not integers.
        ValueError: If the labels do not fit the prediction.
    """
    check_generator(generator)
    scores = score_prediction(prediction, labels, n_bins, ignore_index, attention_mask)
    return scores.evaluation(generator)


def score_prediction(
    prediction: Prediction,
    labels: Any,
    n_bins: int = N_BINS,
    ignore_index: int | Sequence[int] | None = None,
    attention_mask: Any = None,
) -> DenseScores:
    """Return the scores of a prediction for tokens or pixels.

    Args:
        prediction: Predictions for N inputs.
        labels: The class of each token or pixel.
        n_bins: Number of bins of the calibration errors.
        ignore_index: Labels of positions that do not count.
        attention_mask: Tokens with 0 do not count; None: all count.
    """
    if prediction.probs.dim() < 3:
        raise ValueError(
            "`prediction` must be one for tokens or pixels, (N, T, K) or (N, K, H, W); got "
            f"{tuple(prediction.probs.shape)}. Use simplexcal.evaluate."
        )
    shape = tuple(prediction.label.shape)
    rows = prediction_rows(prediction)
    outputs = DenseOutputs(rows.probs, None, shape)  # for its shape alone
    found, counts = position_labels(labels, outputs, ignore_index, attention_mask)
    chosen = counts.nonzero().squeeze(-1)
    scores = DenseScores(n_bins)
    image = chosen // max(1, math.prod(shape[1:]))
    scores.add(rows[chosen.to(rows.probs.device)], found[chosen], image, shape[0])
    return scores


@torch.no_grad()
def score_positions(
    backbone: Backbone,
    calibrators: Mapping[str, Calibrator],
    data: Any,
    n_bins: int = N_BINS,
    batch_size: int = 256,
    ignore_index: int | Sequence[int] | None = None,
) -> dict[str, DenseScores]:
    """Return the scores of each calibrator at all positions that count, in one pass over the data.

    Args:
        backbone: A network that classifies each token or pixel.
        calibrators: Calibrators for it, by name.
        data: Labelled data, see ``simplexcal.extract``.
        n_bins: Number of bins of the calibration errors.
        batch_size: Size of the batches that a Dataset or a pair is divided into.
        ignore_index: Labels of positions that do not count.
    """
    scores = {name: DenseScores(n_bins) for name in calibrators}
    for _, outputs, labels, counts in dense_batches(backbone, data, batch_size, ignore_index):
        n = outputs.shape[0]
        rows = counts.nonzero().squeeze(-1)
        image = rows // max(1, len(outputs) // n)
        counted = outputs[rows.to(outputs.logits.device)]
        for name, calibrator in calibrators.items():
            prediction = calibrator.to(counted.logits.device)(counted)
            scores[name].add(prediction, labels[rows], image, n)
            scores[name].n_changed += int((prediction.label != counted.label).sum())
    return scores


def prediction_rows(prediction: Prediction) -> Prediction:
    """Return a prediction for tokens or pixels as one for rows.

    Args:
        prediction: Prediction for N inputs.
    """
    values = {name: x.flatten() for name, x in vars(prediction).items() if x is not None}
    return Prediction(**{**values, "probs": to_rows(prediction.probs)})


def excess(sums: ImageSums) -> Tensor:
    """Return Σ_(i in b) (correct_i - confidence_i) / n of each bin, (B,).

    Args:
        sums: Sums of each input.
    """
    return (sums.correct - sums.confidence).sum(0) / sums.n.sum()


def excess_noise(sums: ImageSums, generator: Generator | None = None) -> Tensor:
    """Return how the excess of each bin varies from sample to sample of N inputs, (N_TRIALS, B).

    Inputs are resampled with replacement. The factor sqrt(N / (N - 1)) corrects the variance of
    small samples.

    Args:
        sums: Sums of each input.
        generator: Source of randomness. None is one with a fixed seed: several sums of the same
            inputs are resampled alike.
    """
    n = len(sums.nll)
    values = torch.cat([sums.correct - sums.confidence, sums.n.sum(1, keepdim=True)], 1)
    drawn = torch.cat([weights @ values for weights in _resampled(n, generator)])
    noise = drawn[:, :-1] / drawn[:, -1:] - excess(sums)
    return noise * math.sqrt(n / (n - 1))


def mean_change(before: Tensor, after: Tensor, n_positions: Tensor) -> tuple[float, float]:
    """Return the change of a mean over all positions, and its standard error over inputs.

    Args:
        before: Sum of each input before, (N,).
        after: Sum of each input after, (N,).
        n_positions: Number of positions of each input, (N,).
    """
    n = len(before)
    total = n_positions.sum()
    change = (after - before).sum() / total
    residuals = after - before - change * n_positions
    if n < 2:
        return float(change), math.nan
    error = (residuals.square().sum() * n / (n - 1)).sqrt() / total
    return float(change), float(error)


def ece_change(before: ImageSums, after: ImageSums) -> tuple[float, float]:
    """Return the change of the ECE, and its standard error by resampling inputs.

    Args:
        before: Sums of each input before.
        after: Sums of the same inputs after.
    """
    eces = [excess(sums).abs().sum() for sums in (before, after)]
    change = float(eces[1] - eces[0])
    if len(before.nll) < 2:
        return change, math.nan
    drawn = [(excess(sums) + excess_noise(sums)).abs().sum(-1) for sums in (before, after)]
    return change, float((drawn[1] - drawn[0]).std())


def _ece_inference(sums: ImageSums, generator: Generator | None) -> dict[str, float]:
    """Return the noise floor of the ECE and the interval for the true error.

    Both are those of ``noise_floor`` and ``ece_interval``, with the noise of resampled inputs in
    the place of that of independent labels.
    """
    names = ("ece_floor", "ece_floor_95", "ece_low", "ece_high")
    if len(sums.nll) < 2:
        return dict.fromkeys(names, math.nan)
    noise = excess_noise(sums, generator)
    floor = noise.abs().sum(-1)
    filled = sums.n.sum(0) > 0
    noise = noise[:, filled]
    n_positions = sums.n.sum()
    standard_error = noise.std(0).clamp_min(SMALLEST)
    observed = Observed(
        n=int(n_positions),
        weight=(sums.n.sum(0) / n_positions)[filled],
        expected=(sums.confidence.sum(0) / n_positions)[filled],
        excess=excess(sums)[filled],
        standard_error=standard_error,
        calibrated_variance=standard_error.square(),
    )
    candidates = candidate_excesses(observed)
    simulated = torch.stack([(candidate + noise).abs().sum(-1) for candidate in candidates])
    low, high = accepted_range(candidates, simulated, observed.excess.abs().sum(), LEVEL)
    values = (floor.mean(), floor.quantile(0.95), low, high)
    return {name: float(value) for name, value in zip(names, values, strict=True)}


def _resampled(n: int, generator: Generator | None) -> Iterator[Tensor]:
    """Yield how often each of n inputs is drawn, for some trials at a time, (trials, n)."""
    if generator is None:
        generator = Generator().manual_seed(0)
    for trials in torch.arange(N_TRIALS).split(max(1, CHUNK // n)):
        drawn = torch.randint(n, (len(trials), n), generator=generator, device=generator.device)
        weights = torch.zeros(drawn.shape, dtype=torch.float64, device=drawn.device)
        yield weights.scatter_add_(1, drawn, torch.ones_like(weights)).cpu()


def _sums(values: Tensor, index: Tensor, size: int) -> Tensor:
    """Return the sums of each row of values over the members of each group."""
    return values.new_zeros(len(values), size).index_add_(1, index, values)
