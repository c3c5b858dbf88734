"""Which form of LeNet-5 comes nearest to the paper's accuracy? Two seeds of each, by the paper's recipe, uncalibrated.

usage: python -m experiments.lenet5_forms run DATA OUT.jsonl     one line for each (form, seed); two minutes on an H200
       python -m experiments.lenet5_forms table OUT.jsonl        the table, in Markdown

DATA holds the four original IDX files. The paper says no more than the name.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.demo_network import load, train
from experiments.lenet5 import read
from simplexcal.metrics import ece

SEEDS = (0, 1)
ORDER = 1000  # added to a seed, it gives the order of the images
FORMS: dict[str, dict[str, Any]] = {
    "tanh, average pooling": {"activation": nn.Tanh, "pool": nn.AvgPool2d},
    "ReLU, average pooling": {"pool": nn.AvgPool2d},
    "ReLU, max-pooling": {},
    "ReLU, max-pooling, bfloat16": {"half": True},
    "ReLU, max-pooling, no padding": {"padding": 0},
    "ReLU, max-pooling, no padding, bfloat16": {"padding": 0, "half": True},
}


class Form(nn.Module):
    """A LeNet-5 with this activation and pooling, with images padded to 32 × 32 or not, in float32 or by autocast."""

    def __init__(
        self,
        activation: type[nn.Module] = nn.ReLU,
        pool: type[nn.Module] = nn.MaxPool2d,
        padding: int = 2,
        half: bool = False,
    ) -> None:
        super().__init__()
        self.half_precision = half
        n_flat = 400 if padding else 256
        self.layers = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=padding),
            activation(),
            pool(2),
            nn.Conv2d(6, 16, 5),
            activation(),
            pool(2),
            nn.Flatten(),
            nn.Linear(n_flat, 120),
            activation(),
            nn.Linear(120, 84),
            activation(),
            nn.Linear(84, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of normalised images (N, 1, 28, 28)."""
        with torch.autocast(images.device.type, torch.bfloat16, self.half_precision, cache_enabled=False):
            logits: Tensor = self.layers(images)
        return logits.float()


def run(data: Path, out: Path) -> None:
    """Train all networks side by side, and judge them on the 10000 test images."""
    x, y, test_x, test_y = load(data)
    jobs = [(name, seed) for name in FORMS for seed in SEEDS]
    nets = [_network(name, seed).cuda() for name, seed in jobs]
    train(nets, [ORDER + seed for _, seed in jobs], x, y)
    with out.open("w") as file, torch.no_grad():
        for (name, seed), net in zip(jobs, nets, strict=True):
            file.write(json.dumps({"form": name, "seed": seed, **_judged(net(test_x), test_y)}) + "\n")


def _network(name: str, seed: int) -> Form:
    torch.manual_seed(seed)
    return Form(**FORMS[name])


def _judged(logits: Tensor, labels: Tensor) -> dict[str, float]:
    confidence, label = logits.softmax(-1).max(-1)
    correct = label == labels
    return {
        "accuracy": correct.float().mean().item(),
        "ece": ece(confidence, correct).item(),
        "nll": cross_entropy(logits, labels).item(),
    }


def table(path: Path) -> str:
    """Return the results as a Markdown table: both seeds."""
    records = read(path)
    lines = ["| form | accuracy % | ECE % |", "|---|---|---|"]
    for name in FORMS:
        rows = [r for r in records if r["form"] == name]
        lines.append(f"| {name} | {_cell(rows, 'accuracy')} | {_cell(rows, 'ece')} |")
    return "\n".join(lines)


def nearest(path: Path, accuracy: float) -> str:
    """Return the form whose mean accuracy over the seeds is nearest to ``accuracy``."""
    records = read(path)
    means = {name: statistics.mean(r["accuracy"] for r in records if r["form"] == name) for name in FORMS}
    return min(means, key=lambda name: abs(means[name] - accuracy))


def _cell(rows: list[dict[str, Any]], key: str) -> str:
    return ", ".join(f"{100 * r[key]:.2f}" for r in rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"] and len(sys.argv) == 4:
        run(Path(sys.argv[2]), Path(sys.argv[3]))
    elif sys.argv[1:2] == ["table"] and len(sys.argv) == 3:
        print(table(Path(sys.argv[2])))
    else:
        raise SystemExit(__doc__)
