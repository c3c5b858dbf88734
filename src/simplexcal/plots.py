"""The pictures: each takes prepared data and an Axes, and returns the Axes; no pyplot, no style, no new figure."""

from collections.abc import Sequence
from typing import Any, Literal

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
        'simplexcal.plots needs matplotlib, which is not installed. Run pip install "simplexcal[report]".'
    ) from error

Numbers = Tensor | NDArray[Any] | Sequence[float]
Array = NDArray[np.float64]
Place = Literal["upper left", "upper center", "lower right"]

# Okabe and Ito (2008): told apart with every kind of colour vision. Their yellow is too pale for a white page.
BLUE, VERMILION = "#0072B2", "#D55E00"
CYCLE = (BLUE, VERMILION, "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
PALE_BLUE, PALE_VERMILION, INK, GRID = "#A6CBE3", "#FBE9DD", "#333333", "#E6E6E6"
UNIT = (0, 1.02)  # limits that show the whole of a point at 100 %
CORNERS = (
    (0.0, 0.0),
    (1.0, 0.0),
    (0.5, 0.75**0.5),
)  # of classes 0, 1 and 2: an equilateral triangle


def reliability_diagram(
    bins: Bins, ax: Axes, *, band: tuple[Numbers, Numbers] | None = None
) -> Axes:
    """Draw each bin's accuracy as a bar, and its gap to the bin's mean confidence; an empty bin has no bar.

    A dot stands at (mean confidence, accuracy), so the gap is its vertical distance to the diagonal. ``band``, from
    ``metrics.accuracy_band``, holds the lower and the upper ends of an interval of each accuracy.
    """
    _frame(ax, "Confidence", "Accuracy", percent="xy")
    count = _array(bins.count)
    filled = _filled(count)
    x, y = _array(bins.confidence)[filled], _array(bins.accuracy)[filled]
    left, width = _array(bins.edges)[:-1][filled], np.diff(_array(bins.edges))[filled]
    ax.bar(left, y, width, align="edge", color=PALE_BLUE, edgecolor=BLUE, lw=0.5)
    gap = ax.bar(
        left,
        x - y,
        width,
        y,
        align="edge",
        color=PALE_VERMILION,
        edgecolor=VERMILION,
        hatch="////",
        lw=0.5,
    )
    gap.set_label("gap to confidence")
    ax.plot([0, 1], [0, 1], "--", color=INK, linewidth=1, label="perfect calibration")
    if band is not None:
        low, high = (_like("band", end, "bins", count)[filled] for end in band)
        ax.vlines(x, low, high, color=INK, linewidth=1.2, label="interval of accuracy")
    ax.plot(x, y, "o", color=INK, markersize=3.5)
    ax.set(xlim=UNIT, ylim=UNIT, aspect="equal")
    _legend(ax, "lower right" if y.mean() > x.mean() + 0.05 else "upper left")  # away from the dots
    return ax


def confidence_histogram(bins: Bins, ax: Axes) -> Axes:
    """Draw the share of inputs in each bin; two lines, mean confidence and accuracy, meet in calibrated predictions."""
    _frame(ax, "Confidence", "Share of inputs", percent="xy")
    edges, count = _array(bins.edges), _array(bins.count)
    filled = _filled(count)
    share = count / count.sum()
    ax.bar(edges[:-1], share, np.diff(edges), align="edge", color=PALE_BLUE, edgecolor=BLUE, lw=0.5)
    for name, colour, style in (("confidence", VERMILION, "-"), ("accuracy", INK, "--")):
        mean = share[filled] @ _array(getattr(bins, name))[filled]
        ax.axvline(mean, 0, 0.82, color=colour, linestyle=style, label=name)
    ax.set(xlim=UNIT, ylim=(0, 1.3 * share.max()))  # room for the legend
    _legend(ax, "upper left", 2)
    return ax


def risk_coverage_curve(curve: RiskCoverage, ax: Axes, *, label: str | None = None) -> Axes:
    """Draw the error rate among the inputs answered, the most confident first; call again to overlay."""
    _frame(ax, "Coverage: share of inputs answered", "Risk: error rate among them", percent="xy")
    coverage = _array(curve.coverage)
    marker = "o" if len(coverage) == 1 else ""  # a line of one point is invisible
    _line(
        ax, coverage, _like("risk", curve.risk, "coverage", coverage), marker, label, "upper left"
    )
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
    """Draw the ECE against Multi-Mixup's β, shaded by ± ``spread`` (the paper's App. C.3); call again to overlay."""
    _frame(ax, "Multi-Mixup β", "ECE", percent="y")
    beta = _array(betas)
    order = beta.argsort()
    x, y = beta[order], _like("values", values, "betas", beta)[order]
    colour = _line(ax, x, y, "o", label, "upper center")
    if spread is not None:
        half = _like("spread", spread, "betas", beta)[order]
        ax.fill_between(
            x, (y - half).clip(0), y + half, color=colour, alpha=0.15, linewidth=0
        )  # no error is below 0
    ax.set_ylim(bottom=0, auto=True)  # auto: the next curve may be higher
    return ax


def uncertainty_scatter(
    aleatoric: Numbers | None, epistemic: Numbers | None, correct: Numbers, ax: Axes
) -> Axes:
    """Draw each input, right or wrong, at its two uncertainties."""
    _frame(ax, "Aleatoric: expected entropy (nats)", "Epistemic: differential entropy (nats)")
    x = _uncertainty("aleatoric", aleatoric)
    y = _like("epistemic", _uncertainty("epistemic", epistemic), "aleatoric", x)
    right = _like("correct", correct, "aleatoric", x) > 0
    alpha = min(0.8, max(0.25, 20 / len(x) ** 0.5))
    for rows, name, colour, marker in (
        (right, "right", BLUE, "o"),
        (~right, "wrong", VERMILION, "X"),
    ):
        if rows.any():
            points = ax.scatter(
                x[rows], y[rows], 16, colour, marker=marker, alpha=alpha, linewidths=0
            )
            points.set(
                label=f"{name}: {rows.sum():,}", rasterized=len(x) > 2000
            )  # a vector file stays small
    _legend(ax, "lower right")
    return ax


def simplex_grid(resolution: int = 200) -> Tensor:
    """Return the middles (M, 3) of the M = ``resolution``² equal triangles that fill the 2-simplex.

    The integral of a density is its mean over them, halved: the simplex has area ½ in (π_0, π_1).
    """
    return _cells(resolution).mean(1)


def simplex_xy(probs: Tensor) -> Tensor:
    """Return where points (..., 3) of the 2-simplex lie in ``simplex_density``'s picture: (..., 2)."""
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
    """Draw a density on the 2-simplex, given its logarithm (M,) on ``simplex_grid``'s points.

    Any distribution with a ``log_prob`` will do: Concrete, Dirichlet. ``mark`` is a point (3,) to show, the mean say.
    ``log=True`` colours four decades below the peak: for a density that piles up in a corner.
    """
    _frame(ax, "", "")
    if len(class_names) != 3:
        raise ValueError(
            f"`class_names` must be 3 names, one for each corner; got {len(class_names)}. Pass 3."
        )
    density, resolution = _density(log_density)
    norm = (
        LogNorm(density.max() * 1e-4, density.max(), clip=True)
        if log
        else Normalize(0, density.max())
    )
    cells = PolyCollection([], antialiaseds=False, rasterized=True)
    cells.set(
        verts=_array(simplex_xy(_cells(resolution))), array=density, norm=norm, cmap="viridis"
    )
    ax.add_collection(cells, autolim=False)
    ax.fill(*zip(*CORNERS, strict=True), facecolor="none", edgecolor=INK, linewidth=1)
    for (x, y), name, side in zip(CORNERS, class_names, ("top", "top", "bottom"), strict=True):
        ax.text(x, y + (0.03 if side == "bottom" else -0.03), name, ha="center", va=side)
    if mark is not None:
        ax.plot(*_array(simplex_xy(mark)).T, "o", color=VERMILION, fillstyle="none", mew=1.5)
    if colorbar:
        ax.figure.colorbar(cells, cax=ax.inset_axes((0.9, 0.4, 0.03, 0.5)), label="density")
    ax.set(xlim=(-0.1, 1.1), ylim=(-0.12, 0.98), aspect="equal")
    ax.set_axis_off()
    return ax


def _frame(ax: Axes, xlabel: str, ylabel: str, percent: str = "") -> None:
    """Check and label the Axes, with a quiet grid behind the data; the axes in ``percent`` show shares as such."""
    if not isinstance(ax, Axes):
        raise TypeError(
            f"`ax` must be one matplotlib Axes; got {type(ax).__name__}. Make one with plt.subplots()."
        )
    ax.set(xlabel=xlabel, ylabel=ylabel, axisbelow=True)
    ax.grid(color=GRID, linewidth=0.8)
    ax.spines[["top", "right"]].set_visible(False)
    for axis in percent:
        getattr(ax, f"{axis}axis").set_major_formatter(
            FuncFormatter(lambda share, _: f"{100 * share:.4g}%")
        )


def _legend(ax: Axes, loc: Place, ncols: int = 1) -> None:
    for handle in ax.legend(
        loc=loc, ncols=ncols, fontsize="small", edgecolor="none"
    ).legend_handles:
        if handle is not None:
            handle.set_alpha(None)


def _line(ax: Axes, x: Array, y: Array, marker: str, label: str | None, loc: Place) -> str:
    """Draw a line in the next colour of the cycle, and return that colour."""
    colour = CYCLE[len(ax.lines) % len(CYCLE)]
    ax.plot(x, y, marker=marker, markersize=4, color=colour, label=label)
    if label is not None:
        _legend(ax, loc)
    return colour


def _array(values: Numbers) -> Array:
    return torch.as_tensor(values, dtype=torch.float64, device="cpu").detach().numpy()


def _like(name: str, values: Numbers, other: str, reference: Array) -> Array:
    """Return ``values`` as an array if it has the reference's shape."""
    array = _array(values)
    if array.shape != reference.shape:
        raise ValueError(
            f"`{name}` must have shape {reference.shape}, as `{other}` has; got {array.shape}. Pass one value for each."
        )
    return array


def _filled(count: Array) -> NDArray[np.bool_]:
    if not (count > 0).any():
        raise ValueError(
            "`bins` must hold at least one input; every count is 0. Pass the bins of some predictions."
        )
    return count > 0


def _uncertainty(name: str, values: Numbers | None) -> Array:
    if values is None:
        raise TypeError(
            f"`{name}` must be a number for each input; got None. Use a method that has it, such as sts."
        )
    array = _array(values)
    if array.ndim != 1 or not array.size:
        raise ValueError(
            f"`{name}` must have shape (N,) with N >= 1; got {array.shape}. Pass a prediction's `{name}`."
        )
    return array


def _cells(resolution: int) -> Tensor:
    """Return the corners (M, 3, 3) of the small triangles: those that stand as the simplex does, then the others."""
    if resolution < 1:
        raise ValueError(
            f"`resolution` must be at least 1 triangle along an edge; got {resolution}. Try 200."
        )
    upright = _lattice(resolution - 1) + torch.eye(3)
    turned = _lattice(resolution - 2) + (1 - torch.eye(3))
    return torch.cat([upright, turned]) / resolution


def _lattice(total: int) -> Tensor:
    """Return the triples (M, 1, 3) of whole numbers ≥ 0 with sum ``total``."""
    row, j = torch.tril_indices(total + 1, total + 1)
    return torch.stack([row - j, j, total - row], -1).unsqueeze(1)


def _density(log_density: Tensor) -> tuple[Array, int]:
    """Return the density and the resolution of its grid."""
    values = _array(log_density)
    resolution = round(values.size**0.5)
    if values.ndim != 1 or values.size < 1 or values.size != resolution**2:
        raise ValueError(
            f"`log_density` must have one value for each of simplex_grid's points; got shape {values.shape}. "
            "Pass distribution.log_prob(simplex_grid())."
        )
    if not np.isfinite(values.max()):
        raise ValueError(
            f"`log_density` must have a finite maximum; found {values.max()}. Look at the distribution's parameters."
        )
    return np.exp(values), resolution
