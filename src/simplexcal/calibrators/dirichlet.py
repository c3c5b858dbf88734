"""Temperature scaling of a Dirichlet distribution, the instructive failure."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from simplexcal.calibrators._training import (
    check_n_features,
    default_uniform,
    features_of,
    minimise,
    mixed_batches,
    mlp,
)
from simplexcal.calibrators.base import Calibrator, Task
from simplexcal.records import Outputs, Prediction

FLOOR = 1e-3  # of t
STEEP = 30.0  # ln μ from which μ grows linearly


class DirichletTemperatureScaling(Calibrator):
    """softmax(g / t(x)), the mean of a Dirichlet law with μ = exp(g / t(x)) (Esaki et al. 2024, Appendix D).

    t = softplus of a branch on the features, at least 1e-3, trained on Multi-Mixup samples by the Dirichlet likelihood.
    The paper shows why this fails: the law cannot be dense in the middle of the simplex for a confident network, so t
    grows until the confidence is far too low. It is here to be compared with SimplexTemperatureScaling.
    """

    uses_mixup = True

    def __init__(
        self,
        beta: float = 1.0,
        n_steps: int = 25_000,
        batch_size: int = 100,
        learning_rate: float = 1e-6,
        weight_decay: float = 5e-4,
        widths: tuple[int, ...] = (1024, 1024, 512, 256),
    ) -> None:
        super().__init__()
        self.beta, self.n_steps, self.batch_size = beta, n_steps, batch_size
        self.learning_rate, self.weight_decay, self.widths = learning_rate, weight_decay, tuple(widths)

    def _build(self, n_classes: int, n_features: int | None) -> None:
        self.branch = mlp([check_n_features(n_features), *self.widths, 1])

    def temperature(self, outputs: Outputs) -> Tensor:
        """Return t (N,) of each input."""
        t = softplus(self.branch(features_of(outputs, self._first))).squeeze(-1).clamp_min(FLOOR)
        return t.to(outputs.logits.dtype)

    def _fit(self, task: Task) -> None:
        if task.mixup is None:
            raise ValueError(
                "`mixup` must be given: a Dirichlet law is learned from mixed samples; got None. "
                "Pass InputMixup or FeatureMixup."
            )
        default_uniform(self.branch, task.generator)
        stream = mixed_batches(task.mixup, self.beta, self.batch_size, task.generator)

        def loss() -> Tensor:
            outputs, log_weights = next(stream)
            scaled = self._scaled(outputs.to(self._first.weight.device))
            return dirichlet_nll(scaled, log_weights.to(scaled.device)).mean()

        minimise(loss, self.parameters(), self.n_steps, self.learning_rate, self.weight_decay, progress=task.progress)

    def _predict(self, outputs: Outputs) -> Prediction:
        return Prediction(self._scaled(outputs).softmax(-1), outputs.label)

    def _scaled(self, outputs: Outputs) -> Tensor:
        return outputs.logits / self.temperature(outputs).unsqueeze(-1)

    @property
    def _first(self) -> nn.Linear:
        return cast(nn.Linear, self.branch[0])


def dirichlet_nll(scaled: Tensor, log_pi: Tensor) -> Tensor:
    """Return the negative log density (N,) at π of the Dirichlet law with μ = exp(g / t), in float64.

    -ln Γ(Σ_k μ_k) + Σ_k [ln Γ(μ_k) - (μ_k - 1) ln π_k]   (Appendix D.1)

    with ln Γ(μ) = ln Γ(μ + 1) - ln μ, which takes any small μ. From ln μ = 30 on, where the law is a point to every
    practical purpose, exp is continued by its tangent: its squared gradient would not fit into float32.
    """
    scaled = scaled.double()
    log_mu = scaled.clamp_max(STEEP) + (scaled - STEEP).clamp_min(0).log1p()
    mu = log_mu.exp()
    parts = torch.lgamma(mu + 1) - log_mu - (mu - 1) * log_pi
    return parts.sum(-1) - torch.lgamma(mu.sum(-1) + 1) + log_mu.logsumexp(-1)
