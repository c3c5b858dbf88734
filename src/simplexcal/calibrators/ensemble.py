"""Ensemble temperature scaling."""

import math
import warnings
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor, nn

from simplexcal._chunking import in_chunks
from simplexcal.calibrators._line_search import minimise_on_grid
from simplexcal.calibrators.base import Calibrator, Task
from simplexcal.calibrators.temperature import WIDTH, at_labels, fit_log_temperature, mean_of_rows
from simplexcal.types import Outputs, Prediction

LOW, HIGH = math.log(0.05), math.log(5)  # ln T when it is fitted by the squared error


class EnsembleTemperatureScaling(Calibrator):
    """w₁ softmax(z / T) + w₂ softmax(z) + w₃ / K with w on the simplex (Zhang et al. 2020, ETS).

    First T is fitted alone, then w with T fixed. ``loss`` "mse", the published choice, takes the mean squared error to
    the one-hot label with T in [0.05, 5]; "nll" takes the likelihood, where T is that of TemperatureScaling. Both fits
    of w are convex and solved exactly, and nothing is random.
    """

    key = "ets"
    abbreviation = "ETS"
    title = "ensemble temperature scaling"

    def __init__(self, loss: str = "mse") -> None:
        super().__init__()
        if loss not in ("mse", "nll"):
            raise ValueError(f'`loss` must be "mse" or "nll"; got {loss!r}.')
        self.loss = loss

    def _build(self, n_classes: int, n_features: int | None) -> None:
        self.log_temperature = nn.Parameter(torch.zeros(()))
        self.weights = nn.Parameter(torch.tensor([1.0, 0.0, 0.0]))

    @property
    def temperature(self) -> Tensor:
        """T."""
        return self.log_temperature.exp()

    def _fit(self, task: Task) -> None:
        logits, labels = task.outputs.logits.detach(), task.labels
        by_error = self.loss == "mse"
        log_t = (fit_log_temperature_by_error if by_error else fit_log_temperature)(logits, labels)

        def compared(z: Tensor, y: Tensor) -> Parts:
            return compare((z.double() / math.exp(log_t)).softmax(-1), z.double().softmax(-1), y)

        parts = Parts(*in_chunks(compared, logits, labels, width=WIDTH * logits.shape[1]))
        self.log_temperature.data.fill_(log_t)
        self.weights.data.copy_((weights_by_error if by_error else weights_by_likelihood)(parts))

    def _predict(self, outputs: Outputs) -> Prediction:
        logits, weights = outputs.logits, self.weights.to(outputs.logits.dtype)
        scaled, plain, uniform = weights / weights.sum()
        probs = scaled * (logits / self.temperature).softmax(-1) + plain * logits.softmax(-1)
        return Prediction(probs + uniform / outputs.n_classes, outputs.label)


def fit_log_temperature_by_error(logits: Tensor, labels: Tensor) -> float:
    """Return ln T in [ln 0.05, ln 5] that minimises mean Σ_k (softmax(z / T)_k - y_k)², y the one-hot label.

    The loss is not convex, so a grid finds the valley and a golden section its bottom.
    """

    def loss(log_t: float) -> float:
        def error(z: Tensor, y: Tensor) -> Tensor:  # less the constant 1
            probs = (z * math.exp(-log_t)).softmax(-1)
            return probs.square().sum(-1) - 2 * at_labels(probs, y)

        return mean_of_rows(error, logits, labels)

    log_t = minimise_on_grid(loss, LOW, HIGH)
    if min(log_t - LOW, HIGH - log_t) < 1e-6:
        found = (
            f"The squared error is smallest at the bound T = {math.exp(log_t):.3g} of [0.05, 5]. "
        )
        warnings.warn(
            found + 'Use loss="nll", which has no such bound, or more held-out inputs.',
            stacklevel=2,
        )
    return log_t


class Parts(NamedTuple):
    """What the fit of w needs of p₁ = softmax(z / T), p₂ = softmax(z) and p₃ = 1/K."""

    products: Tensor  # (N, 2, 2) Σ_k p_ik p_jk of the first two
    own: Tensor  # (N, 3)         the three probabilities of the label


def compare(scaled: Tensor, plain: Tensor, labels: Tensor) -> Parts:
    """Return what the fit of w needs of the two probabilities (N, K)."""
    both = torch.stack([scaled, plain], 1)
    own = [
        at_labels(scaled, labels),
        at_labels(plain, labels),
        plain.new_full(labels.shape, 1 / plain.shape[1]),
    ]
    return Parts(both @ both.mT, torch.stack(own, -1))


def weights_by_error(parts: Parts) -> Tensor:
    """Return w that minimises mean Σ_k (Σ_j w_j p_jk - y_k)²."""
    gram = parts.own[0, 2].repeat(3, 3)
    gram[:2, :2] = parts.products.mean(0)
    return quadratic_on_simplex(gram, parts.own.mean(0))


def weights_by_likelihood(parts: Parts) -> Tensor:
    """Return w that maximises mean ln a·w, where a are the three probabilities of the label, by Newton's method.

    Every step goes at most 0.99 of the way to the minimum of the quadratic model on the simplex, so a·w stays positive.
    With the gradient g, Σ_j w_j g_j = 1 and the maximum lies at most max_j g_j - 1 higher, which says when to stop.
    """
    a = parts.own
    w = torch.full((3,), 1 / 3, dtype=a.dtype, device=a.device)
    for _ in range(50):
        ratio = a / (a @ w).unsqueeze(1)
        gradient = ratio.mean(0)
        if gradient.max() - 1 < 1e-12:
            break
        step = quadratic_on_simplex(ratio.T @ ratio / len(a), 2 * gradient) - w
        w = max((w + 0.99 * 0.5**i * step for i in range(20)), key=lambda v: (a @ v).log().mean())
    return w


def quadratic_on_simplex(gram: Tensor, linear: Tensor) -> Tensor:
    """Return w that minimises wᵀGw - 2bᵀw on the simplex, for a positive semidefinite G.

    The minimum lies inside one of the simplex's faces, where it solves a linear system: try them all. A candidate from
    a face that does not hold the minimum is made feasible and loses; of equals the one with fewer entries wins.
    """
    faces = [
        face
        for size in range(1, len(linear) + 1)
        for face in combinations(range(len(linear)), size)
    ]
    return min(
        (_on_face(gram, linear, list(face)) for face in faces),
        key=lambda w: w @ gram @ w - 2 * linear @ w,
    )


def _on_face(gram: Tensor, linear: Tensor, face: list[int]) -> Tensor:
    """Solve G_ff w + μ1 = b_f, 1ᵀw = 1, with what a singular system leaves open as small as can be."""
    system = nn.functional.pad(gram[face][:, face], (0, 1, 0, 1), value=1.0)
    system[-1, -1] = 0.0
    solution = torch.linalg.pinv(system) @ nn.functional.pad(linear[face], (0, 1), value=1.0)
    w = torch.zeros_like(linear)
    w[face] = solution[:-1].clamp_min(0)
    return w / w.sum()
