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

from simplexcal.concrete import _fused_operators, _inversion, _potential, _triton

DOUBLE = torch.float64
GOLDEN = Path(__file__).parents[1] / "concrete" / "golden.json"
SIZES = ((5, 2), (19, 10), (5, 37))
# Where larger blocks of classes have their turn.
MANY = ((2, 300),)


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
    for n, k in (*SIZES, *MANY):
        temperature = 10 ** (4 * torch.rand(n, generator=generator) - 2)
        found.append(errors(3 * torch.randn(n, k, generator=generator), temperature))
    return {key: max(errors[key] for errors in found) for key in found[0]}


def gradients() -> dict[str, float]:
    """Return the errors of the gradients of mean and likelihood."""
    generator = torch.Generator().manual_seed(0)
    worst = {"mean": 0.0, "log_mean": 0.0}
    for n, k in SIZES:
        temperature = 10 ** (2 * torch.rand(n, generator=generator) - 1)
        logits = 3 * torch.randn(n, k, generator=generator)
        logits[0] = logits[0].round()
        labels = torch.randint(k, (n, 2), generator=generator)
        labels[0, 1] = labels[0, 0]
        at = [x.double().requires_grad_() for x in (logits, temperature)]
        grad = torch.randn(n, k, generator=generator)
        exact = torch.autograd.grad(_potential.mean_in_torch(*at), at, grad.double())
        found = _fused_operators.mean_backward(grad, logits, temperature)
        pairs = zip(found, exact, strict=True)
        worst["mean"] = max(worst["mean"], *(_distance(a, b) for a, b in pairs))
        log_mean = _potential.log_mean_at_in_torch(at[0], at[1], labels)
        exact = torch.autograd.grad(log_mean, at, grad[:, :2].double())
        found = _fused_operators.log_mean_backward(grad[:, :2], logits, temperature, labels)
        pairs = zip(found, exact, strict=True)
        worst["log_mean"] = max(worst["log_mean"], *(_distance(a, b) for a, b in pairs))
    return worst


def inversion() -> dict[str, float]:
    """Return the errors of the inversion, of the mean at the location that it finds."""
    generator = torch.Generator().manual_seed(0)
    worst = {"mean": 0.0, "value": 0.0, "slope": 0.0}
    for n, k in SIZES:
        temperature = 10 ** (4 * torch.rand(n, generator=generator) - 2)
        probs = (2 * torch.randn(n, k, generator=generator, dtype=DOUBLE)).softmax(-1)
        a, value, slope = _triton.invert(probs.log().float(), temperature)
        lam = temperature.double()
        mean = _potential.mean_in_torch(a.double() * _potential.scale(lam)[:, None], lam)
        exact = _inversion.invert_in_torch(probs.log(), lam).potential
        worst["mean"] = max(worst["mean"], _distance(mean, probs))
        worst["value"] = max(worst["value"], _distance(value, exact.value))
        worst["slope"] = max(worst["slope"], _distance(slope, exact.slope))
    return worst


def second_derivatives() -> float:
    """Return the error of a derivative of a derivative, through the operator's backward pass."""
    generator = torch.Generator().manual_seed(0)
    found = []
    rows = (torch.randn(5, 4, generator=generator), torch.rand(5, generator=generator) + 0.5)
    for mean in (_fused_operators.mean, _potential.mean_in_torch):
        at = [x.clone().requires_grad_() for x in rows]
        first = torch.autograd.grad(mean(*at).square().sum(), at, create_graph=True)
        found.append(torch.autograd.grad(first[0].square().sum() + first[1].sum(), at))
    return max(_distance(a, b) for a, b in zip(*found, strict=True))


def operators() -> list[str]:
    """Return the results of torch's own checks of the operators, each once."""
    logits = torch.zeros(3, 4, requires_grad=True)
    temperature = torch.ones(3, requires_grad=True)
    at = (logits, temperature)
    found = [
        torch.library.opcheck(_fused_operators.mean, at),
        torch.library.opcheck(_fused_operators.log_mean_at, (*at, torch.zeros(3, 1, dtype=torch.int64))),
        torch.library.opcheck(_fused_operators.invert, (logits.detach(), temperature.detach())),
    ]
    return sorted({result for results in found for result in results.values()})


def golden() -> dict[str, float]:
    """Return the error of the golden means."""
    cases: dict[int, list[dict[str, Any]]] = {}
    for case in json.loads(GOLDEN.read_text()):
        cases.setdefault(len(case["logits"]), []).append(case)
    worst = 0.0
    for group in cases.values():
        logits, temperature = (
            torch.tensor([case[key] for case in group]) for key in ("logits", "temperature")
        )
        mean, _, _ = _triton.moments(logits, temperature, with_slope=False)
        exact = torch.tensor([case["mean"] for case in group], dtype=DOUBLE)
        worst = max(worst, _distance(mean, exact))
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
    result = {
        "random": random_rows(),
        "golden": golden(),
        "special": special_rows(),
        "gradients": gradients(),
        "inversion": inversion(),
        "second_derivatives": second_derivatives(),
        "operators": operators(),
    }
    json.dump(result, sys.stdout)
