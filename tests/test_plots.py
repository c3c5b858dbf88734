import subprocess
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from torch import Tensor, nan, tensor
from torch.distributions import Dirichlet, Distribution

from simplexcal import Concrete, plots
from simplexcal.metrics import (
    Bins,
    RiskCoverage,
    accuracy_band,
    ece,
    equal_mass_reliability,
    reliability,
    risk_coverage,
)

# Four bins, two of them empty, the others with 2 and 6 inputs.
BINS = Bins(
    edges=tensor([0.0, 0.25, 0.5, 0.75, 1.0]),
    count=tensor([0, 2, 0, 6]),
    confidence=tensor([nan, 0.4, nan, 0.9]),
    accuracy=tensor([nan, 0.5, nan, 0.75]),
)
CURVE = RiskCoverage(tensor([0.5, 1.0]), tensor([0.0, 0.25]))


@pytest.fixture
def ax() -> Any:  # matplotlib types what is read back as anything an array can be made of
    return Figure(figsize=(4, 4), dpi=50).add_subplot()


def bars(ax: Any, which: int) -> np.ndarray[Any, Any]:
    """Return (left, bottom, width, height) of each bar of one set."""
    return np.array(
        [(*bar.get_xy(), bar.get_width(), bar.get_height()) for bar in ax.containers[which]]
    )


def legend(ax: Any) -> list[str]:
    found = ax.get_legend()
    return [] if found is None else [text.get_text() for text in found.get_texts()]


def counts(ax: Any) -> dict[float, str]:
    """Return the numbers above the bins, by the middle of the bin."""
    (above,) = ax.child_axes
    ticks = above.get_xticks()
    names = [tick.get_text() for tick in above.get_xticklabels()]
    return dict(zip(ticks, names, strict=True))


def predictions(generator: torch.Generator, n: int = 500) -> tuple[Tensor, Tensor]:
    confidence = torch.rand(n, generator=generator)
    return confidence, torch.rand(n, generator=generator) < confidence


def test_reliability_diagram_by_hand(ax: Any) -> None:
    plots.reliability_diagram(BINS, ax)
    np.testing.assert_allclose(bars(ax, 0), [(0.25, 0, 0.25, 0.5), (0.75, 0, 0.25, 0.75)])
    np.testing.assert_allclose(
        bars(ax, 1), [(0.25, 0.5, 0.25, -0.1), (0.75, 0.75, 0.25, 0.15)], rtol=1e-6
    )
    diagonal, dots, hollow_dots = (line.get_xydata() for line in ax.lines)
    np.testing.assert_array_equal(diagonal, [(0, 0), (1, 1)])
    assert len(dots) == 0
    np.testing.assert_allclose(hollow_dots, [(0.4, 0.5), (0.9, 0.75)])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("Confidence", "Accuracy")
    assert ax.get_aspect() == 1
    assert ax.get_xlim() == ax.get_ylim() == plots.UNIT
    assert set(legend(ax)) == {
        "perfect calibration",
        "gap to confidence",
        "fewer than 30 inputs",
    }


def test_reliability_diagram_says_its_counts_and_its_ece(ax: Any) -> None:
    plots.reliability_diagram(BINS, ax)
    # 2/8 · |0.5 - 0.4| + 6/8 · |0.75 - 0.9| = 0.1375
    assert ax.get_legend().get_title().get_text() == "8 inputs\nECE 13.75%"
    assert counts(ax) == {0.375: "2", 0.875: "6"}


def test_the_ece_of_a_diagram_is_that_of_the_metrics(ax: Any, generator: torch.Generator) -> None:
    confidence, correct = predictions(generator, 12_345)
    plots.reliability_diagram(reliability(confidence, correct), ax)
    error = ece(confidence, correct).item()
    assert ax.get_legend().get_title().get_text() == f"12,345 inputs\nECE {error:.2%}"


def test_the_dots_of_bins_with_few_inputs_are_hollow(ax: Any) -> None:
    edges = tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    middle = tensor([0.1, 0.4, 0.6, 0.9])
    plots.reliability_diagram(Bins(edges, tensor([29, 30, 1, 31]), middle, middle), ax)
    _, dots, hollow_dots = ax.lines
    np.testing.assert_allclose(dots.get_xdata(), [0.4, 0.9], rtol=1e-6)
    np.testing.assert_allclose(hollow_dots.get_xdata(), [0.1, 0.6], rtol=1e-6)
    assert hollow_dots.get_markerfacecolor() != hollow_dots.get_markeredgecolor()
    assert dots.get_markerfacecolor() == dots.get_markeredgecolor()


def test_bins_with_many_inputs_need_no_mark(ax: Any) -> None:
    plots.reliability_diagram(BINS._replace(count=tensor([0, 30, 0, 31])), ax)
    assert set(legend(ax)) == {"perfect calibration", "gap to confidence"}


def test_counts_stand_above_bins_that_are_wide_enough(ax: Any, generator: torch.Generator) -> None:
    confidence, correct = predictions(generator, 5000)
    plots.reliability_diagram(equal_mass_reliability(confidence**0.2, correct), ax)
    shown = sorted(counts(ax))
    assert 0 < len(shown) < 15
    assert np.diff(shown).min() >= 0.03


def test_reliability_diagram_shows_the_band_at_the_mean_confidence(ax: Any) -> None:
    plots.reliability_diagram(
        BINS, ax, band=(tensor([nan, 0.1, nan, 0.4]), tensor([nan, 0.9, nan, 0.95]))
    )
    (intervals,) = ax.collections
    np.testing.assert_allclose(
        np.array(intervals.get_segments()), [[(0.4, 0.1), (0.4, 0.9)], [(0.9, 0.4), (0.9, 0.95)]]
    )
    assert "interval of accuracy" in legend(ax)


DRAWN: dict[str, Callable[[Any], object]] = {
    "reliability": lambda ax: plots.reliability_diagram(BINS, ax),
    "histogram": lambda ax: plots.confidence_histogram(BINS, ax),
    "risk": lambda ax: plots.risk_coverage_curve(CURVE, ax, label="ts"),
    "beta": lambda ax: plots.beta_sensitivity([1.0, 2.0], [0.1, 0.2], ax, label="a network"),
    "scatter": lambda ax: plots.uncertainty_scatter([0.5, 1.0], [-2.0, -1.0], [1, 0], ax),
}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_the_legend_hides_no_data_and_is_on_the_page(draw: Callable[[Any], object]) -> None:
    figure = Figure(figsize=(6, 4), dpi=50, layout="constrained")
    ax: Any = figure.add_subplot()
    draw(ax)
    figure.draw_without_rendering()
    box = ax.get_legend().get_window_extent()
    assert box.x0 >= ax.get_window_extent().x1
    assert box.x1 <= figure.bbox.x1


@pytest.mark.parametrize("n_bins", [1, 7, 100])
@pytest.mark.parametrize("kind", [reliability, equal_mass_reliability])
def test_bins_of_every_number_and_kind(
    ax: Any, generator: torch.Generator, n_bins: int, kind: Any
) -> None:
    bins = kind(*predictions(generator), n_bins=n_bins)
    plots.reliability_diagram(bins, ax, band=accuracy_band(bins))
    filled = bins.count > 0
    torch.testing.assert_close(tensor(bars(ax, 0)[:, 3]), bins.accuracy[filled].double())
    plots.confidence_histogram(bins, ax.figure.add_subplot())
    assert bars(ax.figure.axes[1], 0)[:, 3].sum() == pytest.approx(1)


def test_confidence_histogram_by_hand(ax: Any) -> None:
    plots.confidence_histogram(BINS, ax)
    shares = [(0, 0, 0.25, 0), (0.25, 0, 0.25, 0.25), (0.5, 0, 0.25, 0), (0.75, 0, 0.25, 0.75)]
    np.testing.assert_allclose(bars(ax, 0), shares)
    confidence, accuracy = (line.get_xdata() for line in ax.lines)
    np.testing.assert_allclose(confidence, 0.775)  # (2 · 0.4 + 6 · 0.9) / 8
    np.testing.assert_allclose(accuracy, 0.6875)  # (2 · 0.5 + 6 · 0.75) / 8
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("Confidence", "Share of inputs")
    assert ax.get_ylim()[0] == 0
    assert legend(ax) == ["confidence, 77.5%", "accuracy, 68.8%"]
    assert ax.get_legend().get_title().get_text() == "8 inputs"


def test_shares_are_written_as_percentages(ax: Any) -> None:
    plots.confidence_histogram(BINS, ax)
    for axis in (ax.xaxis, ax.yaxis):
        assert [axis.get_major_formatter()(value) for value in (0, 0.35, 0.0125, 1)] == [
            "0%",
            "35%",
            "1.25%",
            "100%",
        ]


def test_risk_coverage_curves_are_overlaid(ax: Any) -> None:
    for label in ("ts", "sts"):
        plots.risk_coverage_curve(CURVE, ax, label=label)
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [(0.5, 0), (1, 0.25)])
    assert legend(ax) == ["ts", "sts"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == (
        "Coverage: share of inputs answered",
        "Risk: error rate among them",
    )


OVERLAID: dict[str, Callable[[Any], object]] = {
    "risk": lambda ax: plots.risk_coverage_curve(CURVE, ax),
    "beta": lambda ax: plots.beta_sensitivity([1.0, 2.0], [0.1, 0.2], ax),
}


@pytest.mark.parametrize("draw", OVERLAID.values(), ids=OVERLAID)
def test_twelve_curves_differ_in_colour_and_marker_and_more_in_style(
    ax: Any, draw: Callable[[Any], object]
) -> None:
    for _ in range(48):
        draw(ax)
    assert len({line.get_color() for line in ax.lines[:12]}) == 12
    assert len({line.get_marker() for line in ax.lines[:12]}) == 12
    assert len({(line.get_color(), line.get_linestyle()) for line in ax.lines}) == 48


# How colours look with three kinds of colour vision (Machado et al. 2009, severity 1, linear RGB).
COLOUR_VISION = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
SRGB_TO_XYZ = [
    [0.4124564, 0.3575761, 0.1804375],
    [0.2126729, 0.7151522, 0.0721750],
    [0.0193339, 0.1191920, 0.9503041],
]


def lab(colour: str, vision: Any) -> Any:
    """Return a colour in CIELAB, as it is seen."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(vision) @ linear, 0, 1)
    xyz = np.asarray(SRGB_TO_XYZ) @ seen / [0.95047, 1, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def smallest_difference(colours: tuple[str, ...]) -> float:
    """Return the smallest ΔE of two of the colours over all kinds of colour vision."""
    differences = []
    for vision in COLOUR_VISION.values():
        seen = [lab(colour, vision) for colour in colours]
        differences += [np.linalg.norm(a - b) for a, b in combinations(seen, 2)]
    return float(min(differences))


def test_twelve_colours_differ_as_much_as_the_six_of_okabe_and_ito() -> None:
    assert smallest_difference(plots.COLOURS) == smallest_difference(plots.COLOURS[:6]) > 10


def test_limits_grow_with_what_is_overlaid(ax: Any) -> None:
    for risk in (0.1, 0.4, 0.2):
        plots.risk_coverage_curve(RiskCoverage(tensor([0.5, 1.0]), tensor([0.0, risk])), ax)
    low, high = ax.get_ylim()
    assert low == 0
    assert 0.4 <= high < 0.5


def test_one_curve_without_a_label_needs_no_legend(ax: Any, generator: torch.Generator) -> None:
    plots.risk_coverage_curve(risk_coverage(*predictions(generator)), ax)
    assert legend(ax) == []


def test_a_curve_of_one_point_is_visible(ax: Any) -> None:
    plots.risk_coverage_curve(RiskCoverage(tensor([1.0]), tensor([0.0])), ax)
    assert ax.lines[0].get_marker() == "o"


def test_beta_sensitivity_by_hand(ax: Any) -> None:
    plots.beta_sensitivity([2.0, 0.5], [0.03, 0.01], ax, spread=[0.01, 0.02], label="STL10")
    np.testing.assert_allclose(ax.lines[0].get_xydata(), [(0.5, 0.01), (2, 0.03)])
    (shade,) = ax.collections
    corners = {(round(x, 9), round(y, 9)) for x, y in np.asarray(shade.get_paths()[0].vertices)}
    assert corners == {(0.5, 0.0), (0.5, 0.03), (2.0, 0.02), (2.0, 0.04)}  # 0.01 - 0.02 is cut at 0
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("Multi-Mixup β", "ECE")
    assert ax.get_ylim()[0] == 0
    assert legend(ax) == ["STL10"]


def test_beta_sensitivity_without_spread_has_no_shade(ax: Any) -> None:
    plots.beta_sensitivity(tensor([1.0]), np.array([0.02]), ax)
    assert not ax.collections
    assert legend(ax) == []


def test_uncertainty_scatter_by_hand(ax: Any) -> None:
    correct = tensor([True, False, True])
    plots.uncertainty_scatter(tensor([0.1, 0.9, 0.2]), tensor([-5.0, -1.0, -4.0]), correct, ax)
    hits, errors = ax.collections
    np.testing.assert_allclose(np.asarray(hits.get_offsets()), [(0.1, -5), (0.2, -4)], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(errors.get_offsets()), [(0.9, -1)], rtol=1e-6)
    assert not np.array_equal(hits.get_facecolor(), errors.get_facecolor())
    assert legend(ax) == ["correct: 2", "wrong: 1"]
    assert "nats" in ax.get_xlabel()
    assert "nats" in ax.get_ylabel()


@pytest.mark.parametrize(("correct", "text"), [(True, "correct: 1"), (False, "wrong: 1")])
def test_uncertainty_scatter_of_one_point(ax: Any, correct: bool, text: str) -> None:
    plots.uncertainty_scatter([0.5], [-2.0], tensor([correct]), ax)
    assert legend(ax) == [text]


DISTRIBUTIONS = [
    Concrete(tensor([1.0, 0.5, 0.25]), 2.0),
    Concrete(tensor([0.3, 0.1, -0.2]), 4.0),
    Dirichlet(tensor([2.0, 3.0, 4.0])),
]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda d: type(d).__name__)
def test_densities_on_the_grid_integrate_to_one_and_to_the_mean(distribution: Distribution) -> None:
    # The midpoint rule misses h²/36 ∫ (f_00 + f_11 - f_01) of a smooth density f, with h = 1/200.
    # By hand, this integral is -56 for Dirichlet(2, 3, 4): the sum is 3.9e-5 too large. The
    # Concrete densities are as flat at the edges.
    points = plots.simplex_grid(200)
    weight = distribution.log_prob(points).exp().double() / 2 / 200**2
    torch.testing.assert_close(weight.sum().item(), 1.0, atol=1e-4, rtol=0)
    torch.testing.assert_close(
        (weight @ points.double()).float(), distribution.mean, atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("resolution", [1, 2, 9])
def test_the_grid_lies_inside_the_simplex(resolution: int) -> None:
    points = plots.simplex_grid(resolution)
    assert points.shape == (resolution**2, 3)
    assert points.unique(dim=0).shape == points.shape
    assert points.min() > 0
    torch.testing.assert_close(points.sum(-1), torch.ones(resolution**2))


def test_simplex_xy_of_the_corners_and_the_middle() -> None:
    xy = plots.simplex_xy(torch.cat([torch.eye(3), torch.full((1, 3), 1 / 3)]))
    torch.testing.assert_close(
        xy, tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5], [0.5, 0.75**0.5 / 3]])
    )


def cells(ax: Any) -> Any:
    (found,) = (c for c in ax.collections if isinstance(c, PolyCollection))
    return found


def test_simplex_density_draws_each_value_where_its_point_is(ax: Any) -> None:
    points = plots.simplex_grid(7)
    log_density = Dirichlet(tensor([2.0, 3.0, 4.0])).log_prob(points)
    plots.simplex_density(log_density, ax)
    corners = np.array([path.vertices[:3] for path in cells(ax).get_paths()])
    np.testing.assert_allclose(corners.mean(1), plots.simplex_xy(points), atol=1e-6)
    one, two = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    area = abs(one[:, 0] * two[:, 1] - one[:, 1] * two[:, 0]) / 2
    # The triangles are equal, and together the whole simplex.
    np.testing.assert_allclose(area, 0.75**0.5 / 2 / 49, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(cells(ax).get_array()), log_density.exp(), rtol=1e-6)
    assert ax.get_aspect() == 1


@pytest.mark.parametrize("favourite", [0, 1, 2])
def test_a_density_near_a_class_is_bright_at_its_label(ax: Any, favourite: int) -> None:
    alpha = torch.ones(3)
    alpha[favourite] = 6.0
    names = ("cat", "dog", "owl")
    plots.simplex_density(
        Dirichlet(alpha).log_prob(plots.simplex_grid(40)), ax, class_names=names, colorbar=False
    )
    canvas: Any = FigureCanvasAgg(ax.figure)
    canvas.draw()
    picture = np.asarray(canvas.buffer_rgba())[..., :3].sum(-1)
    position = {text.get_text(): np.array(text.get_position()) for text in ax.texts}
    centre = plots.simplex_xy(torch.full((3,), 1 / 3)).numpy()
    near = [ax.transData.transform(0.8 * position[name] + 0.2 * centre) for name in names]
    brightness = [picture[len(picture) - 1 - round(y), round(x)] for x, y in near]
    assert int(np.argmax(brightness)) == favourite


def test_simplex_density_on_a_logarithmic_scale_covers_four_decades(ax: Any) -> None:
    log_density = Concrete(tensor([1.0, 0.5, 0.25]), 0.2).log_prob(plots.simplex_grid(30))
    plots.simplex_density(log_density, ax, log=True)
    norm = cells(ax).norm
    assert type(norm).__name__ == "LogNorm"
    assert norm.vmax == pytest.approx(log_density.max().exp().item(), rel=1e-5)
    assert norm.vmax == pytest.approx(1e4 * norm.vmin)


def test_simplex_density_marks_points_and_has_a_labelled_colour_bar(ax: Any) -> None:
    concrete = Concrete(tensor([1.0, 0.5, 0.25], requires_grad=True), 2.0)
    plots.simplex_density(concrete.log_prob(plots.simplex_grid(5)), ax, mark=concrete.mean)
    np.testing.assert_allclose(
        ax.lines[0].get_xydata()[0], plots.simplex_xy(concrete.mean.detach())
    )
    (bar,) = ax.child_axes
    assert bar.get_ylabel() == "density"


def test_simplex_density_where_there_is_none(ax: Any) -> None:
    plots.simplex_density(tensor([0.0, -torch.inf, 0.0, 0.0]), ax, log=True)
    ax.figure.draw_without_rendering()


EMPTY = Bins(tensor([0.0, 1.0]), tensor([0]), tensor([nan]), tensor([nan]))
SHORT = tensor([0.1])
MISTAKES: dict[str, Callable[[Any], object]] = {
    "bins` must hold at least one input": lambda ax: plots.reliability_diagram(EMPTY, ax),
    "every count is 0": lambda ax: plots.confidence_histogram(EMPTY, ax),
    r"band` must have shape \(4,\)": lambda ax: plots.reliability_diagram(
        BINS, ax, band=(SHORT, SHORT)
    ),
    "values` must have shape": lambda ax: plots.beta_sensitivity([0.1, 0.2], SHORT, ax),
    "spread` must have shape": lambda ax: plots.beta_sensitivity(
        [0.1, 0.2], [0.1, 0.2], ax, spread=SHORT
    ),
    "risk` must have shape": lambda ax: plots.risk_coverage_curve(
        RiskCoverage(tensor([0.5, 1.0]), SHORT), ax
    ),
    "epistemic` must have shape": lambda ax: plots.uncertainty_scatter(
        [0.1, 0.2], SHORT, [1, 0], ax
    ),
    "correct` must have shape": lambda ax: plots.uncertainty_scatter(
        [0.1, 0.2], [0.1, 0.2], SHORT, ax
    ),
    r"aleatoric` must have shape \(N,\)": lambda ax: plots.uncertainty_scatter([], [], [], ax),
    "one value for each of simplex_grid's points": lambda ax: plots.simplex_density(
        torch.zeros(5), ax
    ),
    r"got shape \(2, 2\)": lambda ax: plots.simplex_density(torch.zeros(2, 2), ax),
    "finite maximum; found nan": lambda ax: plots.simplex_density(tensor([0.0, nan, 0.0, 0.0]), ax),
    "finite maximum; found -inf": lambda ax: plots.simplex_density(
        torch.full((4,), -torch.inf), ax
    ),
    "class_names` must be 3 names": lambda ax: plots.simplex_density(
        torch.zeros(4), ax, class_names=("cat", "dog")
    ),
    "resolution` must be at least 1": lambda _: plots.simplex_grid(0),
    r"probs` must have shape \(..., 3\)": lambda _: plots.simplex_xy(torch.ones(5, 2)),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named(ax: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MISTAKES[message](ax)


def test_a_method_without_uncertainties_is_named(ax: Any) -> None:
    with pytest.raises(TypeError, match="`epistemic` must be a number for each input; got None"):
        plots.uncertainty_scatter([0.1], None, [1], ax)


def test_an_array_of_axes_is_not_an_axes() -> None:
    axes: Any = Figure().subplots(1, 2)
    with pytest.raises(TypeError, match="`ax` must be one matplotlib Axes; got ndarray"):
        plots.reliability_diagram(BINS, axes)


def draw_everything(figure: Any, generator: torch.Generator) -> None:
    axes: Any = figure.subplots(2, 3).flat
    confidence, correct = predictions(generator)
    bins = reliability(confidence, correct)
    assert plots.reliability_diagram(bins, axes[0], band=accuracy_band(bins)) is axes[0]
    assert plots.confidence_histogram(bins, axes[1]) is axes[1]
    for name in ("ts", "sts"):
        assert (
            plots.risk_coverage_curve(risk_coverage(confidence, correct), axes[2], label=name)
            is axes[2]
        )
    betas = torch.arange(2, 21) / 10
    assert (
        plots.beta_sensitivity(
            betas, 0.01 * betas, axes[3], spread=0.002 * betas, label="a network"
        )
        is axes[3]
    )
    assert plots.uncertainty_scatter(1 - confidence, -5 * confidence, correct, axes[4]) is axes[4]
    concrete = Concrete(tensor([1.0, 0.5, 0.25]), 2.0)
    assert (
        plots.simplex_density(
            concrete.log_prob(plots.simplex_grid(50)), axes[5], mark=concrete.mean
        )
        is axes[5]
    )


def test_every_picture_is_drawn_and_nothing_global_changes(
    tmp_path: Path, generator: torch.Generator
) -> None:
    before = dict(mpl.rcParams)
    figure = Figure(figsize=(12, 8), layout="constrained")
    FigureCanvasAgg(figure)
    draw_everything(figure, generator)
    figure.savefig(tmp_path / "all.png", dpi=50)
    assert dict(mpl.rcParams) == before
    picture = imread(tmp_path / "all.png")
    assert picture.shape == (400, 600, 4)
    assert len(np.unique(picture.reshape(-1, 4), axis=0)) > 100


def test_plots_never_load_pyplot() -> None:
    code = "import sys, simplexcal.plots; print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_missing_matplotlib_is_one_sentence_with_the_remedy() -> None:
    code = "import sys; sys.modules['matplotlib'] = None; import simplexcal.plots"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (
        'needs matplotlib, which is not installed. Run pip install "simplexcal[report]".'
        in done.stderr
    )
