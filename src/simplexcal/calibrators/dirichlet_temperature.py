"""Temperature scaling of a Dirichlet distribution, the instructive failure."""

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

from simplexcal.calibrators._branch_calibrator import PAPER_WIDTHS, BranchCalibrator
from simplexcal.calibrators._branch_network import Branch, MemberBatch
from simplexcal.calibrators._optim import divide_logits
from simplexcal.calibrators.base import Task, check_n_features
from simplexcal.mixup import Mixup
from simplexcal.types import Outputs, Prediction

SMALLEST = 1e-3  # of t
STEEP = 30.0  # From this ln μ on μ grows linearly.


class DirichletTemperatureScaling(BranchCalibrator):
    """softmax(g / t(x)), the mean of a Dirichlet distribution (Esaki et al. 2024, Appendix D).

    Its concentration is μ = exp(g / t(x)), with t = softplus of a branch on the features, at least
    1e-3, trained on Multi-Mixup samples by the Dirichlet likelihood. The paper shows why this
    fails: the distribution cannot be dense in the middle of the simplex for a confident network, so
    t grows until the confidence is far too low. It is here to be compared with
    SimplexTemperatureScaling.

    Args:
        betas: Dirichlet concentrations of the mixup weights. One branch is trained for each; the
            one with the lowest ECE is kept.
        widths: Hidden widths of the branch.
        n_steps: Steps of Adam.
        batch_size: Mixup samples in a step, for each β.
        learning_rate: Learning rate of Adam.
        weight_decay: Weight decay of Adam.
        pool_size: Mixup samples drawn for each β.
        resample: Draw new mixup samples whenever the pool is used up.
        lr_decay: Decay the learning rate to 0 along a cosine.
    """

    key = "dirichlet-ts"
    abbreviation = "Dirichlet TS"
    title = "Dirichlet temperature scaling"
    only_for_reproduction = True
    needs_features = True
    needs_mixup = True

    def __init__(
        self,
        betas: Sequence[float] = (1.0,),
        widths: Sequence[int] = PAPER_WIDTHS,
        n_steps: int = 25_000,
        batch_size: int = 100,
        learning_rate: float = 1e-6,
        weight_decay: float = 5e-4,
        pool_size: int = 10_000,
        resample: bool = True,
        lr_decay: bool = False,
    ) -> None:
        super().__init__(
            betas,
            widths,
            n_steps,
            batch_size,
            learning_rate,
            weight_decay,
            pool_size,
            resample,
            lr_decay,
        )

    def temperature(self, outputs: Outputs) -> Tensor:
        """Return t (N,) of each input.

        Args:
            outputs: Outputs of the network of the fit, with features.
        """
        return _clamp(self.branch.temperatures(outputs)[0])

    def _build(self, n_classes: int, n_features: int | None) -> None:
        super()._build(n_classes, check_n_features(n_features))

    def _fit(self, task: Task) -> None:
        self._fit_branch(task, cast(Mixup, task.mixup))

    def _warn_of_weak_data(self, task: Task) -> None: ...  # T comes from mixup samples alone.

    def _losses(self, members: Branch, batch: MemberBatch) -> Tensor:
        t = _clamp(members(batch.features).squeeze(1)).to(batch.logits)
        return dirichlet_nll(batch.logits / t.unsqueeze(-1), batch.log_weights).mean(-1)

    def _means(
        self,
        members: Branch,
        outputs: Outputs,
    ) -> Iterator[Tensor]:
        for t in members.temperatures(outputs):
            yield _mean(outputs.logits, _clamp(t))

    def _predict(self, outputs: Outputs) -> Prediction:
        return Prediction(_mean(outputs.logits, self.temperature(outputs)), outputs.label)


def _clamp(t: Tensor) -> Tensor:
    return t.clamp_min(SMALLEST)


def _mean(logits: Tensor, t: Tensor) -> Tensor:
    return divide_logits(logits, t.unsqueeze(-1)).softmax(-1)


def dirichlet_nll(scaled: Tensor, log_pi: Tensor) -> Tensor:
    """Return the negative log density (...,) of the Dirichlet distribution, in float64.

    -ln Γ(Σ_k μ_k) + Σ_k [ln Γ(μ_k) - (μ_k - 1) ln π_k]   (Appendix D.1)

    with μ = exp(g / t) and ln Γ(μ) = ln Γ(μ + 1) - ln μ, which takes any small μ. From ln μ = 30
    on, where the distribution is a point to every practical purpose, exp is continued by its
    tangent: its squared gradient would not fit into float32.

    Args:
        scaled: g / t, (..., K).
        log_pi: ln π, (..., K).
    """
    scaled = scaled.double()
    log_mu = scaled.clamp_max(STEEP) + (scaled - STEEP).clamp_min(0).log1p()
    mu = log_mu.exp()
    terms = torch.lgamma(mu + 1) - log_mu - (mu - 1) * log_pi
    return terms.sum(-1) - torch.lgamma(mu.sum(-1) + 1) + log_mu.logsumexp(-1)
