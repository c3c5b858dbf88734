"""The fit of the likelihood head: penalised maximum likelihood, in float64 on the CPU, no seed.

The penalty is ½ Σ α θᵀPθ over the groups of parameters: the slopes of m, their changes with the
margin, the slopes of h, b, C, and v with u. Each precision α maximises the evidence of the labels
(MacKay 1992) times a Gamma prior of mean α₀ and shape ν/2: α = (γ + ν) / (θᵀPθ + ν/α₀), where γ is
the number of parameters of the group that the labels determine. With few labels γ is small and α
near α₀, which keeps the head close to temperature scaling.
"""

from copy import copy
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from simplexcal._chunking import CHUNK
from simplexcal.calibrators._lbfgs import minimise_convex
from simplexcal.calibrators._likelihood_head import (
    N_CELLS,
    X_MIN,
    HeadSettings,
    LikelihoodHead,
    margin_of,
    ramps,
    shifted,
)
from simplexcal.calibrators._optim import divide_logits
from simplexcal.calibrators._weights import effective_number
from simplexcal.calibrators.temperature import jeffreys_weight

MIN_RANGE = 0.1  # of x between the first and the last knot
MIN_GAP = 1e-3  # between two knots along the margin
TOP_TAIL = 1e-3  # share of the margins beyond the last knot of h
GROWTH = 1.25  # from one group of neighbouring logits to the next
N_FOR_KNOTS = 2**20  # values of x, of which the knots are quantiles
N_FOR_PRECISIONS = 2**19  # values of x, on which the precisions are found
N_FOR_CURVATURE = 2**14  # values of x, of which the curvature of m and h is computed
FUNCTIONS = ("curve", "margin", "top")  # the groups that make m and h
LEVEL = 0.01  # penalty of a slope, where that of the difference of two neighbours is 1
MIN_PRECISION = 1e-3
WALL = 10.0  # penalty of a slope below the smallest one, for each input
ROUGH = 1e-2  # tolerance of a fit for the precisions, in nats over all inputs
FINE = 1e-5  # tolerance of the last fit


class Columns(NamedTuple):
    """What the likelihood depends on, one column for each input.

    Attributes:
        x: Values of x, (G, N): one for each class, or one for each group of classes and the label.
        offset: Logarithm of the number of classes of a group, (G, N); -∞ if it is empty.
        label: Row of the label in x, (N,).
        top: Row of the predicted class in x, (N,).
        margin: The top-1 margin s, (N,).
        predicted: The predicted class t, (N,).
        weight: Weight of each input, (N,), with the effective number of inputs as their sum.
    """

    x: Tensor
    offset: Tensor
    label: Tensor
    top: Tensor
    margin: Tensor
    predicted: Tensor
    weight: Tensor

    def take(self, n: int) -> "Columns":
        """Return about n evenly spaced columns, or all.

        Args:
            n: Number of columns.
        """
        step = max(1, len(self.label) // max(1, n))
        taken = Columns(*(value[..., ::step] for value in self))
        return taken._replace(weight=taken.weight * (self.weight.sum() / taken.weight.sum()))


@torch.no_grad()
def fit_head(
    head: LikelihoodHead,
    logits: Tensor,
    temperature: Tensor,
    labels: Tensor,
    weights: Tensor | None,
) -> None:
    """Fit a head.

    Args:
        head: Fitted in place.
        logits: The network's logits, (N, K).
        temperature: T of temperature scaling, ().
        labels: True classes, (N,).
        weights: Weight of each input, (N,), with the sum 1; None: all count alike.
    """
    settings = head.settings
    if effective_number(len(logits), weights) < settings.min_inputs:
        return
    columns = make_columns(logits, temperature, labels, weights, settings)
    if not columns.weight.any():  # All labels are of masked classes.
        return
    knots = find_knots(columns, settings)
    theta, likelihood = most_likely(columns, knots, logits.shape[1], settings)
    write(head, theta, knots, likelihood)


# --- the data ---


def make_columns(
    logits: Tensor,
    temperature: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    settings: HeadSettings,
) -> Columns:
    """Return the columns of the inputs, or of evenly spaced ones where there are very many.

    Args:
        logits: The network's logits, (N, K).
        temperature: T of temperature scaling, ().
        labels: True classes, (N,).
        weights: Weight of each input, (N,), with the sum 1; None: all count alike.
        settings: Settings of the head.
    """
    n, k = logits.shape
    bounds = None
    height = k
    if k > settings.max_classes:
        bounds = group_bounds(k, settings.n_exact)
        height = len(bounds)
    most = min(settings.max_inputs, settings.max_values // height)
    step = -(-n // most)
    if weights is None:
        weights = torch.ones(n)
    weight = weights[::step].cpu().double()
    relative = weight / weight.sum()
    parts = []
    size = max(1, CHUNK["cpu"] // k)
    rows = zip(logits[::step].split(size), labels[::step].split(size), strict=True)
    for z, y in rows:
        scaled = divide_logits(z.detach().cpu().double(), temperature.cpu(), settings.max_depth)
        parts.append(_columns_of_rows(scaled, y.cpu(), bounds, settings.max_depth))
    x, offset, label, top, margin, predicted, known = (
        torch.cat(p, -1) for p in zip(*parts, strict=True)
    )
    relative = relative * effective_number(len(relative), relative) * known
    return Columns(x, offset, label, top, margin, predicted, relative)


def group_bounds(n_classes: int, n_exact: int) -> list[int]:
    """Return where groups of classes in the order of their logits begin, and K at the end.

    Args:
        n_classes: K.
        n_exact: So many of the largest are groups of their own.
    """
    bounds = list(range(min(n_classes, n_exact) + 1))
    while bounds[-1] < n_classes:
        bounds.append(min(n_classes, int(bounds[-1] * GROWTH)))
    return bounds


def _columns_of_rows(
    z: Tensor, labels: Tensor, bounds: list[int] | None, max_depth: float
) -> tuple[Tensor, ...]:
    """Return the fields of columns; for the weight 1, and 0 where the label's class is masked.

    Args:
        z: Logits after temperature scaling, (n, K).
        labels: (n,).
        bounds: Where groups begin; None: every class has its own row.
        max_depth: Depth from which on a class is masked.
    """
    predicted = z.argmax(-1, keepdim=True)
    depth = z.gather(-1, predicted) - z
    masked = depth >= max_depth
    x = shifted(z, masked)
    margin = margin_of(depth, predicted).clamp_max(max_depth)
    known = ~masked.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    predicted = predicted.squeeze(-1)
    rest = (margin, predicted, known)
    if bounds is None:
        offset = torch.zeros_like(x).masked_fill(masked, -torch.inf)
        offset.scatter_(-1, labels.unsqueeze(-1), 0.0)  # The likelihood is finite.
        return x.T, offset.T, labels, predicted, *rest
    is_right = labels == predicted
    values, offset = _grouped(x.masked_fill(masked, -torch.inf), labels, is_right, bounds)
    label = torch.full_like(labels, len(bounds) - 1)
    return values.T, offset.T, label, label * is_right, *rest


def _grouped(
    x: Tensor, labels: Tensor, is_right: Tensor, bounds: list[int]
) -> tuple[Tensor, Tensor]:
    """Return ln mean e^x and ln of the number of classes of each group, and last of the label.

    Args:
        x: (n, K), -∞ where the class is masked.
        labels: (n,), a group of its own, and in no other group.
        is_right: Whether the label is the predicted class, which is else the first group, (n,).
        bounds: Where groups begin, in the order of x from the largest.
    """
    own = x.gather(-1, labels.unsqueeze(-1))
    ordered = x.float().sort(-1, descending=True).values.double()
    sizes = [high - low for low, high in pairwise(bounds)]
    parts = ordered.split(sizes, -1)
    total = torch.stack([part.exp().sum(-1) for part in parts], -1)
    number = torch.stack([(part > -torch.inf).sum(-1) for part in parts], -1).double()
    rank = (x > own).sum(-1, keepdim=True)
    rank = torch.maximum(rank, 1 - is_right.long().unsqueeze(-1))  # A tie is not the first.
    group = torch.bucketize(rank, torch.tensor(bounds[1:-1]), right=True)
    total.scatter_add_(-1, group, -own.exp())
    number.scatter_add_(-1, group, -torch.ones_like(own))
    empty = number < 0.5
    value = (total / number).clamp_min(1e-300).log().masked_fill(empty, 0.0)
    offset = number.log().masked_fill(empty, -torch.inf)
    own = own.clamp_min(-1e3)  # A masked label counts nothing, but has to be finite.
    return torch.cat([value, own], -1), torch.cat([offset, torch.zeros_like(own)], -1)


class Knots(NamedTuple):
    """Where the slopes of m and h change.

    Attributes:
        low: The first knot along x.
        cell_width: Width of a cell of the table.
        cells: The knots along x, as numbers of cells from ``low``, (J + 1,).
        margins: The margins between whose slopes m is interpolated, (S,).
        top: The knots of h, (L,).
    """

    low: Tensor
    cell_width: Tensor
    cells: Tensor
    margins: Tensor
    top: Tensor

    @property
    def x(self) -> Tensor:
        """The knots along x, (J + 1,)."""
        return self.low + self.cells * self.cell_width


def find_knots(columns: Columns, settings: HeadSettings) -> Knots:
    """Return the knots of m and h.

    Those of m lie half-way between quantiles of x and equal distances, at the next cell of the
    table: most values of x are of improbable classes, but those of probable ones matter most. Along
    the margin they are quantiles. The knots of h lie half-way again, from 0 on.

    Args:
        columns: The inputs.
        settings: Settings of the head.
    """
    sample = columns.take(N_FOR_KNOTS // len(columns.x))
    present = sample.offset > -torch.inf
    x = sample.x[present]
    mass = (sample.weight * sample.offset.exp())[present]
    low, high = weighted_quantiles(x, mass, torch.tensor([settings.tail, 1 - settings.tail]))
    high = torch.maximum(high, low + MIN_RANGE)
    width = (high - low) / N_CELLS
    j = settings.n_segments
    shares = torch.linspace(settings.tail, 1 - settings.tail, j + 1)
    quantiles = (weighted_quantiles(x, mass, shares) - low) / width
    wanted = (quantiles + torch.linspace(0, N_CELLS, j + 1)) / 2
    n_margins = settings.n_margins
    shares = (torch.arange(n_margins) + 0.5) / n_margins
    margins = weighted_quantiles(sample.margin, sample.weight, shares)
    margins = margins + MIN_GAP * torch.arange(n_margins)  # Equal margins become different ones.
    n_top = settings.n_top_segments
    shares = (1 - TOP_TAIL) * torch.arange(n_top + 1) / n_top
    top = weighted_quantiles(sample.margin, sample.weight, shares)
    top = (top + torch.linspace(0, 1, n_top + 1) * top[-1]) / 2
    top[0] = 0.0
    top += MIN_GAP * torch.arange(n_top + 1)
    return Knots(low, width, _apart(wanted), margins, top[:-1])


def _apart(wanted: Tensor) -> Tensor:
    """Return increasing whole numbers from 0 to N_CELLS near the wanted ones."""
    steps = torch.arange(len(wanted))
    room = N_CELLS - len(wanted) + 1
    found = (wanted.round().long() - steps).clamp(0, room).cummax(0).values
    found[0] = 0
    found[-1] = room
    return found + steps


def weighted_quantiles(values: Tensor, weight: Tensor, shares: Tensor) -> Tensor:
    """Return the smallest values up to which so large a share of the weight lies.

    Args:
        values: (M,).
        weight: (M,).
        shares: Shares of the weight, (Q,).
    """
    values, order = values.sort()
    total = weight[order].cumsum(0)
    wanted = shares.to(total) * total[-1] * (1 - 1e-9)  # Rounding must not pass over a value.
    place = torch.searchsorted(total, wanted)
    return values[place.clamp_max(len(values) - 1)]


# --- the likelihood ---


class Likelihood:
    """The penalised likelihood of the parameters θ, a vector of all groups of parameters.

    Args:
        columns: The inputs.
        knots: The knots of m.
        n_classes: K.
        settings: Settings of the head.
    """

    def __init__(
        self, columns: Columns, knots: Knots, n_classes: int, settings: HeadSettings
    ) -> None:
        self.columns = columns
        self.knots = knots
        self.n_classes = n_classes
        self.settings = settings
        j = settings.n_segments
        s = settings.n_margins
        self.has_class_terms = n_classes <= settings.max_classes
        k = n_classes if self.has_class_terms else 0
        self.sizes = {
            "curve": j,
            "margin": s * j,
            "top": settings.n_top_segments,
            "bias": k,
            "confusion": k * k,
            "slope": 2 * k,
        }
        self.n_curve = j + s * j
        # Slopes of m as a linear function of the first two groups, and cells as one of slopes.
        self.to_slopes = torch.cat([torch.eye(j).repeat(s, 1), torch.eye(s * j)], 1).double()
        lengths = knots.x.diff()
        identity = torch.eye(s * j, dtype=torch.float64).view(s * j, s, j)
        self.to_cells = torch.stack([cells_of(w, lengths).flatten() for w in identity], 1)
        penalty = roughness_penalty(j)
        self.penalties = {
            "curve": penalty,
            "margin": torch.block_diag(*[penalty] * s),
            "top": roughness_penalty(settings.n_top_segments),
        }
        self.n_functions = sum(self.sizes[name] for name in FUNCTIONS)
        self.n = columns.weight.sum().item()
        self.prior_weight = jeffreys_weight(self.n, n_classes)
        self._place()

    def _place(self) -> None:
        """Compute what does not change with the parameters."""
        c = self.columns
        knots = self.knots
        start = knots.x
        segment = torch.bucketize(c.x, start[1:-1], right=True)
        self.right = c.x - start[segment]
        m = knots.margins
        interval = torch.bucketize(c.margin, m[1:-1], right=True)
        between = (c.margin - m[interval]) / (m[interval + 1] - m[interval])
        self.interval = interval
        self.between = between.clamp(0, 1)
        self.cell = (segment + interval * self.settings.n_segments).flatten()
        # Of each margin the lengths inside the segments of h.
        self.lengths = ramps(c.margin, knots.top) @ changes_of_slopes(len(knots.top))
        share = c.offset.exp()
        share = share / share.sum(0)
        self.target = self.prior_weight * share
        self.target.scatter_add_(0, c.label.unsqueeze(0), torch.ones(1, len(c.label)).double())
        self.target *= c.weight
        self.has_empty = bool((c.offset != 0).any())
        if self.has_class_terms:
            self.bounded = c.x.clamp_min(X_MIN)
            self.of_class = c.predicted.expand(self.n_classes, -1)

    def values(self, theta: Tensor) -> Tensor:
        """Return l, (G, N).

        Args:
            theta: θ, (P,).
        """
        slopes = 1 + self.to_slopes @ theta[: self.n_curve]
        a, b, c, d = (self.to_cells @ slopes).view(4, -1)
        shape = self.right.shape

        def at(values: Tensor) -> Tensor:
            return values.index_select(0, self.cell).view(shape)

        found = torch.addcmul(at(a), at(c), self.between)
        found.addcmul_(torch.addcmul(at(b), at(d), self.between), self.right)
        top = self.lengths @ self.parts(theta)["top"]
        found.scatter_add_(0, self.columns.top.unsqueeze(0), top.unsqueeze(0))
        if self.has_class_terms:
            bias, confusion, of_class, of_predicted = self.class_terms(theta)
            found += bias.unsqueeze(1)
            found += confusion.T.contiguous().gather(1, self.of_class)
            found.addcmul_(
                of_class.unsqueeze(1) + of_predicted[self.columns.predicted], self.bounded
            )
        if self.has_empty:
            found += self.columns.offset
        return found

    def slope_of(self, residual: Tensor) -> Tensor:
        """Return the gradient (P,) of the function with this gradient in l.

        Args:
            residual: (G, N).
        """
        n_cells = (self.settings.n_margins - 1) * self.settings.n_segments
        with_margin = residual * self.between
        sums = []
        for part in (
            residual,
            residual * self.right,
            with_margin,
            with_margin * self.right,
        ):
            zero = torch.zeros(n_cells, dtype=torch.float64)
            sums.append(zero.scatter_add_(0, self.cell, part.flatten()))
        curve = self.to_slopes.T @ (self.to_cells.T @ torch.cat(sums))
        of_top = residual.gather(0, self.columns.top.unsqueeze(0)).squeeze(0)
        functions = torch.cat([curve, self.lengths.T @ of_top])
        if not self.has_class_terms:
            return functions
        k = self.n_classes
        zero = torch.zeros(k, k, dtype=torch.float64)
        confusion = zero.scatter_add_(1, self.of_class, residual).T
        times_x = residual * self.bounded
        by_predicted = torch.zeros(k, dtype=torch.float64)
        by_predicted.scatter_add_(0, self.columns.predicted, times_x.sum(0))
        return torch.cat(
            [functions, residual.sum(1), confusion.flatten(), times_x.sum(1), by_predicted]
        )

    def probabilities(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return p and the logarithm of its denominator.

        Args:
            values: l, (G, N).
        """
        largest = values.amax(0)
        p = (values - largest).exp_()
        total = p.sum(0)
        p /= total
        return p, total.log_() + largest

    def __call__(self, theta: Tensor, precisions: dict[str, float]) -> tuple[float, Tensor]:
        """Return the penalised negative log-likelihood and its gradient.

        Args:
            theta: θ, (P,).
            precisions: α of each group.
        """
        values = self.values(theta)
        p, log_total = self.probabilities(values)
        scale = (1 + self.prior_weight) * self.columns.weight
        if self.has_empty:
            values.masked_fill_(values == -torch.inf, 0.0)
        loss = torch.dot(scale, log_total) - torch.dot(self.target.flatten(), values.flatten())
        gradient = self.slope_of(p.mul_(scale).sub_(self.target))
        penalised = self.times_penalty(theta, precisions)
        loss += 0.5 * torch.dot(theta, penalised)
        gradient += penalised
        below = self.below(theta)
        wall = WALL * self.n
        loss += wall * below.square().sum()
        gradient[: self.n_curve] += 2 * wall * (self.to_slopes.T @ below)
        return loss.item(), gradient

    def times_penalty(self, theta: Tensor, precisions: dict[str, float]) -> Tensor:
        """Return α P θ.

        Args:
            theta: θ, (P,).
            precisions: α of each group.
        """
        found = []
        for name, part in self.parts(theta).items():
            if name in self.penalties:
                part = self.penalties[name] @ part
            found.append(precisions[name] * part)
        return torch.cat(found)

    def parts(self, theta: Tensor) -> dict[str, Tensor]:
        """Return the groups of θ.

        Args:
            theta: θ, (P,).
        """
        return dict(zip(self.sizes, theta.split(list(self.sizes.values())), strict=True))

    def class_terms(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return b, C, v and u.

        Args:
            theta: θ, (P,).
        """
        k = self.n_classes
        parts = self.parts(theta)
        of_class, of_predicted = parts["slope"].split(k)
        return parts["bias"], parts["confusion"].view(k, k), of_class, of_predicted

    def below(self, theta: Tensor) -> Tensor:
        """Return the slopes of m less the smallest one where they are below it, else 0.

        Args:
            theta: θ, (P,).
        """
        slopes = 1 + self.to_slopes @ theta[: self.n_curve]
        return (slopes - self.settings.min_slope).clamp_max(0.0)


def cells_of(slopes: Tensor, lengths: Tensor) -> Tensor:
    """Return the coefficients (4, (S-1) J) of m = (a + c h) + (b + d h) r, a linear function.

    r is the distance from the left knot, and h goes from 0 to 1 between two margins.

    Args:
        slopes: Slopes of m at each margin, (S, J).
        lengths: Distances of the knots, (J,).
    """
    rise = (slopes * lengths).cumsum(-1)
    a = torch.cat([torch.zeros_like(rise[:, :1]), rise[:, :-1]], -1)
    parts = (a[:-1], slopes[:-1], a.diff(dim=0), slopes.diff(dim=0))
    return torch.stack([part.flatten() for part in parts])


def roughness_penalty(n: int) -> Tensor:
    """Return P, of which θᵀPθ is the sum of the squared differences of neighbours in θ.

    A little of Σ θ² is added, so that P is positive definite.

    Args:
        n: Length of θ.
    """
    differences = torch.eye(n, dtype=torch.float64).diff(dim=0)
    return differences.T @ differences + LEVEL * torch.eye(n)


def changes_of_slopes(n: int) -> Tensor:
    """Return the matrix that takes the slopes between n knots to their changes at the knots.

    Args:
        n: Number of knots.
    """
    one = torch.eye(n, dtype=torch.float64)
    return one - one.roll(1, 0).tril()


# --- the fit ---


def most_likely(
    columns: Columns, knots: Knots, n_classes: int, settings: HeadSettings
) -> tuple[Tensor, Likelihood]:
    """Return θ: the precisions are found on a sample, then θ with them on all inputs.

    Args:
        columns: The inputs.
        knots: The knots of m.
        n_classes: K.
        settings: Settings of the head.
    """
    sample = columns.take(N_FOR_PRECISIONS // len(columns.x))
    likelihood = Likelihood(sample, knots, n_classes, settings)
    precisions = {name: float(getattr(settings, name)) for name in likelihood.sizes}
    theta = torch.zeros(sum(likelihood.sizes.values()), dtype=torch.float64)
    curvature = Curvature(likelihood, theta, precisions)
    for _ in range(settings.n_rounds):
        theta = _minimise(likelihood, theta, curvature, settings.n_steps // 4, ROUGH)
        curvature = Curvature(likelihood, theta, precisions)
        precisions = curvature.updated_precisions(theta)
        curvature = curvature.with_precisions(precisions)
    if len(sample.label) < len(columns.label):
        likelihood = Likelihood(columns, knots, n_classes, settings)
        curvature = Curvature(likelihood, theta, precisions)
    theta = _minimise(likelihood, theta, curvature, settings.n_steps, FINE)
    return theta, likelihood


def _minimise(
    likelihood: Likelihood, start: Tensor, curvature: "Curvature", n_steps: int, tolerance: float
) -> Tensor:
    precisions = curvature.precisions
    return minimise_convex(
        lambda theta: likelihood(theta, precisions),
        start,
        curvature.solve,
        n_steps=n_steps,
        tolerance=tolerance,
    )


class Curvature:
    """The Hessian of the penalised likelihood: a block for m and h, a diagonal for all else.

    Args:
        likelihood: The likelihood.
        theta: θ, (P,).
        precisions: α of each group.
    """

    def __init__(self, likelihood: Likelihood, theta: Tensor, precisions: dict[str, float]) -> None:
        p, _ = likelihood.probabilities(likelihood.values(theta))
        block = curvature_of_functions(likelihood, p)
        below = (likelihood.below(theta) < 0).double()
        to_slopes = likelihood.to_slopes
        of_wall = 2 * WALL * likelihood.n * (to_slopes.T @ (below.unsqueeze(1) * to_slopes))
        block[: len(of_wall), : len(of_wall)] += of_wall
        self.likelihood = likelihood
        self.of_functions = block
        self.of_others = _diagonal(likelihood, p)
        self._add_penalty(precisions)

    def _add_penalty(self, precisions: dict[str, float]) -> None:
        likelihood = self.likelihood
        penalties = [precisions[name] * likelihood.penalties[name] for name in FUNCTIONS]
        block = self.of_functions + torch.block_diag(*penalties)
        penalty = [
            torch.full((size,), precisions[name], dtype=torch.float64)
            for name, size in likelihood.sizes.items()
            if name not in FUNCTIONS
        ]
        self.precisions = precisions
        self.factor = torch.linalg.cholesky(block)
        self.diagonal = self.of_others + torch.cat(penalty)

    def with_precisions(self, precisions: dict[str, float]) -> "Curvature":
        """Return the Hessian at the same θ with other precisions.

        Args:
            precisions: α of each group.
        """
        other = copy(self)
        other._add_penalty(precisions)
        return other

    def solve(self, gradient: Tensor) -> Tensor:
        """Return the gradient times the inverse.

        Args:
            gradient: (P,).
        """
        n = self.likelihood.n_functions
        functions = torch.cholesky_solve(gradient[:n].unsqueeze(1), self.factor).squeeze(1)
        return torch.cat([functions, gradient[n:] / self.diagonal])

    def updated_precisions(self, theta: Tensor) -> dict[str, float]:
        """Return (γ + ν) / (θᵀPθ + ν/α₀) of each group, at most the largest precision.

        Args:
            theta: The most likely θ with the present precisions, (P,).
        """
        likelihood = self.likelihood
        settings = likelihood.settings
        determined = self._determined()
        ones = dict.fromkeys(likelihood.sizes, 1.0)
        penalised = likelihood.parts(theta * likelihood.times_penalty(theta, ones))
        new = {}
        for name, part in penalised.items():
            number = determined[name] + settings.prior_parameters
            size = part.sum().item() + settings.prior_parameters / getattr(settings, name)
            new[name] = settings.max_precision
            if 0 < number < size * new[name]:
                new[name] = max(MIN_PRECISION, number / size)
        return new

    def _determined(self) -> dict[str, float]:
        """Return γ, the number of parameters that the labels determine, of each group."""
        sizes = self.likelihood.sizes
        inverse = torch.cholesky_inverse(self.factor)
        found = {}
        start = 0
        for name in FUNCTIONS:
            rows = slice(start, start + sizes[name])
            fixed = (inverse[rows, rows] * self.likelihood.penalties[name]).sum().item()
            found[name] = sizes[name] - self.precisions[name] * fixed
            start = rows.stop
        others = [name for name in sizes if name not in FUNCTIONS]
        shares = (self.of_others / self.diagonal).split([sizes[name] for name in others])
        found |= {name: part.sum().item() for name, part in zip(others, shares, strict=True)}
        return found


def curvature_of_functions(likelihood: Likelihood, p: Tensor) -> Tensor:
    """Return the Hessian of the negative log-likelihood in the parameters of m and h.

    It is estimated from evenly spaced inputs where there are many.

    Args:
        likelihood: The likelihood.
        p: Probabilities, (G, N).
    """
    c = likelihood.columns
    step = max(1, p.numel() // N_FOR_CURVATURE)
    weight = c.weight[::step]
    weight = weight * (likelihood.n / weight.sum()) * (1 + likelihood.prior_weight)
    p = p[:, ::step]
    rows = _derivatives(likelihood, step)
    mean = torch.einsum("gn,gnj->nj", p, rows)
    rows = (rows - mean) * (p * weight).sqrt().unsqueeze(-1)
    rows = rows.flatten(0, 1)
    products: Tensor = rows.T @ rows
    to_slopes: Tensor = torch.block_diag(
        likelihood.to_slopes, torch.eye(likelihood.sizes["top"]).double()
    )
    return to_slopes.T @ products @ to_slopes


def _derivatives(likelihood: Likelihood, step: int) -> Tensor:
    """Return the derivatives of l in the slopes of m at each margin and in those of h.

    Args:
        likelihood: The likelihood.
        step: Every so many inputs are taken.

    Returns:
        (G, N / step, S J + L).
    """
    c = likelihood.columns
    start = likelihood.knots.x
    x = c.x[:, ::step]
    # Of each value of x the length that lies in each segment of m.
    lower = torch.cat([x.new_tensor([-torch.inf]), start[1:-1]])
    upper = torch.cat([start[1:-1], x.new_tensor([torch.inf])])
    inside = x.unsqueeze(-1).clamp(lower, upper) - start[:-1].clamp_min(start[0])
    inside = inside.where(x.unsqueeze(-1) > lower, torch.zeros(()).double())
    hats = torch.zeros(x.shape[1], likelihood.settings.n_margins, dtype=torch.float64)
    interval = likelihood.interval[::step].unsqueeze(1)
    between = likelihood.between[::step].unsqueeze(1)
    hats.scatter_(1, interval, 1 - between).scatter_(1, interval + 1, between)
    of_m = torch.einsum("nm,gnj->gnmj", hats, inside).flatten(2)
    lengths = likelihood.lengths[::step]
    of_h = torch.zeros(*x.shape, lengths.shape[1], dtype=torch.float64)
    of_h[c.top[::step], torch.arange(x.shape[1])] = lengths
    return torch.cat([of_m, of_h], -1)


def _diagonal(likelihood: Likelihood, p: Tensor) -> Tensor:
    """Return the diagonal of the Hessian in b, C, v and u.

    Args:
        likelihood: The likelihood.
        p: Probabilities, (K, N).
    """
    if not likelihood.has_class_terms:
        return p.new_zeros(0)
    k = likelihood.n_classes
    c = likelihood.columns
    weight = c.weight * (1 + likelihood.prior_weight)
    x = likelihood.bounded
    variance = p * (1 - p) * weight
    confusion = p.new_zeros(k, k).scatter_add_(1, likelihood.of_class, variance).T
    mean = (p * x).sum(0)
    of_predicted = weight * ((p * x.square()).sum(0) - mean.square())
    by_predicted = p.new_zeros(k).scatter_add_(0, c.predicted, of_predicted)
    of_class = (variance * x.square()).sum(1)
    return torch.cat([variance.sum(1), confusion.flatten(), of_class, by_predicted])


def write(head: LikelihoodHead, theta: Tensor, knots: Knots, likelihood: Likelihood) -> None:
    """Write the parameters into a head.

    Args:
        head: The head.
        theta: θ, (P,).
        knots: The knots of m.
        likelihood: The likelihood.
    """
    slopes = 1 + likelihood.to_slopes @ theta[: likelihood.n_curve]
    slopes = slopes.clamp_min(head.settings.min_slope).view(head.settings.n_margins, -1)
    segment = torch.bucketize(torch.arange(N_CELLS), knots.cells[1:-1], right=True)
    lengths = knots.cell_width.expand(N_CELLS)
    table = cells_of(slopes[:, segment], lengths)
    head.low.copy_(knots.low)
    head.cell_width.copy_(knots.cell_width)
    head.margins.copy_(knots.margins)
    head.table.copy_(table.T)
    head.top_knots.copy_(knots.top)
    head.top_changes.copy_(changes_of_slopes(len(knots.top)) @ likelihood.parts(theta)["top"])
    if head.has_class_terms:
        bias, confusion, of_class, of_predicted = likelihood.class_terms(theta)
        head.bias.copy_(bias)
        head.confusion.copy_(confusion)
        head.class_slope.copy_(of_class)
        head.predicted_slope.copy_(of_predicted)
