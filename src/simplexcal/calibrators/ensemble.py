"""Ensemble temperature scaling."""

import math
from itertools import chain, combinations
from typing import NamedTuple

import torch
from torch import Tensor, nn

from simplexcal._chunking import in_chunks
from simplexcal._validation import warn_caller
from simplexcal.calibrators._line_search import minimise_on_grid
from simplexcal.calibrators._optim import divide_logits
from simplexcal.calibrators._weights import weighted_mean
from simplexcal.calibrators.base import Calibrator, Task
from simplexcal.calibrators.temperature import WIDTH, at_labels, fit_log_temperature, mean_of_rows
from simplexcal.types import Outputs, Prediction


class EnsembleTemperatureScaling(Calibrator):
    """w₁ softmax(z / T) + w₂ softmax(z) + w₃ / K, w on the simplex (Zhang et al. 2020, ETS).

    First T is fitted alone, then w with T fixed. Both fits of w are convex and solved exactly, and
    nothing is random.

    Args:
        loss: "mse", the published choice, is the mean squared error to the one-hot label; "nll" is
            the negative log-likelihood, for which T is that of TemperatureScaling.
        min_temperature: Smallest T with the loss "mse".
        max_temperature: Largest T with the loss "mse".
    """

    key = "ets"
    abbreviation = "ETS"
    title = "ensemble temperature scaling"
    uses_sample_weight = True

    def __init__(
        self,
        loss: str = "mse",
        min_temperature: float = 0.05,
        max_temperature: float = 5.0,
    ) -> None:
        super().__init__()
        if loss not in ("mse", "nll"):
            raise ValueError(f'`loss` must be "mse" or "nll"; got {loss!r}.')
        self.loss = loss
        self.has_prior = loss == "nll"
        self.min_temperature = min_temperature
        self.max_temperature = max_temperature

    @property
    def global_temperature(self) -> float | None:
        """T of the first softmax."""
        return self.temperature.item()

    @property
    def temperature(self) -> Tensor:
        """T."""
        return self.log_temperature.exp()

    def _build(self, n_classes: int, n_features: int | None) -> None:
        self.log_temperature = nn.Parameter(torch.zeros(()))
        self.weights = nn.Parameter(torch.tensor([1.0, 0.0, 0.0]))

    def _fit(self, task: Task) -> None:
        logits = task.outputs.logits.detach()
        given = task.weights
        if self.loss == "mse":
            low = math.log(self.min_temperature)
            high = math.log(self.max_temperature)
            log_t = fit_log_temperature_by_error(logits, task.labels, low, high, given)
            weights = weights_by_error(_components(logits, task.labels, log_t), given)
        else:
            log_t = fit_log_temperature(logits, task.labels, weights=given)
            weights = weights_by_likelihood(_components(logits, task.labels, log_t), given)
        self.log_temperature.data.fill_(log_t)
        self.weights.data.copy_(weights)

    def _predict(self, outputs: Outputs) -> Prediction:
        logits = outputs.logits
        weights = self.weights.to(logits.dtype)
        scaled, plain, uniform = weights / weights.sum()
        divided = divide_logits(logits, self.temperature)
        probs = scaled * divided.softmax(-1) + plain * logits.softmax(-1)
        return Prediction(probs + uniform / outputs.n_classes, outputs.label)


def fit_log_temperature_by_error(
    logits: Tensor,
    labels: Tensor,
    low: float,
    high: float,
    sample_weight: Tensor | None = None,
) -> float:
    """Return ln T that minimises mean Σ_k (softmax(z / T)_k - y_k)², y the one-hot label.

    The loss is not convex, so a grid finds the valley and a golden section its bottom.

    Args:
        logits: z, (N, K).
        labels: True classes, (N,).
        low: Smallest ln T.
        high: Largest ln T.
        sample_weight: Weight of each input, (N,), with the sum 1; None: all count alike.
    """

    def loss(log_t: float) -> float:
        def error(z: Tensor, y: Tensor) -> Tensor:  # Less the constant 1.
            probs = (z * math.exp(-log_t)).softmax(-1)
            return probs.square().sum(-1) - 2 * at_labels(probs, y)

        return mean_of_rows(error, logits, labels, sample_weight)

    log_t = minimise_on_grid(loss, low, high)
    separable = bool((logits.argmax(-1) == labels).all())  # Then the calibrator has warned.
    if min(log_t - low, high - log_t) < 1e-6 and not separable:
        warn_caller(
            f"The squared error is smallest at the bound T = {math.exp(log_t):.3g} of "
            f"[{math.exp(low):.3g}, {math.exp(high):.3g}]. "
            'Use loss="nll", which has no such bound, or more held-out inputs.'
        )
    return log_t


class Components(NamedTuple):
    """What the fit of w needs of p₁ = softmax(z / T), p₂ = softmax(z) and p₃ = 1/K.

    Args:
        products: Σ_k p_ik p_jk of the first two, (N, 2, 2).
        own: The three probabilities of the label, (N, 3).
    """

    products: Tensor
    own: Tensor


def compare(scaled: Tensor, plain: Tensor, labels: Tensor) -> Components:
    """Return what the fit of w needs.

    Args:
        scaled: softmax(z / T), (N, K).
        plain: softmax(z), (N, K).
        labels: True classes, (N,).
    """
    both = torch.stack([scaled, plain], 1)
    uniform = plain.new_full(labels.shape, 1 / plain.shape[1])
    own = [at_labels(scaled, labels), at_labels(plain, labels), uniform]
    return Components(both @ both.mT, torch.stack(own, -1))


def weights_by_error(components: Components, sample_weight: Tensor | None = None) -> Tensor:
    """Return w that minimises mean Σ_k (Σ_j w_j p_jk - y_k)².

    Args:
        components: Of the ensemble, from ``compare``.
        sample_weight: Weight of each input, (N,), with the sum 1; None: all count alike.
    """
    gram = components.own[0, 2].repeat(3, 3)
    gram[:2, :2] = weighted_mean(components.products, sample_weight)
    return quadratic_on_simplex(gram, weighted_mean(components.own, sample_weight))


def weights_by_likelihood(components: Components, sample_weight: Tensor | None = None) -> Tensor:
    """Return w that maximises mean ln a·w, a the label's three probabilities, by Newton's method.

    Every step goes at most 0.99 of the way to the minimum of the quadratic model on the simplex, so
    a·w stays positive. With the gradient g, Σ_j w_j g_j = 1 and the maximum lies at most
    max_j g_j - 1 higher, which tells when to stop.

    Args:
        components: Of the ensemble, from ``compare``.
        sample_weight: Weight of each input, (N,), with the sum 1; None: all count alike.
    """
    a = components.own
    w = torch.full((3,), 1 / 3, dtype=a.dtype, device=a.device)
    for _ in range(50):
        ratio = a / (a @ w).unsqueeze(1)
        gradient = weighted_mean(ratio, sample_weight)
        if gradient.max() - 1 < 1e-12:
            break
        step = quadratic_on_simplex(_mean_square(ratio, sample_weight), 2 * gradient) - w
        candidates = [w + 0.99 * 0.5**i * step for i in range(20)]
        w = max(candidates, key=lambda v: weighted_mean((a @ v).log(), sample_weight))
    return w


def _mean_square(ratio: Tensor, sample_weight: Tensor | None) -> Tensor:
    """Return the mean of r rᵀ over the rows r, (3, 3)."""
    if sample_weight is None:
        return ratio.T @ ratio / len(ratio)
    return (ratio.T * sample_weight) @ ratio


def quadratic_on_simplex(gram: Tensor, linear: Tensor) -> Tensor:
    """Return w that minimises wᵀGw - 2bᵀw on the simplex.

    The minimum lies inside one of the simplex's faces, where it solves a linear system: try them
    all. A candidate from a face that does not hold the minimum is made feasible and loses; of
    equals the one with fewer entries wins.

    Args:
        gram: G, positive semidefinite.
        linear: b.
    """
    n = len(linear)
    faces = chain.from_iterable(combinations(range(n), size) for size in range(1, n + 1))
    candidates = [_on_face(gram, linear, list(face)) for face in faces]
    return min(candidates, key=lambda w: w @ gram @ w - 2 * linear @ w)


def _components(logits: Tensor, labels: Tensor, log_t: float) -> Components:
    """Compare the components of the ensemble in float64, some rows at a time."""

    def compare_rows(z: Tensor, y: Tensor) -> Components:
        z = z.double()
        return compare((z / math.exp(log_t)).softmax(-1), z.softmax(-1), y)

    return Components(*in_chunks(compare_rows, logits, labels, width=WIDTH * logits.shape[1]))


def _on_face(
    gram: Tensor,
    linear: Tensor,
    face: list[int],
) -> Tensor:
    """Solve G_ff w + μ1 = b_f, 1ᵀw = 1; a singular system has the solution of least norm."""
    system = nn.functional.pad(gram[face][:, face], (0, 1, 0, 1), value=1.0)
    system[-1, -1] = 0.0
    solution = torch.linalg.pinv(system) @ nn.functional.pad(linear[face], (0, 1), value=1.0)
    w = torch.zeros_like(linear)
    w[face] = solution[:-1].clamp_min(0)
    return w / w.sum()
