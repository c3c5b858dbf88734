"""Errors of the fused kernel in Triton's interpreter: a program, since the interpreter is chosen
before triton is imported.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simplexcal.concrete import _potential, _triton

DOUBLE = torch.float64
GOLDEN = Path(__file__).parents[1] / "concrete" / "golden.json"
SIZES = ((5, 2), (5, 10), (33, 16), (5, 17), (5, 130), (3, 300))


def errors(logits: Tensor, temperature: Tensor) -> dict[str, float]:
    """Return the largest errors of the kernel's results."""
    labels = torch.arange(2 * len(logits)).view(-1, 2) % logits.shape[1]
    mean, value, slope = _triton.moments(logits, temperature, with_slope=True)
    log_mean = _triton.log_mean_at(logits, temperature, labels)
    at = (logits.double(), temperature.double())
    exact = _potential.potential_in_torch(*at)
    return {
        "mean": _distance(mean, exact.mean),
        "value": _distance(value, exact.value),
        "slope": _distance(slope, exact.slope),
        "log_mean": _distance(log_mean, _potential.log_mean_at_in_torch(*at, labels)),
    }


def _distance(found: Tensor, exact: Tensor) -> float:
    return (found - exact).abs().max().item()


def random_rows() -> dict[str, float]:
    """Return the errors for random logits and temperatures."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for n, k in SIZES:
        temperature = 10 ** (4 * torch.rand(n, generator=generator) - 2)
        found.append(errors(3 * torch.randn(n, k, generator=generator), temperature))
    return {key: max(errors[key] for errors in found) for key in found[0]}


def golden() -> dict[str, float]:
    """Return the error of the golden means."""
    worst = 0.0
    for case in json.loads(GOLDEN.read_text()):
        logits, temperature = (torch.tensor(case[key]) for key in ("logits", "temperature"))
        mean, _, _ = _triton.moments(logits[None], temperature[None], with_slope=False)
        worst = max(worst, _distance(mean[0], torch.tensor(case["mean"], dtype=DOUBLE)))
    return {"mean": worst}


def special_rows() -> dict[str, Any]:
    """Return what becomes of ties, masked classes, huge logits, NaN and no rows at all."""
    rows = torch.tensor(
        [
            [1.0, 2.0, 2.0, 0.0],
            [1.0, -torch.inf, 0.5, -1e9],
            [1e30, 0.0, -1e30, 1e29],
            [torch.nan, 0.0, 1.0, 2.0],
            [0.0, 0.0, 1.0, 2.0],
        ]
    )
    temperature = torch.tensor([0.3, 1.0, 2.0, 1.0, torch.nan])
    mean, _, _ = _triton.moments(rows, temperature, with_slope=False)
    two = rows[1:2, [0, 2]].double()
    kept = _potential.mean_in_torch(two, temperature[1:2].double())
    strided = torch.randn(4, 8)[:, ::2]
    lam = torch.ones(()).expand(4)
    whole, _, _ = _triton.moments(strided.contiguous(), lam, with_slope=False)
    part, _, _ = _triton.moments(strided, lam, with_slope=False)
    none, _, _ = _triton.moments(rows[:0], temperature[:0], with_slope=True)
    return {
        "tied": mean[0].tolist(),
        "masked": mean[1, [1, 3]].tolist(),
        "kept": _distance(mean[1, [0, 2]], kept[0]),
        "huge": mean[2].tolist(),
        "nan": mean[3:].isnan().all().item(),
        "strided": torch.equal(part, whole),
        "none": list(none.shape),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = {"random": random_rows(), "golden": golden(), "special": special_rows()}
    json.dump(found, sys.stdout)
