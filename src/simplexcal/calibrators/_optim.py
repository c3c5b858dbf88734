"""What the methods trained by stochastic gradient share: layers and their first values, batches, the loop.

Random numbers are drawn where the generator lives (on the CPU without one, from torch's global state) and then moved,
so a CPU generator gives the same numbers on every device.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, repeat

import torch
from torch import Generator, Tensor, nn

from simplexcal._progress import track
from simplexcal.calibrators._cuda_graph import CudaGraphed
from simplexcal.types import Outputs


def mlp(sizes: Sequence[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return linear layers of these sizes with an activation between them, their weights not set yet."""
    layers: list[nn.Module] = []
    for n_inputs, n_outputs in pairwise(sizes):
        layers += [nn.utils.skip_init(nn.Linear, n_inputs, n_outputs), activation()]
    return nn.Sequential(*layers[:-1])


def glorot_uniform(module: nn.Module, generator: Generator | None) -> None:
    """Set the weights of every linear layer to U(±√(6 / (n_in + n_out))) and its biases to zero."""
    for layer in _linear_layers(module):
        draw_uniform(
            layer.weight, math.sqrt(6 / (layer.in_features + layer.out_features)), generator
        )
        layer.bias.data.zero_()


def default_uniform(module: nn.Module, generator: Generator | None) -> None:
    """Set the weights and biases of every linear layer to U(±1/√n_in), which is torch's default law."""
    for layer in _linear_layers(module):
        draw_uniform(layer.weight, 1 / math.sqrt(layer.in_features), generator)
        draw_uniform(layer.bias, 1 / math.sqrt(layer.in_features), generator)


def _linear_layers(module: nn.Module) -> list[nn.Linear]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


def draw_uniform(parameter: Tensor, bound: float, generator: Generator | None) -> None:
    """Set ``parameter`` to numbers from U(±bound)."""
    unit = torch.rand(parameter.shape, generator=generator, device=generator_device(generator))
    parameter.data.copy_((2 * unit - 1) * bound)


def generator_device(generator: Generator | None) -> torch.device:
    """Return the device on which random numbers are drawn."""
    return torch.device("cpu") if generator is None else generator.device


def batches(
    n: int, batch_size: int, generator: Generator | None, device: torch.device
) -> Iterator[Tensor]:
    """Yield row numbers forever: all n in a new random order, ``batch_size`` at a time, then again.

    The last batch of a round is smaller where ``batch_size`` does not divide n.
    """
    while True:
        yield from (
            torch.randperm(n, generator=generator, device=generator_device(generator))
            .to(device)
            .split(batch_size)
        )


def minimise(
    loss: Callable[..., Tensor],
    parameters: Iterable[nn.Parameter],
    n_steps: int,
    learning_rate: float,
    weight_decay: float = 0.0,
    progress: bool = False,
    lr_decay: bool = False,
    stream: Iterator[Sequence[Tensor]] | None = None,
) -> None:
    """Take ``n_steps`` steps of Adam on ``loss``, a new batch's at each call; ``lr_decay`` lowers the rate to 0.

    A loss of the batches that ``stream`` gives, which does nothing but compute, is replayed as a graph on a GPU.
    """
    parameters = list(parameters)
    device = parameters[0].device
    graph = device.type == "cuda" and stream is not None
    fused = device.type in ("cpu", "cuda")  # one pass over the parameters, not a dozen
    rate = (
        torch.tensor(learning_rate, device=device) if graph else learning_rate
    )  # a graph sees a tensor's changes
    optimiser = torch.optim.Adam(
        parameters, rate, weight_decay=weight_decay, fused=fused, capturable=graph
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, n_steps) if lr_decay else None

    def step(*batch: Tensor) -> None:
        optimiser.zero_grad()
        loss(*batch).backward()
        optimiser.step()

    take = CudaGraphed(step) if graph else step
    for _, batch in zip(
        track(range(n_steps), "Fitting", progress), stream or repeat(()), strict=False
    ):
        take(*batch)
        if schedule is not None:
            schedule.step()
    optimiser.zero_grad()


def check_n_features(n_features: int | None) -> int:
    """Return ``n_features``, or say that the method needs features."""
    if n_features is None:
        raise ValueError(
            "`outputs` must have features, from which this method computes each input's temperature; got logits "
            "alone. Extract them with simplexcal.extract, or use a method that needs logits only, such as "
            "TemperatureScaling."
        )
    return n_features


def raised(logits: Tensor, depth: float = 1e9) -> Tensor:
    """Return the logits with those further below the largest than ``depth``, or at -∞, just there.

    A class so far down, which the network rules out, has no gradient: divided by a small T it would have 0 · ∞.
    """
    return torch.maximum(logits, logits.amax(-1, keepdim=True) - depth)


def features_of(outputs: Outputs, like: nn.Linear) -> Tensor:
    """Return the features (N, D) in the dtype of the layer that takes them, if they are what it was made for."""
    if check_n_features(outputs.n_features) != like.in_features or outputs.features is None:
        raise ValueError(
            f"`features` must have the {like.in_features} columns of the fit; got {outputs.n_features}. "
            "Take them from the same layer of the same network."
        )
    return outputs.features.detach().to(like.weight.dtype)
