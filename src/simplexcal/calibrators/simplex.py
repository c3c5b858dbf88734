"""Simplex Temperature Scaling."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor

from simplexcal.calibrators._branch_calibrator import PAPER_BETAS, PAPER_WIDTHS, BranchCalibrator
from simplexcal.calibrators._branch_network import Branch, MemberBatch, negative_log_density
from simplexcal.calibrators._feature_distance import MAX_NUMBERS, FeatureDistance
from simplexcal.calibrators._likelihood_head import HeadSettings, LikelihoodHead
from simplexcal.calibrators._likelihood_head_fit import fit_head
from simplexcal.calibrators._optim import divide_logits
from simplexcal.calibrators._weights import effective_number
from simplexcal.calibrators.base import Task
from simplexcal.calibrators.temperature import fit_log_temperature, jeffreys_weight
from simplexcal.concrete import Concrete, _fused, moments_of_mean
from simplexcal.mixup import LogitMixup, logit_features, n_logit_features
from simplexcal.types import Outputs, Prediction

# The head's GPU kernel holds all classes of a row at once.
MOST_CLASSES_IN_KERNEL = 1024


class SimplexTemperatureScaling(BranchCalibrator):
    """Simplex Temperature Scaling (Esaki et al. 2024).

    Each input has one Concrete distribution. A likelihood head gives its mean, the calibrated
    probabilities: it adds up functions of the logits, fitted to the minimum of a convex loss, so it
    has no seed. A branch gives its temperature λ(x), trained on Multi-Mixup samples. It reads the
    features or, without them, the logits. Near the calibration data of a class, λ is smaller.
    The location follows from both (``Concrete.from_mean``). So the uncertainties belong to the
    probabilities: aleatoric + mutual information = entropy of the probabilities.

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
        n_networks: Networks of a branch, whose geometric mean is λ: with more of them, λ depends
            less on the seed, and a prediction takes longer.
        likelihood_head: Fit the head that gives the mean; False is the paper's method, in which the
            logits are the location. See ``paper``.
        head_settings: Settings of the likelihood head; a mapping of those that differ will do.
        zero_last_layer: Start the last layer of the branch at 0, so that λ is the same for all
            inputs at first and depends less on the seed; False starts it at random.
        feature_distance: Make λ smaller where what the branch reads, the features or the logits,
            is near that of a class of the calibration data, so that `epistemic` detects inputs
            that are far from all classes. Without the likelihood head it does nothing, nor where
            K times the number of features is more than 2²¹.
    """

    key = "sts"
    abbreviation = "STS"
    title = "simplex temperature scaling"
    has_uncertainties = True
    has_prior = True
    settings_of_older_files: ClassVar[dict[str, Any]] = {
        "feature_distance": False,
        "head_settings": {"prior_parameters": 0.0},
    }
    log_temperature: Tensor
    head_network: LikelihoodHead | None
    distance: FeatureDistance | None

    def __init__(
        self,
        betas: Sequence[float] = (1.0,),
        widths: Sequence[int] = (64, 32),
        n_steps: int = 400,
        batch_size: int = 256,
        learning_rate: float = 1e-3,
        weight_decay: float = 5e-4,
        pool_size: int = 20_000,
        resample: bool = False,
        lr_decay: bool = True,
        n_networks: int = 1,
        likelihood_head: bool = True,
        head_settings: HeadSettings | Mapping[str, Any] | None = None,
        zero_last_layer: bool = True,
        feature_distance: bool = True,
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
            n_networks,
            zero_last_layer,
        )
        self.likelihood_head = likelihood_head
        self.head_settings = head_settings
        self.feature_distance = feature_distance
        self.needs_features = not likelihood_head
        self.needs_mixup = not likelihood_head
        self.uses_sample_weight = likelihood_head

    @property
    def global_temperature(self) -> float | None:
        """T of the likelihood head; None without one."""
        if not self.likelihood_head:
            return None
        return self.log_temperature.exp().item()

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
            pool_size=10_000,
            resample=True,
            lr_decay=False,
            n_networks=1,
            likelihood_head=False,
            zero_last_layer=False,
            feature_distance=False,
        )

    def concrete(self, outputs: Outputs) -> Concrete:
        """Return the distribution of each input; its mean are the calibrated probabilities.

        Args:
            outputs: Outputs of the network of the fit.
        """
        temperature = self._temperature(outputs)
        if self.head_network is None:
            return Concrete(outputs.logits, temperature, validate_args=False)
        return Concrete.from_mean(
            self._mean(outputs, outputs.label), temperature, validate_args=False
        )

    def _build(self, n_classes: int, n_features: int | None) -> None:
        super()._build(n_classes, n_features)
        self.register_buffer("log_temperature", torch.zeros(()))
        self.head_network = None
        if self.likelihood_head:
            self.head_network = LikelihoodHead(n_classes, self.head_settings)
        self.distance = None
        if self.feature_distance and self.likelihood_head:  # Otherwise λ changes probabilities.
            width = n_features or n_logit_features(n_classes)
            if n_classes * width <= MAX_NUMBERS:
                self.distance = FeatureDistance(n_classes, width)

    def _row_width(self, outputs: Outputs) -> int:
        # The head reads four numbers of its table for each logit.
        return super()._row_width(outputs) + 4 * outputs.n_classes

    def _fit(self, task: Task) -> None:
        if self.head_network is not None:
            self._fit_head(self.head_network, task)
        mixup = task.mixup
        if mixup is None:
            mixup = LogitMixup(task.outputs, task.labels)
        if isinstance(mixup, LogitMixup):
            mixup = mixup.at_temperature(self.log_temperature.exp())
        inputs = self._branch_inputs(task.outputs)
        if self.distance is not None:
            self.distance.fit(cast(Tensor, inputs.features), task.labels)
        self._fit_branch(task._replace(outputs=inputs), mixup)

    def _fit_head(self, head: LikelihoodHead, task: Task) -> None:
        logits = task.outputs.logits.detach()
        n, k = logits.shape
        prior_weight = jeffreys_weight(effective_number(n, task.weights), k)
        log_temperature = fit_log_temperature(
            logits, task.labels, prior_weight, self.head_settings.masked_margin, task.weights
        )
        self.log_temperature.fill_(log_temperature)
        fit_head(head, logits, self.log_temperature.exp(), task.labels, task.weights)

    def _warn_of_weak_data(self, task: Task) -> None:
        if self.likelihood_head:  # Otherwise λ comes from mixup samples alone.
            super()._warn_of_weak_data(task)

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
        temperature = self._temperature(outputs)
        label = outputs.label
        if self.head_network is None:
            m = Concrete(outputs.logits, temperature, validate_args=False).moments()
        else:
            m = moments_of_mean(self._mean(outputs, label), temperature)
        return Prediction(
            m.mean,
            label,
            aleatoric=m.expected_entropy,
            epistemic=m.entropy,
            mutual_information=m.mutual_information,
        )

    def _probs(self, outputs: Outputs) -> Tensor:
        if self.head_network is None:
            return super()._probs(outputs)
        return self._mean(outputs, outputs.label)

    def _mean(self, outputs: Outputs, label: Tensor) -> Tensor:
        """Return the likelihood head's probabilities, the largest of which is at the label."""
        head = cast(LikelihoodHead, self.head_network)
        few = outputs.logits.shape[1] <= MOST_CLASSES_IN_KERNEL
        if few and _fused.applies_without_gradient(outputs.logits, head.table):
            found: Tensor = _head_kernel().calibrated(
                head, outputs.logits, self.log_temperature, label
            )
            return found
        depth = self.head_settings.max_depth
        scaled = divide_logits(outputs.logits, self.log_temperature.exp(), depth)
        return cast(Tensor, head(scaled, label))

    def _temperature(self, outputs: Outputs) -> Tensor:
        """Return λ (N,)."""
        inputs = self._branch_inputs(outputs)
        temperature = self.branch.temperatures(inputs)[0]
        if self.distance is None:
            return temperature
        log_factor: Tensor = self.distance(inputs.features)
        return temperature * log_factor.exp().to(temperature)

    def _branch_inputs(self, outputs: Outputs) -> Outputs:
        """Return the outputs with what the branch reads as features."""
        if self.n_features is not None:
            return outputs
        features = logit_features(outputs.logits.detach(), self.log_temperature.exp())
        return Outputs(outputs.logits, features)


def _head_kernel() -> Any:
    """Return the module of the head's GPU kernel, which imports triton."""
    from simplexcal.calibrators import _head_kernel

    return _head_kernel


def _head_settings(given: HeadSettings | Mapping[str, Any] | None) -> HeadSettings:
    if isinstance(given, HeadSettings):
        return given
    return HeadSettings(**(given or {}))
