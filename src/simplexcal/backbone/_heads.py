"""Heads of any form: which layer makes the logits, found and checked by numbers.

z = a · head(f) + b, up to a constant in each row and rounding. Mostly a = 1 and b = 0.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from simplexcal.backbone._forward import (
    CONVOLUTIONS,
    Call,
    features_of_logits,
    of_two_classes,
)

# So many inputs are enough to tell a fixed scale and bias from anything else: even with two
# classes, there are four times as many numbers as unknowns.
ENOUGH_ROWS = 8
ROUNDING = 16  # times the machine epsilon: sums come in another order
MAX_MISS = 1e-3  # of the spread of the logits, below which a scale and a bias may miss them


class Match(NamedTuple):
    """How a layer makes the logits of some inputs.

    Attributes:
        name: Name of the layer in the network.
        features: What the layer makes them of, (N, D).
        pooled: Whether the network takes the mean over all tokens, or places of a map.
        scale: The factor a.
        bias: The addend b of each class, (K,); None for a = 1 and b = 0.
    """

    name: str
    features: Tensor
    pooled: bool = False
    scale: float = 1.0
    bias: Tensor | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the logits are the layer's output itself."""
        return self.bias is None and not self.pooled


class Head(nn.Module):
    """From features (N, D) to logits (N, K), for a layer that is not all of it.

    Args:
        layer: A layer of the network.
        match: What the network does with its output.
        one_logit: Whether this is the one logit of a binary network.
    """

    bias: Tensor | None

    def __init__(self, layer: nn.Module, match: Match, one_logit: bool) -> None:
        super().__init__()
        # Set first, so that the layer keeps its own mode.
        self.training = layer.training
        self.layer = layer
        self.scale = match.scale
        self.one_logit = one_logit
        self.register_buffer("bias", match.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits.

        Args:
            features: Rows of features.
        """
        if isinstance(self.layer, CONVOLUTIONS):
            n_dims = len(self.layer.kernel_size)
            features = features.reshape(*features.shape, *[1] * n_dims)
        output: Tensor = self.layer(features).flatten(1)
        if self.one_logit:
            output = of_two_classes(output)
        if self.bias is None:
            return output
        return self.scale * output + self.bias.to(output)


def head_of(layer: nn.Module, match: Match, one_logit: bool) -> Any:
    """Return a layer itself where it alone maps features to logits, otherwise a Head.

    Args:
        layer: A layer of the network.
        match: What the network does with its output.
        one_logit: Whether this is the one logit of a binary network.
    """
    if one_logit or match.bias is not None or isinstance(layer, CONVOLUTIONS):
        return Head(layer, match, one_logit)
    return layer


def linear_layers(net: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers that may be the head.

    Those in torch's encoder layers may not: a hook there would turn the fast path off.

    Args:
        net: The network.
    """
    layers = outside_of_encoders(net)
    return {name: layer for name, layer in layers.items() if isinstance(layer, nn.Linear)}


def other_layers(net: nn.Module, width: int) -> dict[str, nn.Module]:
    """Return the layers of any kind that may be the head.

    Args:
        net: The network.
        width: Number of outputs that the head has.
    """
    layers = outside_of_encoders(net)
    return {name: layer for name, layer in layers.items() if _may_be_head(layer, width)}


def outside_of_encoders(net: nn.Module) -> dict[str, nn.Module]:
    """Return all modules of a network but those in torch's encoder layers.

    Args:
        net: The network.
    """
    inner: set[nn.Module] = set()
    for module in net.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            inner.update(module.modules())
    return {name: module for name, module in net.named_modules() if module not in inner}


def _may_be_head(layer: nn.Module, width: int) -> bool:
    if isinstance(layer, nn.Linear):
        return layer.out_features == width
    if isinstance(layer, CONVOLUTIONS):
        is_pointwise = {*layer.kernel_size, *layer.stride, layer.groups} == {1}
        return is_pointwise and layer.padding in (0, (0,) * len(layer.kernel_size))
    if type(layer).__module__.startswith("torch."):
        return False
    # A layer of someone's own, such as a cosine head: around a matrix, or around a linear layer.
    children = list(layer.children())
    matrices = [x for x in layer.parameters(recurse=False) if x.dim() == 2]
    if len(children) == 1 and not matrices:
        return isinstance(children[0], nn.Linear) and children[0].out_features == width
    return not children and any(width in matrix.shape for matrix in matrices)


def match_exactly(call: Call, logits: Tensor, one_logit: bool) -> Match | None:
    """Return how a layer turned features into the logits, or None.

    Each row of the logits must be, up to a constant and rounding, the layer's output for one of the
    row's T tokens; mostly T = 1.

    Args:
        call: The call of the layer.
        logits: The network's logits, (N, K).
        one_logit: Whether the network returns one logit.
    """
    call = _of_two_classes(call, one_logit)
    n, k = logits.shape
    size = call.output.numel()
    n_tokens = max(1, size // max(1, n * k))
    if call.output.shape[-1] != k or size != n * n_tokens * k:
        return None
    output = call.output.reshape(n, n_tokens, k).to(logits)
    difference = log_softmax(output) - log_softmax(logits.unsqueeze(1))
    distance, token = difference.abs().amax(-1).min(1)
    largest = logits.nan_to_num(0, 0, 0).abs().amax(-1)
    eps = _epsilon(call.output, logits)
    if (distance > 4 * eps * (1 + largest)).any():
        return None
    if call.features.numel() != n * n_tokens * call.features.shape[-1]:
        return None
    features = call.features.reshape(n, n_tokens, call.features.shape[-1])
    return Match(call.name, features[torch.arange(n, device=token.device), token])


def match(call: Call, logits: Tensor, one_logit: bool, trust: bool) -> Match | None:
    """Return how a layer, and what the network does after it, made the logits, or None.

    The network may take the mean over tokens or places; and scale the logits and add a bias, both
    the same for all inputs.

    Args:
        call: The call of the layer.
        logits: The network's logits, (N, K).
        one_logit: Whether the network returns one logit.
        trust: Believe in a scale and a bias that are found from a few inputs.
    """
    exact = match_exactly(call, logits, one_logit)
    if exact is not None:
        return exact
    call = _of_two_classes(call, one_logit)
    n, k = logits.shape
    if n == 0 or len(call.output) != n or call.output.shape[-1] != k:
        return None
    if call.features.shape[:-1] != call.output.shape[:-1]:
        return None
    pooled = call.output.dim() > 2
    features = features_of_logits(call, logits, pooled=True)
    output = features_of_logits(call._replace(features=call.output), logits, pooled=True)
    usable = usable_rows(logits)
    if trust and not bool(usable.any()):
        return Match(call.name, features, pooled)
    found = _scale_and_bias(output[usable], logits[usable], trust)
    if found is None:
        return None
    return Match(call.name, features, pooled, *found)


def usable_rows(logits: Tensor) -> Tensor:
    """Return which rows are numbers, also where classes are masked by -∞.

    Args:
        logits: (N, K).
    """
    return ~(logits.isnan() | logits.isposinf()).any(-1)


def _scale_and_bias(
    output: Tensor, logits: Tensor, trust: bool
) -> tuple[float, Tensor | None] | None:
    """Return a and b of z = a · y + b by least squares, if they give the logits to rounding."""
    if len(logits) == 0:
        return None
    y = _centred(output)
    z = _centred(logits)
    eps = _epsilon(output, logits)
    largest = 1 + logits.abs().amax() + output.abs().amax()
    if (z - y).abs().amax() <= ROUNDING * eps * largest:
        return 1.0, None
    # Half precision cannot tell a scale from a softmax.
    if eps > 1e-4 or (len(logits) < ENOUGH_ROWS and not trust):
        return None
    varied = y - y.mean(0)
    variance = varied.square().sum()
    scale = 1.0
    if variance > 0:
        scale = float((varied * z).sum() / variance)
    bias = (z - scale * y).mean(0)
    error = (z - scale * y - bias).abs().amax()
    spread = (z - z.mean(0)).abs().amax()
    largest = 1 + logits.abs().amax() + abs(scale) * output.abs().amax()
    if error <= ROUNDING * eps * largest and (trust or error <= MAX_MISS * spread):
        return scale, bias.to(logits)
    return None


def _of_two_classes(call: Call, one_logit: bool) -> Call:
    """Return the call of a binary network's layer with the logits (0, z) as its output."""
    if not one_logit or call.output.shape[-1:] != (1,):
        return call
    return call._replace(output=torch.cat([torch.zeros_like(call.output), call.output], -1))


def _centred(logits: Tensor) -> Tensor:
    logits = logits.double()
    return logits - logits.mean(-1, keepdim=True)


def _epsilon(output: Tensor, logits: Tensor) -> float:
    return max(torch.finfo(output.dtype).eps, torch.finfo(logits.dtype).eps)


def log_softmax(logits: Tensor) -> Tensor:
    """Return the log-softmax, with NaN as a number that equals NaN only.

    Args:
        logits: (..., K).
    """
    return logits.log_softmax(-1).nan_to_num(1e9)
