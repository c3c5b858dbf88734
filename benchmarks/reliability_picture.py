"""Table 1's networks before calibration and after STS: the README's picture.

usage: python benchmarks/reliability_picture.py     (writes docs/reliability.png)

Each diagram pools the test predictions of all networks of Table 1, from the bins in
experiments/results/table1. Opposite errors of two networks cancel in the pool, so its ECE is below
the networks' own: the titles say both.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes

from simplexcal import plots
from simplexcal.metrics import Bins

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "experiments" / "results" / "table1"
PICTURE = ROOT / "docs" / "reliability.png"
Record = dict[str, Any]


def read_records(method: str) -> list[Record]:
    """Return the records of a method, one for each network.

    Args:
        method: The method's key.
    """
    records = []
    for path in sorted(RECORDS.glob("*.jsonl")):
        records += [json.loads(line) for line in path.read_text().splitlines()]
    return [record for record in records if record["method"] == method]


def pool(all_bins: Sequence[Record]) -> Bins:
    """Return the bins of all networks' predictions together.

    Args:
        all_bins: The bins of each network, of one width; None stands for an empty bin.
    """
    count = torch.tensor([bins["count"] for bins in all_bins])
    weight = count / count.sum(0)
    means = {}
    for name in ("confidence", "accuracy"):
        values = [[value or 0.0 for value in bins[name]] for bins in all_bins]
        means[name] = (weight * torch.tensor(values)).sum(0)
    return Bins(torch.tensor(all_bins[0]["edges"]), count.sum(0), **means)


def draw(ax: Axes, name: str, records: Sequence[Record]) -> None:
    """Draw the pooled reliability diagram, titled with the mean of the networks' own numbers.

    Args:
        ax: The Axes to draw on.
        name: What the networks are.
        records: The records of one method.
    """
    plots.reliability_diagram(pool([record["bins"] for record in records]), ax)
    mean = {
        key: statistics.mean(record["metrics"][key] for record in records)
        for key in ("ece", "ece_floor", "nll")
    }
    ax.set_title(
        f"{len(records)} networks {name}\n"
        f"mean over the networks: ECE {mean['ece']:.2%} (by chance {mean['ece_floor']:.2%}), "
        f"NLL {mean['nll']:.3f}",
        fontsize=9,
        loc="left",
    )
    legend = ax.get_legend()
    if legend is not None:
        legend.set_title(f"pooled: {legend.get_title().get_text()}")


def main() -> None:
    """Draw both diagrams."""
    figure = plt.figure(figsize=(10.6, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw(left, "before calibration", read_records("none"))
    draw(right, "after STS", read_records("sts"))
    figure.savefig(PICTURE, dpi=100)


if __name__ == "__main__":
    main()
