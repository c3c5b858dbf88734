"""STS lowers the ECE of the demo's LeNet-5 from 4.67 % to 1.61 %: the README's picture.

usage: python benchmarks/reliability_picture.py     (writes docs/reliability.png)

Reliability diagrams before calibration and after STS, on the 5000 images to evaluate.
"""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor

import simplexcal as sc
from simplexcal import metrics, plots
from simplexcal.demo import run

PICTURE = Path(__file__).parents[1] / "docs" / "reliability.png"


def _draw(ax: Axes, name: str, prediction: sc.Prediction, labels: Tensor) -> None:
    bins = metrics.reliability(prediction.confidence, prediction.label == labels)
    plots.reliability_diagram(bins, ax, band=metrics.accuracy_band(bins))
    e = sc.evaluate(prediction, labels)
    ax.set_title(
        f"{name}: confidence {e.confidence:.1%}, accuracy {e.accuracy:.1%}\n"
        f"ECE {e.ece:.2%} (by chance up to {e.ece_floor_95:.2%}), NLL {e.nll:.3f}",
        fontsize=10,
    )


def main() -> None:
    """Fit STS as the demo does, and draw both diagrams."""
    data = run.prepare()
    predictions = dict(run.predictions(data, only=("none", "STS")))
    figure = plt.figure(figsize=(9, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw(left, "before", predictions["none"], data.test_labels)
    _draw(right, "after STS", predictions["STS"], data.test_labels)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    main()
