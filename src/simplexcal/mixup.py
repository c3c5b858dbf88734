"""Multi-Mixup: samples on the whole probability simplex, mixed from one sample of each class.

x̃ = Σ_k w_k x^(k),  π̃ = w ~ Dirichlet(β, …, β)   (Esaki et al. 2024, Sec. 4.3.1 and Appendix B).

Mixup samples come from balanced batches with R samples of each class. The samples of each class are
shuffled S times, and the r-th of every class are mixed. So one batch gives R·S mixup samples by one
matrix product, (R·S, K·R) times (K·R, …). With so many classes that this matrix would be too large,
or its products with 0 too many, R is smaller. Memory is bounded by the batches that are mixed at a
time, not by the number of mixup samples. Weights are drawn, and returned, as logarithms: small β
never gives -∞.

A class without a sample is left out. The weights are then those of the other classes, and so are
the logits of a mixup sample. This loses nothing: π_k ∝ exp((g_k + G_k) / λ), so the probabilities
of some of the classes, divided by their sum, again have a Concrete distribution, with the logits of
these classes and the same λ. (The same holds for the Dirichlet distribution.)
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from copy import copy
from itertools import chain
from typing import NamedTuple, Self, cast

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from simplexcal._chunking import join
from simplexcal._validation import check_generator, check_labels, warn_caller
from simplexcal.backbone import Backbone
from simplexcal.backbone._forward import batch_normalised, frozen
from simplexcal.types import Outputs

FORWARD_BATCH = 4096  # inputs of one forward pass
MAX_MATRIX = 2**24  # numbers in one mixing matrix
MAX_PRODUCTS = 3_000_000  # multiplications for one mixup sample
MAX_AT_A_TIME = 2**24  # numbers in the mixing matrices, and in the batches, that are held at a time
MAX_IN_CACHE = 2**22  # the same on a CPU: more would not stay in its caches
MAX_FEATURES = 1024  # that a branch reads where it reads logits
MAX_DEPTH = 200.0  # A logit further below the largest counts as one just there, in nats.
# A head gives the logits if the difference is below this share of them (root mean squares). It is
# 0.2 % for outputs in bfloat16, and 1.7 % if the demo's network lacks its small biases.
MAX_HEAD_ERROR = 0.01
HEAD_DEPTH = 15.0  # Classes further down are not compared: saved probabilities end about there.
HEAD_ROWS = 256  # So many outputs, or up to twice as many, are compared.


class MixupBatch(NamedTuple):
    """Mixup samples of the C classes that are mixed; mostly these are all K.

    Attributes:
        outputs: The network's outputs for n mixup samples: the logits of the mixed classes alone,
            (n, C), and all features, (n, D).
        log_weights: Logarithms of the weights of the mixed classes, (n, C).
    """

    outputs: Outputs
    log_weights: Tensor


class Mixup(ABC):
    """A source of mixup samples of the classes that have samples.

    It warns of those that have none.

    Args:
        samples: What is mixed, one row for each label.
        labels: The class of each sample, (N,).
        n_classes: Number of classes, K.
        per_class: Samples of each class in a balanced batch, R.
        n_shuffles: Shuffles of a balanced batch, S.
        weights_per_sample: Draw a weight vector for each mixup sample. Otherwise the R mixup
            samples of a shuffle share one, as in the paper's Algorithm 1.

    Attributes:
        n_classes: Number of classes, K.
        classes: Numbers of the classes that are mixed, in ascending order, (C,).
        members: Row numbers of the samples of each class that is mixed.

    Raises:
        ValueError: If fewer than two classes have a sample.
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
        self.n_classes = n_classes
        rows_by_class = _rows_by_class(labels, len(samples), n_classes)
        self.classes = _mixed_classes(rows_by_class)
        self.members = [rows_by_class[c] for c in self.classes.tolist()]

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
        k = len(self.classes)
        size = self.samples[0].numel()
        by_matrix = math.isqrt(MAX_MATRIX // (k * self.n_shuffles))
        by_products = MAX_PRODUCTS // (k * size)
        per_class = max(1, min(self.per_class, by_matrix, by_products))
        batch_size = per_class * self.n_shuffles
        n_batches = -(-n_samples // batch_size)
        numbers = k * per_class * max(batch_size, size)
        most = MAX_AT_A_TIME
        if self.samples.device.type == "cpu":
            most = min(most, MAX_IN_CACHE)
        at_a_time = max(1, most // numbers)
        rows = _balanced_batches(self.members, n_batches, per_class, generator)
        parts = (self._mix(beta, some, generator) for some in rows.split(at_a_time))
        log_weights, *outputs = join(parts, n_samples)
        return MixupBatch(self._of_mixed_classes(Outputs(*outputs)), log_weights)

    def _mix(self, beta: float, rows: Tensor, generator: Generator | None) -> tuple[Tensor, ...]:
        """Return ln w, the logits and, where there are any, the features of mixup samples.

        Args:
            beta: β.
            rows: Row numbers of balanced batches, (P, K, R).
            generator: Source of randomness.
        """
        n_batches, k, per_class = rows.shape
        n_weights = n_batches * self.n_shuffles
        if self.weights_per_sample:
            n_weights *= per_class
        log_weights = log_dirichlet(beta, n_weights, k, generator)
        log_weights = log_weights.view(n_batches, self.n_shuffles, -1, k)
        log_weights = log_weights.expand(-1, -1, per_class, -1)
        matrix = _mixing_matrix(log_weights, generator).to(self.samples)
        batches = self.samples.index_select(0, rows.flatten().to(self.samples.device))
        mixed = matrix @ batches.view(n_batches, k * per_class, -1)
        outputs = self._outputs(mixed.view(-1, *self.samples.shape[1:]))
        log_weights = log_weights.reshape(-1, k).to(outputs.logits)
        if outputs.features is None:
            return log_weights, outputs.logits
        return log_weights, outputs.logits, outputs.features

    @abstractmethod
    def _outputs(self, mixed: Tensor) -> Outputs:
        """Return the network's outputs for mixup samples."""

    def _of_mixed_classes(self, outputs: Outputs) -> Outputs:
        """Return the outputs with the logits of the mixed classes alone."""
        if len(self.classes) == self.n_classes:
            return outputs
        logits = outputs.logits[:, self.classes.to(outputs.logits.device)]
        return Outputs(logits, outputs.features)


class InputMixup(Mixup):
    """Mix raw inputs and run the network on the mixup samples, as the paper does.

    The defaults are the paper's, R = S = 10.

    Args:
        backbone: Returns the outputs for inputs, as a Backbone does.
        inputs: What is mixed, a floating-point tensor (N, …).
        labels: The class of each input, (N,), at least two classes.
        per_class: Samples of each class in a balanced batch, R.
        n_shuffles: Shuffles of a balanced batch, S.
        weights_per_sample: Draw a weight vector for each mixup sample. Otherwise the R mixup
            samples of a shuffle share one, as in the paper's Algorithm 1.
        batch_statistics: Run the network on R·S mixup samples at a time, and let its batch-norm
            layers normalise them by their own mean and variance. Nothing of the network changes,
            and dropout stays off. Otherwise the running statistics of the training normalise.

    Raises:
        TypeError: If the inputs cannot be mixed, or the backbone has no layers to normalise.
        ValueError: If fewer than two classes have a sample.
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
        return Outputs.cat([self.backbone(_as_gpus_convolve(inputs)) for inputs in batches])


def _as_gpus_convolve(inputs: Tensor) -> Tensor:
    """Return images on a GPU channels last, as its convolutions are fastest, others as they are."""
    if inputs.device.type == "cuda" and inputs.dim() == 4:
        return inputs.contiguous(memory_format=torch.channels_last)
    return inputs


class FeatureMixup(Mixup):
    """Mix features and apply the last layer: for any kind of input, without forward passes.

    Args:
        head: The layer that makes the logits, ``backbone.head``: a linear one or any other module.
        outputs: The network's outputs, with features.
        labels: The class of each input, (N,), at least two classes.
        per_class: Samples of each class in a balanced batch, R.
        n_shuffles: Shuffles of a balanced batch, S.
        weights_per_sample: Draw a weight vector for each mixup sample. Otherwise the R mixup
            samples of a shuffle share one, as in the paper's Algorithm 1.

    Raises:
        ValueError: If there are no features, the head does not turn them into the logits, or fewer
            than two classes have a sample.
    """

    def __init__(
        self,
        head: nn.Module,
        outputs: Outputs,
        labels: Tensor,
        per_class: int = 100,
        n_shuffles: int = 10,
        weights_per_sample: bool = True,
    ) -> None:
        if outputs.features is None:
            raise ValueError(
                "`outputs` must have features to mix; got logits alone. "
                "Extract them with simplexcal.extract, or use LogitMixup."
            )
        sizes = (outputs.n_features, outputs.n_classes)
        if isinstance(head, nn.Linear) and (head.in_features, head.out_features) != sizes:
            raise ValueError(
                f"`head` must map the {outputs.n_features} features to {outputs.n_classes} logits; "
                f"it maps {head.in_features} to {head.out_features}. "
                "Pass the layer that made these logits, backbone.head."
            )
        error = head_error(head, outputs)
        if error > MAX_HEAD_ERROR:
            raise ValueError(
                "`head` must turn the features of `outputs` into their logits; "
                f"it is off by {error:.0%}. Pass the layer that made these logits, backbone.head."
            )
        k = outputs.n_classes
        super().__init__(outputs.features, labels, k, per_class, n_shuffles, weights_per_sample)
        self.head = head

    def _outputs(self, mixed: Tensor) -> Outputs:
        return Outputs(_apply_head(self.head, mixed), mixed)


class LogitMixup(Mixup):
    """Mix logits, where there are no features: features := logits, last layer := identity.

    What is mixed are the ``depths`` of the logits. The branch reads ``logit_features``: with up to
    1024 classes they are the depths themselves, and one tensor holds both.

    Args:
        outputs: The network's outputs; their features are not used.
        labels: The class of each input, (N,), at least two classes.
        per_class: Samples of each class in a balanced batch, R.
        n_shuffles: Shuffles of a balanced batch, S.
        weights_per_sample: Draw a weight vector for each mixup sample. Otherwise the R mixup
            samples of a shuffle share one, as in the paper's Algorithm 1.

    Raises:
        ValueError: If fewer than two classes have a sample.
    """

    def __init__(
        self,
        outputs: Outputs,
        labels: Tensor,
        per_class: int = 100,
        n_shuffles: int = 10,
        weights_per_sample: bool = True,
    ) -> None:
        self.logits = outputs.logits.detach()
        samples = depths(self.logits)
        k = outputs.n_classes
        super().__init__(samples, labels, k, per_class, n_shuffles, weights_per_sample)

    def at_temperature(self, temperature: Tensor | float) -> Self:
        """Return a source that mixes the logits divided by a temperature.

        Args:
            temperature: T of temperature scaling, so that the scale of the logits does not matter.
        """
        scaled = copy(self)
        scaled.samples = depths(self.logits, temperature)
        return scaled

    def _outputs(self, mixed: Tensor) -> Outputs:
        return Outputs(depths(mixed))

    def _of_mixed_classes(self, outputs: Outputs) -> Outputs:
        return super()._of_mixed_classes(Outputs(outputs.logits, _folded(outputs.logits)))


def logit_features(logits: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """Return the features that a branch reads where it reads logits, (..., K), or (..., 1024).

    They are the ``depths`` of the logits. Of more than 1024 classes, each 1024th one shares a
    feature: it is the sum of their depths, with signs.

    Args:
        logits: (..., K), of any size.
        temperature: T of temperature scaling.
    """
    return _folded(depths(logits, temperature))


def n_logit_features(n_classes: int) -> int:
    """Return how many features ``logit_features`` gives.

    Args:
        n_classes: K.
    """
    return min(n_classes, MAX_FEATURES)


def _folded(values: Tensor) -> Tensor:
    """Return Σ_i s_i · values[..., 1024 i + j], with the signs s of the Thue-Morse sequence."""
    k = values.shape[-1]
    if k <= MAX_FEATURES:
        return values
    n_parts = -(-k // MAX_FEATURES)
    padded = nn.functional.pad(values, (0, n_parts * MAX_FEATURES - k))
    signs = [1.0 - 2.0 * (i.bit_count() % 2) for i in range(n_parts)]
    parts = padded.unflatten(-1, (n_parts, MAX_FEATURES))
    folded: Tensor = (torch.tensor(signs).to(values).unsqueeze(-1) * parts).sum(-2)
    return folded


def depths(logits: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """Return distances to the largest logit, divided by a temperature, in [-200, 0], (..., K).

    A class further down than 200 nats is masked by the network, as by -1e9, and counts as one just
    there. So neither a constant in the logits nor, at the temperature of temperature scaling, their
    scale matters.

    Args:
        logits: (..., K), of any size.
        temperature: T of temperature scaling.
    """
    # Subtracting first is exact near the largest logit, also where that is huge. The difference of
    # extreme logits may be -∞, which is just another masked class.
    below = logits - logits.amax(-1, keepdim=True)
    return (below / temperature).clamp_min(-MAX_DEPTH)


def head_error(head: nn.Module, outputs: Outputs) -> float:
    """Return by how much a layer misses the logits, relative to them (root mean squares).

    A constant in each row does not count.

    Args:
        head: The layer.
        outputs: Outputs with the features that the layer takes.
    """
    some = outputs[:: max(1, len(outputs) // HEAD_ROWS)]
    expected = _centred(some.logits)
    found = _centred(_apply_head(head, cast(Tensor, some.features)))
    difference = (found - expected).square().mean().sqrt()
    return float(difference / expected.square().mean().sqrt())


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
        kind: What is mixed, "features", "inputs" or "logits"; None gives None. Where there are no
            features, logits are mixed instead.
        backbone: The network.
        inputs: Batches of its inputs, for "inputs".
        outputs: Its outputs for all inputs. Those for mixup samples are put on the same device.
        labels: The class of each input, (N,).
    """
    if kind is None:
        return None
    if kind == "features" and outputs.features is not None:
        return FeatureMixup(backbone.head, outputs, labels)
    if kind in ("features", "logits"):
        return LogitMixup(outputs, labels)
    device = outputs.logits.device
    return InputMixup(lambda x: backbone(x).to(device), torch.cat(inputs), labels)


def _apply_head(head: nn.Module, features: Tensor) -> Tensor:
    """Return what the layer itself makes of features, in their dtype and on their device.

    The layer is called, since subclasses of nn.Linear compute more than weight and bias: cosine
    heads, LoRA.
    """
    tensors = dict(chain(head.named_parameters(), head.named_buffers()))
    floating = {name: x.to(features) for name, x in tensors.items() if x.is_floating_point()}
    # In training mode a call may change a parametrized weight.
    with frozen(head):
        logits: Tensor = functional_call(head, floating, (features,))
    return logits.to(features)


def _centred(logits: Tensor) -> Tensor:
    """Return the logits no deeper than HEAD_DEPTH, in float64 and around zero in each row."""
    logits = logits.double()
    depth = (logits - logits.amax(-1, keepdim=True)).clamp_min(-HEAD_DEPTH)
    return depth - depth.mean(-1, keepdim=True)


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
    order = labels.argsort(stable=True)
    counts = labels.bincount(minlength=k)
    return list(order.split(counts.tolist()))


def _mixed_classes(rows_by_class: list[Tensor]) -> Tensor:
    """Return the numbers of the classes that have samples, and warn of those that have none."""
    counts = torch.tensor([len(rows) for rows in rows_by_class])
    present = torch.nonzero(counts).squeeze(1)
    missing = torch.nonzero(counts == 0).squeeze(1).tolist()
    if missing:
        warn_caller(
            f"`labels` lack {_count(len(missing))} of {len(counts)}: {_listed(missing)}. "
            "Multi-Mixup mixes the other classes; λ(x) has not seen the missing ones. "
            "Add samples of them if their uncertainties matter."
        )
    return present


def _count(n: int) -> str:
    if n == 1:
        return "1 class"
    return f"{n} classes"


def _listed(classes: list[int]) -> str:
    """Return the numbers of the first ten classes."""
    listed = ", ".join(map(str, classes[:10]))
    if len(classes) > 10:
        listed += ", …"
    return listed


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
