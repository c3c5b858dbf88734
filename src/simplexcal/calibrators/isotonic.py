"""Isotonic regression of the confidence."""

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from simplexcal._chunking import map_rows
from simplexcal._validation import check_count
from simplexcal.calibrators._centred import DEPTH
from simplexcal.calibrators._optim import divide_logits
from simplexcal.calibrators._weights import effective_number
from simplexcal.calibrators.base import Calibrator, Task
from simplexcal.calibrators.temperature import fit_log_temperature, jeffreys_weight
from simplexcal.types import Outputs, Prediction

MIN_GAP = 0.02  # between two pools, in log-odds, so that rounding does not matter
HALF = 0.5  # of an input: an error at the highest confidence, and a correct one at the lowest


class Pool(NamedTuple):
    """Inputs whose confidence is replaced by one share of correct predictions.

    Attributes:
        odds: Sum of their log-odds, weighted.
        correct: Weight of those that are predicted correctly.
        weight: Weight of all.
    """

    odds: float
    correct: float
    weight: float

    @property
    def mean(self) -> float:
        """The mean of the log-odds."""
        return self.odds / self.weight

    @property
    def share(self) -> float:
        """The share of correct predictions."""
        return self.correct / self.weight

    def join(self, other: "Pool") -> "Pool":
        """Return this pool and another one as one.

        Args:
            other: The other pool.
        """
        return Pool(*(a + b for a, b in zip(self, other, strict=True)))


class IsotonicCalibration(Calibrator):
    """An increasing function of the confidence, by isotonic regression (Zadrozny and Elkan 2002).

    The confidence after temperature scaling is replaced by the share of correct predictions, made
    increasing by least squares (pool adjacent violators); between the means of two pools it is
    linear in the log-odds of the confidence. The other classes keep their ratios to each other. The
    confidence is never lowered below the probability of another class, so no prediction changes.
    Half an error at the highest confidence and half a correct input at the lowest one are added, so
    that no probability is 0 or 1. Nothing is random.

    Args:
        max_pools: Neighbouring pools are joined, two and two, until there are no more than so many.
    """

    key = "isotonic"
    abbreviation = "Isotonic"
    title = "isotonic regression of the confidence"
    uses_sample_weight = True
    has_prior = True
    log_temperature: Tensor
    knots: Tensor
    shares: Tensor

    def __init__(self, max_pools: int = 1024) -> None:
        super().__init__()
        check_count("max_pools", max_pools)
        self.max_pools = max_pools

    @property
    def global_temperature(self) -> float | None:
        """T."""
        return self.log_temperature.exp().item()

    def _build(self, n_classes: int, n_features: int | None) -> None:
        self.register_buffer("log_temperature", torch.zeros(()))
        self.register_buffer("knots", torch.zeros(self.max_pools))
        self.register_buffer("shares", torch.full((self.max_pools,), HALF))

    def _fit(self, task: Task) -> None:
        logits = task.outputs.logits.detach()
        n = effective_number(len(task.labels), task.weights)
        prior_weight = jeffreys_weight(n, task.outputs.n_classes)
        log_t = fit_log_temperature(logits, task.labels, prior_weight, weights=task.weights)
        self.log_temperature.fill_(log_t)
        label = task.outputs.label
        others = map_rows(self._others, logits.double(), label, width=logits.shape[1])
        weights = torch.ones(len(label), dtype=torch.float64)
        if task.weights is not None:
            weights = n * task.weights.double().cpu()
        correct = (label == task.labels).double().cpu()
        pools = fit_pools(-others.logsumexp(-1).cpu(), correct, weights)
        self._store(join_pools(pools, self.max_pools))

    def _store(self, pools: list[Pool]) -> None:
        """Keep mean and share of each pool; the last one fills what is left."""
        padded = pools + pools[-1:] * (self.max_pools - len(pools))
        self.knots.copy_(torch.tensor([pool.mean for pool in padded], dtype=torch.float64))
        self.shares.copy_(torch.tensor([pool.share for pool in padded], dtype=torch.float64))

    def _predict(self, outputs: Outputs) -> Prediction:
        label = outputs.label
        others = self._others(outputs.logits, label)
        largest = others.amax(-1, keepdim=True)
        # Not logsumexp, which onnxruntime computes without the largest.
        total = largest + (others - largest).exp().sum(-1, keepdim=True).log()
        others = others - total
        share = interpolate(-total, self.knots.to(total.dtype), self.shares.to(total.dtype))
        odds = torch.maximum(share.logit(), others.amax(-1, keepdim=True))
        return Prediction(others.scatter(-1, label.unsqueeze(-1), odds).softmax(-1), label)

    def _others(self, logits: Tensor, label: Tensor) -> Tensor:
        """Return the scaled logits less that of the label, which itself is at -∞, (N, K)."""
        own = label.unsqueeze(-1)
        scaled = divide_logits(logits, self.log_temperature.to(logits.dtype).exp())
        below = (scaled - scaled.gather(-1, own)).clamp_min(-DEPTH)
        return below.scatter(-1, own, -torch.inf)


def fit_pools(x: Tensor, y: Tensor, weights: Tensor) -> list[Pool]:
    """Return the pools of the increasing function of x that is nearest to y in squares.

    Args:
        x: (N,).
        y: 0 or 1, (N,).
        weights: How much each input counts, (N,).
    """
    x, places = x.unique(return_inverse=True)
    correct = torch.zeros_like(x).index_add(0, places, weights * y)
    weight = torch.zeros_like(x).index_add(0, places, weights)
    correct[0] += HALF
    weight[0] += HALF
    weight[-1] += HALF
    pools: list[Pool] = []
    for row in torch.stack([weight * x, correct, weight], 1).tolist():
        pool = Pool(*row)
        while pools and pools[-1].share >= pool.share:
            pool = pools.pop().join(pool)
        pools.append(pool)
    return pools


def join_pools(pools: list[Pool], most: int) -> list[Pool]:
    """Return pools with neighbours joined that are close, and then until there are few enough.

    Args:
        pools: Pools, increasing.
        most: Number of pools at most.
    """
    joined: list[Pool] = []
    for pool in pools:
        if joined and pool.mean - joined[-1].mean < MIN_GAP:
            joined[-1] = joined[-1].join(pool)
        else:
            joined.append(pool)
    while len(joined) > most:
        pairs = [joined[i : i + 2] for i in range(0, len(joined), 2)]
        joined = [reduce(Pool.join, pair) for pair in pairs]
    return joined


def interpolate(x: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Return the function through (knots, values), linear between knots and constant beyond.

    The next knot is found by bisection, in operations that ONNX has.

    Args:
        x: Of any shape.
        knots: (J,), never decreasing.
        values: (J,).
    """
    last = len(knots) - 1
    upper = torch.zeros_like(x, dtype=torch.int64)  # number of knots that are no larger
    for bit in reversed(range(len(knots).bit_length())):
        further = upper + 2**bit
        is_reached = (further <= last + 1) & (knots[(further - 1).clamp_max(last)] <= x)
        upper = torch.where(is_reached, further, upper)
    upper = upper.clamp(1, last)
    left = knots[upper - 1]
    width = knots[upper] - left
    share = torch.where(width > 0, (x - left) / width.where(width > 0, 1), 1.0).clamp(0, 1)
    return values[upper - 1] + share * (values[upper] - values[upper - 1])
