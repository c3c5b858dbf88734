"""The demo's network before calibration and after STS: the README's picture.

usage: python benchmarks/reliability_picture.py     (writes docs/reliability.png)

The predictions are those of `simplexcal demo`: out of fold, on the 10000 test images of
Fashion-MNIST.
"""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor

from simplexcal import metrics, plots
from simplexcal.demo import run
from simplexcal.types import Prediction

PICTURE = Path(__file__).parents[1] / "docs" / "reliability.png"
TITLES = {"none": "before calibration", "sts": "after STS"}


def draw(ax: Axes, title: str, prediction: Prediction, labels: Tensor) -> None:
    """Draw a reliability diagram, titled with the ECE and the NLL.

    Args:
        ax: The Axes to draw on.
        title: What the predictions are.
        prediction: They.
        labels: The true classes.
    """
    correct = prediction.label == labels
    plots.reliability_diagram(metrics.reliability(prediction.confidence, correct), ax)
    ece = metrics.ece(prediction.confidence, correct)
    nll = metrics.nll(prediction.probs, labels)
    ax.set_title(f"{title}: ECE {ece:.2%}, NLL {nll:.4f}", fontsize=10, loc="left")


def main() -> None:
    """Draw both diagrams."""
    data = run.prepare()
    figure = plt.figure(figsize=(11.4, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    predictions = run.predictions(data, tuple(TITLES))
    for ax, (name, prediction) in zip(panels, predictions, strict=True):
        draw(ax, TITLES[name], prediction, data.labels)
    figure.savefig(PICTURE, dpi=100)


if __name__ == "__main__":
    main()
