"""The diagonal intra-order-preserving function: one increasing function of every logit."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from simplexcal._chunking import CHUNK
from simplexcal._validation import check_count
from simplexcal.calibrators._centred import centred, floored
from simplexcal.calibrators._weights import effective_number
from simplexcal.calibrators.base import Calibrator, Task
from simplexcal.calibrators.temperature import at_labels, fit_log_temperature, jeffreys_weight
from simplexcal.types import Outputs, Prediction

MIN_SLOPE = 0.01  # of m, so that it increases; 1 is temperature scaling
N_LARGEST = 10  # values of each input of which the knots are quantiles
LOWEST_QUANTILE = 1e-3  # the first knot; the last is as near to the other end
MAX_STEPS = 100
MAX_HALVINGS = 40
ARMIJO = 1e-4  # share of the decrease that a tangent promises
TOLERANCE = 1e-10  # of the gradient


class DiagonalIntraOrderPreserving(Calibrator):
    """softmax(m(x_1), ..., m(x_K)), m increasing (Rahimi et al. 2020, IOP-DIAG).

    One function m for all classes, so the order of the classes stays. Here x are the logits divided
    by the T of temperature scaling, less their mean, and m is piecewise linear with slopes of at
    least 0.01. The paper fits a neural network by stochastic gradient descent; this one is fitted
    to the minimum of a convex loss, and nothing is random:

      mean -ln p_y + r/n · (Σ_j (s_j - s_{j-1})² + (mean_j s_j - 1)²),  s the slopes,

    by Newton's method with bounds (Bertsekas 1982). The second term draws m towards temperature
    scaling, which all slopes 1 are. It is what decides where data say nothing.

    Args:
        n_knots: Where the slope changes: equally spaced quantiles of each input's 10 largest x.
        smoothness: r, how much an uneven slope costs; positive.
    """

    key = "iop-diag"
    abbreviation = "IOP-DIAG"
    title = "one increasing function of every logit"
    uses_sample_weight = True
    has_prior = True
    log_temperature: Tensor
    knots: Tensor
    slopes: Tensor

    def __init__(self, n_knots: int = 16, smoothness: float = 1.0) -> None:
        super().__init__()
        check_count("n_knots", n_knots)
        if not smoothness > 0:
            raise ValueError(f"`smoothness` must be positive; got {smoothness!r}.")
        self.n_knots = n_knots
        self.smoothness = smoothness

    @property
    def temperature(self) -> Tensor:
        """T."""
        return self.log_temperature.exp()

    @property
    def global_temperature(self) -> float | None:
        """T."""
        return self.temperature.item()

    def function(self, x: Tensor) -> Tensor:
        """Return m(x) of centred logits.

        Args:
            x: z / T less its mean, of any shape.
        """
        knots = self.knots.unbind()
        slopes = self.slopes.unbind()
        total = slopes[0] * x.minimum(knots[0].to(x.dtype))
        for slope, low, high in zip(slopes[1:-1], knots[:-1], knots[1:], strict=True):
            total = total + slope * (x.clamp(low, high) - low)
        return total + slopes[-1] * (x - knots[-1]).clamp_min(0)

    def _build(self, n_classes: int, n_features: int | None) -> None:
        self.register_buffer("log_temperature", torch.zeros(()))
        self.register_buffer("knots", torch.zeros(self.n_knots))
        self.register_buffer("slopes", torch.ones(self.n_knots + 1))

    def _fit(self, task: Task) -> None:
        logits = task.outputs.logits.detach()
        n = effective_number(len(task.labels), task.weights)
        prior_weight = jeffreys_weight(n, task.outputs.n_classes)
        log_t = fit_log_temperature(logits, task.labels, prior_weight, weights=task.weights)
        self.log_temperature.fill_(log_t)
        self.knots.copy_(_quantiles(logits, self.temperature, self.n_knots))
        data = _Data(
            logits, task.labels, task.weights, self.temperature.item(), self.knots.double()
        )
        self.slopes.copy_(_fit_slopes(_Loss(data, self.smoothness / n)))

    def _predict(self, outputs: Outputs) -> Prediction:
        x = centred(outputs.logits, self.temperature)
        return Prediction(self.function(x).softmax(-1), outputs.label)

    def _row_width(self, outputs: Outputs) -> int:
        return 4 * outputs.logits.shape[1]


class _Derivatives(NamedTuple):
    """A loss and its derivatives by the slopes.

    Args:
        value: The loss.
        gradient: (J + 1,).
        hessian: (J + 1, J + 1).
    """

    value: float
    gradient: Tensor
    hessian: Tensor


@dataclass(frozen=True)
class _Data:
    """What the slopes are fitted to.

    Args:
        logits: z, (N, K).
        labels: True classes, (N,).
        weights: (N,), with the sum 1; None: all count alike.
        temperature: T.
        knots: (J,), in float64.
    """

    logits: Tensor
    labels: Tensor
    weights: Tensor | None
    temperature: float
    knots: Tensor

    def chunks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the segments below x, labels and weights of some rows, in float64."""
        n, k = self.logits.shape
        device = self.logits.device
        weights = self.weights
        if weights is None:
            weights = torch.full((n,), 1 / n, dtype=torch.float64, device=device)
        size = max(1, CHUNK.get(device.type, CHUNK["cpu"]) // (k * (len(self.knots) + 1)))
        for rows in torch.arange(n, device=device).split(size):
            x = floored(centred(self.logits[rows].double(), self.temperature))
            yield _segments(x, self.knots), self.labels[rows], weights[rows].double()


class _Loss:
    """The mean NLL and the penalty ½ (s - 1)ᵀ Q (s - 1), as a function of the slopes s.

    Args:
        data: What the slopes are fitted to.
        strength: Weight of the penalty.
    """

    def __init__(self, data: _Data, strength: float) -> None:
        self.data = data
        n_slopes = len(data.knots) + 1
        differences = torch.eye(n_slopes).to(data.knots).diff(dim=0)
        mean = data.knots.new_full((n_slopes,), 1 / n_slopes)
        self.penalty = 2 * strength * (differences.T @ differences + mean.outer(mean))

    def value(self, slopes: Tensor) -> float:
        """Return the loss.

        Args:
            slopes: s, (J + 1,).
        """
        offset = slopes - 1
        total = (0.5 * offset @ self.penalty @ offset).item()
        for phi, labels, weights in self.data.chunks():
            log_p = (phi @ slopes).log_softmax(-1)
            total -= (weights @ at_labels(log_p, labels)).item()
        return total

    def derivatives(self, slopes: Tensor) -> _Derivatives:
        """Return the loss with its gradient and second derivatives.

        Args:
            slopes: s, (J + 1,).
        """
        offset = slopes - 1
        value = (0.5 * offset @ self.penalty @ offset).item()
        gradient = self.penalty @ offset
        hessian = self.penalty.clone()
        for phi, labels, weights in self.data.chunks():
            log_p = (phi @ slopes).log_softmax(-1)
            p = log_p.exp()
            mean = torch.einsum("nk,nkj->nj", p, phi)
            own = phi[torch.arange(len(labels), device=labels.device), labels]
            weighted = phi * (p * weights.unsqueeze(-1)).unsqueeze(-1)
            value -= (weights @ at_labels(log_p, labels)).item()
            gradient += weights @ (mean - own)
            hessian += weighted.flatten(0, 1).T @ phi.flatten(0, 1)
            hessian -= mean.T @ (mean * weights.unsqueeze(-1))
        return _Derivatives(value, gradient, hessian)


def _fit_slopes(loss: _Loss) -> Tensor:
    """Return the slopes of least loss, none below MIN_SLOPE, by Newton's method with bounds."""
    slopes = torch.ones_like(loss.data.knots[:1]).repeat(len(loss.data.knots) + 1)
    for _ in range(MAX_STEPS):
        found = loss.derivatives(slopes)
        free = (slopes > MIN_SLOPE) | (found.gradient < 0)
        gradient = found.gradient.where(free, 0)
        if gradient.abs().max() < TOLERANCE:
            break
        step = torch.zeros_like(slopes)
        step[free] = torch.linalg.solve(found.hessian[free][:, free], gradient[free])
        shorter = _shorter_until_lower(loss, slopes, step, found)
        if torch.equal(shorter, slopes):  # as low as float64 can tell
            break
        slopes = shorter
    return slopes


def _shorter_until_lower(loss: _Loss, slopes: Tensor, step: Tensor, at: _Derivatives) -> Tensor:
    """Return the slopes after the step, halved until the loss falls (Armijo's rule)."""
    for i in range(MAX_HALVINGS):
        after = (slopes - 0.5**i * step).clamp_min(MIN_SLOPE)
        decrease = (at.gradient @ (slopes - after)).item()
        if loss.value(after) <= at.value - ARMIJO * decrease:
            return after
    return slopes


def _quantiles(logits: Tensor, temperature: Tensor, n_knots: int) -> Tensor:
    """Return equally spaced quantiles of the largest x of each input, increasing."""
    largest = []
    for rows in logits.split(max(1, CHUNK["cpu"] // logits.shape[1])):
        x = floored(centred(rows.double(), temperature.double()))
        largest.append(x.topk(min(N_LARGEST, x.shape[1]), -1).values)
    values = torch.cat(largest).flatten().sort().values
    share = torch.linspace(LOWEST_QUANTILE, 1 - LOWEST_QUANTILE, n_knots, dtype=torch.float64)
    return values[(share * (len(values) - 1)).round().long().to(values.device)]


def _segments(x: Tensor, knots: Tensor) -> Tensor:
    """Return how much of each segment lies below x, (..., J + 1): m(x) is this times the slopes."""
    inner = x.unsqueeze(-1).clamp(knots[:-1], knots[1:]) - knots[:-1]
    first = x.minimum(knots[0]).unsqueeze(-1)
    last = (x - knots[-1]).clamp_min(0).unsqueeze(-1)
    return torch.cat([first, inner, last], -1)
