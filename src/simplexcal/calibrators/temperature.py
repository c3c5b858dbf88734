"""Temperature scaling."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from simplexcal._chunking import map_rows
from simplexcal._validation import warn_caller
from simplexcal.calibrators._line_search import root
from simplexcal.calibrators._optim import divide_logits
from simplexcal.calibrators._weights import effective_number, weighted_mean
from simplexcal.calibrators.base import Calibrator, Task
from simplexcal.types import Outputs, Prediction

BOUND = 16.0  # |ln T| at most: beyond, the data do not determine T.
# Numbers for each logit: more than are held, since small float64 arrays need no new memory, which
# is slow to get.
WIDTH = 16


class TemperatureScaling(Calibrator):
    """softmax(z / T) with one scalar T > 0, by maximum likelihood (Guo et al. 2017, Sec. 4.2).

    Where all inputs are classified correctly, the likelihood has no maximum. Then a prior worth
    half an error decides, as in SimplexTemperatureScaling.
    """

    key = "ts"
    abbreviation = "TS"
    title = "temperature scaling"
    uses_sample_weight = True
    has_prior = True

    @property
    def temperature(self) -> Tensor:
        """T."""
        return self.log_temperature.exp()

    @property
    def global_temperature(self) -> float | None:
        """T."""
        return self.temperature.item()

    def _build(self, n_classes: int, n_features: int | None) -> None:
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def _fit(self, task: Task) -> None:
        found = fit_log_temperature(task.outputs.logits, task.labels, weights=task.weights)
        self.log_temperature.data.fill_(found)

    def _predict(self, outputs: Outputs) -> Prediction:
        scaled = divide_logits(outputs.logits, self.temperature)
        return Prediction(scaled.softmax(-1), outputs.label)


def fit_log_temperature(
    logits: Tensor,
    labels: Tensor,
    prior_weight: float = 0.0,
    masked_margin: float = 100.0,
    weights: Tensor | None = None,
) -> float:
    """Return ln T that minimises the mean cross-entropy of softmax(z / T), in float64.

    The loss is convex in u = 1/T, with d/du = mean(Σ_k z_k softmax(u z)_k - z_y), and the one
    minimum is where this changes sign. Where every label is predicted there is none; then the prior
    has at least the weight of `jeffreys_weight`. Warns where T is at a bound.

    Args:
        logits: z, (N, K).
        labels: True classes, (N,).
        prior_weight: Beside its label, each input counts as so many samples more, in equal parts of
            every class. This adds prior_weight · mean(Σ_k z_k softmax(u z)_k - mean_k z_k). Then
            T > 0 also where every label is predicted.
        masked_margin: For the prior, a logit further below the largest than so many median top-1
            margins is that of a masked class, as -1e9 for instance, and counts as one just there.
        weights: Weight of each input, (N,), with the sum 1; None: all count alike.
    """
    if bool((logits.argmax(-1) == labels).all()):
        n = effective_number(len(labels), weights)
        prior_weight = max(prior_weight, jeffreys_weight(n, logits.shape[1]))
    lowest = 0.0
    if prior_weight > 0:
        lowest = -_masked_depth(logits, masked_margin)

    def slope(log_u: float) -> float:
        def of_rows(z: Tensor, y: Tensor) -> Tensor:
            z = z - z.amax(-1, keepdim=True)  # So that large logits do not overflow.
            expected = (z * (z * math.exp(log_u)).softmax(-1)).sum(-1)
            observed = at_labels(z, y)
            if prior_weight > 0:
                observed = observed + prior_weight * z.clamp_min(lowest).mean(-1)
            return expected - observed / (1 + prior_weight)

        return mean_of_rows(of_rows, logits, labels, weights)

    log_u = root(slope, -BOUND, BOUND)
    if abs(log_u) > BOUND - 1e-3:
        warn_caller(_at_bound(log_u))
    return -log_u


def jeffreys_weight(n: float, n_classes: int) -> float:
    """Return K / (2(K-1)) / n: the prior weight at which n inputs hold half an error.

    Each input counts as so many samples more, in equal parts of every class. Of these samples
    (K-1)/K contradict any prediction. As a prior, half an error is what Jeffreys' amounts to where
    the classes are separable, so that T → 0 without it: for the smallest margin g and u = 1/T,
    ℓ + ½ ln I is largest where m, the expected number of errors, is ½, since ℓ ≈ -m, I ≈ g² m and
    m ∝ e^(-u g) (Firth 1993). Unlike ½ ln I it leaves the loss convex. For K = 2 and equal margins
    it is Jeffreys' prior, half a sample of each class.

    Args:
        n: Number of inputs, the effective number where they have weights.
        n_classes: K.
    """
    return n_classes / (2 * (n_classes - 1) * n)


def _masked_depth(logits: Tensor, masked_margin: float) -> float:
    """Return how far below the largest logit a class is masked; where most rows tie, ∞."""

    def margins(z: Tensor) -> Tensor:
        first, second = z.topk(2, -1).values.double().unbind(-1)
        return first - second

    margin = map_rows(margins, logits.detach(), width=logits.shape[1])
    return masked_margin * margin.median().item() or math.inf


def mean_of_rows(
    function: Callable[[Tensor, Tensor], Tensor],
    logits: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
) -> float:
    """Return the mean of a function of rows, computed some rows at a time.

    Args:
        function: Takes logits (n, K) in float64 and labels (n,); returns (n,).
        logits: (N, K).
        labels: (N,).
        weights: (N,), with the sum 1; None: all count alike.
    """
    width = WIDTH * logits.shape[1]
    values = map_rows(lambda z, y: function(z.double(), y), logits.detach(), labels, width=width)
    return weighted_mean(values, weights).item()


def at_labels(values: Tensor, labels: Tensor) -> Tensor:
    """Return the value (N,) of each row's label.

    Args:
        values: (N, K).
        labels: (N,).
    """
    return values.gather(1, labels.unsqueeze(1)).squeeze(1)


def _at_bound(log_u: float) -> str:
    if log_u > 0:
        return (
            "The logits are so small that T was set to its lower bound, e^-16. Multiply them by a "
            "constant."
        )
    return (
        "The logits say nothing about the labels, or are very large, so T is not determined by "
        "these data; it was set to its upper bound, e^16. Check that labels and logits are in the "
        "same order."
    )
