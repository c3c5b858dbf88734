"""One network and its steps of SGD, without a word from the host: what a CUDA graph can replay."""

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

LEARNING_RATE = 0.1
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
# The loss is scaled, since float16 would lose small gradients; a power of two rounds nothing.
LOSS_SCALE = 1024.0


def cosine_schedule(n_steps: int) -> list[float]:
    """Return the learning rate of each step: LEARNING_RATE (1 + cos(π i / n)) / 2.

    Args:
        n_steps: n.
    """
    half = LEARNING_RATE / 2
    return [half * (1 + math.cos(math.pi * i / n_steps)) for i in range(n_steps)]


def set_memory_format(net: nn.Module, memory_format: torch.memory_format) -> None:
    """Lay out the weights of convolutions in this order; their values stay.

    Args:
        net: The network, changed in place.
        memory_format: The order in memory.
    """
    for parameter in net.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=memory_format)


class Learner:
    """A network with float32 weights that learn, and copies of them that compute.

    Batch-norm layers stay float32. This is what autocast does, without its kernels: a whole
    network's weights, gradients and momenta are copied and updated in one pass, as vectors in the
    order of memory.

    Args:
        net: The network. It is in training mode and lies channels last from now on.
        dtype: The dtype of the copies.
        compiled: Compile the forward pass.
    """

    def __init__(
        self, net: nn.Module, dtype: torch.dtype = torch.float32, compiled: bool = False
    ) -> None:
        self.net = net.train()
        self.dtype = dtype
        set_memory_format(net, torch.channels_last)
        self.copies = _copies(net, dtype)
        self.weights = [_flatten(parameter.detach()) for parameter in net.parameters()]
        self.gradients = [torch.zeros_like(weight) for weight in self.weights]
        self.momenta = [torch.zeros_like(weight) for weight in self.weights]
        device = self.weights[0].device
        self.loss = torch.full((), 0.0, device=device)
        self.scale = torch.full((), LOSS_SCALE, device=device)
        self.logits = self._logits
        if compiled:
            self.logits = torch.compile(self._logits)

    def step(self, images: Tensor, labels: Tensor, rate: Tensor) -> None:
        """Take one step on the mean cross-entropy of a batch, and add that to ``loss``.

        Args:
            images: Normalised images (B, C, H, W).
            labels: Their classes (B,).
            rate: The learning rate, on the device.
        """
        logits = self.logits(self.copies, images.to(self.dtype)).float()
        loss = cross_entropy(logits, labels)
        gradients = torch.autograd.grad(LOSS_SCALE * loss, list(self.copies.values()))
        _copy(self.gradients, [_flatten(gradient) for gradient in gradients])
        # This is the kernel of torch.optim.SGD(fused=True). It reads its rate on the device.
        torch._fused_sgd_(
            self.weights,
            self.gradients,
            self.momenta,
            weight_decay=WEIGHT_DECAY,
            momentum=MOMENTUM,
            lr=rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,  # Momenta start from 0, which gives the same first step.
            grad_scale=self.scale,
        )
        self.refresh()
        self.loss += loss.detach()

    def refresh(self) -> None:
        """Set the copies to the weights."""
        _copy([_flatten(copy.detach()) for copy in self.copies.values()], self.weights)

    def state(self) -> dict[str, Tensor]:
        """Return all tensors that a step changes, by name, without the copies."""
        state = {"loss": self.loss, **self.net.state_dict()}
        for name, momentum in zip(self.copies, self.momenta, strict=True):
            state[f"{name}.momentum"] = momentum
        return state

    def _logits(self, copies: dict[str, Tensor], images: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.net, copies, images)
        return logits


def _copies(net: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the copies that compute, by name: in ``dtype``, those of batch-norm layers as is."""
    kept: set[int] = set()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            kept.update(id(parameter) for parameter in module.parameters())
    copies = {}
    for name, parameter in net.named_parameters():
        copy_dtype = dtype
        if id(parameter) in kept:
            copy_dtype = parameter.dtype
        copies[name] = parameter.detach().to(copy_dtype, copy=True).requires_grad_()
    return copies


def _flatten(value: Tensor) -> Tensor:
    """Return a vector in channels-last order: a view of a tensor that lies so, else a copy."""
    if value.dim() == 4:
        value = value.permute(0, 2, 3, 1)
    return value.reshape(-1)


def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source to its target, in one pass for each pair of dtypes."""
    grouped: dict[tuple[torch.dtype, torch.dtype], list[tuple[Tensor, Tensor]]]
    grouped = defaultdict(list)
    for target, source in zip(targets, sources, strict=True):
        grouped[target.dtype, source.dtype].append((target, source))
    for pairs in grouped.values():
        torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs])
