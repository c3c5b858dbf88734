"""Simplex Temperature Scaling."""

from collections.abc import Iterator, Sequence
from typing import Self, cast

import torch
from torch import Tensor

from simplexcal.calibrators._branch_calibrator import PAPER_BETAS, PAPER_WIDTHS, BranchCalibrator
from simplexcal.calibrators._branch_network import Branch, Pool, negative_log_density
from simplexcal.calibrators._likelihood_head import Head, jeffreys_weight
from simplexcal.calibrators.base import Task
from simplexcal.calibrators.temperature import fit_log_temperature
from simplexcal.concrete import Concrete
from simplexcal.types import Outputs, Prediction


class SimplexTemperatureScaling(BranchCalibrator):
    """Logits become the location of a Concrete distribution, whose temperature λ(x) is learned (Esaki et al. 2024).

    Two sources of λ, for two questions. How probable is each class? A head on logit statistics gives τ(x), λ(x) and how
    far the predicted class leads, trained by the exact likelihood E[π_y] of the real labels. How uncertain is the
    input? A branch on the features gives λ(x), trained on Multi-Mixup samples; Concrete(logits, λ) then gives both
    uncertainties. Without ``mixup`` in ``fit`` there is no branch, and the head answers both.

    ``likelihood_head=False`` is the paper's method: the branch answers both questions. See ``paper``.
    """

    key = "sts"
    abbreviation = "STS"
    title = "simplex temperature scaling"

    log_temperature: Tensor

    def __init__(
        self,
        betas: Sequence[float] = (1.0,),
        widths: Sequence[int] = (128, 64),
        n_steps: int = 1000,
        batch_size: int = 256,
        learning_rate: float = 1e-3,
        weight_decay: float = 5e-4,
        pool_size: int = 10_000,
        resample: bool = False,
        lr_decay: bool = True,
        likelihood_head: bool = True,
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
        self.likelihood_head = likelihood_head
        self.needs_features = (
            self.needs_mixup
        ) = not likelihood_head  # without the head, the branch alone

    @classmethod
    def paper(cls) -> Self:
        """Return the paper's method to the letter: 19 values of β, 25 000 steps of 100 fresh mixes, β by ECE.

        Only the mean differs: it is exact here. For the rest of the letter, fit it with InputMixup's defaults.
        """
        return cls(
            PAPER_BETAS,
            PAPER_WIDTHS,
            25_000,
            100,
            resample=True,
            lr_decay=False,
            likelihood_head=False,
        )

    @property
    def reads_features(self) -> bool:
        """Whether there is a branch, which computes λ(x) from features."""
        return self.branch is not None and bool(self.beta > 0)

    def _build(self, n_classes: int, n_features: int | None) -> None:
        super()._build(n_classes, n_features)
        self.register_buffer("log_temperature", torch.zeros(()))
        self.head_network = Head(n_classes) if self.likelihood_head else None

    def _fit(self, task: Task) -> None:
        if self.head_network is not None:
            logits = task.outputs.logits.detach()
            self.log_temperature.fill_(
                fit_log_temperature(logits, task.labels, jeffreys_weight(*logits.shape))
            )
            temperature = self.log_temperature.exp()
            self.head_network.fit(logits, temperature, task.labels, task.generator, task.progress)
        if task.mixup is not None:
            self._fit_branch(task, task.mixup)

    def _losses(self, heads: Branch, batch: Pool) -> Tensor:
        return negative_log_density(heads, batch)

    def _means(self, heads: Branch, outputs: Outputs) -> Iterator[Tensor]:
        return (_concrete(outputs, temperature).mean for temperature in heads.of(outputs))

    def concrete(self, outputs: Outputs) -> Concrete:
        """Return the distribution that gives the uncertainties: the branch's, or the head's where there is none."""
        if self.branch is not None and self.beta > 0:
            return _concrete(outputs, self.branch.of(outputs)[0])
        return self._likely(outputs)

    def _predict(self, outputs: Outputs) -> Prediction:
        m = self.concrete(outputs).moments()
        probs = (
            m.mean if self.head_network is None or self.beta == 0 else self._likely(outputs).mean
        )
        return Prediction(probs, outputs.label, m.expected_entropy, m.entropy, m.mutual_information)

    def _likely(self, outputs: Outputs) -> Concrete:
        """Return the distribution whose mean has the best likelihood: the head's."""
        head = cast(Head, self.head_network)
        likely: Concrete = head(self._scaled(outputs.logits))
        return likely

    def _scaled(self, logits: Tensor) -> Tensor:
        return logits / self.log_temperature.exp()


def _concrete(outputs: Outputs, temperature: Tensor) -> Concrete:
    return Concrete(outputs.logits, temperature, validate_args=False)
