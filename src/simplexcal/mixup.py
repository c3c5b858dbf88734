"""Multi-Mixup: inputs on the whole probability simplex, mixed from one sample of every class.

x̃ = Σ_k w_k x^(k),  π̃ = w ~ Dirichlet(β, …, β)   (Esaki et al. 2024, Sec. 4.3.1 and Appendix B).

All mixes of a pool of R samples a class are one matrix product, weights (n, R·K) times pool (R·K, …), so memory is
bounded by the pool and not by the number of mixes. Weights are drawn, and returned, as logarithms: small β never
gives -∞.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

from simplexcal._checks import check_labels
from simplexcal.records import Outputs

MATRIX = 2**24  # numbers in the mixing matrix, at most


class Mixed(NamedTuple):
    """The network's outputs for mixed samples, and the logarithms of their weights (n, K)."""

    outputs: Outputs
    log_weights: Tensor


class Mixup(ABC):
    """A source of mixed samples.

    ``n_shuffles`` None draws a fresh weight vector for each mixed sample. A number S is the paper's scheme: one weight
    vector for each of S shuffles of the R samples a class, so a pool gives R·S mixes with S different weights.
    """

    def __init__(self, labels: Tensor, n_classes: int, per_class: int, n_shuffles: int | None) -> None:
        self.per_class, self.n_shuffles = per_class, n_shuffles
        self.members = _members(labels, n_classes)

    def draw(self, beta: float, n_samples: int, generator: Generator | None = None) -> Mixed:
        """Return ``n_samples`` mixed samples with weights from Dirichlet(β, …, β)."""
        parts: list[Mixed] = []
        while (missing := n_samples - sum(len(part.outputs) for part in parts)) > 0:
            parts.append(self._mix_a_pool(beta, missing, generator))
        features = [part.outputs.features for part in parts if part.outputs.features is not None]
        logits = torch.cat([part.outputs.logits for part in parts])
        outputs = Outputs(logits, torch.cat(features) if features else None)
        return Mixed(outputs, torch.cat([part.log_weights for part in parts]))

    def _mix_a_pool(self, beta: float, limit: int, generator: Generator | None) -> Mixed:
        pool = _pool(self.members, self.per_class, generator)
        n = min(limit, self.per_class * (self.n_shuffles or self._n_rounds))
        log_weights, matrix = _mixing(len(pool), self.per_class, n, beta, self.n_shuffles, generator)
        outputs = self._outputs(pool.flatten(), matrix)
        return Mixed(outputs, log_weights.to(outputs.logits))

    @property
    def _n_rounds(self) -> int:
        """How often a pool is used with fresh weights: R times, or as often as the mixing matrix has room."""
        return max(1, min(self.per_class, MATRIX // (len(self.members) * self.per_class**2)))

    @abstractmethod
    def _outputs(self, rows: Tensor, matrix: Tensor) -> Outputs:
        """Mix the samples ``rows`` by ``matrix`` (n, len(rows)) and return the network's outputs for the mixes."""


class InputMixup(Mixup):
    """Mix raw inputs and run the network on the mixes, as the paper does. Defaults are the paper's R = S = 10."""

    def __init__(
        self,
        backbone: Callable[[Tensor], Outputs],
        inputs: Tensor,
        labels: Tensor,
        per_class: int = 10,
        n_shuffles: int | None = 10,
    ) -> None:
        if not inputs.is_floating_point():
            raise TypeError(
                f"`inputs` must be floating-point to be mixed; got {inputs.dtype}. Normalise images to floats; for "
                "text or other inputs that cannot be mixed, use FeatureMixup."
            )
        probe = backbone(inputs[:1])
        super().__init__(check_labels(labels, len(inputs), probe.n_classes), probe.n_classes, per_class, n_shuffles)
        self.backbone, self.inputs = backbone, inputs

    def _outputs(self, rows: Tensor, matrix: Tensor) -> Outputs:
        pool = self.inputs[rows.to(self.inputs.device)]
        mixed = matrix.to(pool) @ pool.flatten(1)
        return self.backbone(mixed.unflatten(1, pool.shape[1:]))


class FeatureMixup(Mixup):
    """Mix cached features and apply the last linear layer: any kind of input, and no forward pass."""

    def __init__(
        self, head: nn.Linear, outputs: Outputs, labels: Tensor, per_class: int = 100, n_shuffles: int | None = None
    ) -> None:
        if outputs.features is None:
            raise ValueError(
                "`outputs` must have features to mix; got logits alone. Extract them with simplexcal.extract, or fit "
                "without mixup."
            )
        if head.in_features != outputs.features.shape[1] or head.out_features != outputs.n_classes:
            raise ValueError(
                f"`head` must map the {outputs.features.shape[1]} features to {outputs.n_classes} logits; it maps "
                f"{head.in_features} to {head.out_features}. Pass the layer that made these logits, backbone.head."
            )
        labels = check_labels(labels, len(outputs), outputs.n_classes)
        super().__init__(labels, outputs.n_classes, per_class, n_shuffles)
        self.head, self.features = head, outputs.features

    def _outputs(self, rows: Tensor, matrix: Tensor) -> Outputs:
        pool = self.features[rows.to(self.features.device)]
        mixed = matrix.to(pool) @ pool
        weight, bias = self.head.weight.detach().to(mixed), self.head.bias
        return Outputs(nn.functional.linear(mixed, weight, None if bias is None else bias.detach().to(mixed)), mixed)


def log_dirichlet(beta: float, n: int, k: int, generator: Generator | None = None) -> Tensor:
    """Return ln w (n, K) for w ~ Dirichlet(β, …, β), finite for every β > 0.

    ln Gamma(β) = ln Gamma(β+1) + ln(U)/β in distribution (Marsaglia and Tsang 2000), so nothing underflows.
    """
    device = "cpu" if generator is None else generator.device
    shape = torch.full((n, k), beta + 1.0, dtype=torch.float64, device=device)
    gamma = torch._standard_gamma(shape, generator=generator)
    log_uniform = -torch.empty_like(shape).exponential_(generator=generator)
    return (gamma.log() + log_uniform / beta).log_softmax(-1)


def _members(labels: Tensor, n_classes: int) -> list[Tensor]:
    members = [torch.nonzero(labels.cpu() == c).squeeze(1) for c in range(n_classes)]
    missing = [c for c, rows in enumerate(members) if len(rows) == 0]
    if missing:
        listed = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
        raise ValueError(
            f"`labels` must hold every class, since Multi-Mixup mixes one sample of each; missing: {listed}. "
            "Add such samples, or fit without mixup."
        )
    return members


def _pool(members: list[Tensor], per_class: int, generator: Generator | None) -> Tensor:
    """Return (K, R) row numbers: R samples of every class, without repetition where there are enough."""
    device = "cpu" if generator is None else generator.device
    rows = []
    for candidates in members:
        rounds = -(-per_class // len(candidates))
        order = [torch.randperm(len(candidates), generator=generator, device=device).cpu() for _ in range(rounds)]
        rows.append(candidates[torch.cat(order)[:per_class]])
    return torch.stack(rows)


def _mixing(
    k: int, per_class: int, n: int, beta: float, n_shuffles: int | None, generator: Generator | None
) -> tuple[Tensor, Tensor]:
    """Return ln w (n, K) and the matrix (n, K·R) that takes, in each shuffle, each of the R samples a class once."""
    device = "cpu" if generator is None else generator.device
    n_rounds = -(-n // per_class)
    chosen = torch.rand(n_rounds, k, per_class, generator=generator, device=device).argsort(-1)  # R-permutations
    columns = (chosen + per_class * torch.arange(k, device=device)[:, None]).transpose(1, 2).flatten(0, 1)[:n]
    if n_shuffles is None:
        log_weights = log_dirichlet(beta, n, k, generator)
    else:
        log_weights = log_dirichlet(beta, n_rounds, k, generator).repeat_interleave(per_class, 0)[:n]
    matrix = torch.zeros(n, k * per_class, device=device)
    return log_weights, matrix.scatter_(1, columns, log_weights.exp().float())
