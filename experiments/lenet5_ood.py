"""Which λ tells notMNIST letters from Fashion-MNIST clothes? The demo's LeNet-5, mixes of both kinds, several β.

usage: python -m experiments.lenet5_ood run DATA LETTERS OUT.jsonl     one line for each (mixup, β, seed)
       python -m experiments.lenet5_ood table OUT.jsonl                the table, in Markdown

DATA and LETTERS hold IDX test files of Fashion-MNIST and of notMNIST. The branch is the default's; its Concrete
distribution gives the scores. 5000 images of each kind; AUROC in %, mean over the seeds.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import simplexcal as sc
from experiments.demo_network import read_idx
from experiments.lenet5 import SEEDS, load, read, split
from simplexcal.demo.lenet5 import normalise

BETAS = (0.5, 1.0, 2.0, 4.0, 8.0)
SCORES = ("entropy", "expected_entropy", "mutual_information")


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Return P(score outside > score inside), ties counted half."""
    ordered = inside.sort().values
    below = torch.searchsorted(ordered, outside) + torch.searchsorted(ordered, outside, right=True)
    return (below.double().mean() / (2 * len(inside))).item()


def run(data: Path, letters: Path, out: Path) -> None:
    torch.set_num_threads(1)
    backbone, inputs, labels = load(data)
    strange = backbone(normalise(read_idx(letters / "t10k-images-idx3-ubyte.gz"))[:5000])
    outputs, (fit, test) = backbone(inputs), split(len(labels))
    known = outputs[test]
    sources = {
        "FeatureMixup": sc.FeatureMixup(backbone.head, outputs[fit], labels[fit]),
        "InputMixup": sc.InputMixup(backbone, inputs[fit], labels[fit]),
    }
    plain = {
        "largest probability": auroc(-known.logits.softmax(-1).amax(-1), -strange.logits.softmax(-1).amax(-1)),
        "energy": auroc(-known.logits.logsumexp(-1), -strange.logits.logsumexp(-1)),
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
    return {name: auroc(getattr(inside, name), getattr(outside, name)) for name in SCORES}


def table(path: Path) -> str:
    records = read(path)
    plain = {k: f"{100 * v:.1f}" for k, v in records[0].items() if k != "mixup"}
    lines = ["| mixes | β | differential entropy | expected entropy | mutual information |", "|---|---|---|---|---|"]
    for name in ("FeatureMixup", "InputMixup"):
        for beta in BETAS:
            rows = [r for r in records if r["mixup"] == name and r["beta"] == beta]
            lines.append(f"| {name} | {beta:g} | " + " | ".join(_cell(rows, score) for score in SCORES) + " |")
    note = ", ".join(f"{name} {value}" for name, value in plain.items())
    return "\n".join([*lines, "", f"Of the network alone: {note}."])


def _cell(rows: list[dict[str, Any]], score: str) -> str:
    values = [100 * r[score] for r in rows]
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"] and len(sys.argv) == 5:
        run(Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
    elif sys.argv[1:2] == ["table"] and len(sys.argv) == 3:
        print(table(Path(sys.argv[2])))
    else:
        raise SystemExit(__doc__)
