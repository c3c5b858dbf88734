"""Every method on the demo's LeNet-5 and the Fashion-MNIST test images: 5000 to calibrate, 5000 to judge, 5 seeds.

usage: python -m experiments.lenet5 run OUT.jsonl       one line for each (method, seed), as they finish
       python -m experiments.lenet5 table OUT.jsonl        the table, in Markdown

Jobs run side by side: those marked "cuda" on the GPU where there is one, the others on a core each. A job whose line is
there already is not run again.
"""

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

import simplexcal as sc
from experiments.methods import PAPER_BETAS, PAPER_WIDTHS
from simplexcal.demo import lenet5
from simplexcal.demo.fashion_mnist import halves, images_and_labels
from simplexcal.metrics import ece, nll, noise_floor

SEEDS = range(5)
SMALL: dict[str, Any] = {"betas": PAPER_BETAS, "n_steps": 3000, "head": False}
Method = tuple[Callable[[], sc.Calibrator], str, str | None, float]  # calibrator, device, mixup, scale of the logits


def simplex(**settings: Any) -> Callable[[], sc.Calibrator]:
    return lambda: sc.SimplexTemperatureScaling(**settings)


METHODS: dict[str, Method] = {
    "none": (sc.Uncalibrated, "cpu", None, 1.0),
    "TS": (sc.TemperatureScaling, "cpu", None, 1.0),
    "ETS, squared error": (sc.EnsembleTemperatureScaling, "cpu", None, 1.0),
    "ETS, likelihood": (lambda: sc.EnsembleTemperatureScaling("nll"), "cpu", None, 1.0),
    "STS": (sc.SimplexTemperatureScaling, "cpu", "features", 1.0),
    "STS, logits alone": (sc.SimplexTemperatureScaling, "cpu", None, 1.0),
    "TS, logits times 0.3": (sc.TemperatureScaling, "cpu", None, 0.3),
    "STS, logits times 0.3": (sc.SimplexTemperatureScaling, "cpu", None, 0.3),
    "PTS": (sc.ParameterizedTemperatureScaling, "cpu", None, 1.0),
    "AdaTS": (sc.AdaptiveTemperatureScaling, "cpu", None, 1.0),
    "STS, mixed features alone": (simplex(**SMALL), "cpu", "features", 1.0),
    "STS, mixed inputs alone": (simplex(**SMALL), "cpu", "inputs", 1.0),
    "STS, paper": (sc.SimplexTemperatureScaling.paper, "cuda", "inputs", 1.0),
    "STS, paper, mixed features": (sc.SimplexTemperatureScaling.paper, "cuda", "features", 1.0),
    "STS, paper's branch, 3000 steps": (
        simplex(betas=PAPER_BETAS, widths=PAPER_WIDTHS, n_steps=3000, batch_size=100, head=False),
        "cuda",
        "inputs",
        1.0,
    ),
    "Dirichlet TS": (sc.DirichletTemperatureScaling, "cuda", "inputs", 1.0),
}


def load() -> tuple[sc.Backbone, Tensor, Tensor]:
    """Return the frozen network, its inputs and the labels."""
    net = lenet5.LeNet5()
    net.load_state_dict(load_file(Path(lenet5.__file__).with_suffix(".safetensors")))
    images, labels = images_and_labels()
    return sc.Backbone(net), lenet5.normalise(images), labels


def job(name: str, seed: int) -> dict[str, Any]:
    """Fit one method with one seed, and judge it."""
    make, device, mixes, factor = METHODS[name]
    device = device if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    backbone, inputs, labels = load()
    backbone.to(device)
    inputs, labels = inputs.to(device), labels.to(device)
    outputs = backbone(inputs)
    outputs = sc.Outputs(factor * outputs.logits, outputs.features)
    fit, test = (rows.to(device) for rows in halves(len(labels)))
    mixup: sc.InputMixup | sc.FeatureMixup | None = None
    if mixes == "inputs":
        mixup = sc.InputMixup(backbone, inputs[fit], labels[fit])
    elif mixes == "features":
        mixup = sc.FeatureMixup(backbone.head, outputs[fit], labels[fit])
    start = time.perf_counter()
    generator = torch.Generator(device).manual_seed(seed)
    calibrator = make().fit(outputs[fit], labels[fit], mixup=mixup, generator=generator)
    took = time.perf_counter() - start
    p, y = calibrator(outputs[test]), labels[test]
    floor = noise_floor(p.confidence.cpu())
    return {
        "method": name,
        "seed": seed,
        "settings": calibrator.settings,
        "beta": float(calibrator.beta) if isinstance(calibrator, sc.SimplexTemperatureScaling) else None,
        "accuracy": (p.label == y).float().mean().item(),
        "same_labels": bool((p.label == outputs[test].label).all()),
        "ece": ece(p.confidence, p.label == y).item(),
        "ece_floor": floor.mean.item(),
        "ece_floor_95": floor.upper.item(),
        "nll": nll(p.probs, y).item(),
        "seconds": took,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu, one thread",
        "torch": torch.__version__,
    }


def run(out: Path, n_cpu: int, n_cuda: int) -> None:
    """Run every job that has no line yet."""
    done = {(r["method"], r["seed"]) for r in read(out)}
    waiting = [(name, seed) for name in METHODS for seed in SEEDS if (name, seed) not in done]
    pools = {d: ProcessPoolExecutor(n, get_context("spawn")) for d, n in (("cpu", n_cpu), ("cuda", n_cuda))}
    jobs = [pools[METHODS[name][1]].submit(job, name, seed) for name, seed in waiting]
    with out.open("a") as file:
        for finished in as_completed(jobs):
            record = finished.result()
            file.write(json.dumps(record) + "\n")
            file.flush()
            print(record["method"], record["seed"], f"ECE {record['ece']:.4f} NLL {record['nll']:.4f}", flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(path: Path) -> str:
    """Return the results as a Markdown table: mean ± standard deviation over the seeds."""
    records = read(path)
    lines = [
        "| method | seeds | accuracy % | ECE % | its floor, 95 % | NLL | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in METHODS:
        rows = [r for r in records if r["method"] == name]
        if rows:
            cells = [_cell(rows, "accuracy", 100, 2), _cell(rows, "ece", 100, 2), _floor_cell(rows)]
            lines.append(f"| {name} | {len(rows)} | " + " | ".join(cells + _last_cells(rows)) + " |")
    return "\n".join(lines)


def _cell(rows: list[dict[str, Any]], key: str, factor: float, digits: int) -> str:
    values = [factor * r[key] for r in rows]
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    return f"{statistics.mean(values):.{digits}f} ± {spread:.{digits}f}"


def _floor_cell(rows: list[dict[str, Any]]) -> str:
    low, high = (100 * statistics.mean(r[key] for r in rows) for key in ("ece_floor", "ece_floor_95"))
    return f"{low:.2f}, {high:.2f}"


def _last_cells(rows: list[dict[str, Any]]) -> list[str]:
    return [_cell(rows, "nll", 1, 4), f"{statistics.mean(r['seconds'] for r in rows):.1f}"]


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"] and len(sys.argv) == 3:
        cores = os.cpu_count() or 1
        n_cuda = cores // 3 if torch.cuda.is_available() else 0
        run(Path(sys.argv[2]), cores - n_cuda, max(1, n_cuda))
    elif sys.argv[1:2] == ["table"] and len(sys.argv) == 3:
        print(table(Path(sys.argv[2])))
    else:
        raise SystemExit(__doc__)
