"""Multi-Mixup: inputs on the whole probability simplex, mixed from one sample of every class.

x̃ = Σ_k w_k x^(k),  π̃ = w ~ Dirichlet(β, …, β)   (Esaki et al. 2024, Sec. 4.3.1 and Appendix B).

Mixes come from pools of R samples a class. The samples of each class are shuffled S times, and the r-th of every class
are mixed, so a pool gives R·S mixes by one matrix product, (R·S, K·R) times (K·R, …). With so many classes that this
matrix would be too large, R is smaller. Memory is bounded by the pools in work, not by the number of mixes. Weights are
drawn, and returned, as logarithms: small β never gives -∞.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

from simplexcal._chunking import join
from simplexcal._validation import check_generator, check_labels
from simplexcal.backbone._forward import frozen
from simplexcal.types import Outputs

BATCH = 4096  # inputs that the network sees at a time
WORK = 2**24  # numbers in the mixing matrices, and in the pools, that are in work at a time
LARGEST = 2**24  # numbers in one mixing matrix


class MissingClassError(ValueError):
    """A class has no sample, and Multi-Mixup mixes one of each."""


class Mixed(NamedTuple):
    """The network's outputs for mixed samples, and the logarithms of their weights (n, K)."""

    outputs: Outputs
    log_weights: Tensor


class Mixup(ABC):
    """A source of mixed samples.

    ``weights_per_sample`` draws a weight vector for each mixed sample; otherwise one serves all R mixes of a shuffle, as in the
    paper's Algorithm 1.
    """

    def __init__(
        self,
        samples: Tensor,
        labels: Tensor,
        n_classes: int,
        per_class: int,
        n_shuffles: int,
        weights_per_sample: bool,
    ) -> None:
        self.samples = samples
        self.members = _members(labels, n_classes)
        self.per_class, self.n_shuffles, self.weights_per_sample = (
            per_class,
            n_shuffles,
            weights_per_sample,
        )

    def sample(self, beta: float, n_samples: int, generator: Generator | None = None) -> Mixed:
        """Return ``n_samples`` mixed samples with weights from Dirichlet(β, …, β)."""
        if not (beta > 0 and n_samples > 0):
            raise ValueError(
                f"`beta` and `n_samples` must be positive; got {beta} and {n_samples}."
            )
        check_generator(generator)
        k, s = len(self.members), self.n_shuffles
        r = min(self.per_class, max(1, math.isqrt(LARGEST // (k * s))))
        n_pools = -(-n_samples // (r * s))
        at_a_time = max(1, WORK // (k * r * max(r * s, self.samples[0].numel())))
        sizes = [min(at_a_time, n_pools - i) for i in range(0, n_pools, at_a_time)]
        log_weights, *outputs = join(
            (self._mix_pools(beta, size, r, generator) for size in sizes), n_samples
        )
        return Mixed(Outputs(*outputs), log_weights)

    def _mix_pools(
        self, beta: float, n_pools: int, r: int, generator: Generator | None
    ) -> tuple[Tensor, ...]:
        """Return ln w, the logits and, where there are any, the features of mixes from pools of R samples a class."""
        k, s = len(self.members), self.n_shuffles
        rows = _pools(self.members, n_pools, r, generator).flatten(1).to(self.samples.device)
        n_weights = n_pools * s * (r if self.weights_per_sample else 1)
        log_weights = (
            log_dirichlet(beta, n_weights, k, generator)
            .view(n_pools, s, -1, k)
            .expand(-1, -1, r, -1)
        )
        matrix = _matrix(log_weights, generator).to(self.samples)
        pools = self.samples[rows.flatten()].view(n_pools, k * r, -1)
        outputs = self._outputs((matrix @ pools).view(-1, *self.samples.shape[1:]))
        features = () if outputs.features is None else (outputs.features,)
        return log_weights.reshape(-1, k).to(outputs.logits), outputs.logits, *features

    @abstractmethod
    def _outputs(self, mixed: Tensor) -> Outputs:
        """Return the network's outputs for mixed samples."""


class InputMixup(Mixup):
    """Mix raw inputs and run the network on the mixes, as the paper does. Defaults are the paper's R = S = 10."""

    def __init__(
        self,
        backbone: Callable[[Tensor], Outputs],
        inputs: Tensor,
        labels: Tensor,
        per_class: int = 10,
        n_shuffles: int = 10,
        weights_per_sample: bool = False,
    ) -> None:
        if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
            kind = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
            raise TypeError(
                f"`inputs` must be a floating-point tensor to be mixed; got {kind}. Normalise images to floats; for "
                "text or other inputs that cannot be mixed, use FeatureMixup."
            )
        k = backbone(inputs[:1]).n_classes
        super().__init__(
            inputs,
            check_labels(labels, len(inputs), k),
            k,
            per_class,
            n_shuffles,
            weights_per_sample,
        )
        self.backbone = backbone

    def _outputs(self, mixed: Tensor) -> Outputs:
        return _concatenate([self.backbone(x) for x in mixed.split(BATCH)])


class FeatureMixup(Mixup):
    """Mix cached features and apply the last linear layer: any kind of input, and no forward pass."""

    def __init__(
        self,
        head: nn.Linear,
        outputs: Outputs,
        labels: Tensor,
        per_class: int = 100,
        n_shuffles: int = 10,
        weights_per_sample: bool = True,
    ) -> None:
        if outputs.features is None:
            raise ValueError(
                "`outputs` must have features to mix; got logits alone. Extract them with simplexcal.extract, or fit "
                "without mixup."
            )
        if (head.in_features, head.out_features) != (outputs.n_features, outputs.n_classes):
            raise ValueError(
                f"`head` must map the {outputs.n_features} features to {outputs.n_classes} logits; it maps "
                f"{head.in_features} to {head.out_features}. Pass the layer that made these logits, backbone.head."
            )
        k = outputs.n_classes
        super().__init__(
            outputs.features,
            check_labels(labels, len(outputs), k),
            k,
            per_class,
            n_shuffles,
            weights_per_sample,
        )
        with frozen(
            head
        ):  # reading a weight with a parametrization may compute, and in train mode change, it
            self.weight = head.weight.detach()
            self.bias = None if head.bias is None else head.bias.detach()

    def _outputs(self, mixed: Tensor) -> Outputs:
        bias = None if self.bias is None else self.bias.to(mixed)
        return Outputs(nn.functional.linear(mixed, self.weight.to(mixed), bias), mixed)


def log_dirichlet(beta: float, n: int, k: int, generator: Generator | None = None) -> Tensor:
    """Return ln w (n, K) for w ~ Dirichlet(β, …, β), finite for every β > 0.

    ln Gamma(β) = ln Gamma(β+1) + ln(U)/β in distribution (Marsaglia and Tsang 2000), so nothing underflows.
    """
    device = "cpu" if generator is None else generator.device
    shape = torch.full((n, k), beta + 1.0, dtype=torch.float64, device=device)
    gamma = torch._standard_gamma(shape, generator=generator)
    log_uniform = -torch.empty_like(shape).exponential_(generator=generator)
    return (gamma.log() + log_uniform / beta).log_softmax(-1)


def mixup_or_none(make: Callable[[], Mixup | None], needed: bool) -> Mixup | None:
    """Return the source that ``make`` gives; if a class is missing and the source not needed, None with a warning."""
    try:
        return make()
    except MissingClassError as error:
        if needed:
            raise
        without = f"{error} This fit goes on without: the uncertainties are the head's."
        warnings.warn(without, stacklevel=4)  # at the call of ``calibrate``, which torch decorates
        return None


def _members(labels: Tensor, n_classes: int) -> list[Tensor]:
    members = [torch.nonzero(labels.cpu() == c).squeeze(1) for c in range(n_classes)]
    missing = [c for c, rows in enumerate(members) if len(rows) == 0]
    if missing:
        listed = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
        raise MissingClassError(
            f"`labels` must hold every class, since Multi-Mixup mixes one sample of each; missing: {listed}. "
            "Add such samples, or fit without mixup (mixup=None)."
        )
    return members


def _pools(
    members: list[Tensor], n_pools: int, per_class: int, generator: Generator | None
) -> Tensor:
    """Return row numbers (P, K, R): R samples of every class, each once where there are enough, else about equally."""
    device = "cpu" if generator is None else generator.device
    rows = []
    for candidates in members:
        rounds = -(-per_class // len(candidates))
        order = torch.rand(
            n_pools, rounds, len(candidates), generator=generator, device=device
        ).argsort(-1)
        rows.append(candidates.to(device)[order.flatten(1)[:, :per_class]])
    return torch.stack(rows, 1)


def _matrix(log_weights: Tensor, generator: Generator | None) -> Tensor:
    """Return (P, S·R, K·R), given ln w (P, S, R, K): in each shuffle each of a class's R samples is taken once."""
    n_pools, s, r, k = log_weights.shape
    device = log_weights.device
    shuffled = torch.rand(n_pools, s, k, r, generator=generator, device=device).argsort(-1)
    columns = (shuffled + r * torch.arange(k, device=device).unsqueeze(-1)).transpose(2, 3)
    matrix = torch.zeros(n_pools, s, r, k * r, device=device, dtype=torch.float32)
    return matrix.scatter_(-1, columns, log_weights.exp().float()).flatten(1, 2)


def _concatenate(outputs: list[Outputs]) -> Outputs:
    features = [part.features for part in outputs if part.features is not None]
    return Outputs(
        torch.cat([part.logits for part in outputs]), torch.cat(features) if features else None
    )
