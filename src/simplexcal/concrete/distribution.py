"""The Concrete distribution on the probability simplex, with exact moments."""

import math
from typing import NamedTuple, Self

import torch
from torch import Generator, Size, Tensor
from torch.distributions import Distribution, constraints

from simplexcal._validation import check_every, check_finite, check_float_tensor
from simplexcal.concrete import _potential

Shape = Size | list[int] | tuple[int, ...]
EULER_GAMMA = 0.57721566490153286061


class Moments(NamedTuple):
    """What a Concrete distribution says about one input, all exact, computed together."""

    mean: Tensor
    entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor


class Concrete(Distribution):
    """π = softmax((g + G) / λ) with G standard Gumbel, logits g (..., K) and temperature λ (...,).

    Maddison et al. (2017); Jang et al. (2017). The moments are exact, by one integral (docs/theory.md), and
    differentiable in both arguments. Half precision is computed, and returned, in float32.
    """

    arg_constraints = {"logits": constraints.real_vector, "temperature": constraints.positive}
    support = constraints.simplex
    has_rsample = True

    def __init__(
        self, logits: Tensor, temperature: Tensor | float, validate_args: bool | None = None
    ) -> None:
        logits = check_float_tensor("logits", logits)
        if isinstance(temperature, int | float):
            temperature = logits.new_tensor(float(temperature))
        temperature = check_float_tensor("temperature", temperature)
        validate = Distribution._validate_args if validate_args is None else validate_args
        _check_shapes(logits, temperature)
        if validate:
            _check_values(logits, temperature)
        dtype = torch.promote_types(logits.dtype, temperature.dtype)
        batch_shape = torch.broadcast_shapes(logits.shape[:-1], temperature.shape)
        self.logits = logits.to(dtype).expand(*batch_shape, -1)
        self.temperature = temperature.to(dtype).expand(batch_shape)
        super().__init__(batch_shape, logits.shape[-1:], validate_args=False)
        self._validate_args = validate

    def expand(self, batch_shape: Shape, _instance: Distribution | None = None) -> Self:
        """Return the same distribution over a larger batch."""
        shape = Size(batch_shape)
        new = type(self)(
            self.logits.expand(*shape, -1), self.temperature.expand(shape), validate_args=False
        )
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        """E[π]: the calibrated probabilities, with the classes in the order of the logits.

        E[π_k] = P(argmax_i (g_i + G_i + λ G′_i) = k), G′ another standard Gumbel: a softmax is a choice probability.
        """
        (mean,) = _potential.in_chunks(lambda g, t: (_potential.mean(g, t),), *self._flat())
        return mean.view(self.logits.shape)

    def log_likelihood(self, labels: Tensor) -> Tensor:
        """Return ln E[π_y] for one class y a distribution: the exact predictive likelihood, safe from underflow."""
        if self._validate_args:
            labels = _check_classes(labels, self.logits.shape[-1])
        rows = labels.expand(self.batch_shape).reshape(-1, 1)
        (value,) = _potential.in_chunks(
            lambda g, t, y: (_potential.log_mean_at(g, t, y),), *self._flat(), rows
        )
        return value.view(self.batch_shape)

    def entropy(self) -> Tensor:
        """Return the differential entropy E[-ln p(π)], the epistemic uncertainty of the paper's Appendix E."""
        return self.moments().entropy

    def expected_entropy(self) -> Tensor:
        """Return E[-Σ_k π_k ln π_k], the aleatoric uncertainty of the paper's Appendix E."""
        return self.moments().expected_entropy

    def mutual_information(self) -> Tensor:
        """Return H(E[π]) - E[H(π)] ≥ 0: a bounded epistemic uncertainty, comparable across K."""
        return self.moments().mutual_information

    def moments(self) -> Moments:
        """Return the mean and all the uncertainties, at the price of one."""
        mean, *uncertainties = _potential.in_chunks(_moments, *self._flat())
        return Moments(
            mean.view(self.logits.shape), *(x.view(self.batch_shape) for x in uncertainties)
        )

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density at ``value``, a point of the open simplex."""
        if self._validate_args:
            _check_simplex(value, self.logits)
        return self.log_prob_from_log(value.log())

    def log_prob_from_log(self, log_value: Tensor) -> Tensor:
        """Return the log density at π = exp(``log_value``), for points whose entries would underflow.

        ln p(π) = ln Γ(K) + (K-1) ln λ + Σ_k [g_k - (λ+1) ln π_k] - K ln Σ_i exp(g_i - λ ln π_i)

        Maddison et al. (2017), Def. 1; the paper's Eq. (3). No π^(-λ) is formed, so nothing overflows.
        """
        k = self.logits.shape[-1]
        score = self.logits - self.temperature.unsqueeze(-1) * log_value
        log_prob = math.lgamma(k) + (k - 1) * self.temperature.log() + score.log_softmax(-1).sum(-1)
        return log_prob - log_value.sum(-1)

    def sample(self, sample_shape: Shape = (), generator: Generator | None = None) -> Tensor:
        """Return samples of shape ``sample_shape + batch_shape + (K,)``, without gradient."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator)

    def rsample(self, sample_shape: Shape = (), generator: Generator | None = None) -> Tensor:
        """Return samples that are differentiable in both arguments."""
        return self.log_rsample(sample_shape, generator).exp()

    def log_rsample(self, sample_shape: Shape = (), generator: Generator | None = None) -> Tensor:
        """Return ln π of samples: finite also where π itself underflows to 0, as it does for small λ."""
        exponential = self.logits.new_empty(Size(sample_shape) + self.logits.shape).exponential_(
            generator=generator
        )
        return ((self.logits - exponential.log()) / self.temperature.unsqueeze(-1)).log_softmax(-1)

    def _flat(self) -> tuple[Tensor, Tensor]:
        return self.logits.reshape(-1, self.logits.shape[-1]), self.temperature.reshape(-1)


def _moments(logits: Tensor, temperature: Tensor) -> Moments:
    """Compute the moments of rows (N, K).

    With a = (g - max g)/s, s = max(1, λ), ρ = min(λ, 1/λ) and m(a, ρ) = E max_i (a_i + G_i + ρ(G′_i - γ)):

        E[π]         = ∂m/∂a
        E[H(π)]      = ∂m/∂ρ                                     for λ ≤ 1
                     = m - γ - Σ_k a_k E[π_k] - ρ ∂m/∂ρ          for λ ≥ 1
        E[-ln p(π)]  = K h - ln Γ(K) - (K-1) ln λ + (Σ_k a_k - K (m - γ)) s/λ

    with h the (K-1)-th harmonic number. Derived in docs/theory.md.
    """
    m, mean, slope = _potential.potential(logits, temperature)
    a, k = _potential.gaps(logits, temperature), logits.shape[-1]
    hot = m - EULER_GAMMA - (a * mean).sum(-1) - _potential.ratio(temperature) * slope
    expected_entropy = torch.where(temperature >= 1, hot, slope).clamp_min(0)
    shape_term = (a.sum(-1) - k * (m - EULER_GAMMA)) * _potential.scale(temperature) / temperature
    entropy = k * _harmonic(k - 1) - math.lgamma(k) - (k - 1) * temperature.log() + shape_term
    information = (_entropy(mean) - expected_entropy).clamp_min(0)
    return Moments(mean, entropy, expected_entropy, information)


def _harmonic(n: int) -> float:
    return float(torch.digamma(torch.tensor(n + 1.0, dtype=torch.float64))) + EULER_GAMMA


def _entropy(probs: Tensor) -> Tensor:
    """Return -Σ_k p_k ln p_k, with a finite derivative where p_k underflows to 0."""
    return -(probs * probs.clamp_min(torch.finfo(probs.dtype).tiny).log()).sum(-1)


def _check_shapes(logits: Tensor, temperature: Tensor) -> None:
    if logits.dim() < 1 or logits.shape[-1] < 2:
        raise ValueError(
            f"`logits` must have shape (..., K) with K >= 2 classes; got {tuple(logits.shape)}. "
            "For a binary model with one output z, pass torch.stack([torch.zeros_like(z), z], -1)."
        )
    if logits.device != temperature.device:
        raise ValueError(
            f"`logits` and `temperature` must be on one device; got {logits.device} and {temperature.device}. "
            "Move one with .to(device)."
        )
    if not _broadcasts(logits, temperature):
        raise ValueError(
            f"`temperature` must have one value for each row of logits, shape {tuple(logits.shape[:-1])}; "
            f"got {tuple(temperature.shape)}. A temperature of shape (..., 1) needs .squeeze(-1)."
        )


def _broadcasts(logits: Tensor, temperature: Tensor) -> bool:
    """Whether the batches combine; a column (N, 1) would silently make N × N distributions, so it does not."""
    if logits.dim() > 1 and temperature.shape == (*logits.shape[:-1], 1):
        return False
    try:
        torch.broadcast_shapes(logits.shape[:-1], temperature.shape)
    except RuntimeError:
        return False
    return True


def _check_values(logits: Tensor, temperature: Tensor) -> None:
    check_finite("logits", logits, "Look for an overflow in the network; use -1e4 to mask a class.")
    check_every(
        "temperature",
        temperature,
        temperature.isfinite() & (temperature > 0),
        "positive and finite",
        "Use softplus or exp to make it positive.",
    )


def _check_classes(labels: object, k: int) -> Tensor:
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(
            f"`labels` must be a tensor of integers; got {kind}. Use torch.as_tensor(labels)."
        )
    inside = (labels >= 0) & (labels < k)
    check_every(
        "labels",
        labels,
        inside,
        f"in 0..{k - 1} for {k} classes",
        "Labels count the classes from 0.",
    )
    return labels.long()


def _check_simplex(value: Tensor, logits: Tensor) -> None:
    if value.shape[-1:] != logits.shape[-1:]:
        raise ValueError(
            f"`value` must have {logits.shape[-1]} entries in its last dimension, as the logits do; "
            f"got shape {tuple(value.shape)}. Put the classes last."
        )
    inside = "positive: a point of the open simplex"
    check_every(
        "value", value, value > 0, inside, "Where entries underflow, use log_prob_from_log."
    )
    total = value.sum(-1)
    slack = 10 * math.sqrt(value.shape[-1]) * torch.finfo(value.dtype).eps
    check_every(
        "value",
        total,
        (total - 1).abs() <= slack,
        "a point of the simplex, with sum 1",
        "Divide by the sum.",
    )
