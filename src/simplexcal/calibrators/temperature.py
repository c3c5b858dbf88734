"""Temperature scaling."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from simplexcal._chunking import map_rows
from simplexcal._validation import warn_caller
from simplexcal.calibrators._line_search import root
from simplexcal.calibrators.base import Calibrator, Task
from simplexcal.types import Outputs, Prediction

BOUND = 16.0  # |ln T| at most: beyond, the data do not determine T.
# Numbers for each logit: more than are held, since small float64 arrays need no new memory, which
# is slow to get.
WIDTH = 16


class TemperatureScaling(Calibrator):
    """softmax(z / T) with one scalar T > 0, by maximum likelihood (Guo et al. 2017, Sec. 4.2)."""

    key = "ts"
    abbreviation = "TS"
    title = "temperature scaling"

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
        self.log_temperature.data.fill_(fit_log_temperature(task.outputs.logits, task.labels))

    def _predict(self, outputs: Outputs) -> Prediction:
        return Prediction((outputs.logits / self.temperature).softmax(-1), outputs.label)


def fit_log_temperature(
    logits: Tensor,
    labels: Tensor,
    prior_weight: float = 0.0,
    masked_margin: float = 100.0,
) -> float:
    """Return ln T that minimises the mean cross-entropy of softmax(z / T), in float64.

    The loss is convex in u = 1/T, with d/du = mean(Σ_k z_k softmax(u z)_k - z_y), and the one
    minimum is where this changes sign. Warns where the data do not determine it.

    Args:
        logits: z, (N, K).
        labels: True classes, (N,).
        prior_weight: Beside its label, each input counts as so many samples more, in equal parts of
            every class. This adds prior_weight · mean(Σ_k z_k softmax(u z)_k - mean_k z_k). Then
            T > 0 also where every label is predicted.
        masked_margin: For the prior, a logit further below the largest than so many median top-1
            margins is that of a masked class, as -1e9 for instance, and counts as one just there.
    """
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

        return mean_of_rows(of_rows, logits, labels)

    log_u = root(slope, -BOUND, BOUND)
    separable = bool((logits.argmax(-1) == labels).all())
    if separable or abs(log_u) > BOUND - 1e-3:
        warn_caller(_undetermined(len(labels), separable, prior_weight, log_u))
    return -log_u


def jeffreys_weight(n: int, n_classes: int) -> float:
    """Return K / (2(K-1)) / n: the prior weight at which n inputs hold half an error.

    Each input counts as so many samples more, in equal parts of every class. Of these samples
    (K-1)/K contradict any prediction. As a prior, half an error is what Jeffreys' amounts to where
    the classes are separable, so that T → 0 without it: for the smallest margin g and u = 1/T,
    ℓ + ½ ln I is largest where m, the expected number of errors, is ½, since ℓ ≈ -m, I ≈ g² m and
    m ∝ e^(-u g) (Firth 1993). Unlike ½ ln I it leaves the loss convex. For K = 2 and equal margins
    it is Jeffreys' prior, half a sample of each class.

    Args:
        n: Number of inputs.
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
) -> float:
    """Return the mean of a function of rows, computed some rows at a time.

    Args:
        function: Takes logits (n, K) in float64 and labels (n,); returns (n,).
        logits: (N, K).
        labels: (N,).
    """
    width = WIDTH * logits.shape[1]
    values = map_rows(lambda z, y: function(z.double(), y), logits.detach(), labels, width=width)
    return values.mean().item()


def at_labels(values: Tensor, labels: Tensor) -> Tensor:
    """Return the value (N,) of each row's label.

    Args:
        values: (N, K).
        labels: (N,).
    """
    return values.gather(1, labels.unsqueeze(1)).squeeze(1)


def _undetermined(
    n: int,
    separable: bool,
    prior_weight: float,
    log_u: float,
) -> str:
    if separable:
        source = "to its lower bound"
        if prior_weight > 0:
            source = "by the prior"
        return (
            f"All {n} inputs are classified correctly, so the likelihood grows without bound as T "
            f"falls and T is not determined by these data; it was set {source}. Calibrate on more, "
            "held-out inputs."
        )
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
