"""Multi-Mixup: samples on the whole probability simplex, mixed from one sample of every class.

x̃ = Σ_k w_k x^(k),  π̃ = w ~ Dirichlet(β, …, β)   (Esaki et al. 2024, Sec. 4.3.1 and Appendix B).

Mixup samples come from balanced batches with R samples of each class. The samples of each class are
shuffled S times, and the r-th of every class are mixed. So one batch gives R·S mixup samples by one
matrix product, (R·S, K·R) times (K·R, …). With so many classes that this matrix would be too large,
R is smaller. Memory is bounded by the batches that are mixed at a time, not by the number of mixup
samples. Weights are drawn, and returned, as logarithms: small β never gives -∞.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

from simplexcal._chunking import join
from simplexcal._validation import check_generator, check_labels, warn_caller
from simplexcal.backbone import Backbone
from simplexcal.backbone._forward import batch_normalised, frozen
from simplexcal.types import Outputs

FORWARD_BATCH = 4096  # inputs of one forward pass
MAX_MATRIX = 2**24  # numbers in one mixing matrix
MAX_AT_A_TIME = 2**24  # numbers in the mixing matrices, and in the batches, that are held at a time


class MissingClassError(ValueError):
    """A class has no sample, and Multi-Mixup mixes one of each."""


class MixupBatch(NamedTuple):
    """Mixup samples.

    Attributes:
        outputs: The network's outputs for n mixup samples.
        log_weights: Logarithms of the weights of the classes, (n, K).
    """

    outputs: Outputs
    log_weights: Tensor


class Mixup(ABC):
    """A source of mixup samples.

    Args:
        samples: What is mixed, one row for each label.
        labels: The class of each sample, (N,).
        n_classes: Number of classes, K.
        per_class: Samples of each class in a balanced batch, R.
        n_shuffles: Shuffles of a balanced batch, S.
        weights_per_sample: Draw a weight vector for each mixup sample. Otherwise the R mixup
            samples of a shuffle share one, as in the paper's Algorithm 1.

    Raises:
        MissingClassError: If a class has no sample.
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
        self.per_class = per_class
        self.n_shuffles = n_shuffles
        self.weights_per_sample = weights_per_sample
        self.members = _rows_by_class(labels, len(samples), n_classes)

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return len(self.members)

    def sample(self, beta: float, n_samples: int, generator: Generator | None = None) -> MixupBatch:
        """Return mixup samples with weights from Dirichlet(β, …, β).

        Args:
            beta: Concentration of the Dirichlet distribution, β.
            n_samples: Number of mixup samples.
            generator: Source of all randomness; torch's global one by default.
        """
        if not (beta > 0 and n_samples > 0):
            raise ValueError(
                f"`beta` and `n_samples` must be positive; got {beta} and {n_samples}."
            )
        check_generator(generator)
        k = self.n_classes
        affordable = math.isqrt(MAX_MATRIX // (k * self.n_shuffles))
        per_class = min(self.per_class, max(1, affordable))
        batch_size = per_class * self.n_shuffles
        n_batches = -(-n_samples // batch_size)
        numbers = k * per_class * max(batch_size, self.samples[0].numel())
        at_a_time = max(1, MAX_AT_A_TIME // numbers)
        counts = [min(at_a_time, n_batches - i) for i in range(0, n_batches, at_a_time)]
        parts = (self._mix(beta, count, per_class, generator) for count in counts)
        log_weights, *outputs = join(parts, n_samples)
        return MixupBatch(Outputs(*outputs), log_weights)

    def _mix(
        self, beta: float, n_batches: int, per_class: int, generator: Generator | None
    ) -> tuple[Tensor, ...]:
        """Return ln w, the logits and, where there are any, the features of mixup samples."""
        k = self.n_classes
        rows = _balanced_batches(self.members, n_batches, per_class, generator)
        n_weights = n_batches * self.n_shuffles
        if self.weights_per_sample:
            n_weights *= per_class
        log_weights = log_dirichlet(beta, n_weights, k, generator)
        log_weights = log_weights.view(n_batches, self.n_shuffles, -1, k)
        log_weights = log_weights.expand(-1, -1, per_class, -1)
        matrix = _mixing_matrix(log_weights, generator).to(self.samples)
        batches = self.samples[rows.flatten().to(self.samples.device)]
        mixed = matrix @ batches.view(n_batches, k * per_class, -1)
        outputs = self._outputs(mixed.view(-1, *self.samples.shape[1:]))
        log_weights = log_weights.reshape(-1, k).to(outputs.logits)
        if outputs.features is None:
            return log_weights, outputs.logits
        return log_weights, outputs.logits, outputs.features

    @abstractmethod
    def _outputs(self, mixed: Tensor) -> Outputs:
        """Return the network's outputs for mixup samples."""


class InputMixup(Mixup):
    """Mix raw inputs and run the network on the mixup samples, as the paper does.

    The defaults are the paper's, R = S = 10.

    Args:
        backbone: Returns the outputs for inputs, as a Backbone does.
        inputs: What is mixed, a floating-point tensor (N, …).
        labels: The class of each input, (N,); every class must be present.
        per_class: Samples of each class in a balanced batch, R.
        n_shuffles: Shuffles of a balanced batch, S.
        weights_per_sample: Draw a weight vector for each mixup sample. Otherwise the R mixup
            samples of a shuffle share one, as in the paper's Algorithm 1.
        batch_statistics: Run the network on R·S mixup samples at a time, and let its batch-norm
            layers normalise them by their own mean and variance. Nothing of the network changes,
            and dropout stays off. Otherwise the running statistics of the training normalise.

    Raises:
        MissingClassError: If a class has no sample.
        TypeError: If the inputs cannot be mixed, or the backbone has no layers to normalise.
    """

    def __init__(
        self,
        backbone: Callable[[Tensor], Outputs],
        inputs: Tensor,
        labels: Tensor,
        per_class: int = 10,
        n_shuffles: int = 10,
        weights_per_sample: bool = False,
        batch_statistics: bool = False,
    ) -> None:
        _check_mixable(inputs)
        self.normalised: nn.Module | None = None
        if batch_statistics:
            self.normalised = _network(backbone)
        k = backbone(inputs[:1]).n_classes
        super().__init__(inputs, labels, k, per_class, n_shuffles, weights_per_sample)
        self.backbone = backbone

    def _outputs(self, mixed: Tensor) -> Outputs:
        if self.normalised is None:
            return self._run(mixed.split(FORWARD_BATCH))
        # No batch is smaller than R·S, since a mean of few mixup samples would be noise.
        n_batches = max(1, len(mixed) // (self.per_class * self.n_shuffles))
        with batch_normalised(self.normalised):
            return self._run(mixed.tensor_split(n_batches))

    def _run(self, batches: Iterable[Tensor]) -> Outputs:
        return Outputs.cat([self.backbone(inputs) for inputs in batches])


class FeatureMixup(Mixup):
    """Mix features and apply the last linear layer: for any kind of input, without forward passes.

    Args:
        head: The last linear layer, ``backbone.head``.
        outputs: The network's outputs, with features.
        labels: The class of each input, (N,); every class must be present.
        per_class: Samples of each class in a balanced batch, R.
        n_shuffles: Shuffles of a balanced batch, S.
        weights_per_sample: Draw a weight vector for each mixup sample. Otherwise the R mixup
            samples of a shuffle share one, as in the paper's Algorithm 1.

    Raises:
        MissingClassError: If a class has no sample.
        ValueError: If there are no features, or the head does not fit them.
    """

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
                "`outputs` must have features to mix; got logits alone. "
                "Extract them with simplexcal.extract, or fit without mixup."
            )
        if (head.in_features, head.out_features) != (outputs.n_features, outputs.n_classes):
            raise ValueError(
                f"`head` must map the {outputs.n_features} features to {outputs.n_classes} logits; "
                f"it maps {head.in_features} to {head.out_features}. "
                "Pass the layer that made these logits, backbone.head."
            )
        k = outputs.n_classes
        super().__init__(outputs.features, labels, k, per_class, n_shuffles, weights_per_sample)
        # Reading a parametrized weight may compute it, and in training mode change it.
        with frozen(head):
            self.weight = head.weight.detach()
            self.bias: Tensor | None = None
            if head.bias is not None:
                self.bias = head.bias.detach()

    def _outputs(self, mixed: Tensor) -> Outputs:
        bias = self.bias
        if bias is not None:
            bias = bias.to(mixed)
        return Outputs(nn.functional.linear(mixed, self.weight.to(mixed), bias), mixed)


def log_dirichlet(beta: float, n: int, k: int, generator: Generator | None = None) -> Tensor:
    """Return ln w (n, K) for w ~ Dirichlet(β, …, β), finite for every β > 0.

    ln Gamma(β) = ln Gamma(β+1) + ln(U)/β in distribution (Marsaglia and Tsang 2000), so nothing
    underflows.

    Args:
        beta: Concentration, β.
        n: Number of weight vectors.
        k: Number of classes, K.
        generator: Source of all randomness; torch's global one by default.
    """
    device = getattr(generator, "device", "cpu")  # where the generator draws
    shape = torch.full((n, k), beta + 1.0, dtype=torch.float64, device=device)
    gamma = torch._standard_gamma(shape, generator=generator)
    log_uniform = -torch.empty_like(shape).exponential_(generator=generator)
    return (gamma.log() + log_uniform / beta).log_softmax(-1)


def make_mixup(
    kind: str | None,
    backbone: Backbone,
    inputs: list[Tensor],
    outputs: Outputs,
    labels: Tensor,
) -> Mixup | None:
    """Return a source of mixup samples with the default settings.

    Args:
        kind: What is mixed, "features" or "inputs"; None gives None.
        backbone: The network.
        inputs: Batches of its inputs, for "inputs".
        outputs: Its outputs for all inputs. Those for mixup samples are put on the same device.
        labels: The class of each input, (N,).
    """
    if kind is None:
        return None
    if kind == "features":
        return FeatureMixup(backbone.head, outputs, labels)
    device = outputs.logits.device
    return InputMixup(lambda x: backbone(x).to(device), torch.cat(inputs), labels)


def mixup_or_none(make: Callable[[], Mixup | None], needed: bool) -> Mixup | None:
    """Return a source of mixup samples, or None with a warning where a class is missing.

    Args:
        make: Returns the source.
        needed: The fit cannot do without: a missing class is an error.

    Raises:
        MissingClassError: If a class has no sample and the source is needed.
    """
    try:
        return make()
    except MissingClassError as error:
        if needed:
            raise
        warn_caller(
            f"{error} This fit goes on without mixup: "
            "its uncertainties are those of the likelihood head."
        )
        return None


def _check_mixable(inputs: object) -> None:
    """Raise TypeError unless inputs are a floating-point tensor."""
    kind: object = type(inputs).__name__
    if isinstance(inputs, Tensor):
        if inputs.is_floating_point():
            return
        kind = inputs.dtype
    raise TypeError(
        f"`inputs` must be a floating-point tensor to be mixed; got {kind}. "
        "Normalise images to floats; for text or other inputs that cannot be mixed, "
        "use FeatureMixup."
    )


def _network(backbone: object) -> nn.Module:
    """Return the network whose layers a backbone runs."""
    if isinstance(backbone, Backbone):
        return backbone.net
    if isinstance(backbone, nn.Module):
        return backbone
    raise TypeError(
        "`backbone` must be a Backbone or another torch.nn.Module for `batch_statistics`; "
        f"got {type(backbone).__name__}. Pass Backbone(net)."
    )


def _rows_by_class(labels: Tensor, n: int, k: int) -> list[Tensor]:
    """Return the row numbers of the samples of each class."""
    labels = check_labels(labels, n, k).cpu()
    members = [torch.nonzero(labels == c).squeeze(1) for c in range(k)]
    missing = [str(c) for c, rows in enumerate(members) if len(rows) == 0]
    if not missing:
        return members
    listed = ", ".join(missing[:10])
    if len(missing) > 10:
        listed += ", …"
    raise MissingClassError(
        "`labels` must hold every class, since Multi-Mixup mixes one sample of each; "
        f"missing: {listed}. Add such samples, or fit without mixup (mixup=None)."
    )


def _balanced_batches(
    members: list[Tensor], n_batches: int, per_class: int, generator: Generator | None
) -> Tensor:
    """Return row numbers (P, K, R): P batches with R samples of each class.

    A batch holds each sample once where there are enough, and else each about equally often.
    """
    device = getattr(generator, "device", "cpu")  # where the generator draws
    rows = []
    for candidates in members:
        n_rounds = -(-per_class // len(candidates))
        shape = (n_batches, n_rounds, len(candidates))
        order = torch.rand(shape, generator=generator, device=device).argsort(-1)
        chosen = order.flatten(1)[:, :per_class]
        rows.append(candidates.to(device)[chosen])
    return torch.stack(rows, 1)


def _mixing_matrix(log_weights: Tensor, generator: Generator | None) -> Tensor:
    """Return the matrix (P, S·R, K·R) that mixes balanced batches, given ln w (P, S, R, K).

    Each shuffle uses each of the R samples of a class once.
    """
    n_batches, n_shuffles, per_class, k = log_weights.shape
    device = log_weights.device
    shape = (n_batches, n_shuffles, k, per_class)
    shuffled = torch.rand(shape, generator=generator, device=device).argsort(-1)
    first_column = per_class * torch.arange(k, device=device).unsqueeze(-1)
    columns = (shuffled + first_column).transpose(2, 3)
    matrix = torch.zeros(
        n_batches, n_shuffles, per_class, k * per_class, device=device, dtype=torch.float32
    )
    return matrix.scatter_(-1, columns, log_weights.exp().float()).flatten(1, 2)
