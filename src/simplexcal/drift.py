"""How far a score of new inputs has moved from the scores of a reference: an effect size."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

PERCENTILES = tuple(range(101))
TITLES = {
    "aleatoric": "aleatoric uncertainty",
    "epistemic": "epistemic uncertainty",
    "mutual_information": "mutual information",
}


@dataclass(frozen=True)
class Drift:
    """How far one score has moved from the reference to the batch.

    The effect size is the distance of Kolmogorov and Smirnov, d = max_t |F(t) - G(t)|: the largest
    change of the share of inputs at or below any value. A threshold on the score accepts at most
    this share of inputs more, or fewer, than on the reference. 0 means alike, 1 that no input of
    the batch has a score like those of the reference.

    Args:
        score: Name of the score.
        distance: The effect size.
        low: Lower end of its interval.
        high: Upper end of its interval.
        level: Confidence level of the interval.
        value: Where the shares differ most.
        reference_share: Share of the reference at or below this value.
        batch_share: Share of the batch at or below it.
        reference_mean: Mean score of the reference.
        batch_mean: Mean score of the batch.
        reference_percentiles: Percentiles 0 to 100 of the reference.
        batch_percentiles: The same of the batch.
    """

    score: str
    distance: float
    low: float
    high: float
    level: float
    value: float
    reference_share: float
    batch_share: float
    reference_mean: float
    batch_mean: float
    reference_percentiles: tuple[float, ...]
    batch_percentiles: tuple[float, ...]

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends of the interval."""
        return self.low, self.high

    @property
    def title(self) -> str:
        """The score in words."""
        return TITLES.get(self.score, self.score)

    def as_dict(self) -> dict[str, Any]:
        """Return names and values, in the order of the arguments, but no percentiles."""
        found = asdict(self)
        del found["reference_percentiles"]
        del found["batch_percentiles"]
        return found


def measure_drift(score: str, reference: Tensor, batch: Tensor, level: float) -> Drift:
    """Return how far a score has moved from the reference to the batch.

    Args:
        score: Name of the score.
        reference: Scores of the reference, (M,).
        batch: Scores of the batch, (N,).
        level: Confidence level of the interval.
    """
    known = reference.double().cpu().sort().values
    new = batch.double().cpu().sort().values
    values = torch.cat([known, new])
    known_shares = torch.searchsorted(known, values, right=True) / len(known)
    new_shares = torch.searchsorted(new, values, right=True) / len(new)
    at = int((new_shares - known_shares).abs().argmax())
    distance = float((new_shares[at] - known_shares[at]).abs())
    half = half_width(len(known), len(new), level)
    return Drift(
        score=score,
        distance=distance,
        low=max(0.0, distance - half),
        high=min(1.0, distance + half),
        level=level,
        value=float(values[at]),
        reference_share=float(known_shares[at]),
        batch_share=float(new_shares[at]),
        reference_mean=float(known.mean()),
        batch_mean=float(new.mean()),
        reference_percentiles=_percentiles(known),
        batch_percentiles=_percentiles(new),
    )


def half_width(m: int, n: int, level: float) -> float:
    """Return half the width of the interval, √(ln(2/α)/2 · (1/m + 1/n)) with α = 1 - level.

    For two samples of one distribution it is Smirnov's limit: the distance exceeds it with
    probability α, or less where scores are tied. For few inputs it is a bound up to a factor of
    1.09 of α (Wei and Dudley 2012, two samples of one size). Where the distributions differ, the
    difference of the shares varies less, so that the interval is wider than it has to be.

    Args:
        m: Number of inputs of the reference.
        n: Number of inputs of the batch.
        level: Confidence level of the interval.
    """
    return math.sqrt(math.log(2 / (1 - level)) / 2 * (1 / m + 1 / n))


def n_for_half_width(half: float, level: float) -> int:
    """Return how many inputs reference and batch need each, for an interval of this half width.

    Args:
        half: The half width.
        level: Confidence level of the interval.
    """
    return math.ceil(math.log(2 / (1 - level)) / half**2)


def _percentiles(ordered: Tensor) -> tuple[float, ...]:
    """Return percentiles of sorted values, each one of them."""
    last = len(ordered) - 1
    rows = [round(p / 100 * last) for p in PERCENTILES]
    return tuple(ordered[rows].tolist())
