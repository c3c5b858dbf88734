"""The head of Simplex Temperature Scaling: logit statistics → τ(x), λ(x) and η(x), trained by the exact likelihood.

p(y | x) = E[π_y] for π ~ Concrete(z′ / τ(x), λ(x)), where z are the logits after temperature scaling, and z′ is z with
the predicted class's lead over the next multiplied by e^η(x). All three keep the argmax. Dividing by τ can sharpen, λ
can only soften, and η moves the confidence without moving the other classes against each other. The statistics are
those of z too, so the result does not depend on the scale of the network's logits.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import one_hot

from simplexcal._chunking import in_chunks
from simplexcal.calibrators._line_search import golden_section
from simplexcal.calibrators._optim import draw_uniform, generator_device, minimise, raised
from simplexcal.concrete import Concrete, _potential

N_LARGEST = 10  # logits whose gaps to the largest are statistics
MOST_CLASSES = 100  # with so many classes at most, and
PER_CLASS = 100  # so many samples a class at least, the predicted class is an input too
N_FOLDS, N_HIDDEN = 3, 16
BATCH, N_STEPS, LEARNING_RATE, WEIGHT_DECAY = 400, 250, 1e-2, 1e-3
START = (0.0, -1.0, 0.0)  # ln τ, ln λ and η before training
PLAIN = (0.0, -6.0, 0.0)  # ln τ, ln λ and η of temperature scaling: λ = e^-6 is as good as 0
TRUSTS = (0.0, 0.25, 0.5, 0.75, 1.0)
MOST_LEAD = 2.0  # that is added to η, found to 0.002
DEEPEST = 200.0  # nats below the largest logit: a class further down, which the network rules out, is as good as there


class Head(nn.Module):
    """Small networks, one for each fold of the data; the average of their (ln τ, ln λ, η) is trusted as far as proved.

    Each network learns from all folds but its own. On its own fold it shows what it is worth: the trust, from 0
    (temperature scaling) to 1, is the one whose gain in likelihood there, with ``jeffreys_weight`` as a prior, is the
    largest, less one standard error. So few data hardly make matters worse. Last, a constant ``lead`` is added to η,
    the most likely one on the same folds: networks are surer of what they have learned from than of anything else.
    """

    shift: Tensor
    scale: Tensor
    by_class: Tensor
    trust: Tensor
    lead: Tensor
    start: Tensor
    plain: Tensor

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        n_statistics = min(N_LARGEST, n_classes) + 2
        n_inputs = n_statistics + (n_classes if n_classes <= MOST_CLASSES else 0)
        self.register_buffer("shift", torch.zeros(n_statistics))
        self.register_buffer("scale", torch.ones(n_statistics))
        self.register_buffer("by_class", torch.zeros(()))  # 1 where the predicted class is an input
        self.register_buffer("trust", torch.zeros(()))
        self.register_buffer("lead", torch.zeros(()))
        self.register_buffer("start", torch.tensor(START), persistent=False)
        self.register_buffer("plain", torch.tensor(PLAIN), persistent=False)
        self.inner = nn.Parameter(torch.zeros(N_FOLDS, n_inputs, N_HIDDEN))
        self.inner_bias = nn.Parameter(torch.zeros(N_FOLDS, 1, N_HIDDEN))
        self.outer = nn.Parameter(torch.zeros(N_FOLDS, N_HIDDEN, len(START)))
        self.outer_bias = nn.Parameter(torch.zeros(N_FOLDS, 1, len(START)))

    def forward(self, logits: Tensor) -> Concrete:
        """Return Concrete(z′ / τ, λ) for logits z (N, K)."""
        logits = raised(logits, DEEPEST)
        return concrete(
            logits,
            self._trusted(self._learned(self._inputs(logits)).mean(0), self.trust, self.lead),
        )

    def fit(
        self,
        logits: Tensor,
        temperature: Tensor,
        labels: Tensor,
        generator: Generator | None,
        progress: bool,
    ) -> None:
        """Train on logits z = logits (N, K) / temperature and labels, some rows at a time, in the parameters' dtype."""

        def scaled(rows: Tensor) -> Tensor:
            return raised((rows / temperature).to(self.inner.dtype), DEEPEST)

        k = logits.shape[1]
        (raw,) = in_chunks(lambda rows: (statistics(scaled(rows)),), logits, width=4 * k)
        self.shift.copy_(raw.mean(0))
        self.scale.copy_(raw.std(0).clamp_min(1e-6))
        self.by_class.fill_(len(logits) >= PER_CLASS * k)
        draw_uniform(self.inner, raw.shape[1] ** -0.5, generator)
        for parameter in (self.inner_bias, self.outer, self.outer_bias):
            nn.init.zeros_(parameter)
        order = torch.randperm(
            len(logits), generator=generator, device=generator_device(generator)
        ).to(logits.device)
        (inputs,) = in_chunks(lambda rows: (self._inputs(scaled(rows)),), logits, width=4 * k)
        stream = ((rows,) for rows in _batches(order % N_FOLDS, generator))

        def loss(rows: Tensor) -> Tensor:
            return (
                -concrete(scaled(logits[rows]), self._learned(inputs[rows]))
                .log_likelihood(labels[rows])
                .mean()
            )

        minimise(
            loss,
            self.parameters(),
            N_STEPS,
            LEARNING_RATE,
            WEIGHT_DECAY,
            progress,
            lr_decay=True,
            stream=stream,
        )
        with torch.no_grad():
            unseen = self._learned(inputs)[
                order % N_FOLDS, torch.arange(len(order), device=order.device)
            ]
            self._prove(logits, scaled, unseen, labels, order // N_FOLDS)

    def _prove(
        self,
        logits: Tensor,
        scaled: Callable[[Tensor], Tensor],
        unseen: Tensor,
        labels: Tensor,
        turn: Tensor,
    ) -> None:
        """Set trust and lead by the likelihood of what each network says about its own fold."""
        doubt = jeffreys_weight(*logits.shape)

        def score(trust: float, lead: float) -> Tensor:
            def of_rows(
                rows: Tensor, parameters: Tensor, labels: Tensor, turn: Tensor
            ) -> tuple[Tensor]:
                return (
                    _doubted(concrete(scaled(rows), parameters), scaled(rows), labels, turn, doubt),
                )

            parameters = self._trusted(unseen, trust, lead)
            (scores,) = in_chunks(of_rows, logits, parameters, labels, turn, width=logits.shape[1])
            return (
                scores.double()
            )  # whose mean does not round away what a small step of the lead gains

        trust = TRUSTS[_surest_gain(torch.stack([score(trust, 0.0) for trust in TRUSTS]))]
        self.trust.fill_(trust)
        self.lead.fill_(
            golden_section(
                lambda lead: -score(trust, lead).mean().item(), -MOST_LEAD, MOST_LEAD, 14
            )
        )

    def _trusted(self, learned: Tensor, trust: Tensor | float, lead: Tensor | float) -> Tensor:
        """Return (ln τ, ln λ, η) on the way from temperature scaling to what was learned, and the lead added to η."""
        *others, eta = (self.plain + trust * (learned - self.plain)).unbind(-1)
        return torch.stack([*others, eta + lead], -1)

    def _inputs(self, logits: Tensor) -> Tensor:
        inputs = (statistics(logits.to(self.inner.dtype)) - self.shift) / self.scale
        if logits.shape[1] > MOST_CLASSES:
            return inputs
        return torch.cat([inputs, self.by_class * one_hot(logits.argmax(-1), logits.shape[1])], -1)

    def _learned(self, inputs: Tensor) -> Tensor:
        """Return (ln τ, ln λ, η) of every network, (F, n, 3), for inputs (n, I), or for each one's own (F, n, I)."""
        inputs = inputs.expand(N_FOLDS, *inputs.shape[-2:])
        hidden = torch.tanh(torch.baddbmm(self.inner_bias, inputs, self.inner))
        return torch.baddbmm(self.outer_bias, hidden, self.outer) + self.start


def jeffreys_weight(n: int, n_classes: int) -> float:
    """Return K / (2(K-1)) / n: the weight at which n inputs, seen in every class alike, hold half an error.

    Of such samples (K-1)/K contradict any prediction. As a prior, half an error is what Jeffreys' amounts to where the
    classes are separable, so that T → 0 without it: for the smallest gap g and u = 1/T, ℓ + ½ ln I is largest where m,
    the number of errors to be expected, is ½, since ℓ ≈ -m, I ≈ g² m and m ∝ e^(-u g) (Firth 1993). Unlike ½ ln I it
    leaves the loss convex. For K = 2 and equal gaps it is Jeffreys' prior, half a sample of each class.
    """
    return n_classes / (2 * (n_classes - 1) * n)


def statistics(logits: Tensor) -> Tensor:
    """Return the gaps from the largest logit to the next ones and to the mean, ln(-ln max p), and the entropy."""
    largest = logits.topk(min(N_LARGEST, logits.shape[1]), -1).values
    log_probs = logits.log_softmax(-1)
    doubt = (-log_probs.amax(-1)).clamp_min(1e-6).log()
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    to_mean = largest[:, 0] - logits.mean(-1)
    return torch.cat(
        [largest[:, :1] - largest[:, 1:], torch.stack([doubt, entropy, to_mean], -1)], -1
    )


def concrete(logits: Tensor, parameters: Tensor) -> Concrete:
    """Return Concrete(z′ / τ, λ) for logits z (..., K) and (ln τ, ln λ, η), (..., 3)."""
    log_tau, log_temperature, eta = parameters.to(logits.dtype).clamp(-7, 7).unbind(-1)
    scaled = led(logits, eta) / log_tau.exp().unsqueeze(-1)
    return Concrete(scaled, log_temperature.exp(), validate_args=False)


def led(logits: Tensor, eta: Tensor) -> Tensor:
    """Return the logits (..., K) with the largest one's lead over the next multiplied by e^η; where η = 0, the same."""
    values, classes = logits.topk(2, -1)
    first, second = values.split(1, -1)
    moved = torch.maximum(first + (first - second) * torch.expm1(eta).unsqueeze(-1), second)
    return logits.scatter(-1, classes[..., :1], moved)


def _doubted(law: Concrete, logits: Tensor, labels: Tensor, turn: Tensor, doubt: float) -> Tensor:
    """Return the log-likelihood (n,) of the labels and, at the weight ``doubt``, of others.

    An input's other label is the class that is ``turn`` classes after the predicted one, in a circle. So all classes
    have the same share in a fold, and half an error is exact.
    """
    others = (logits.argmax(-1) + turn) % logits.shape[-1]
    both = torch.stack([labels, others], -1)
    (found,) = _potential.in_chunks(
        lambda *rows: (_potential.log_mean_at(*rows),), law.logits, law.temperature, both
    )
    return found[:, 0] + doubt * found[:, 1]


def _surest_gain(scores: Tensor) -> int:
    """Return the row of log-likelihoods (T, N) with the largest gain over the first, less its standard error."""
    gain = scores - scores[0]
    return int((gain.mean(-1) - gain.std(-1) / gain.shape[1] ** 0.5).argmax())


def _batches(fold: Tensor, generator: Generator | None) -> Iterator[Tensor]:
    """Yield (F, n) rows forever: for each network a random batch, with repetition, of what is not in its fold."""
    others = [torch.nonzero(fold != f).squeeze(1) for f in range(N_FOLDS)]
    while True:
        draws = [
            torch.randint(
                len(rows),
                (min(BATCH, len(fold)),),
                generator=generator,
                device=generator_device(generator),
            )
            for rows in others
        ]
        yield torch.stack(
            [rows[draw.to(rows.device)] for rows, draw in zip(others, draws, strict=True)]
        )
