"""What vector scaling and Dirichlet calibration share: softmax(W x + b), x from the logits."""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from simplexcal._chunking import map_rows
from simplexcal.calibrators._linear_fit import (
    Affine,
    Data,
    choose_strength,
    fit_affine,
    identity_like,
)
from simplexcal.calibrators._weights import effective_number
from simplexcal.calibrators.base import Calibrator, Task
from simplexcal.calibrators.temperature import fit_log_temperature, jeffreys_weight
from simplexcal.types import Outputs, Prediction


class LinearCalibrator(Calibrator):
    """softmax(W x + b). It is temperature scaling where W = 1 and b = 0.

    Args:
        strength: Of the penalty, positive. None chooses it by cross-validation on the data of the
            fit.
    """

    strengths: ClassVar[tuple[float, ...]]  # that cross-validation chooses from
    keeps_predictions = False
    uses_sample_weight = True
    has_prior = True
    log_temperature: Tensor
    weight: Tensor
    bias: Tensor
    fitted_strength: Tensor

    def __init__(self, strength: float | None = None) -> None:
        super().__init__()
        if strength is not None and not strength > 0:
            raise ValueError(f"`strength` must be positive or None; got {strength!r}.")
        self.strength = strength

    @property
    def global_temperature(self) -> float | None:
        """T."""
        return self.log_temperature.exp().item()

    def _build(self, n_classes: int, n_features: int | None) -> None:
        self.register_buffer("log_temperature", torch.zeros(()))
        self.register_buffer("weight", self._identity(n_classes))
        self.register_buffer("bias", torch.zeros(n_classes))
        self.register_buffer("fitted_strength", torch.zeros(()))

    def _fit(self, task: Task) -> None:
        logits = task.outputs.logits.detach()
        n = effective_number(len(task.labels), task.weights)
        k = task.outputs.n_classes
        prior_weight = jeffreys_weight(n, k)
        log_t = fit_log_temperature(logits, task.labels, prior_weight, weights=task.weights)
        self.log_temperature.fill_(log_t)
        data = self._data(task)
        identity = identity_like(Affine(self.weight.double().cpu(), self.bias.double().cpu()))

        def penalty(strength: float) -> Tensor:
            return self._penalty(k, n, strength)

        strength = self.strength
        if strength is None:
            strength = choose_strength(data, identity, penalty, self.strengths)
        found = fit_affine(data, identity, penalty(strength))
        self.weight.copy_(found.weight)
        self.bias.copy_(found.bias)
        self.fitted_strength.fill_(strength)

    def _predict(self, outputs: Outputs) -> Prediction:
        x = self._inputs(outputs.logits, self.log_temperature.exp())
        affine = Affine(self.weight.to(x.dtype), self.bias.to(x.dtype))
        probs = affine(x).softmax(-1)
        return Prediction(probs, probs.argmax(-1))

    def _data(self, task: Task) -> Data:
        """Return what W and b are fitted to."""
        temperature = self.log_temperature.double().exp()
        logits = task.outputs.logits.detach()
        x = map_rows(lambda z: self._inputs(z.double(), temperature), logits, width=logits.shape[1])
        weights = task.weights
        if weights is None:
            weights = torch.full((len(x),), 1 / len(x), dtype=torch.float64)
        return Data(x.cpu(), task.labels.cpu(), weights.cpu().double())

    @abstractmethod
    def _identity(self, n_classes: int) -> Tensor:
        """Return W of temperature scaling, (K,) where W is diagonal, otherwise (K, K)."""

    @abstractmethod
    def _inputs(self, logits: Tensor, temperature: Tensor) -> Tensor:
        """Return x, (N, K)."""

    @abstractmethod
    def _penalty(self, n_classes: int, n: float, strength: float) -> Tensor:
        """Return the penalty of each parameter in the mean loss, as ``Affine.flat`` orders them."""
