"""The likelihood head of Simplex Temperature Scaling: logits → calibrated probabilities.

p = softmax(l) with

    l_k = m(x_k; s) + [k = t] h(s) + b_k + C_tk + (v_k + u_t) · max(x_k, X_MIN),

where x are the logits after temperature scaling, measured from the mean of their lower half, s is
the top-1 margin and t the predicted class. The function m is increasing and piecewise linear in x,
its slopes are piecewise linear in s. The piecewise linear function h says how right the predicted
class is. The other terms say which classes are too probable (b, v), and which are confused with the
predicted one (C, u). All of them are linear in the parameters, so the likelihood of the labels is
convex in them. ``keep_prediction`` lets no class become more probable than the predicted one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from simplexcal.concrete._turned import along_memory

X_MIN = -15.0  # Below, an improbable class gets no more of the terms with v and u.
N_CELLS = 512  # of the table of m along x
N_LEVELS = 6  # steps of Newton's method in ``keep_prediction``


@dataclass(frozen=True)
class HeadSettings:
    """Settings of the likelihood head.

    Args:
        min_inputs: With fewer inputs the head is temperature scaling.
        max_inputs: Of more inputs, evenly spaced ones are used.
        max_values: Logits that are used at most, which limits the inputs further.
        n_segments: Linear pieces of m.
        tail: Share of x beyond the first and the last knot of m, each.
        n_margins: Margins between whose slopes m is interpolated.
        min_slope: Smallest slope of m.
        n_top_segments: Linear pieces of h.
        max_classes: With more classes there are m and h alone.
        n_exact: With more classes than ``max_classes``, so many of the largest logits of an input
            are used as they are in the fit, and the others in groups of neighbours.
        curve: Expected precision of the slopes of m.
        margin: Expected precision of their changes with the margin.
        top: Expected precision of the slopes of h.
        bias: Expected precision of b.
        confusion: Expected precision of C.
        slope: Expected precision of v and u.
        max_precision: Largest precision.
        prior_parameters: What is expected of a precision counts as much as so many parameters that
            the labels determine; 0 leaves the precisions to the labels.
        n_rounds: Updates of the precisions.
        n_steps: Steps of L-BFGS at most, in each round.
        max_depth: A logit further below the largest is that of a masked class, in nats after
            temperature scaling, and counts as one just there.
        masked_margin: In the fit of T, a logit further below the largest than so many median top-1
            margins is that of a masked class.
    """

    min_inputs: int = 12
    max_inputs: int = 2**20
    max_values: int = 2**23
    n_segments: int = 16
    tail: float = 1e-3
    n_margins: int = 4
    min_slope: float = 0.02
    n_top_segments: int = 8
    max_classes: int = 256
    n_exact: int = 16
    curve: float = 30.0
    margin: float = 30_000.0
    top: float = 3000.0
    bias: float = 100.0
    confusion: float = 30.0
    slope: float = 1000.0
    max_precision: float = 1e6
    prior_parameters: float = 1.0
    n_rounds: int = 20
    n_steps: int = 100
    max_depth: float = 200.0
    masked_margin: float = 100.0


class LikelihoodHead(nn.Module):
    """Logits after temperature scaling → probabilities with the same predicted class.

    Before a fit it is the softmax. ``fit_head`` fits it.

    Args:
        n_classes: K.
        settings: Settings of the head.
    """

    low: Tensor  # the first knot of m
    cell_width: Tensor
    margins: Tensor  # the margins between whose slopes m is interpolated
    table: Tensor  # of m, see `_curve`
    top_knots: Tensor  # the knots of h
    top_changes: Tensor  # of the slope of h at its knots
    bias: Tensor
    confusion: Tensor
    class_slope: Tensor
    predicted_slope: Tensor

    def __init__(self, n_classes: int, settings: HeadSettings) -> None:
        super().__init__()
        self.settings = settings
        n_margins = settings.n_margins
        start = torch.arange(N_CELLS) / N_CELLS
        identity = torch.stack([start, torch.ones(N_CELLS)], -1)
        cells = torch.cat([identity, torch.zeros(N_CELLS, 2)], -1)
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("cell_width", torch.tensor(1 / N_CELLS))
        self.register_buffer("margins", torch.arange(n_margins).float())
        self.register_buffer("table", cells.repeat(n_margins - 1, 1))
        n_top = settings.n_top_segments
        self.register_buffer("top_knots", torch.arange(n_top).float())
        self.register_buffer("top_changes", torch.zeros(n_top))
        self.has_class_terms = n_classes <= settings.max_classes
        k = n_classes if self.has_class_terms else 0
        self.register_buffer("bias", torch.zeros(k))
        self.register_buffer("confusion", torch.zeros(k, k))
        self.register_buffer("class_slope", torch.zeros(k))
        self.register_buffer("predicted_slope", torch.zeros(k))

    def forward(self, logits: Tensor, label: Tensor) -> Tensor:
        """Return the probabilities (N, K).

        Args:
            logits: Logits after temperature scaling, (N, K).
            label: Predicted classes, (N,).
        """
        predicted = label.unsqueeze(-1)
        logits = logits.to(torch.promote_types(logits.dtype, self.table.dtype))
        if _may_look(logits):
            logits = along_memory(logits)
        depth = logits.gather(-1, predicted) - logits
        masked = depth >= self.settings.max_depth
        x = shifted(logits, masked)
        margin = margin_of(depth, predicted).clamp_max(self.settings.max_depth)
        values = self._curve(x, margin)
        top = (ramps(margin, self.top_knots) * self.top_changes).sum(-1, keepdim=True)
        values = values.scatter_add(-1, predicted, top)
        if self.has_class_terms:
            slope = self.class_slope + self.predicted_slope[label].unsqueeze(-1)
            constant = self.bias + embedding(label, self.confusion)
            values = values + constant + slope * x.clamp_min(X_MIN)
        least = values.gather(-1, predicted) - self.settings.max_depth
        values = torch.where(masked, least, values)
        return keep_prediction(_softmax(values), predicted)

    def _curve(self, x: Tensor, margin: Tensor) -> Tensor:
        """Return m(x; s): a bilinear function of x and s in each cell of the table.

        Args:
            x: (N, K).
            margin: s, (N,).
        """
        knots = self.margins
        interval = (margin.unsqueeze(-1) >= knots[1:-1]).sum(-1)
        between = (margin - knots[interval]) / (knots[interval + 1] - knots[interval])
        between = between.clamp(0, 1).unsqueeze(-1)
        cell = ((x.detach() - self.low) / self.cell_width).floor().clamp(0, N_CELLS - 1)
        right = x - (self.low + cell * self.cell_width)
        row = cell.long() + interval.unsqueeze(-1) * N_CELLS
        a, b, c, d = self._look_up(row).unbind(-1)
        return (a + c * between) + (b + d * between) * right

    def _look_up(self, row: Tensor) -> Tensor:
        """Return rows of the table, (N, K, 4), with the layout in memory of the rows' numbers."""
        if row.is_contiguous():
            return embedding(row, self.table)
        return embedding(row.T, self.table).transpose(0, 1)


def _softmax(values: Tensor) -> Tensor:
    """Return the softmax over the classes, (N, K), with the layout in memory of the values."""
    if values.is_contiguous():
        return values.softmax(-1)
    return values.T.softmax(0).T


def shifted(logits: Tensor, masked: Tensor) -> Tensor:
    """Return x, the logits less the mean of their lower half; of a masked class 0.

    The mean is that of min(z_k, mean z) over the classes that are not masked.

    Args:
        logits: z, (N, K).
        masked: Which classes are masked, (N, K).
    """
    n_classes = (~masked).sum(-1, keepdim=True)
    # Values relative to the largest keep their digits and are finite.
    z = (logits - logits.amax(-1, keepdim=True)).masked_fill(masked, 0.0)
    mean = z.sum(-1, keepdim=True) / n_classes
    lower = torch.minimum(z, mean).masked_fill(masked, 0.0)
    return (z - lower.sum(-1, keepdim=True) / n_classes).masked_fill(masked, 0.0)


def margin_of(depth: Tensor, predicted: Tensor) -> Tensor:
    """Return the top-1 margin (N,).

    Args:
        depth: Distances of the logits from that of the predicted class, (N, K).
        predicted: Predicted classes, (N, 1).
    """
    return depth.scatter(-1, predicted, torch.inf).amin(-1)


def ramps(values: Tensor, knots: Tensor) -> Tensor:
    """Return how far each value lies above each knot, and 0 below it, (N, J).

    Args:
        values: (N,).
        knots: (J,).
    """
    return (values.unsqueeze(-1) - knots).clamp_min(0)


def keep_prediction(probs: Tensor, predicted: Tensor) -> Tensor:
    """Return the closest probabilities q in which no class exceeds the predicted one.

    They are the q with the smallest Kullback-Leibler divergence KL(p ‖ q): where another class is
    more probable than the predicted one, what lies above a level c goes to the predicted class,
    whose probability becomes c too. So c is the root of the concave, increasing function
    c - p_t - Σ max(0, p_k - c). Newton's method reaches it from below in as many steps as there are
    such classes at most, and each step gives probabilities that keep the prediction.

    Args:
        probs: p, (N, K).
        predicted: Predicted classes t, (N, 1).
    """
    if not _may_look(probs):
        return _kept(probs, predicted)
    # Most rows keep their prediction anyway.
    rows = (probs.amax(-1, keepdim=True) > probs.gather(-1, predicted)).nonzero()[:, 0]
    if len(rows) == 0:
        return probs
    return probs.index_copy(0, rows, _kept(probs[rows], predicted[rows]))


def _may_look(values: Tensor) -> bool:
    """Return whether values may decide what is computed: not on a GPU, and not in a graph."""
    if values.device.type != "cpu" or values.requires_grad or values.dim() != 2:
        return False
    return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())


def _kept(probs: Tensor, predicted: Tensor) -> Tensor:
    """Return the closest probabilities for all rows, whether they keep the prediction or not."""
    own = probs.gather(-1, predicted)
    others = probs.scatter(-1, predicted, 0.0)
    level = own
    for _ in range(N_LEVELS):
        above = (others - level).clamp_min(0)
        number = (above > 0).sum(-1, keepdim=True)
        level = level + (own + above.sum(-1, keepdim=True) - level) / (1 + number)
    taken = (others - level).clamp_min(0).sum(-1, keepdim=True)
    kept = torch.minimum(others, level)
    return kept.scatter(-1, predicted, torch.maximum(own + taken, level))
