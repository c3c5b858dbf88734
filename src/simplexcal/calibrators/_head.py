"""The head of Simplex Temperature Scaling: logit statistics → τ(x) and λ(x), trained by the exact likelihood.

p(y | x) = E[π_y] for π ~ Concrete(z / τ(x), λ(x)), where z are the logits after temperature scaling. Dividing by τ
keeps the argmax and can sharpen; λ can only soften. The statistics are those of z too, so the result does not depend
on the scale of the network's logits.
"""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import one_hot

from simplexcal._chunks import in_chunks
from simplexcal.calibrators._training import draw_uniform, home, minimise
from simplexcal.concrete import Concrete

N_LARGEST = 10  # logits whose gaps to the largest are statistics
MOST_CLASSES = 100  # with so many classes at most, and
PER_CLASS = 100  # so many samples a class at least, the predicted class is an input too
N_FOLDS, N_HIDDEN = 3, 16
BATCH, N_STEPS, LEARNING_RATE, WEIGHT_DECAY = 400, 250, 1e-2, 1e-3
START = (0.0, -1.0)  # ln τ and ln λ before training
PLAIN = (0.0, -6.0)  # ln τ and ln λ of temperature scaling: λ = e^-6 is as good as 0
TRUSTS = (0.0, 0.25, 0.5, 0.75, 1.0)


class Head(nn.Module):
    """Small networks, one for each fold of the data; the average of their (ln τ, ln λ) is trusted so far as it proved.

    Each network learns from all folds but its own. On its own fold it shows what it is worth: the trust, from 0
    (temperature scaling) to 1, is the one whose gain in likelihood there, with ``half_an_error`` as a prior, is the
    largest, less one standard error. So few data hardly make matters worse.
    """

    shift: Tensor
    scale: Tensor
    by_class: Tensor
    trust: Tensor
    start: Tensor

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        n_statistics = min(N_LARGEST, n_classes) + 2
        n_inputs = n_statistics + (n_classes if n_classes <= MOST_CLASSES else 0)
        self.register_buffer("shift", torch.zeros(n_statistics))
        self.register_buffer("scale", torch.ones(n_statistics))
        self.register_buffer("by_class", torch.zeros(()))  # 1 where the predicted class is an input
        self.register_buffer("trust", torch.zeros(()))
        self.register_buffer("start", torch.tensor(START), persistent=False)
        self.inner = nn.Parameter(torch.zeros(N_FOLDS, n_inputs, N_HIDDEN))
        self.inner_bias = nn.Parameter(torch.zeros(N_FOLDS, 1, N_HIDDEN))
        self.outer = nn.Parameter(torch.zeros(N_FOLDS, N_HIDDEN, 2))
        self.outer_bias = nn.Parameter(torch.zeros(N_FOLDS, 1, 2))

    def forward(self, logits: Tensor) -> Concrete:
        """Return Concrete(z / τ, λ) for logits z (N, K)."""
        return self._trusting(logits, self._learned(self._inputs(logits)).mean(0), float(self.trust))

    def fit(
        self, logits: Tensor, temperature: Tensor, labels: Tensor, generator: Generator | None, progress: bool
    ) -> None:
        """Train on logits z = logits (N, K) / temperature and labels, some rows at a time, in the parameters' dtype."""

        def scaled(rows: Tensor) -> Tensor:
            return (rows / temperature).to(self.inner.dtype)

        k = logits.shape[1]
        (raw,) = in_chunks(lambda rows: (statistics(scaled(rows)),), logits, width=4 * k)
        self.shift.copy_(raw.mean(0))
        self.scale.copy_(raw.std(0).clamp_min(1e-6))
        self.by_class.fill_(len(logits) >= PER_CLASS * k)
        draw_uniform(self.inner, raw.shape[1] ** -0.5, generator)
        for parameter in (self.inner_bias, self.outer, self.outer_bias):
            nn.init.zeros_(parameter)
        order = torch.randperm(len(logits), generator=generator, device=home(generator)).to(logits.device)
        (inputs,) = in_chunks(lambda rows: (self._inputs(scaled(rows)),), logits, width=4 * k)
        stream = ((rows,) for rows in _batches(order % N_FOLDS, generator))

        def loss(rows: Tensor) -> Tensor:
            return -_concrete(scaled(logits[rows]), self._learned(inputs[rows])).log_likelihood(labels[rows]).mean()

        minimise(loss, self.parameters(), N_STEPS, LEARNING_RATE, WEIGHT_DECAY, progress, anneal=True, stream=stream)

        def scores(rows: Tensor, learned: Tensor, labels: Tensor, turn: Tensor) -> tuple[Tensor]:
            return (self._scores(scaled(rows), learned, labels, turn, half_an_error(*logits.shape)),)

        with torch.no_grad():
            unseen = self._learned(inputs)[order % N_FOLDS, torch.arange(len(order), device=order.device)]
            (found,) = in_chunks(scores, logits, unseen, labels, order // N_FOLDS, width=k)
        self.trust.fill_(TRUSTS[_surest_gain(found.T)])

    def _scores(self, logits: Tensor, learned: Tensor, labels: Tensor, turn: Tensor, doubt: float) -> Tensor:
        """Return the log-likelihood (n, T) of each input for every trust.

        Beside its label an input has another, at the weight ``doubt``: the class that is ``turn`` classes after the
        predicted one, in a circle. So all classes have the same share in a fold, and half an error is exact.
        """
        doubted = (logits.argmax(-1) + turn) % logits.shape[1]
        trusting = (self._trusting(logits, learned, trust) for trust in TRUSTS)
        return torch.stack([d.log_likelihood(labels) + doubt * d.log_likelihood(doubted) for d in trusting], -1)

    def _inputs(self, logits: Tensor) -> Tensor:
        inputs = (statistics(logits.to(self.inner.dtype)) - self.shift) / self.scale
        if logits.shape[1] > MOST_CLASSES:
            return inputs
        return torch.cat([inputs, self.by_class * one_hot(logits.argmax(-1), logits.shape[1])], -1)

    def _learned(self, inputs: Tensor) -> Tensor:
        """Return (ln τ, ln λ) of every network, (F, n, 2), for inputs (n, I), or for each network's own (F, n, I)."""
        inputs = inputs.expand(N_FOLDS, *inputs.shape[-2:])
        hidden = torch.tanh(torch.baddbmm(self.inner_bias, inputs, self.inner))
        return torch.baddbmm(self.outer_bias, hidden, self.outer) + self.start

    def _trusting(self, logits: Tensor, learned: Tensor, trust: float) -> Concrete:
        plain = learned.new_tensor(PLAIN)
        return _concrete(logits, plain + trust * (learned - plain))


def half_an_error(n: int, n_classes: int) -> float:
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
    return torch.cat([largest[:, :1] - largest[:, 1:], torch.stack([doubt, entropy, to_mean], -1)], -1)


def _concrete(logits: Tensor, logarithms: Tensor) -> Concrete:
    tau, temperature = logarithms.to(logits.dtype).clamp(-7, 7).exp().unbind(-1)
    return Concrete(logits / tau.unsqueeze(-1), temperature, validate_args=False)


def _surest_gain(scores: Tensor) -> int:
    """Return the row of log-likelihoods (T, N) with the largest gain over the first, less its standard error."""
    gain = scores - scores[0]
    return int((gain.mean(-1) - gain.std(-1) / gain.shape[1] ** 0.5).argmax())


def _batches(fold: Tensor, generator: Generator | None) -> Iterator[Tensor]:
    """Yield (F, n) rows forever: for each network a random batch, with repetition, of what is not in its fold."""
    others = [torch.nonzero(fold != f).squeeze(1) for f in range(N_FOLDS)]
    while True:
        draws = [
            torch.randint(len(rows), (min(BATCH, len(fold)),), generator=generator, device=home(generator))
            for rows in others
        ]
        yield torch.stack([rows[draw.to(rows.device)] for rows, draw in zip(others, draws, strict=True)])
