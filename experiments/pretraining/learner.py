"""One network and its steps of SGD, without a word from the host: what a CUDA graph can replay."""

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

RATE, MOMENTUM, DECAY = 0.1, 0.9, 5e-4
SCALE = 1024.0  # of the loss: float16 would lose small gradients; a power of two rounds nothing


def cosine(n_steps: int) -> list[float]:
    """Return the learning rate of each step: RATE (1 + cos(π i / n)) / 2."""
    return [RATE / 2 * (1 + math.cos(math.pi * i / n_steps)) for i in range(n_steps)]


def arrange(net: nn.Module, memory_format: torch.memory_format) -> None:
    """Lay the weights of convolutions out in this order; their values stay."""
    for p in net.parameters():
        if p.dim() == 4:
            p.data = p.data.contiguous(memory_format=memory_format)


class Learner:
    """A network with float32 weights that learn, and copies of them in ``dtype`` that compute.

    Batch-norm layers stay float32. This is what autocast does, less its kernels: a whole network's weights, gradients
    and momenta are copied and updated in one pass, as vectors in the order of memory.
    """

    def __init__(
        self, net: nn.Module, dtype: torch.dtype = torch.float32, compiled: bool = False
    ) -> None:
        self.net, self.dtype = net.train(), dtype
        arrange(net, torch.channels_last)
        kept = {
            id(p) for m in net.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()
        }
        self.copies = {
            name: p.detach().to(p.dtype if id(p) in kept else dtype, copy=True).requires_grad_()
            for name, p in net.named_parameters()
        }
        self.weights = [_flat(p.detach()) for p in net.parameters()]
        self.gradients, self.momenta = (
            [torch.zeros_like(w) for w in self.weights] for _ in range(2)
        )
        self.loss, self.scale = (
            torch.full((), v, device=self.weights[0].device) for v in (0.0, SCALE)
        )
        self.logits = torch.compile(self._logits) if compiled else self._logits

    def step(self, images: Tensor, labels: Tensor, rate: Tensor) -> None:
        """Take one step on the mean cross-entropy of a batch, and add that to ``loss``."""
        loss = cross_entropy(self.logits(self.copies, images.to(self.dtype)).float(), labels)
        gradients = torch.autograd.grad(SCALE * loss, list(self.copies.values()))
        _copy(self.gradients, [_flat(g) for g in gradients])
        torch._fused_sgd_(  # the kernel of torch.optim.SGD(fused=True), which reads its rate on the device
            self.weights,
            self.gradients,
            self.momenta,
            weight_decay=DECAY,
            momentum=MOMENTUM,
            lr=rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,  # momenta start from 0, which gives the same first step
            grad_scale=self.scale,
        )
        self.refresh()
        self.loss += loss.detach()

    def refresh(self) -> None:
        """Set the copies to the weights."""
        _copy([_flat(c.detach()) for c in self.copies.values()], self.weights)

    def changing(self) -> dict[str, Tensor]:
        """Return all tensors that a step changes, by name; the copies, which follow the weights, excepted."""
        momenta = {f"{name}.momentum": m for name, m in zip(self.copies, self.momenta, strict=True)}
        return {"loss": self.loss, **self.net.state_dict(), **momenta}

    def _logits(self, copies: dict[str, Tensor], images: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.net, copies, images)
        return logits


def _flat(value: Tensor) -> Tensor:
    """Return a vector in channels-last order: a view of a tensor that lies so, a copy of another."""
    return value.permute(0, 2, 3, 1).reshape(-1) if value.dim() == 4 else value.reshape(-1)


def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source to its target, in one pass for each pair of dtypes."""
    pairs: dict[tuple[torch.dtype, torch.dtype], list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for target, source in zip(targets, sources, strict=True):
        pairs[target.dtype, source.dtype].append((target, source))
    for group in pairs.values():
        torch._foreach_copy_([t for t, _ in group], [s for _, s in group])
