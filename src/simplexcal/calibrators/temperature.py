"""Temperature scaling."""

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from simplexcal._chunking import in_chunks
from simplexcal.calibrators._line_search import root
from simplexcal.calibrators.base import Calibrator, Task
from simplexcal.types import Outputs, Prediction

BOUND = 16.0  # |ln T| at most
FAR = 100.0  # times the median lead of the first class over the second: a class so far below the first is ruled out
WIDTH = 16  # numbers for each logit: more than are held, since small float64 arrays need no new memory, which is slow


class TemperatureScaling(Calibrator):
    """softmax(z / T) with one scalar T > 0 (Guo et al. 2017, Sec. 4.2), by maximum likelihood."""

    key = "ts"
    abbreviation = "TS"
    title = "temperature scaling"

    def _build(self, n_classes: int, n_features: int | None) -> None:
        self.log_temperature = nn.Parameter(torch.zeros(()))

    @property
    def temperature(self) -> Tensor:
        """T."""
        return self.log_temperature.exp()

    def _fit(self, task: Task) -> None:
        self.log_temperature.data.fill_(fit_log_temperature(task.outputs.logits, task.labels))

    def _predict(self, outputs: Outputs) -> Prediction:
        return Prediction((outputs.logits / self.temperature).softmax(-1), outputs.label)


def fit_log_temperature(logits: Tensor, labels: Tensor, doubt: float = 0.0) -> float:
    """Return ln T that minimises the mean cross-entropy of softmax(z / T), in float64.

    The loss is convex in u = 1/T, with d/du = mean(Σ_k z_k softmax(u z)_k - z_y), and the one minimum is where this
    changes sign. Warns where the data do not determine it.

    ``doubt`` is a prior: beside its label, each input counts as so many samples more, in equal parts of every class,
    which adds doubt · mean(Σ_k z_k softmax(u z)_k - mean_k z_k). Then T > 0 also where every label is predicted. A
    class that the network rules out, by a logit of -1e9 for instance, counts as one that is just ``FAR`` below.
    """
    lowest = -_far(logits) if doubt else 0.0

    def slope(log_u: float) -> float:
        def of_rows(z: Tensor, y: Tensor) -> Tensor:
            z = z - z.amax(-1, keepdim=True)  # so that large logits do not overflow
            expected = (z * (z * math.exp(log_u)).softmax(-1)).sum(-1)
            prior = doubt * z.clamp_min(lowest).mean(-1) if doubt else 0.0
            return expected - (at_labels(z, y) + prior) / (1 + doubt)

        return mean_of_rows(of_rows, logits, labels)

    log_u, separable = root(slope, -BOUND, BOUND), bool((logits.argmax(-1) == labels).all())
    if separable or abs(log_u) > BOUND - 1e-3:
        warnings.warn(_undetermined(len(labels), separable, doubt, log_u), stacklevel=2)
    return -log_u


def _far(logits: Tensor) -> float:
    """Return how far below the largest logit a class is ruled out; where most rows tie, none is."""

    def leads(z: Tensor) -> tuple[Tensor]:
        first, second = z.topk(2, -1).values.double().unbind(-1)
        return (first - second,)

    (lead,) = in_chunks(leads, logits.detach(), width=logits.shape[1])
    return FAR * lead.median().item() or math.inf


def mean_of_rows(
    function: Callable[[Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor
) -> float:
    """Return the mean of a function (n,) of logits (n, K), in float64, and labels (n,), some rows at a time."""
    width = WIDTH * logits.shape[1]
    (values,) = in_chunks(
        lambda z, y: (function(z.double(), y),), logits.detach(), labels, width=width
    )
    return values.mean().item()


def at_labels(values: Tensor, labels: Tensor) -> Tensor:
    """Return the value (N,) of each row's label."""
    return values.gather(1, labels.unsqueeze(1)).squeeze(1)


def _undetermined(n: int, separable: bool, doubt: float, log_u: float) -> str:
    if separable:
        return (
            f"All {n} inputs are classified correctly, so the likelihood grows without bound as T falls and T is not "
            f"determined by these data; it was set {'by the prior' if doubt else 'to its lower bound'}. "
            "Calibrate on more, held-out inputs."
        )
    if log_u > 0:
        return "The logits are so small that T was set to its lower bound, e^-16. Multiply them by a constant."
    return (
        "The logits say nothing about the labels, or are very large, so T is not determined by these data; it was set "
        "to its upper bound, e^16. Check that labels and logits are in the same order."
    )
