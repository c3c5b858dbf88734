"""Fits of softmax(W x + b): penalised maximum likelihood, in float64, without a seed.

The loss is convex. What it does not determine is drawn towards temperature scaling, W = 1, b = 0,
by a penalty whose strength cross-validation chooses on the data of the fit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from simplexcal.calibrators._lbfgs import minimise_convex
from simplexcal.calibrators.temperature import at_labels

Preconditioner = Callable[[Tensor], Tensor]

N_FOLDS = 3
N_STEPS = 300
ROUGH = 1e-6  # tolerance of a fit to compare strengths, of the mean loss
FINE = 1e-9  # tolerance of the last fit
MIN_CURVATURE = 1e-6  # A class that no input comes near has none.


class Affine(NamedTuple):
    """The parameters of W x + b.

    Attributes:
        weight: W, (K, K); or its diagonal, (K,).
        bias: b, (K,).
    """

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return W x + b.

        Args:
            x: (..., K).
        """
        if self.weight.dim() == 1:
            return x * self.weight + self.bias
        return x @ self.weight.T + self.bias

    def flat(self) -> Tensor:
        """Return all parameters as one vector."""
        return torch.cat([self.weight.flatten(), self.bias])

    def like(self, values: Tensor) -> "Affine":
        """Return parameters of the same shapes.

        Args:
            values: All of them as one vector.
        """
        n = self.weight.numel()
        return Affine(values[:n].view_as(self.weight), values[n:])


@dataclass(frozen=True)
class Data:
    """What W and b are fitted to, in float64 on the CPU.

    Args:
        x: (N, K).
        labels: True classes, (N,).
        weights: (N,), with the sum 1.
    """

    x: Tensor
    labels: Tensor
    weights: Tensor

    def take(self, rows: Tensor) -> "Data":
        """Return some of the rows.

        Args:
            rows: Which ones, (N,), bools.
        """
        weights = self.weights[rows]
        return Data(self.x[rows], self.labels[rows], weights / weights.sum())

    def mean_nll(self, affine: Affine) -> float:
        """Return the mean of -ln p_y.

        Args:
            affine: W and b.
        """
        log_p = affine(self.x).log_softmax(-1)
        return -(self.weights @ at_labels(log_p, self.labels)).item()


def fit_affine(data: Data, start: Affine, penalty: Tensor, tolerance: float = FINE) -> Affine:
    """Return W and b that minimise mean -ln p_y + ½ Σ_i penalty_i (θ_i - θ⁰_i)².

    Here θ⁰ is temperature scaling.

    Args:
        data: What they are fitted to.
        start: Where the search begins.
        penalty: Of each parameter, as ``Affine.flat`` orders them.
        tolerance: Of the loss.
    """
    identity = identity_like(start)
    centre = identity.flat()
    target = one_hot(data.labels, data.x.shape[1]).to(data.x)
    weights = data.weights.unsqueeze(-1)

    def loss(theta: Tensor) -> tuple[float, Tensor]:
        affine = start.like(theta)
        log_p = affine(data.x).log_softmax(-1)
        residual = (log_p.exp() - target) * weights
        gradient = _gradient(residual, data.x, affine)
        offset = theta - centre
        value = -(data.weights @ at_labels(log_p, data.labels)).item()
        value += 0.5 * (penalty @ offset.square()).item()
        return value, gradient + penalty * offset

    precondition = _inverse_curvature(data, identity, penalty)
    found = minimise_convex(loss, start.flat(), precondition, n_steps=N_STEPS, tolerance=tolerance)
    return start.like(found)


def choose_strength(
    data: Data, identity: Affine, penalty: Callable[[float], Tensor], strengths: Sequence[float]
) -> float:
    """Return the strength of a penalty with the lowest mean NLL of held-out folds.

    The inputs of each class are dealt out to the folds in turn.

    Args:
        data: The data of the fit.
        identity: Temperature scaling.
        penalty: The penalty of each parameter, by the strength.
        strengths: The candidates.
    """
    fold = folds(data.labels, min(N_FOLDS, len(data.labels)))
    descending = sorted(strengths, reverse=True)
    scores = dict.fromkeys(descending, 0.0)
    for i in range(int(fold.max()) + 1):
        training = data.take(fold != i)
        held_out = data.take(fold == i)
        share = data.weights[fold == i].sum().item()
        affine = identity
        for strength in descending:  # Each fit begins where the last one ended.
            affine = fit_affine(training, affine, penalty(strength), ROUGH)
            scores[strength] += share * held_out.mean_nll(affine)
    return min(descending, key=scores.__getitem__)


def folds(labels: Tensor, n_folds: int) -> Tensor:
    """Return the number of the fold of each input, (N,).

    Args:
        labels: True classes, (N,).
        n_folds: Number of folds.
    """
    order = labels.argsort(stable=True)
    fold = torch.empty_like(labels)
    fold[order] = torch.arange(len(labels)) % n_folds
    return fold


def identity_like(affine: Affine) -> Affine:
    """Return W = 1 and b = 0 of the same shapes.

    Args:
        affine: Parameters.
    """
    k = len(affine.bias)
    weight = torch.ones(k).to(affine.weight)
    if affine.weight.dim() == 2:
        weight = weight.diag()
    return Affine(weight, torch.zeros_like(affine.bias))


def _inverse_curvature(data: Data, identity: Affine, penalty: Tensor) -> Preconditioner:
    """Return a function that multiplies a gradient by an estimate of the inverse Hessian.

    The estimate is that of temperature scaling without the terms between classes.
    """
    p = identity(data.x).softmax(-1)
    variance = p * (1 - p) * data.weights.unsqueeze(-1)
    if identity.weight.dim() == 2:
        return _of_rows(data.x, variance, identity.like(penalty))
    curvature = _gradient(variance, data.x.square(), identity)
    scale = 1 / (curvature + penalty).clamp_min(MIN_CURVATURE)
    return lambda gradient: gradient * scale


def _of_rows(x: Tensor, variance: Tensor, penalty: Affine) -> Preconditioner:
    """Return the inverse for a full W, row by row.

    The Hessian of row k of (W, b) is Σ_n v_nk x_n x_nᵀ, with the column 1 in x and v = p (1 - p),
    and the penalty on its diagonal. With Σ_n v_nk x_n x_nᵀ ≈ c_k Σ_nj v_nj x_n x_nᵀ, where
    c_k = Σ_n v_nk / Σ_nj v_nj, one eigendecomposition gives all inverses for the penalty α of the
    weights off the diagonal. That on it differs: a change of rank one (Sherman and Morrison 1950).
    """
    alpha = penalty.weight[0, 1]
    ratio = (alpha / penalty.bias[0]).sqrt()  # With b in units of this, its penalty is α too.
    columns = torch.cat([x, ratio.expand(len(x), 1)], 1)
    values, vectors = torch.linalg.eigh(columns.T @ (columns * variance.sum(1, keepdim=True)))
    share = variance.sum(0) / variance.sum()
    scale = 1 / (share.unsqueeze(1) * values.clamp_min(0) + alpha)
    own = (vectors[:-1] * scale) @ vectors.T  # The k-th row is the inverse times e_k.
    change = penalty.weight.diagonal() - alpha
    factor = (change / (1 + change * own[:, :-1].diagonal())).unsqueeze(1)

    def precondition(gradient: Tensor) -> Tensor:
        given = penalty.like(gradient)
        rows = torch.cat([given.weight, ratio * given.bias.unsqueeze(1)], 1)
        found = ((rows @ vectors) * scale) @ vectors.T
        found = found - factor * found[:, :-1].diagonal().unsqueeze(1) * own
        return torch.cat([found[:, :-1].flatten(), ratio * found[:, -1]])

    return precondition


def _gradient(residual: Tensor, x: Tensor, affine: Affine) -> Tensor:
    """Return Σ_n of r_n x_nᵀ, or of its diagonal, and of r_n, as one vector."""
    if affine.weight.dim() == 1:
        weight = (residual * x).sum(0)
    else:
        weight = residual.T @ x
    return torch.cat([weight.flatten(), residual.sum(0)])
