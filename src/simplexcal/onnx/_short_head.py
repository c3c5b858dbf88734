"""The likelihood head of STS in few nodes, for graphs: a node takes longer than its arithmetic.

The formulas are those of ``calibrators/_likelihood_head.py``, and the constants are made of its
tensors. Written otherwise are:

- The largest logit is subtracted first, whatever it is. The shift cancels in the head.
- The slopes of m are interpolated in the margin by ramps, r_i = min(1, max(0, (s - s_i) / d_i)),
  so that no interval is searched: m = Σ_i r_i m_i with r_0 = 1.
- The level c of ``keep_prediction``, the root of c - p_t - Σ max(0, p_k - c), is the largest mean
  of the predicted class and its n most probable rivals, over all n: c is that mean for the classes
  above c, and no mean of other classes exceeds it. With many classes Newton's method finds it.
- No probability reaches that of the predicted class: it ends one rounding step below.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from simplexcal.calibrators._likelihood_head import (
    N_CELLS,
    X_MIN,
    LikelihoodHead,
    keep_prediction,
)

MAX_SORTED = 32  # With more classes Newton's method takes less time than to sort them.
LOWEST = -1e30  # of a masked class before the softmax


class Found(NamedTuple):
    """What the head gives.

    Args:
        probs: Probabilities, (N, K); the largest is that of the label.
        label: Predicted classes, (N,).
    """

    probs: Tensor
    label: Tensor


class ShortHead(nn.Module):
    """Logits → temperature scaling → likelihood head, in few nodes.

    Args:
        head: A fitted head.
        temperature: T, ().
    """

    temperature: Tensor
    low: Tensor
    cell_width: Tensor
    margin_starts: Tensor
    margin_widths: Tensor
    values: Tensor
    slopes: Tensor
    top_knots: Tensor
    top_changes: Tensor
    of_label: Tensor

    def __init__(self, head: LikelihoodHead, temperature: Tensor) -> None:
        super().__init__()
        self.max_depth = head.settings.max_depth
        self.has_class_terms = head.has_class_terms
        self.register_buffer("temperature", temperature.detach().clone())
        for name in ("low", "cell_width", "top_knots", "top_changes"):
            self.register_buffer(name, getattr(head, name).detach().clone())
        knots = head.margins
        # The first ramp is 1 for every margin.
        self.register_buffer("margin_starts", torch.cat([knots[:1] - 1, knots[:-1]]))
        self.margin_starts[0] = -torch.finfo(knots.dtype).max
        widths = knots[1:] - knots[:-1]
        self.register_buffer("margin_widths", torch.cat([torch.ones_like(knots[:1]), widths]))
        self._add_curve(head)
        if self.has_class_terms:
            k = len(head.bias)
            eye = torch.eye(k, dtype=head.bias.dtype, device=head.bias.device)
            constant = head.bias + head.confusion
            slope = head.class_slope + head.predicted_slope.unsqueeze(-1)
            self.register_buffer("of_label", torch.stack([eye, constant, slope], 1).flatten(1))

    def _add_curve(self, head: LikelihoodHead) -> None:
        """Add m and its slope in each cell: at the first margin, and the changes from there on."""
        cells = head.table.detach().view(-1, N_CELLS, 4)
        value, slope, value_change, slope_change = cells.unbind(-1)
        self.register_buffer("values", torch.stack([value[0], *value_change], -1))
        self.register_buffer("slopes", torch.stack([slope[0], *slope_change], -1))

    def forward(self, logits: Tensor) -> Found:
        """Return probabilities and label.

        Args:
            logits: The network's logits, (N, K).
        """
        logits = logits.to(torch.promote_types(logits.dtype, self.values.dtype))
        predicted = logits.argmax(-1, keepdim=True)
        label = predicted.squeeze(1)
        z = (logits - logits.amax(-1, keepdim=True)) / self.temperature
        z = z.clamp_min(-self.max_depth)
        present = z > -self.max_depth
        x = _shifted(z, present.to(z.dtype))
        if self.has_class_terms:
            terms = embedding(label, self.of_label).to(z.dtype)
            one_hot, constant, slope = terms.chunk(3, -1)
        else:
            classes = torch.arange(logits.shape[1], device=logits.device)
            one_hot = (predicted == classes).to(z.dtype)
        # The predicted class is put below all others.
        margin = -(z - 2 * self.max_depth * one_hot).amax(-1, keepdim=True)
        values = self._curve(x, margin)
        if self.has_class_terms:
            values = values + constant + slope * x.clamp_min(X_MIN)
        top = ((margin - self.top_knots).relu() * self.top_changes).sum(-1, keepdim=True)
        values = torch.where(present, values + one_hot * top, LOWEST)
        return Found(_keep_prediction(values.softmax(-1), predicted, one_hot), label)

    def _curve(self, x: Tensor, margin: Tensor) -> Tensor:
        """Return m(x; s), (N, K)."""
        ramps = ((margin - self.margin_starts) / self.margin_widths).clamp(0, 1)
        cell = ((x - self.low) / self.cell_width).floor().clamp(0, N_CELLS - 1)
        right = x - (self.low + cell * self.cell_width)
        row = cell.long()
        each = embedding(row, self.values) + embedding(row, self.slopes) * right.unsqueeze(-1)
        return (each * ramps.unsqueeze(1)).sum(-1)


def _shifted(z: Tensor, present: Tensor) -> Tensor:
    """Return the logits less the mean of their lower half; that of a masked class is of no use.

    Args:
        z: Logits, (N, K).
        present: 1, and 0 for masked classes, (N, K).
    """
    n_classes = present.sum(-1, keepdim=True)
    z = z * present
    mean = z.sum(-1, keepdim=True) / n_classes
    lower = torch.minimum(z, mean) * present
    return z - lower.sum(-1, keepdim=True) / n_classes


def _keep_prediction(probs: Tensor, predicted: Tensor, one_hot: Tensor) -> Tensor:
    """Return the closest probabilities in which the predicted class is the most probable one.

    Args:
        probs: Probabilities, (N, K).
        predicted: Predicted classes, (N, 1).
        one_hot: 1 at them and 0 elsewhere, (N, K).
    """
    if probs.shape[1] > MAX_SORTED:
        kept = keep_prediction(probs, predicted)
        level = kept.gather(-1, predicted)
    else:
        level = _level(probs, predicted, one_hot)
        kept = torch.minimum(probs, level)
    below = level - level * torch.finfo(probs.dtype).eps
    return torch.where(one_hot > 0, level, torch.minimum(kept, below))


def _level(probs: Tensor, predicted: Tensor, one_hot: Tensor) -> Tensor:
    """Return the probability of the predicted class, (N, 1), which no other may exceed."""
    own = probs.gather(-1, predicted)
    n_others = probs.shape[1] - 1
    others = (probs - probs * one_hot).topk(n_others).values
    sums = torch.cat([own, others], -1).cumsum(-1)
    numbers = torch.arange(1, n_others + 2, device=probs.device).to(probs.dtype)
    return (sums / numbers).amax(-1, keepdim=True)
