"""What the methods trained by stochastic gradient descent share: layers, batches and the loop.

Random numbers are drawn on the generator's device (without a generator on the CPU, from torch's
global state) and then moved, so that a CPU generator gives the same numbers on every device.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Generator, Tensor, nn

from simplexcal._progress import track
from simplexcal.calibrators._cuda_graph import CudaGraphed

MASKED = 1e9  # A logit further below the largest is that of a masked class.
FAR = 200.0  # Of this size a row's constant outweighs all differences that matter: e^-200 is 0.


def mlp(
    sizes: Sequence[int],
    activation: type[nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """Return linear layers with an activation between them, their weights not set yet.

    Args:
        sizes: Widths from the input to the output.
        activation: Class of the activations.
    """
    layers: list[nn.Module] = []
    for n_inputs, n_outputs in pairwise(sizes):
        layers += [nn.utils.skip_init(nn.Linear, n_inputs, n_outputs), activation()]
    return nn.Sequential(*layers[:-1])


def glorot_uniform(module: nn.Module, generator: Generator | None) -> None:
    """Set the weights of every linear layer to U(±√(6 / (n_in + n_out))), its biases to zero.

    Args:
        module: Holds the layers.
        generator: Source of randomness.
    """
    for layer in _linear_layers(module):
        bound = math.sqrt(6 / (layer.in_features + layer.out_features))
        uniform_(layer.weight, bound, generator)
        layer.bias.data.zero_()


def default_uniform(module: nn.Module, generator: Generator | None) -> None:
    """Set the weights and biases of every linear layer to U(±1/√n_in), as torch does by default.

    Args:
        module: Holds the layers.
        generator: Source of randomness.
    """
    for layer in _linear_layers(module):
        bound = 1 / math.sqrt(layer.in_features)
        uniform_(layer.weight, bound, generator)
        uniform_(layer.bias, bound, generator)


def _linear_layers(module: nn.Module) -> list[nn.Linear]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


def uniform_(
    parameter: Tensor,
    bound: float,
    generator: Generator | None,
) -> None:
    """Set a parameter to numbers from U(±bound).

    Args:
        parameter: Changed in place.
        bound: Largest absolute value.
        generator: Source of randomness.
    """
    unit = torch.rand(parameter.shape, generator=generator, device=generator_device(generator))
    parameter.data.copy_((2 * unit - 1) * bound)


def generator_device(generator: Generator | None) -> torch.device:
    """Return the device on which random numbers are drawn.

    Args:
        generator: Source of randomness, or None.
    """
    if generator is None:
        return torch.device("cpu")
    return generator.device


def row_batches(
    n: int,
    batch_size: int,
    generator: Generator | None,
    device: torch.device,
) -> Iterator[Tensor]:
    """Yield row numbers forever: all n in a new random order, then again.

    The last batch of a round is smaller where ``batch_size`` does not divide n.

    Args:
        n: Number of rows.
        batch_size: Rows in a batch.
        generator: Source of randomness.
        device: Where the row numbers are to be.
    """
    while True:
        order = torch.randperm(n, generator=generator, device=generator_device(generator))
        yield from order.to(device).split(batch_size)


def minimise(
    loss: Callable[..., Tensor],
    batches: Iterator[Sequence[Tensor]],
    parameters: Iterable[nn.Parameter],
    *,
    n_steps: int,
    learning_rate: float,
    weight_decay: float = 0.0,
    lr_decay: bool = False,
    progress: bool = False,
    cuda_graph: bool = True,
) -> None:
    """Take steps of Adam, each on a new batch.

    Args:
        loss: A function of the tensors of a batch.
        batches: Yields batches.
        parameters: Trained in place.
        n_steps: Number of steps.
        learning_rate: Learning rate.
        weight_decay: Weight decay.
        lr_decay: Decay the learning rate to 0 along a cosine.
        progress: Show a progress bar.
        cuda_graph: On a GPU, replay the steps as a graph; the loss must do nothing but compute.
    """
    parameters = list(parameters)
    device = parameters[0].device
    graph = cuda_graph and device.type == "cuda"
    rate: Tensor | float = learning_rate
    if graph:
        rate = torch.tensor(learning_rate, device=device)  # A graph sees a tensor's changes.
    fused = device.type in ("cpu", "cuda")  # One pass over the parameters, not a dozen.
    optimiser = torch.optim.Adam(
        parameters, rate, weight_decay=weight_decay, fused=fused, capturable=graph
    )
    schedule = None
    if lr_decay:
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, n_steps)

    def step(*batch: Tensor) -> None:
        optimiser.zero_grad()
        loss(*batch).backward()
        optimiser.step()

    take_step: Callable[..., object] = step
    if graph:
        take_step = CudaGraphed(step)
    steps: Iterable[int] = range(n_steps)
    if progress:
        steps = track(steps, "Fitting")
    for _ in steps:
        take_step(*next(batches))
        if schedule is not None:
            schedule.step()
    optimiser.zero_grad()


@contextmanager
def tensor_cores(device: torch.device) -> Iterator[None]:
    """Let a GPU round the factors of float32 products to 11 bits (TF32), which is much faster.

    The gradients of a training are noisier than that.

    Args:
        device: Where the products are.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def divide_logits(logits: Tensor, temperature: Tensor, far: float = FAR) -> Tensor:
    """Return logits / T, up to a constant in each row.

    Rows far from 0 have their largest logit subtracted first, which is exact near it. Otherwise the
    division would round the differences away, or overflow.

    Args:
        logits: (..., K).
        temperature: T, () or (..., 1).
        far: Rows further from 0 than this, after the division, are far.
    """
    largest = logits.amax(-1, keepdim=True)
    scaled = logits / temperature
    is_far = largest.abs() > far * temperature
    return torch.where(is_far, (logits - largest) / temperature, scaled)


def floor_logits(logits: Tensor, depth: float = MASKED) -> Tensor:
    """Return the logits with those further than ``depth`` below the largest, or at -∞, just there.

    A class so far down is masked by the network and has no gradient: divided by a small T it would
    have 0 · ∞.

    Args:
        logits: (..., K).
        depth: Largest distance from the largest logit.
    """
    return torch.maximum(logits, logits.amax(-1, keepdim=True) - depth)
