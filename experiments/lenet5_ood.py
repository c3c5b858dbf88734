"""Which λ tells notMNIST letters from Fashion-MNIST clothes? The demo's LeNet-5, mixes of both kinds, several β.

usage: python -m experiments.lenet5_ood run LETTERS OUT.jsonl     one line for each (mixup, β, seed)
       python -m experiments.lenet5_ood table OUT.jsonl           the table, in Markdown

LETTERS holds the IDX test files of notMNIST. The branch is the default's; its Concrete distribution gives the scores.
5000 images of each kind; AUROC in %, mean over the seeds.
"""

import json
import statistics
import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import simplexcal as sc
from experiments.lenet5 import SEEDS, load, read
from simplexcal.demo.fashion_mnist import halves, read_idx
from simplexcal.demo.lenet5 import normalise
from simplexcal.metrics import auroc

BETAS = (0.5, 1.0, 2.0, 4.0, 8.0)
SCORES = {
    "entropy": "differential entropy",
    "expected_entropy": "expected entropy",
    "mutual_information": "mutual information",
}
MIXES = ("FeatureMixup", "InputMixup")


def told_apart(inside: Tensor, outside: Tensor) -> float:
    """Return the AUROC of a score that should be larger outside."""
    score = torch.cat([inside, outside])
    return auroc(score, torch.arange(len(score)) >= len(inside)).item()


def run(letters: Path, out: Path) -> None:
    torch.set_num_threads(1)
    backbone, inputs, labels = load()
    strange = backbone(normalise(read_idx(letters / "t10k-images-idx3-ubyte.gz"))[:5000])
    outputs, (fit, test) = backbone(inputs), halves(len(labels))
    known = outputs[test]
    sources = {
        "FeatureMixup": sc.FeatureMixup(backbone.head, outputs[fit], labels[fit]),
        "InputMixup": sc.InputMixup(backbone, inputs[fit], labels[fit]),
    }
    plain = {
        "largest probability": told_apart(-known.logits.softmax(-1).amax(-1), -strange.logits.softmax(-1).amax(-1)),
        "energy": told_apart(-known.logits.logsumexp(-1), -strange.logits.logsumexp(-1)),
    }
    with out.open("w") as file:
        file.write(json.dumps({"mixup": "none", **plain}) + "\n")
        for name, mixup in sources.items():
            for beta in BETAS:
                for seed in SEEDS:
                    sts = sc.SimplexTemperatureScaling(betas=(beta,), head=False)
                    generator = torch.Generator().manual_seed(seed)
                    sts.fit(outputs[fit], labels[fit], mixup=mixup, generator=generator)
                    scores = _scores(sts, known, strange)
                    file.write(json.dumps({"mixup": name, "beta": beta, "seed": seed, **scores}) + "\n")


def _scores(sts: sc.SimplexTemperatureScaling, known: sc.Outputs, strange: sc.Outputs) -> dict[str, float]:
    inside, outside = (sts.concrete(outputs).moments() for outputs in (known, strange))
    return {name: told_apart(getattr(inside, name), getattr(outside, name)) for name in SCORES}


def table(path: Path) -> str:
    """Return the results as a Markdown table: mean ± standard deviation over the seeds."""
    records = read(path)
    plain = {k: f"{100 * v:.1f}" for k, v in records[0].items() if k != "mixup"}
    lines = ["| mixes | β | " + " | ".join(SCORES.values()) + " |", "|---" * (2 + len(SCORES)) + "|"]
    for name, beta in product(MIXES, BETAS):
        cells = [_cell(_values(records, name, beta, score)) for score in SCORES]
        lines.append(f"| {name} | {beta:g} | " + " | ".join(cells) + " |")
    note = ", ".join(f"{name} {value}" for name, value in plain.items())
    return "\n".join([*lines, "", f"Of the network alone: {note}."])


def above(path: Path, value: float) -> list[str]:
    """Return the cells whose mean is above ``value`` by more than their standard deviation: score, mixes and β."""
    records, found = read(path), []
    for score, name in product(SCORES, MIXES):
        cells = {beta: _values(records, name, beta, score) for beta in BETAS}
        betas = [f"{beta:g}" for beta, x in cells.items() if statistics.mean(x) - statistics.stdev(x) > 100 * value]
        if betas:
            found.append(f"{SCORES[score]}, {name}, β = {', '.join(betas)}")
    return found


def _values(records: list[dict[str, Any]], name: str, beta: float, score: str) -> list[float]:
    return [100 * r[score] for r in records if r["mixup"] == name and r["beta"] == beta]


def _cell(values: list[float]) -> str:
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"] and len(sys.argv) == 4:
        run(Path(sys.argv[2]), Path(sys.argv[3]))
    elif sys.argv[1:2] == ["table"] and len(sys.argv) == 3:
        print(table(Path(sys.argv[2])))
    else:
        raise SystemExit(__doc__)
