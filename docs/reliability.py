"""Draw the README's picture: the demo's LeNet-5 before calibration and after STS, on the 5000 images that judge.

usage: python docs/reliability.py     writes docs/reliability.png
"""

from pathlib import Path

import matplotlib.pyplot as plt

import simplexcal as sc
from simplexcal import metrics, plots
from simplexcal.demo import run


def main() -> None:
    """Fit the default as the demo does, and draw both diagrams."""
    data = run.prepare()
    shown = dict(run.predictions(data, only=("none", "STS")))
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
    for ax, (name, p) in zip(axes, shown.items(), strict=True):
        bins = metrics.reliability(p.confidence, p.label == data.test_labels)
        plots.reliability_diagram(bins, ax, band=metrics.accuracy_band(bins))
        e = sc.evaluate(p, data.test_labels)
        ax.set_title(
            f"{'before' if name == 'none' else 'after ' + name}: says {e.confidence:.1%}, is right {e.accuracy:.1%}\n"
            f"ECE {e.ece:.2%} (by chance up to {e.ece_floor_95:.2%}), NLL {e.nll:.3f}",
            fontsize=10,
        )
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
