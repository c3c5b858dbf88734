"""Simplex Temperature Scaling."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor

from simplexcal.calibrators._branch_calibrator import PAPER_BETAS, PAPER_WIDTHS, BranchCalibrator
from simplexcal.calibrators._branch_network import Branch, MemberBatch, negative_log_density
from simplexcal.calibrators._likelihood_head import HeadSettings, LikelihoodHead
from simplexcal.calibrators._optim import floor_logits
from simplexcal.calibrators.base import Task
from simplexcal.calibrators.temperature import fit_log_temperature, jeffreys_weight
from simplexcal.concrete import Concrete
from simplexcal.types import Outputs, Prediction


class SimplexTemperatureScaling(BranchCalibrator):
    """Simplex Temperature Scaling (Esaki et al. 2024).

    The logits become the location of a Concrete distribution. Two sources of its temperature λ(x)
    answer two questions. How probable is each class? A likelihood head on logit statistics gives
    τ(x), λ(x) and a factor of the top-1 margin; it is trained by the exact likelihood E[π_y] of the
    labels. How uncertain is the prediction? A branch on the features gives λ(x), trained on
    Multi-Mixup samples; Concrete(logits, λ) then gives both uncertainties. Without ``mixup`` in
    ``fit`` there is no branch, and the head's distribution gives the uncertainties too.

    Args:
        betas: Dirichlet concentrations of the mixup weights. One branch is trained for each; the
            one with the lowest ECE is kept.
        widths: Hidden widths of the branch.
        n_steps: Steps of Adam for the branch.
        batch_size: Mixup samples in a step, for each β.
        learning_rate: Learning rate of Adam.
        weight_decay: Weight decay of Adam.
        pool_size: Mixup samples drawn for each β.
        resample: Draw new mixup samples whenever the pool is used up.
        lr_decay: Decay the learning rate to 0 along a cosine.
        likelihood_head: Fit the head that gives the probabilities; False is the paper's method, in
            which the branch answers both questions. See ``paper``.
        head_settings: Settings of the likelihood head; a mapping of those that differ will do.
    """

    key = "sts"
    abbreviation = "STS"
    title = "simplex temperature scaling"
    has_uncertainties = True
    log_temperature: Tensor
    head_network: LikelihoodHead | None

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
        head_settings: HeadSettings | Mapping[str, Any] | None = None,
    ) -> None:
        head_settings = _head_settings(head_settings)
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
        self.head_settings = head_settings
        self.needs_features = not likelihood_head
        self.needs_mixup = not likelihood_head

    @classmethod
    def paper(cls) -> Self:
        """Return the paper's method: 19 values of β, 25 000 steps of 100 new samples, β by ECE.

        Only the mean differs: it is exact here. For the rest, fit it with InputMixup's defaults.
        """
        return cls(
            PAPER_BETAS,
            PAPER_WIDTHS,
            n_steps=25_000,
            batch_size=100,
            resample=True,
            lr_decay=False,
            likelihood_head=False,
        )

    def concrete(self, outputs: Outputs) -> Concrete:
        """Return the distribution that gives the uncertainties.

        It is the branch's, or the likelihood head's where there is no branch.

        Args:
            outputs: Outputs of the network of the fit.
        """
        if self.branch is None:
            return self._likely(outputs)
        temperature = self.branch.temperatures(outputs)[0]
        return Concrete(outputs.logits, temperature, validate_args=False)

    def _build(self, n_classes: int, n_features: int | None) -> None:
        super()._build(n_classes, n_features)
        self.register_buffer("log_temperature", torch.zeros(()))
        self.head_network = None
        if self.likelihood_head:
            self.head_network = LikelihoodHead(n_classes, self.head_settings)

    def _fit(self, task: Task) -> None:
        if self.head_network is not None:
            self._fit_head(self.head_network, task)
        if task.mixup is None:
            self.branch = None
        else:
            self._fit_branch(task, task.mixup)

    def _fit_head(self, head: LikelihoodHead, task: Task) -> None:
        logits = task.outputs.logits.detach()
        prior_weight = jeffreys_weight(*logits.shape)
        masked_margin = self.head_settings.masked_margin
        log_temperature = fit_log_temperature(logits, task.labels, prior_weight, masked_margin)
        self.log_temperature.fill_(log_temperature)
        temperature = self.log_temperature.exp()
        head.fit(logits, temperature, task.labels, task.generator, task.progress)

    def _losses(self, members: Branch, batch: MemberBatch) -> Tensor:
        return negative_log_density(members, batch)

    def _means(
        self,
        members: Branch,
        outputs: Outputs,
    ) -> Iterator[Tensor]:
        for temperature in members.temperatures(outputs):
            yield Concrete(outputs.logits, temperature, validate_args=False).mean

    def _predict(self, outputs: Outputs) -> Prediction:
        d = self.concrete(outputs)
        n = outputs.logits.shape[0]
        if self.head_network is not None and self.branch is not None:
            d = _stack(d, self._likely(outputs))  # One pass for both distributions.
        m = d.moments()
        probs = m.mean[-n:]
        return Prediction(
            probs,
            outputs.label,
            aleatoric=m.expected_entropy[:n],
            epistemic=m.entropy[:n],
            mutual_information=m.mutual_information[:n],
        )

    def _likely(self, outputs: Outputs) -> Concrete:
        """Return the likelihood head's distribution, whose mean is the calibrated probability."""
        head = cast(LikelihoodHead, self.head_network)
        scaled = outputs.logits / self.log_temperature.exp()
        likely: Concrete = head(floor_logits(scaled, self.head_settings.max_depth))
        return likely


def _stack(*distributions: Concrete) -> Concrete:
    """Return the rows of several distributions, one below the other."""
    logits = torch.cat([d.logits for d in distributions])
    temperature = torch.cat([d.temperature for d in distributions])
    return Concrete(logits, temperature, validate_args=False)


def _head_settings(given: HeadSettings | Mapping[str, Any] | None) -> HeadSettings:
    if isinstance(given, HeadSettings):
        return given
    settings = dict(given or {})
    for name, value in settings.items():
        if isinstance(value, list):  # JSON has lists only.
            settings[name] = tuple(value)
    return HeadSettings(**settings)
