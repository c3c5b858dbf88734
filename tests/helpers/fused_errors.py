"""Errors of the fused kernels in Triton's interpreter: a program, since both the interpreter and
the kernels are chosen by the environment when they are imported.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simplexcal import Concrete, Outputs, SimplexTemperatureScaling
from simplexcal.concrete import (
    _fused,
    _fused_operators,
    _inversion,
    _potential,
    _triton,
    moments_of_mean,
)

DOUBLE = torch.float64
Function = Callable[[Tensor, Tensor], Tensor]
GOLDEN = Path(__file__).parents[1] / "concrete" / "golden.json"
SIZES = ((5, 2), (19, 10), (5, 37))
# Of torch's checks of an operator, those that trace no gradient.
TRACED_FORWARD = ("test_schema", "test_autograd_registration", "test_faketensor")
# Where larger blocks of classes have their turn.
MANY = ((2, 300),)


@contextmanager
def a_thread_for_each_row() -> Iterator[None]:
    """Let few rows use the kernels for many."""
    before = _fused.MANY_ROWS
    _fused.MANY_ROWS = 1
    try:
        yield
    finally:
        _fused.MANY_ROWS = before


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
    """Return the errors of the gradients of every function that a fused kernel may compute."""
    return {
        "mean": _gradient_error(_potential.mean, _potential.mean_in_torch),
        "potential": _gradient_error(_value_and_slope, _value_and_slope_in_torch),
        "log_mean": _gradient_error(_log_mean(2), _log_mean_in_torch(2)),
        "many_labels": _gradient_error(_log_mean(6), _log_mean_in_torch(6)),
    }


def _value_and_slope(logits: Tensor, temperature: Tensor) -> Tensor:
    found = _potential.potential(logits, temperature)
    return torch.stack([found.value, found.slope], -1)


def _value_and_slope_in_torch(logits: Tensor, temperature: Tensor) -> Tensor:
    found = _potential.potential_in_torch(logits, temperature)
    return torch.stack([found.value, found.slope], -1)


def _labels(logits: Tensor, m: int) -> Tensor:
    """Return m labels of each row, the first of them twice in the first row."""
    n, k = logits.shape
    labels = torch.randint(k, (n, m), generator=torch.Generator().manual_seed(1))
    labels[0, 1] = labels[0, 0]
    return labels


def _log_mean(m: int) -> Function:
    return lambda x, lam: _potential.log_mean_at(x, lam, _labels(x, m))


def _log_mean_in_torch(m: int) -> Function:
    return lambda x, lam: _potential.log_mean_at_in_torch(x, lam, _labels(x, m))


def _gradient_error(function: Function, reference: Function) -> float:
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for n, k in SIZES:
        temperature = 10 ** (2 * torch.rand(n, generator=generator) - 1)
        logits = 3 * torch.randn(n, k, generator=generator)
        logits[0] = logits[0].round()
        found = _gradients(function, logits, temperature)
        exact = _gradients(reference, logits.double(), temperature.double())
        pairs = zip(found, exact, strict=True)
        worst = max(worst, *(_distance(a, b) for a, b in pairs))
    return worst


def _gradients(function: Function, *rows: Tensor) -> tuple[Tensor, ...]:
    inputs = [x.clone().requires_grad_() for x in rows]
    output = function(*inputs)
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
    return torch.autograd.grad(output, inputs, grad.to(output))


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
        exact = _inversion.invert_in_torch(probs.log(), lam)
        worst["mean"] = max(worst["mean"], _distance(mean, probs))
        worst["value"] = max(worst["value"], _distance(value, exact.value))
        worst["slope"] = max(worst["slope"], _distance(slope, exact.slope))
    return worst


def second_derivatives() -> dict[str, float]:
    """Return the errors of derivatives of derivatives."""
    return {
        "mean": _second_derivative_error(_potential.mean, _potential.mean_in_torch),
        "log_mean": _second_derivative_error(_log_mean(2), _log_mean_in_torch(2)),
    }


def _second_derivative_error(function: Function, reference: Function) -> float:
    generator = torch.Generator().manual_seed(0)
    rows = (torch.randn(5, 4, generator=generator), torch.rand(5, generator=generator) + 0.5)
    found = _second_derivatives(function, *rows)
    exact = _second_derivatives(reference, *(x.double() for x in rows))
    return max(_distance(a, b) for a, b in zip(found, exact, strict=True))


def _second_derivatives(function: Function, *rows: Tensor) -> tuple[Tensor, ...]:
    at = [x.clone().requires_grad_() for x in rows]
    first = torch.autograd.grad(function(*at).square().sum(), at, create_graph=True)
    return torch.autograd.grad(first[0].square().sum() + first[1].sum(), at)


def dispatch() -> dict[str, bool]:
    """Return where the fused kernels are used, by the operators that a profile holds."""
    logits = torch.tensor([[1.0, 0.0, -1.0], [0.0, 2.0, 0.5]])
    temperature = torch.tensor([0.5, 2.0])
    probs = logits.softmax(-1)
    d = Concrete(logits, temperature)
    per_row = torch.func.vmap(lambda x, lam: _potential.mean(x[None], lam[None]))
    return {
        "mean": _uses_fused(lambda: d.mean),
        "likelihood": _uses_fused(lambda: d.log_likelihood(torch.tensor([0, 2]))),
        "moments": _uses_fused(d.moments),
        "from_mean": _uses_fused(lambda: Concrete.from_mean(probs, temperature)),
        "moments_of_mean": _uses_fused(lambda: moments_of_mean(probs, temperature)),
        "float64": _uses_fused(lambda: Concrete(logits.double(), temperature.double()).mean),
        "transform": _uses_fused(lambda: per_row(logits, temperature)),
    }


def _uses_fused(function: Callable[[], object]) -> bool:
    with torch.profiler.profile() as profile:
        function()
    return any(event.name.startswith("simplexcal::") for event in profile.events() or ())


def compiled() -> list[str]:
    """Return the operators of the graph that torch.compile makes of the mean."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    mean = torch.compile(_potential.mean, fullgraph=True, backend=backend)
    mean(torch.zeros(3, 4), torch.ones(3))
    nodes = [node for graph in graphs for node in graph.graph.nodes]
    return [str(node.target) for node in nodes if node.op == "call_function"]


def operators() -> list[str]:
    """Return the results of torch's own checks of the operators, each once."""
    logits = torch.zeros(3, 4, requires_grad=True)
    temperature = torch.ones(3, requires_grad=True)
    at = (logits, temperature)
    found = [
        torch.library.opcheck(_fused_operators.mean, at),
        # Its gradient is the reference's, which torch.compile does not trace.
        torch.library.opcheck(_fused_operators.potential, at, test_utils=TRACED_FORWARD),
        torch.library.opcheck(
            _fused_operators.log_mean_at, (*at, torch.zeros(3, 1, dtype=torch.int64))
        ),
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


def likelihood_head() -> dict[str, float]:
    """Return the errors of the head's kernel, and of the head in float32, for rows of all kinds."""
    generator = torch.Generator().manual_seed(0)
    found = {"kernel": 0.0, "torch": 0.0, "labels": 1.0}
    for k in (2, 3, 19, 300):
        logits = 3 * torch.randn(600, k, generator=generator)
        noisy = logits / 1.5 + torch.randn(600, k, generator=generator)
        labels = noisy.softmax(-1).multinomial(1, generator=generator).squeeze(1)
        calibrator = SimplexTemperatureScaling(n_steps=1, pool_size=256).fit(logits, labels)
        outputs = Outputs(_unusual(logits))
        probs = calibrator._mean(outputs, outputs.label)
        _fused.IS_ON = False
        reference = calibrator._mean(outputs, outputs.label)
        exact = deepcopy(calibrator).double()._mean(outputs.to(DOUBLE), outputs.label)
        _fused.IS_ON = True
        found["kernel"] = max(found["kernel"], _distance(probs, exact))
        found["torch"] = max(found["torch"], _distance(reference, exact))
        own = probs.gather(1, outputs.label.unsqueeze(1))
        kept = (own == probs.amax(1, keepdim=True)).float().mean().item()
        found["labels"] = min(found["labels"], kept)
    return found


def _unusual(logits: Tensor) -> Tensor:
    """Return some rows with ties, masked classes and extreme values in the first of them."""
    rows = 2 * logits[:60]
    rows[0] = rows[0].round()
    rows[1, 0] = -1e9
    rows[2, 1] = -torch.inf
    rows[3] *= 1e4
    rows[4] += 1e6
    rows[5] = 0.0
    return rows


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    _fused.DEVICE_TYPE = "cpu"
    result = {
        "random": random_rows(),
        "golden": golden(),
        "special": special_rows(),
        "gradients": gradients(),
        "inversion": inversion(),
        "second_derivatives": second_derivatives(),
        "dispatch": dispatch(),
        "compiled": compiled(),
        "operators": operators(),
        "likelihood_head": likelihood_head(),
    }
    with a_thread_for_each_row():
        result["by_row"] = {
            "random": random_rows(),
            "golden": golden(),
            "special": special_rows(),
            "inversion": inversion(),
        }
    json.dump(result, sys.stdout)
