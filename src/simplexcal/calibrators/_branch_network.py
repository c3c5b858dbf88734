"""The branch of Simplex Temperature Scaling: features → λ(x), trained by the Concrete likelihood of mixed samples."""

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import softplus

from simplexcal.calibrators._optim import batches, draw_uniform
from simplexcal.concrete import Concrete
from simplexcal.mixup import Mixup
from simplexcal.types import Outputs

SMALLEST = 1e-6  # λ never underflows to 0


class Branch(nn.Module):
    """λ = softplus(MLP(features)) for several heads at once, one for each β: every layer is one batched product."""

    def __init__(self, n_heads: int, n_features: int, widths: Sequence[int]) -> None:
        super().__init__()
        sizes = [n_features, *widths, 1]
        self.weights = nn.ParameterList(torch.zeros(n_heads, i, o) for i, o in pairwise(sizes))
        self.biases = nn.ParameterList(torch.zeros(n_heads, 1, o) for o in sizes[1:])

    @property
    def n_features(self) -> int:
        """D."""
        return int(self.weights[0].shape[1])

    def initialise(self, generator: Generator | None) -> None:
        """Draw weights and biases as nn.Linear does, from U(-1/√fan_in, 1/√fan_in)."""
        for weight, bias in zip(self.weights, self.biases, strict=True):
            bound = weight.shape[1] ** -0.5
            draw_uniform(weight, bound, generator)
            draw_uniform(bias, bound, generator)

    def forward(self, features: Tensor) -> Tensor:
        """Return λ (H, n) for features (H, n, D), or for the same features (n, D) in every head."""
        if features.shape[-1] != self.n_features:
            raise self._of_another(features.shape[-1])
        x = features.to(self.weights[0].dtype).expand(len(self.weights[0]), *features.shape[-2:])
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, torch.relu(x) if i else x, weight)
        return softplus(x.squeeze(-1)) + SMALLEST

    def of(self, outputs: Outputs) -> Tensor:
        """Return λ (H, N) for a network's outputs, in the dtype of its logits."""
        if outputs.features is None:
            raise self._of_another(None)
        temperatures: Tensor = self(outputs.features)
        return temperatures.to(outputs.logits)

    def _of_another(self, n_features: int | None) -> ValueError:
        return ValueError(
            f"`features` must have the {self.n_features} columns of the fit; got {n_features}. Take them, and the "
            "mixes, from the same layer of the same network."
        )

    def take(self, head: int) -> dict[str, Tensor]:
        """Return the state of one head, as the state dict of a branch that has no other."""
        return {name: value[head : head + 1].clone() for name, value in self.state_dict().items()}


class Pool(NamedTuple):
    """Mixed samples for H values of β: logits and ln w (H, n, K), features (H, n, D)."""

    logits: Tensor
    features: Tensor
    log_weights: Tensor


def pools(
    mixup: Mixup,
    betas: Sequence[float],
    n_samples: int,
    batch_size: int,
    generator: Generator | None,
    *,
    resample: bool,
) -> Iterator[Pool]:
    """Yield batches forever from ``n_samples`` mixes for each β; ``resample`` draws new ones when they are used up."""
    while True:
        pool = _draw(mixup, betas, n_samples, generator)
        stream = batches(n_samples, batch_size, generator, pool.logits.device)
        n_batches = -(-n_samples // batch_size)
        for rows in islice(stream, n_batches if resample else None):
            yield Pool(*(x[:, rows] for x in pool))


def negative_log_density(branch: Branch, batch: Pool) -> Tensor:
    """Return the mean loss of each head (H,): the paper's Eq. (9), in log space."""
    d = Concrete(batch.logits, branch(batch.features), validate_args=False)
    return -d.log_prob_from_log(batch.log_weights).mean(-1)


@torch.no_grad()
def _draw(
    mixup: Mixup, betas: Sequence[float], n_samples: int, generator: Generator | None
) -> Pool:
    drawn = [mixup.sample(beta, n_samples, generator) for beta in betas]
    features = [mixed.outputs.features for mixed in drawn if mixed.outputs.features is not None]
    if not features:
        raise ValueError(
            "`mixup` must give features for the branch to learn from; its outputs are logits alone."
        )
    logits = _stack([mixed.outputs.logits for mixed in drawn])
    return Pool(logits, _stack(features), _stack([mixed.log_weights for mixed in drawn]))


def _stack(tensors: list[Tensor]) -> Tensor:
    """Stack; one alone is not copied, since with many classes it is large."""
    return torch.stack(tensors) if len(tensors) > 1 else tensors[0].unsqueeze(0)
