"""The branch of Simplex Temperature Scaling: features → λ(x), trained on mixup samples."""

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import softplus

from simplexcal.calibrators._optim import row_batches, uniform_
from simplexcal.concrete import Concrete
from simplexcal.mixup import Mixup
from simplexcal.types import Outputs

SMALLEST = 1e-6  # λ never underflows to 0.
MAX_POOL = 2**27  # numbers in the mixup samples of one β


class Branch(nn.Module):
    """λ = softplus(MLP(features)) for several ensemble members at once.

    A member is the geometric mean of several networks that differ in their first weights. Every
    layer is one batched product.

    Args:
        n_members: H, one member for each β.
        n_features: D.
        widths: Hidden widths.
        n_networks: B, networks of each member.
    """

    def __init__(
        self,
        n_members: int,
        n_features: int,
        widths: Sequence[int],
        n_networks: int = 1,
    ) -> None:
        super().__init__()
        self.n_networks = n_networks
        n = n_members * n_networks
        sizes = [n_features, *widths, 1]
        self.weights = nn.ParameterList(torch.zeros(n, i, o) for i, o in pairwise(sizes))
        self.biases = nn.ParameterList(torch.zeros(n, 1, o) for o in sizes[1:])

    @property
    def n_features(self) -> int:
        """D."""
        return int(self.weights[0].shape[1])

    @torch.no_grad()
    def initialise(self, generator: Generator | None, *, zero_last_layer: bool = False) -> None:
        """Draw weights and biases as nn.Linear does, from U(-1/√fan_in, 1/√fan_in).

        Args:
            generator: Source of randomness.
            zero_last_layer: Set the last layer to 0, so that λ is the same for all inputs.
        """
        for weight, bias in zip(self.weights, self.biases, strict=True):
            bound = weight.shape[1] ** -0.5
            uniform_(weight, bound, generator)
            uniform_(bias, bound, generator)
        if zero_last_layer:
            self.weights[-1].zero_()
            self.biases[-1].zero_()

    def forward(self, features: Tensor) -> Tensor:
        """Return λ of each network, (H, B, n).

        Args:
            features: Those of each member, (H, n, D), or the same for all members, (n, D).
        """
        if features.shape[-1] != self.n_features:
            raise self._wrong_features(features.shape[-1])
        first, *others = zip(self.weights, self.biases, strict=True)
        weight, bias = first
        n_members = len(weight) // self.n_networks
        n, d = features.shape[-2:]
        x = features.to(weight.dtype).expand(n_members, n, d).unsqueeze(1)
        # Of one member this is a view: its networks read the same rows.
        x = x.expand(n_members, self.n_networks, n, d).flatten(0, 1)
        x = torch.baddbmm(bias, x, weight)
        for weight, bias in others:
            x = torch.baddbmm(bias, torch.relu(x), weight)
        temperatures = softplus(x.squeeze(-1)) + SMALLEST
        return temperatures.view(n_members, self.n_networks, x.shape[1])

    def temperatures(self, outputs: Outputs) -> Tensor:
        """Return λ (H, N) in the dtype of the logits.

        Args:
            outputs: A network's outputs, with features.
        """
        if outputs.features is None:
            raise self._wrong_features(None)
        temperatures: Tensor = self(outputs.features).to(outputs.logits)
        if self.n_networks == 1:
            return temperatures.squeeze(1)
        return temperatures.log().mean(1).exp()

    def member_state(self, member: int) -> dict[str, Tensor]:
        """Return the state dict of a branch that has this member alone.

        Args:
            member: Number of the member.
        """
        start = member * self.n_networks
        one = slice(start, start + self.n_networks)
        return {name: value[one].clone() for name, value in self.state_dict().items()}

    def _wrong_features(self, n_features: int | None) -> ValueError:
        return ValueError(
            f"`features` must have the {self.n_features} columns of the fit; got {n_features}. "
            "Take them, and the mixup samples, from the same layer of the same network."
        )


class MemberBatch(NamedTuple):
    """Mixup samples for H ensemble members.

    Args:
        logits: (H, n, K).
        features: (H, n, D).
        log_weights: Logarithms of the mixup weights, (H, n, K).
    """

    logits: Tensor
    features: Tensor
    log_weights: Tensor


def mixup_batches(
    mixup: Mixup,
    betas: Sequence[float],
    n_samples: int,
    batch_size: int,
    generator: Generator | None,
    *,
    resample: bool,
) -> Iterator[MemberBatch]:
    """Yield batches of mixup samples forever.

    Args:
        mixup: Source of mixup samples.
        betas: One Dirichlet concentration for each ensemble member.
        n_samples: Samples that are drawn for each β; fewer where they would be more than MAX_POOL
            numbers.
        batch_size: Samples in a batch.
        generator: Source of randomness.
        resample: Draw new samples when all are used up; otherwise use the same ones again.
    """
    n_columns = mixup.n_classes + mixup.samples[0].numel()
    n_samples = min(n_samples, max(batch_size, MAX_POOL // n_columns))
    n_batches = None
    if resample:
        n_batches = -(-n_samples // batch_size)
    while True:
        samples = _sample(mixup, betas, n_samples, generator)
        batches = row_batches(n_samples, batch_size, generator, samples.logits.device)
        for rows in islice(batches, n_batches):
            yield MemberBatch(*(x[:, rows] for x in samples))


def negative_log_density(branch: Branch, batch: MemberBatch) -> Tensor:
    """Return the loss of each member (H,): the paper's Eq. (9), in log space.

    It is the sum over the member's networks, which learn apart, of the mean over the samples.

    Args:
        branch: A branch with H members.
        batch: Their mixup samples.
    """
    logits = batch.logits.unsqueeze(1)
    d = Concrete(logits, branch(batch.features), validate_args=False)
    return -d.log_prob_from_log(batch.log_weights.unsqueeze(1)).mean(-1).sum(-1)


@torch.no_grad()
def _sample(
    mixup: Mixup,
    betas: Sequence[float],
    n_samples: int,
    generator: Generator | None,
) -> MemberBatch:
    drawn = [mixup.sample(beta, n_samples, generator) for beta in betas]
    features = [batch.outputs.features for batch in drawn if batch.outputs.features is not None]
    if not features:
        raise ValueError(
            "`mixup` must give features for the branch to learn from; its outputs are logits alone."
        )
    logits = _stack([batch.outputs.logits for batch in drawn])
    log_weights = _stack([batch.log_weights for batch in drawn])
    return MemberBatch(logits, _stack(features), log_weights)


def _stack(tensors: list[Tensor]) -> Tensor:
    """Stack; a single tensor is not copied, since with many classes it is large."""
    if len(tensors) == 1:
        return tensors[0].unsqueeze(0)
    return torch.stack(tensors)
