"""The Concrete distribution on the probability simplex, with exact moments."""

import math
from typing import Self

import torch
from torch import Generator, Size, Tensor
from torch.distributions import Distribution, constraints

from simplexcal._chunking import in_chunks, map_rows
from simplexcal._validation import (
    check_classes,
    check_every,
    check_finite,
    check_float_tensor,
    check_probs,
)
from simplexcal.concrete import _inversion, _potential
from simplexcal.concrete._kernel import row_width
from simplexcal.concrete._potential import Moments as Moments

SMALLEST = torch.finfo(torch.float32).tiny
Shape = Size | list[int] | tuple[int, ...]


class Concrete(Distribution):
    """The Concrete distribution, also Gumbel-softmax and torch's RelaxedOneHotCategorical.

    π = softmax((g + G) / λ) with G standard Gumbel (Maddison et al. 2017; Jang et al. 2017). The
    moments are exact, by one integral (docs/theory.md), and differentiable in both arguments. Half
    precision is computed, and returned, in float32.

    Args:
        logits: Location g, (..., K).
        temperature: Temperature λ > 0, (...,) or a number.
        validate_args: Check the values of the arguments; by default torch.distributions' setting.

    Raises:
        TypeError: If an argument is not floating-point.
        ValueError: If shapes, devices or values do not fit.
    """

    arg_constraints = {"logits": constraints.real_vector, "temperature": constraints.positive}
    support = constraints.simplex
    has_rsample = True

    def __init__(
        self,
        logits: Tensor,
        temperature: Tensor | float,
        validate_args: bool | None = None,
    ) -> None:
        self.logits, self.temperature = _broadcast("logits", logits, temperature)
        validate = _validates(validate_args)
        if validate:
            remedy = "Look for an overflow in the network; use -1e4 to mask a class."
            check_finite("logits", self.logits, remedy)
            _check_temperature(self.temperature)
        batch_shape = self.temperature.shape
        super().__init__(batch_shape, self.logits.shape[-1:], validate_args=False)
        self._validate_args = validate

    @classmethod
    def from_mean(
        cls,
        probs: Tensor,
        temperature: Tensor | float,
        validate_args: bool | None = None,
    ) -> Self:
        """Return the Concrete distribution with this mean and this temperature.

        There is exactly one, up to a constant in the logits (docs/theory.md); the largest logit is
        0. The mean is met to rounding, and the logits are differentiable, once, in both arguments.
        A class with probability 0 is masked: its logit is so low that its mean is 0.

        Args:
            probs: The mean, (..., K).
            temperature: Temperature λ > 0, (...,) or a number.
            validate_args: Check the values of the arguments; by default torch.distributions'
                setting.

        Raises:
            TypeError: If an argument is not floating-point.
            ValueError: If shapes, devices or values do not fit.
        """
        probs, temperature = _broadcast("probs", probs, temperature)
        validate = _validates(validate_args)
        if validate:
            check_probs(probs.reshape(-1, probs.shape[-1]))
            _check_temperature(temperature)
        d = cls(probs, temperature, validate_args=False)
        d._validate_args = validate
        rows, temperatures = d._rows()
        width = row_width(rows)
        location = map_rows(_inversion.location, _log(rows), temperatures, width=width)
        d.logits = location.view(probs.shape)
        return d

    def expand(
        self,
        batch_shape: Shape,
        _instance: Distribution | None = None,
    ) -> Self:
        """Return the same distribution over a larger batch.

        Args:
            batch_shape: The new shape of the batch.
            _instance: Unused; the interface of torch.distributions has it.
        """
        shape = Size(batch_shape)
        logits = self.logits.expand(*shape, -1)
        new = type(self)(logits, self.temperature.expand(shape), validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        """E[π]: the calibrated probabilities, with the classes in the order of the logits.

        A softmax is a choice probability. With G′ another standard Gumbel,
        E[π_k] = P(argmax_i (g_i + G_i + λ G′_i) = k).
        """
        mean = map_rows(_potential.mean, *self._rows(), width=self._width)
        return mean.view(self.logits.shape)

    def log_likelihood(self, labels: Tensor) -> Tensor:
        """Return ln E[π_y], the exact predictive likelihood, safe from underflow.

        Args:
            labels: One class y for each distribution, (...,).
        """
        if self._validate_args:
            labels = check_classes(labels, self.logits.shape[-1])
        labels = labels.expand(self.batch_shape).reshape(-1, 1)
        value = map_rows(_potential.log_mean_at, *self._rows(), labels, width=self._width)
        return value.view(self.batch_shape)

    def entropy(self) -> Tensor:
        """Return the differential entropy E[-ln p(π)]: epistemic uncertainty (Appendix E)."""
        return self.moments().entropy

    def expected_entropy(self) -> Tensor:
        """Return E[-Σ_k π_k ln π_k]: aleatoric uncertainty (the paper's Appendix E)."""
        return self.moments().expected_entropy

    def mutual_information(self) -> Tensor:
        """Return H(E[π]) - E[H(π)] ≥ 0: bounded epistemic uncertainty, comparable across K."""
        return self.moments().mutual_information

    def moments(self) -> Moments:
        """Return the mean and all uncertainties, for the price of one."""
        mean, *uncertainties = in_chunks(_potential.moments, *self._rows(), width=self._width)
        shaped = [x.view(self.batch_shape) for x in uncertainties]
        return Moments(mean.view(self.logits.shape), *shaped)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density.

        Args:
            value: Points of the open simplex, (..., K).
        """
        if self._validate_args:
            _check_simplex(value, self.logits)
        return self.log_prob_from_log(value.log())

    def log_prob_from_log(self, log_value: Tensor) -> Tensor:
        """Return the log density at π = exp(``log_value``), whose entries may underflow.

        ln p(π) = ln Γ(K) + (K-1) ln λ + Σ_k [g_k - (λ+1) ln π_k] - K ln Σ_i exp(g_i - λ ln π_i)

        Maddison et al. (2017), Def. 1; the paper's Eq. (3). No π^(-λ) is formed, so nothing
        overflows.

        Args:
            log_value: Logarithms of points of the open simplex, (..., K).
        """
        k = self.logits.shape[-1]
        score = self.logits - self.temperature.unsqueeze(-1) * log_value
        constant = math.lgamma(k) + (k - 1) * self.temperature.log()
        return constant + score.log_softmax(-1).sum(-1) - log_value.sum(-1)

    def sample(
        self,
        sample_shape: Shape = (),
        generator: Generator | None = None,
    ) -> Tensor:
        """Return samples of shape ``sample_shape + batch_shape + (K,)``, without gradient.

        Args:
            sample_shape: Shape of the samples of each distribution.
            generator: Source of randomness; torch's global state by default.
        """
        with torch.no_grad():
            return self.rsample(sample_shape, generator)

    def rsample(
        self,
        sample_shape: Shape = (),
        generator: Generator | None = None,
    ) -> Tensor:
        """Return samples that are differentiable in logits and temperature.

        Args:
            sample_shape: Shape of the samples of each distribution.
            generator: Source of randomness; torch's global state by default.
        """
        return self.log_rsample(sample_shape, generator).exp()

    def log_rsample(
        self,
        sample_shape: Shape = (),
        generator: Generator | None = None,
    ) -> Tensor:
        """Return ln π of samples: finite also where π underflows to 0, as it does for small λ.

        Args:
            sample_shape: Shape of the samples of each distribution.
            generator: Source of randomness; torch's global state by default.
        """
        shape = Size(sample_shape) + self.logits.shape
        exponential = self.logits.new_empty(shape).exponential_(generator=generator)
        perturbed = self.logits - exponential.log()
        return (perturbed / self.temperature.unsqueeze(-1)).log_softmax(-1)

    @property
    def _width(self) -> int:
        """How many numbers the moments hold for a row."""
        return row_width(self.logits)

    def _rows(self) -> tuple[Tensor, Tensor]:
        """Return logits (N, K) and temperatures (N,) of the flattened batch."""
        return self.logits.reshape(-1, self.logits.shape[-1]), self.temperature.reshape(-1)


def moments_of_mean(probs: Tensor, temperature: Tensor) -> Moments:
    """Return the moments of ``Concrete.from_mean(probs, temperature)``, for half the price.

    A probability below 1.2e-38 counts as this, in every dtype: the differential entropy would be
    -∞ for 0.

    Args:
        probs: The mean, (N, K).
        temperature: λ, (N,).
    """
    log_mean = probs.clamp_min(SMALLEST).log()
    if torch.is_grad_enabled() and (probs.requires_grad or temperature.requires_grad):
        location = _inversion.location(log_mean, temperature)
        found = Concrete(location, temperature, validate_args=False).moments()
        return found._replace(mean=probs)
    width = row_width(probs)
    return Moments(*in_chunks(_inversion.moments, probs, log_mean, temperature, width=width))


def _validates(validate_args: bool | None) -> bool:
    """Whether values are to be checked; by default torch.distributions' setting."""
    if validate_args is None:
        return bool(Distribution._validate_args)
    return validate_args


def _broadcast(name: str, values: Tensor, temperature: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return values (..., K) and temperatures (...,), of one dtype and one batch."""
    values = check_float_tensor(name, values)
    if isinstance(temperature, int | float):
        temperature = values.new_tensor(float(temperature))
    temperature = check_float_tensor("temperature", temperature)
    _check_shapes(name, values, temperature)
    dtype = torch.promote_types(values.dtype, temperature.dtype)
    batch_shape = torch.broadcast_shapes(values.shape[:-1], temperature.shape)
    return values.to(dtype).expand(*batch_shape, -1), temperature.to(dtype).expand(batch_shape)


def _check_shapes(name: str, values: Tensor, temperature: Tensor) -> None:
    if values.dim() < 1 or values.shape[-1] < 2:
        raise ValueError(
            f"`{name}` must have shape (..., K) with K >= 2 classes; got {tuple(values.shape)}. "
            "For a binary model with one output z, pass torch.stack([torch.zeros_like(z), z], -1)."
        )
    if values.device != temperature.device:
        raise ValueError(
            f"`{name}` and `temperature` must be on one device; got {values.device} and "
            f"{temperature.device}. Move one with .to(device)."
        )
    if not _broadcasts(values, temperature):
        raise ValueError(
            f"`temperature` must have one value for each row of {name}, shape "
            f"{tuple(values.shape[:-1])}; got {tuple(temperature.shape)}. A temperature of shape "
            "(..., 1) needs .squeeze(-1)."
        )


def _broadcasts(values: Tensor, temperature: Tensor) -> bool:
    """Whether the batches combine; a column (N, 1) is refused: it would make N × N of them."""
    if values.dim() > 1 and temperature.shape == (*values.shape[:-1], 1):
        return False
    try:
        torch.broadcast_shapes(values.shape[:-1], temperature.shape)
    except RuntimeError:
        return False
    return True


def _check_temperature(temperature: Tensor) -> None:
    check_every(
        "temperature",
        temperature,
        temperature.isfinite() & (temperature > 0),
        "positive and finite",
        "Use softplus or exp to make it positive.",
    )


def _log(probs: Tensor) -> Tensor:
    """Return ln p; where p = 0, the logarithm of a masked class, with derivative 0."""
    positive = probs.clamp_min(torch.finfo(probs.dtype).tiny)
    log_total = probs.sum(-1, keepdim=True).log()
    return torch.where(probs > 0, positive.log() - log_total, _inversion.MASKED)


def _check_simplex(value: Tensor, logits: Tensor) -> None:
    if value.shape[-1:] != logits.shape[-1:]:
        raise ValueError(
            f"`value` must have {logits.shape[-1]} entries in its last dimension, as the logits "
            f"do; got shape {tuple(value.shape)}. Put the classes last."
        )
    positive = "positive: a point of the open simplex"
    remedy = "Where entries underflow, use log_prob_from_log."
    check_every("value", value, value > 0, positive, remedy)
    total = value.sum(-1)
    slack = 10 * math.sqrt(value.shape[-1]) * torch.finfo(value.dtype).eps
    on_simplex = (total - 1).abs() <= slack
    expected = "a point of the simplex, with sum 1"
    check_every("value", total, on_simplex, expected, "Divide by the sum.")
