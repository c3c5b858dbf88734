"""The likelihood head of Simplex Temperature Scaling: logit statistics → τ(x), λ(x) and η(x).

p(y | x) = E[π_y] for π ~ Concrete(z′ / τ(x), λ(x)), where z are the logits after temperature
scaling, and z′ is z with its top-1 margin, the distance of the largest logit to the next,
multiplied by e^η(x). All three keep the argmax. Dividing by τ can sharpen, λ can only soften, and
η moves the confidence without moving the other classes against each other. The statistics are
those of z too, so the result does not depend on the scale of the network's logits. The head is
trained by the exact likelihood of the labels.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import one_hot

from simplexcal._chunking import map_rows
from simplexcal.calibrators._line_search import golden_section
from simplexcal.calibrators._optim import (
    divide_logits,
    floor_logits,
    fold_batches,
    generator_device,
    minimise,
    uniform_,
)
from simplexcal.calibrators._weights import effective_number, weighted_mean, weighted_std
from simplexcal.calibrators.temperature import jeffreys_weight
from simplexcal.concrete import Concrete, _potential
from simplexcal.concrete._kernel import row_width

N_PARAMETERS = 3  # ln τ, ln λ and η
# A mean over its estimated standard error follows Student's t distribution with n - 1 degrees of
# freedom, whose variance (n - 1) / (n - 3) is infinite for up to 3 samples.
MIN_PER_FOLD = 4


@dataclass(frozen=True)
class HeadSettings:
    """Settings of the likelihood head.

    Args:
        n_largest: Largest logits whose distances to the largest are statistics.
        max_classes: With at most so many classes, the predicted class is an input too, if
        min_per_class: there are at least so many samples for each class.
        n_folds: Folds of cross-validation, and networks of the head.
        n_hidden: Hidden units of each network.
        n_steps: Steps of Adam.
        batch_size: Samples in a step, for each network.
        learning_rate: Learning rate of Adam, which decays to 0 along a cosine.
        weight_decay: Weight decay of Adam.
        initial: (ln τ, ln λ, η) before training.
        temperature_scaling: (ln τ, ln λ, η) that mean temperature scaling; λ = e^-6 is as good
            as 0.
        shrinkages: Candidates, from 0, temperature scaling, to 1, the head as trained. The first
            is the baseline of the one-standard-error rule.
        max_margin_offset: Largest |constant| that is added to η.
        n_margin_steps: Steps of the golden section that finds this constant.
        max_depth: A logit further below the largest counts as one just there, in nats after
            temperature scaling.
        masked_margin: In the fit of T, a logit further below the largest than so many median top-1
            margins is that of a masked class.
    """

    n_largest: int = 10
    max_classes: int = 100
    min_per_class: int = 100
    n_folds: int = 3
    n_hidden: int = 16
    n_steps: int = 250
    batch_size: int = 400
    learning_rate: float = 1e-2
    weight_decay: float = 1e-3
    initial: tuple[float, ...] = (0.0, -1.0, 0.0)
    temperature_scaling: tuple[float, ...] = (0.0, -6.0, 0.0)
    shrinkages: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    max_margin_offset: float = 2.0
    n_margin_steps: int = 14
    max_depth: float = 200.0
    masked_margin: float = 100.0


class LikelihoodHead(nn.Module):
    """Small networks, one for each fold, whose mean output is shrunk towards temperature scaling.

    Each network learns from all folds but its own. On its own fold cross-validation chooses the
    shrinkage, by the one-standard-error rule on the gain in likelihood, with ``jeffreys_weight`` as
    a prior. So few data hardly make matters worse. Last, a constant is added to η, the most likely
    one on the same folds: networks are more confident about what they have learned from than about
    new data.

    Args:
        n_classes: K.
        settings: Settings of the head.
    """

    statistics_mean: Tensor
    statistics_std: Tensor
    class_input: Tensor
    shrinkage: Tensor
    margin_offset: Tensor
    initial: Tensor
    temperature_scaling: Tensor

    def __init__(self, n_classes: int, settings: HeadSettings) -> None:
        super().__init__()
        self.settings = settings
        n_statistics = min(settings.n_largest, n_classes) + 2
        n_inputs = n_statistics
        if n_classes <= settings.max_classes:
            n_inputs += n_classes
        self.register_buffer("statistics_mean", torch.zeros(n_statistics))
        self.register_buffer("statistics_std", torch.ones(n_statistics))
        self.register_buffer("class_input", torch.zeros(()))  # 1: the predicted class is an input.
        self.register_buffer("shrinkage", torch.zeros(()))
        self.register_buffer("margin_offset", torch.zeros(()))
        self.register_buffer("initial", torch.tensor(settings.initial), persistent=False)
        baseline = torch.tensor(settings.temperature_scaling)
        self.register_buffer("temperature_scaling", baseline, persistent=False)
        f = settings.n_folds
        h = settings.n_hidden
        self.hidden_weight = nn.Parameter(torch.zeros(f, n_inputs, h))
        self.hidden_bias = nn.Parameter(torch.zeros(f, 1, h))
        self.output_weight = nn.Parameter(torch.zeros(f, h, N_PARAMETERS))
        self.output_bias = nn.Parameter(torch.zeros(f, 1, N_PARAMETERS))

    def forward(self, logits: Tensor) -> Concrete:
        """Return Concrete(z′ / τ, λ).

        Args:
            logits: Logits z after temperature scaling, (N, K), no deeper than ``max_depth``.
        """
        parameters = self._parameters_of(self._inputs(logits)).mean(0)
        return concrete(logits, self.shrink(parameters, self.shrinkage, self.margin_offset))

    def fit(
        self,
        logits: Tensor,
        temperature: Tensor,
        labels: Tensor,
        weights: Tensor | None,
        generator: Generator | None,
        progress: bool,
    ) -> None:
        """Train on z = logits / temperature, some rows at a time, in the parameters' dtype.

        Args:
            logits: The network's logits, (N, K).
            temperature: T of temperature scaling, ().
            labels: True classes, (N,).
            weights: Weight of each input, (N,), with the sum 1; None: all count alike.
            generator: Source of randomness.
            progress: Show a progress bar.
        """
        n = len(logits)
        if effective_number(n, weights) < MIN_PER_FOLD * self.settings.n_folds:
            self.shrinkage.zero_()
            self.margin_offset.zero_()
            return

        def scaled(rows: Tensor) -> Tensor:
            z = divide_logits(rows, temperature, self.settings.max_depth)
            return floor_logits(z.to(self.hidden_weight.dtype), self.settings.max_depth)

        inputs = self._initialise(logits, scaled, weights, generator)
        order = torch.randperm(n, generator=generator, device=generator_device(generator))
        order = order.to(logits.device)
        relative = None
        if weights is not None:
            relative = (n * weights).to(self.hidden_weight.dtype)  # with the mean 1
        fold = order % self.settings.n_folds

        def loss(rows: Tensor) -> Tensor:
            d = concrete(scaled(logits[rows]), self._parameters_of(inputs[rows]))
            found = d.log_likelihood(labels[rows])
            if relative is not None:
                found = relative[rows] * found
            return -found.mean()

        minimise(
            loss,
            fold_batches(fold, self.settings.n_folds, self.settings.batch_size, generator),
            self.parameters(),
            n_steps=self.settings.n_steps,
            learning_rate=self.settings.learning_rate,
            weight_decay=self.settings.weight_decay,
            lr_decay=True,
            progress=progress,
        )
        with torch.no_grad():
            rows = torch.arange(n, device=order.device)
            held_out = self._parameters_of(inputs)[fold, rows]
            turn = order // self.settings.n_folds
            self._cross_validate(logits, scaled, held_out, labels, turn, weights)

    def shrink(
        self, parameters: Tensor, shrinkage: Tensor | float, margin_offset: Tensor | float
    ) -> Tensor:
        """Shrink (ln τ, ln λ, η) towards temperature scaling, then add a constant to η.

        Args:
            parameters: Output of the networks, (..., 3).
            shrinkage: 0 gives temperature scaling, 1 the networks as trained.
            margin_offset: Added to η.
        """
        baseline = self.temperature_scaling
        shrunk = baseline + shrinkage * (parameters - baseline)
        log_tau, log_temperature, eta = shrunk.unbind(-1)
        return torch.stack([log_tau, log_temperature, eta + margin_offset], -1)

    def _initialise(
        self,
        logits: Tensor,
        scaled: Callable[[Tensor], Tensor],
        weights: Tensor | None,
        generator: Generator | None,
    ) -> Tensor:
        """Standardise the statistics, draw the first weights, and return the inputs (N, I)."""
        n, k = logits.shape
        raw = map_rows(lambda rows: self._statistics(scaled(rows)), logits, width=4 * k)
        self.statistics_mean.copy_(weighted_mean(raw, weights))
        self.statistics_std.copy_(weighted_std(raw, weights).clamp_min(1e-6))
        n_effective = effective_number(n, weights)
        self.class_input.fill_(n_effective >= self.settings.min_per_class * k)
        inputs = map_rows(lambda rows: self._inputs(scaled(rows)), logits, width=4 * k)
        for parameter in (self.hidden_bias, self.output_weight, self.output_bias):
            nn.init.zeros_(parameter)
        uniform_(self.hidden_weight, raw.shape[1] ** -0.5, generator)
        return inputs

    def _cross_validate(
        self,
        logits: Tensor,
        scaled: Callable[[Tensor], Tensor],
        held_out: Tensor,
        labels: Tensor,
        turn: Tensor,
        weights: Tensor | None,
    ) -> None:
        """Choose shrinkage and margin offset by the likelihood of held-out predictions."""
        n, k = logits.shape
        prior_weight = jeffreys_weight(effective_number(n, weights), k)

        def log_likelihood(
            rows: Tensor, parameters: Tensor, labels: Tensor, turn: Tensor
        ) -> Tensor:
            z = scaled(rows)
            return _penalised_likelihood(concrete(z, parameters), z, labels, turn, prior_weight)

        def score(shrinkage: float, offset: float) -> Tensor:
            parameters = self.shrink(held_out, shrinkage, offset)
            scores = map_rows(log_likelihood, logits, parameters, labels, turn, width=k)
            # In float64 the mean does not round away what a small step of the offset gains.
            return scores.double()

        candidates = self.settings.shrinkages
        scores = torch.stack([score(candidate, 0.0) for candidate in candidates])
        shrinkage = candidates[_one_standard_error(scores, weights)]
        self.shrinkage.fill_(shrinkage)
        bound = self.settings.max_margin_offset
        offset = golden_section(
            lambda offset: -weighted_mean(score(shrinkage, offset), weights).item(),
            -bound,
            bound,
            self.settings.n_margin_steps,
        )
        self.margin_offset.fill_(offset)

    def _statistics(self, logits: Tensor) -> Tensor:
        return statistics(logits, self.settings.n_largest)

    def _inputs(self, logits: Tensor) -> Tensor:
        """Return the standardised statistics and, with few classes, the predicted class."""
        raw = self._statistics(logits.to(self.hidden_weight.dtype))
        inputs = (raw - self.statistics_mean) / self.statistics_std
        k = logits.shape[1]
        if k > self.settings.max_classes:
            return inputs
        return torch.cat([inputs, self.class_input * one_hot(logits.argmax(-1), k)], -1)

    def _parameters_of(self, inputs: Tensor) -> Tensor:
        """Return (ln τ, ln λ, η) of every network, (F, n, 3).

        The inputs are those of each network, (F, n, I), or the same for all, (n, I).
        """
        inputs = inputs.expand(self.settings.n_folds, *inputs.shape[-2:])
        hidden = torch.tanh(torch.baddbmm(self.hidden_bias, inputs, self.hidden_weight))
        return torch.baddbmm(self.output_bias, hidden, self.output_weight) + self.initial


def statistics(logits: Tensor, n_largest: int) -> Tensor:
    """Return the inputs of the head, before they are standardised.

    They are the distances of the largest logit to the next ones, ln(-ln max p), the entropy, and
    the distance of the largest logit to the mean.

    Args:
        logits: Logits after temperature scaling, (N, K).
        n_largest: Largest logits that are compared.
    """
    largest = logits.topk(min(n_largest, logits.shape[1]), -1).values
    margins = largest[:, :1] - largest[:, 1:]
    log_probs = logits.log_softmax(-1)
    log_loss = (-log_probs.amax(-1)).clamp_min(1e-6).log()
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    to_mean = largest[:, 0] - logits.mean(-1)
    return torch.cat([margins, torch.stack([log_loss, entropy, to_mean], -1)], -1)


def concrete(logits: Tensor, parameters: Tensor) -> Concrete:
    """Return Concrete(z′ / τ, λ).

    Args:
        logits: Logits z after temperature scaling, (..., K).
        parameters: (ln τ, ln λ, η), (..., 3).
    """
    bounded = parameters.to(logits.dtype).clamp(-7, 7)
    log_tau, log_temperature, eta = bounded.unbind(-1)
    location = scale_margin(logits, eta) / log_tau.exp().unsqueeze(-1)
    return Concrete(location, log_temperature.exp(), validate_args=False)


def scale_margin(logits: Tensor, eta: Tensor) -> Tensor:
    """Return the logits with the top-1 margin multiplied by e^η; where η = 0, the same logits.

    Args:
        logits: (..., K).
        eta: η, (...,).
    """
    values, classes = logits.topk(2, -1)
    first, second = values.split(1, -1)
    moved = first + (first - second) * torch.expm1(eta).unsqueeze(-1)
    return logits.scatter(-1, classes[..., :1], torch.maximum(moved, second))


def _penalised_likelihood(
    d: Concrete,
    logits: Tensor,
    labels: Tensor,
    turn: Tensor,
    prior_weight: float,
) -> Tensor:
    """Return the log-likelihood (n,) of the labels and, at the prior weight, of other classes.

    An input's other class is the one that is ``turn`` classes after the predicted one, in a circle.
    So all classes have the same share in a fold, and half an error is exact.
    """
    others = (logits.argmax(-1) + turn) % logits.shape[-1]
    both = torch.stack([labels, others], -1)
    width = row_width(d.logits)
    found = map_rows(_potential.log_mean_at, d.logits, d.temperature, both, width=width)
    return found[:, 0] + prior_weight * found[:, 1]


def _one_standard_error(scores: Tensor, weights: Tensor | None = None) -> int:
    """Return the row of scores (C, N) with the largest gain over the first, less one SE."""
    gain = (scores - scores[0]).T
    n = effective_number(len(gain), weights)
    standard_error = weighted_std(gain, weights) / n**0.5
    return int((weighted_mean(gain, weights) - standard_error).argmax())
