"""Plots: each function draws prepared data on a given Axes and returns it.

No function uses pyplot, sets a style or makes a figure. Legends stand to the right of the Axes:
``layout="constrained"`` makes a figure leave them room.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simplexcal.metrics import Bins, RiskCoverage

try:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import FuncFormatter
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "simplexcal.plots needs matplotlib, which is not installed. "
        'Run pip install "simplexcal[report]".'
    ) from error

Numbers = Tensor | NDArray[Any] | Sequence[float]
Array = NDArray[np.float64]

# The first six are by Okabe and Ito (2008), without their yellow, which is too pale for a white
# page. With every kind of colour vision, any two of the twelve differ as much as two of these six.
BLUE = "#0072B2"
VERMILION = "#D55E00"
COLOURS = (
    BLUE,
    VERMILION,
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#110000",
    "#8833FF",
    "#DD0044",
    "#001188",
    "#662200",
    "#553355",
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", "p", ">", "h")
LINE_STYLES = ("-", "--", "-.", ":")
PALE_BLUE = "#A6CBE3"
PALE_VERMILION = "#FBE9DD"
INK = "#333333"
GRID = "#E6E6E6"
UNIT = (0, 1.02)  # limits that show the whole of a point at 100 %
FEW = 30  # the accuracy of fewer inputs has a standard error up to 9 % or more
NARROW = 0.03  # a bin narrower than this has no room for its count
CORNERS = ((0.0, 0.0), (1.0, 0.0), (0.5, 0.75**0.5))  # of classes 0, 1 and 2
N_VECTOR = 2000  # more points than these are rasterized, so that a vector file stays small


def reliability_diagram(
    bins: Bins, ax: Axes, *, band: tuple[Numbers, Numbers] | None = None
) -> Axes:
    """Draw the accuracy of each bin as a bar, and its gap to the mean confidence of the bin.

    A dot stands at (mean confidence, accuracy), so that the gap is its vertical distance to the
    diagonal. The dot of a bin with fewer than 30 inputs is hollow, an empty bin has no bar. The
    number of inputs stands above each bin that is wide enough. The legend says how many there are
    in all, and the mean gap weighted by them: the ECE over these bins.

    Args:
        bins: The data, from ``metrics.reliability`` or ``metrics.equal_mass_reliability``.
        ax: The Axes to draw on.
        band: The lower and the upper ends of an interval of each accuracy, from
            ``metrics.accuracy_band``.
    """
    _frame(ax, "Confidence", "Accuracy", percent="xy")
    count = _array(bins.count)
    filled = _filled(count)
    edges = _array(bins.edges)
    n = count[filled]
    x = _array(bins.confidence)[filled]
    y = _array(bins.accuracy)[filled]
    left = edges[:-1][filled]
    width = np.diff(edges)[filled]
    ax.bar(left, y, width, align="edge", color=PALE_BLUE, edgecolor=BLUE, lw=0.5)
    gap = ax.bar(left, x - y, width, bottom=y, align="edge", color=PALE_VERMILION)
    for bar in gap:
        bar.set(edgecolor=VERMILION, hatch="////", linewidth=0.5)
    gap.set_label("gap to confidence")
    ax.plot([0, 1], [0, 1], "--", color=INK, linewidth=1, label="perfect calibration")
    if band is not None:
        low, high = (_like("band", end, "bins", count)[filled] for end in band)
        ax.vlines(x, low, high, color=INK, linewidth=1.2, label="interval of accuracy")
    _dots(ax, x, y, n < FEW)
    _counts(ax, n, left, width)
    ax.set(xlim=UNIT, ylim=UNIT, aspect="equal", anchor="W")
    error = n @ np.abs(x - y) / n.sum()
    _legend(ax, f"{n.sum():,.0f} inputs\nECE {error:.2%}")
    return ax


def confidence_histogram(bins: Bins, ax: Axes) -> Axes:
    """Draw the share of inputs in each bin, and lines at the mean confidence and the accuracy.

    The two lines meet where predictions are calibrated on average.

    Args:
        bins: The data, from ``metrics.reliability`` or ``metrics.equal_mass_reliability``.
        ax: The Axes to draw on.
    """
    _frame(ax, "Confidence", "Share of inputs", percent="xy")
    edges = _array(bins.edges)
    count = _array(bins.count)
    filled = _filled(count)
    share = count / count.sum()
    width = np.diff(edges)
    ax.bar(edges[:-1], share, width, align="edge", color=PALE_BLUE, edgecolor=BLUE, lw=0.5)
    confidence = share[filled] @ _array(bins.confidence)[filled]
    accuracy = share[filled] @ _array(bins.accuracy)[filled]
    ax.axvline(confidence, color=VERMILION, linestyle="-", label=f"confidence, {confidence:.1%}")
    ax.axvline(accuracy, color=INK, linestyle="--", label=f"accuracy, {accuracy:.1%}")
    ax.set(xlim=UNIT, ylim=(0, 1.05 * share.max()))
    _legend(ax, f"{count.sum():,.0f} inputs")
    return ax


def risk_coverage_curve(curve: RiskCoverage, ax: Axes, *, label: str | None = None) -> Axes:
    """Draw the error rate among the inputs answered, the most confident first.

    Another call on the same Axes overlays another curve. The first twelve differ in colour and
    marker, 48 in colour and line style.

    Args:
        curve: The data, from ``metrics.risk_coverage``.
        ax: The Axes to draw on.
        label: Name of the curve in the legend.
    """
    _frame(ax, "Coverage: share of inputs answered", "Risk: error rate among them", percent="xy")
    coverage = _array(curve.coverage)
    risk = _like("risk", curve.risk, "coverage", coverage)
    _line(ax, coverage, risk, label, every_point=False)
    ax.set_xlim(UNIT)
    ax.set_ylim(bottom=0, auto=True)  # auto: the next curve may be higher
    return ax


def beta_sensitivity(
    betas: Numbers,
    values: Numbers,
    ax: Axes,
    *,
    spread: Numbers | None = None,
    label: str | None = None,
) -> Axes:
    """Draw the ECE against the β of Multi-Mixup, as in App. C.3 of the paper.

    Another call on the same Axes overlays another curve. The first twelve differ in colour and
    marker, 48 in colour and line style.

    Args:
        betas: The values of β.
        values: The ECE at each.
        ax: The Axes to draw on.
        spread: The curve is shaded by ± these values.
        label: Name of the curve in the legend.
    """
    _frame(ax, "Multi-Mixup β", "ECE", percent="y")
    beta = _array(betas)
    order = beta.argsort()
    x = beta[order]
    y = _like("values", values, "betas", beta)[order]
    colour = _line(ax, x, y, label, every_point=True)
    if spread is not None:
        deviation = _like("spread", spread, "betas", beta)[order]
        low = (y - deviation).clip(0)  # no error is below 0
        ax.fill_between(x, low, y + deviation, color=colour, alpha=0.15, linewidth=0)
    ax.set_ylim(bottom=0, auto=True)  # auto: the next curve may be higher
    return ax


def uncertainty_scatter(
    aleatoric: Numbers | None, epistemic: Numbers | None, correct: Numbers, ax: Axes
) -> Axes:
    """Draw each input at its two uncertainties, correct or wrong.

    Args:
        aleatoric: Aleatoric uncertainty of each input, (N,).
        epistemic: Epistemic uncertainty of each input, (N,).
        correct: Whether each prediction is correct, (N,).
        ax: The Axes to draw on.
    """
    _frame(ax, "Aleatoric: expected entropy (nats)", "Epistemic: differential entropy (nats)")
    x = _uncertainty("aleatoric", aleatoric)
    y = _like("epistemic", _uncertainty("epistemic", epistemic), "aleatoric", x)
    is_correct = _like("correct", correct, "aleatoric", x) > 0
    _points(ax, x, y, is_correct, "correct", BLUE, "o")
    _points(ax, x, y, ~is_correct, "wrong", VERMILION, "X")
    _legend(ax)
    return ax


def simplex_grid(resolution: int = 200) -> Tensor:
    """Return the centres (M, 3) of the M = ``resolution``² equal triangles that fill the 2-simplex.

    The integral of a density is half of its mean over them: the simplex has area ½ in (π_0, π_1).

    Args:
        resolution: Number of triangles along an edge.
    """
    return _cells(resolution).mean(1)


def simplex_xy(probs: Tensor) -> Tensor:
    """Return the positions (..., 2) of points of the 2-simplex in ``simplex_density``.

    Args:
        probs: Probabilities of three classes, (..., 3).
    """
    if probs.shape[-1:] != (3,):
        raise ValueError(
            f"`probs` must have shape (..., 3), for 3 classes; got {tuple(probs.shape)}. Choose 3."
        )
    return probs @ probs.new_tensor(CORNERS)


def simplex_density(
    log_density: Tensor,
    ax: Axes,
    *,
    mark: Tensor | None = None,
    log: bool = False,
    class_names: Sequence[str] = ("class 0", "class 1", "class 2"),
    colorbar: bool = True,
) -> Axes:
    """Draw a density on the 2-simplex.

    Any distribution with a ``log_prob`` will do, such as Concrete or Dirichlet.

    Args:
        log_density: Logarithm of the density on the points of ``simplex_grid``, (M,).
        ax: The Axes to draw on.
        mark: A point (3,) to show, such as the mean.
        log: Colour four decades below the peak, for a density that piles up in a corner.
        class_names: The names of the three corners.
        colorbar: Whether to draw a colour bar.
    """
    _frame(ax, "", "")
    if len(class_names) != 3:
        raise ValueError(
            f"`class_names` must be 3 names, one for each corner; got {len(class_names)}. Pass 3."
        )
    density, resolution = _density(log_density)
    cells = PolyCollection([], antialiaseds=False, rasterized=True)
    verts = _array(simplex_xy(_cells(resolution)))
    norm = _colour_scale(density.max(), log)
    cells.set(verts=verts, array=density, norm=norm, cmap="viridis")
    ax.add_collection(cells, autolim=False)
    ax.fill(*zip(*CORNERS, strict=True), facecolor="none", edgecolor=INK, linewidth=1)
    _name_corners(ax, class_names)
    if mark is not None:
        position = _array(simplex_xy(mark)).T
        ax.plot(*position, "o", color=VERMILION, fillstyle="none", mew=1.5)
    if colorbar:
        ax.figure.colorbar(cells, cax=ax.inset_axes((0.9, 0.4, 0.03, 0.5)), label="density")
    ax.set(xlim=(-0.1, 1.1), ylim=(-0.12, 0.98), aspect="equal")
    ax.set_axis_off()
    return ax


def _frame(ax: Axes, xlabel: str, ylabel: str, percent: str = "") -> None:
    """Check and label the Axes, with a light grid; the axes in ``percent`` show percentages."""
    if not isinstance(ax, Axes):
        raise TypeError(
            f"`ax` must be one matplotlib Axes; got {type(ax).__name__}. "
            "Make one with plt.subplots()."
        )
    ax.set(xlabel=xlabel, ylabel=ylabel, axisbelow=True)
    ax.grid(color=GRID, linewidth=0.8)
    ax.spines[["top", "right"]].set_visible(False)
    for name in percent:
        formatter = FuncFormatter(lambda share, _: f"{100 * share:.4g}%")
        getattr(ax, f"{name}axis").set_major_formatter(formatter)


def _legend(ax: Axes, title: str | None = None) -> None:
    """Draw the legend to the right of the Axes, where it hides no data."""
    legend = ax.legend(
        loc="upper left",
        bbox_to_anchor=(1.02, 1),
        borderaxespad=0,
        fontsize="small",
        title=title,
        title_fontsize="small",
        alignment="left",
        edgecolor="none",
    )
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(None)


def _dots(ax: Axes, x: Array, y: Array, few: NDArray[np.bool_]) -> None:
    """Draw a dot for each bin, hollow for those with few inputs."""
    ax.plot(x[~few], y[~few], "o", color=INK, markersize=3.5, clip_on=False)
    if few.any():
        name = f"fewer than {FEW} inputs"
        (hollow,) = ax.plot(x[few], y[few], "o", color=INK, mfc="white", clip_on=False)
        hollow.set(markersize=5, label=name, zorder=3)


def _counts(ax: Axes, n: Array, left: Array, width: Array) -> None:
    """Write the number of inputs above each bin that is wide enough."""
    wide = width >= NARROW
    above = ax.secondary_xaxis("top")
    above.set_xticks((left + width / 2)[wide], [f"{count:,.0f}" for count in n[wide]])
    above.tick_params(length=0, pad=2, labelsize="x-small", labelcolor=INK, labelrotation=90)
    if wide.any():
        above.set_xlabel("inputs in each bin", fontsize="x-small", loc="left")
    above.spines["top"].set_visible(False)


def _line(ax: Axes, x: Array, y: Array, label: str | None, *, every_point: bool) -> str:
    """Draw a line in the next style, with some or all of its points, and return its colour."""
    i = len(ax.lines)
    n_colours = len(COLOURS)
    colour = COLOURS[i % n_colours]
    # Each colour comes with one line style after the other.
    style = LINE_STYLES[(i + i // n_colours) % len(LINE_STYLES)]
    (line,) = ax.plot(x, y, style, marker=MARKERS[i % n_colours], color=colour, label=label)
    line.set_markersize(5)
    if not every_point:
        # The markers of two lines are not at the same places.
        line.set_markevery((0.01 * (i % n_colours), 0.12))
    if label is not None:
        _legend(ax)
    return colour


def _points(
    ax: Axes, x: Array, y: Array, rows: NDArray[np.bool_], name: str, colour: str, marker: str
) -> None:
    """Draw some of the inputs; the more there are in all, the more transparent."""
    if not rows.any():
        return
    alpha = min(0.8, max(0.25, 20 / len(x) ** 0.5))
    points = ax.scatter(x[rows], y[rows], 16, colour, marker=marker, alpha=alpha, linewidths=0)
    points.set_label(f"{name}: {rows.sum():,}")
    points.set_rasterized(len(x) > N_VECTOR)


def _colour_scale(highest: float, log: bool) -> Normalize:
    if log:
        return LogNorm(highest * 1e-4, highest, clip=True)
    return Normalize(0, highest)


def _name_corners(ax: Axes, class_names: Sequence[str]) -> None:
    left, right, top = CORNERS
    ax.text(left[0], left[1] - 0.03, class_names[0], ha="center", va="top")
    ax.text(right[0], right[1] - 0.03, class_names[1], ha="center", va="top")
    ax.text(top[0], top[1] + 0.03, class_names[2], ha="center", va="bottom")


def _array(values: Numbers) -> Array:
    return torch.as_tensor(values, dtype=torch.float64, device="cpu").detach().numpy()


def _like(name: str, values: Numbers, other: str, reference: Array) -> Array:
    """Return ``values`` as an array if it has the shape of the reference."""
    array = _array(values)
    if array.shape != reference.shape:
        raise ValueError(
            f"`{name}` must have shape {reference.shape}, as `{other}` has; got {array.shape}. "
            "Pass one value for each."
        )
    return array


def _filled(count: Array) -> NDArray[np.bool_]:
    filled: NDArray[np.bool_] = count > 0
    if not filled.any():
        raise ValueError(
            "`bins` must hold at least one input; every count is 0. "
            "Pass the bins of some predictions."
        )
    return filled


def _uncertainty(name: str, values: Numbers | None) -> Array:
    if values is None:
        raise TypeError(
            f"`{name}` must be a number for each input; got None. "
            "Use a method that has it, such as sts."
        )
    array = _array(values)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(
            f"`{name}` must have shape (N,) with N >= 1; got {array.shape}. "
            f"Pass a prediction's `{name}`."
        )
    return array


def _cells(resolution: int) -> Tensor:
    """Return the corners (M, 3, 3) of the small triangles, first those oriented as the simplex."""
    if resolution < 1:
        raise ValueError(
            f"`resolution` must be at least 1 triangle along an edge; got {resolution}. Try 200."
        )
    upright = _lattice(resolution - 1) + torch.eye(3)
    inverted = _lattice(resolution - 2) + (1 - torch.eye(3))
    return torch.cat([upright, inverted]) / resolution


def _lattice(total: int) -> Tensor:
    """Return the triples (M, 1, 3) of whole numbers ≥ 0 with sum ``total``."""
    row, j = torch.tril_indices(total + 1, total + 1)
    triples = torch.stack([row - j, j, total - row], -1)
    return triples.unsqueeze(1)


def _density(log_density: Tensor) -> tuple[Array, int]:
    """Return the density and the resolution of its grid."""
    values = _array(log_density)
    resolution = round(values.size**0.5)
    if values.ndim != 1 or values.size < 1 or values.size != resolution**2:
        raise ValueError(
            "`log_density` must have one value for each of simplex_grid's points; "
            f"got shape {values.shape}. Pass distribution.log_prob(simplex_grid())."
        )
    if not np.isfinite(values.max()):
        raise ValueError(
            f"`log_density` must have a finite maximum; found {values.max()}. "
            "Look at the distribution's parameters."
        )
    return np.exp(values), resolution
