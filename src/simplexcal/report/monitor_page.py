"""The page of ``monitor``: the verdict, a table, and a picture of each score's distribution."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import NamedTuple

from simplexcal.drift import PERCENTILES, Drift
from simplexcal.io._atomic import atomic_write
from simplexcal.report._format import count, percent
from simplexcal.report._provenance import versions
from simplexcal.report._render import check_extra_is_installed, render_page
from simplexcal.report.verdict import Tone

WIDTH = 460  # of a picture, in its own units
HEIGHT = 240
LEFT = 44  # room for the numbers of an axis
BOTTOM = 28
CUT = 1  # percentiles outside CUT and 100 - CUT of both lie beyond the picture's edges


@dataclass(frozen=True)
class MonitorPage:
    """What the page shows.

    Args:
        title: The title.
        tone: How good the verdict is.
        badge: The verdict in one word.
        headline: The verdict in a sentence.
        sentences: What else there is to say.
        accuracy: The expected accuracy: lower end of its interval, estimate, upper end.
        reference_accuracy: The accuracy on the reference, or None.
        sizes: Number of inputs of reference and batch.
        drifts: The drift of each score.
        rows: The cells of the table, a row for each score.
        tolerance: The distance that does not matter.
        sources: The origin of the data, by name.
    """

    title: str
    tone: Tone
    badge: str
    headline: str
    sentences: tuple[str, ...]
    accuracy: tuple[float, float, float]
    reference_accuracy: float | None
    sizes: tuple[int, int]
    drifts: tuple[Drift, ...]
    rows: tuple[tuple[str, ...], ...]
    tolerance: float
    sources: Mapping[str, str]


class Picture(NamedTuple):
    """Two distribution functions as paths of an SVG.

    Attributes:
        title: The score in words.
        description: The picture in words.
        reference: Path of the reference.
        batch: Path of the batch.
        gap: Where the distance is: x, and y of both ends; None beyond the picture's edges.
        low: Smallest score that is shown.
        high: Largest score that is shown.
    """

    title: str
    description: str
    reference: str
    batch: str
    gap: tuple[float, float, float] | None
    low: float
    high: float


def write_monitor_page(path: str | Path, page: MonitorPage) -> Path:
    """Write the page, whole or not at all, and return its path.

    Args:
        path: The file.
        page: What it shows.

    Raises:
        ModuleNotFoundError: If the extra is not installed.
    """
    check_extra_is_installed(["jinja2"])
    m, n = page.sizes
    context = {
        "title": page.title,
        "page": page,
        "facts": [
            f"{count(m)} inputs in the reference",
            f"{count(n)} in the batch",
            date.today().isoformat(),
        ],
        "pictures": [draw(drift) for drift in page.drifts],
        "frame": {"width": WIDTH, "height": HEIGHT, "left": LEFT, "bottom": BOTTOM},
        "provenance": {**page.sources, "Versions": versions()},
    }
    atomic_write(Path(path), render_page("monitor.html.j2", context).encode())
    return Path(path)


def draw(drift: Drift) -> Picture:
    """Return the picture of a score: the share of inputs at or below each value.

    Args:
        drift: The drift of the score.
    """
    both = (drift.reference_percentiles, drift.batch_percentiles)
    low = min(values[CUT] for values in both)
    high = max(values[-1 - CUT] for values in both)
    room = (high - low) or 1.0

    def x(value: float) -> float:
        share = min(max((value - low) / room, 0.0), 1.0)
        return round(LEFT + share * (WIDTH - LEFT), 1)

    def y(share: float) -> float:
        return round((1 - share) * (HEIGHT - BOTTOM), 1)

    def curve(values: tuple[float, ...]) -> str:
        points = [f"{x(v)},{y(p / 100)}" for v, p in zip(values, PERCENTILES, strict=True)]
        return f"M{' L'.join(points)}"

    gap = None
    if low <= drift.value <= high:
        gap = (x(drift.value), y(drift.reference_share), y(drift.batch_share))
    title = drift.title.capitalize()
    description = (
        f"{title} is at most {drift.value:.4g} for {percent(drift.reference_share)} of the "
        f"reference and {percent(drift.batch_share)} of the batch."
    )
    return Picture(title, description, curve(both[0]), curve(both[1]), gap, low, high)
