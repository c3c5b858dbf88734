"""The fused GPU kernels: in Triton's interpreter where there is no GPU, and on the device."""

import importlib.util
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from simplexcal import Concrete, Outputs, SimplexTemperatureScaling
from simplexcal.concrete import _fused, _potential, moments_of_mean

DOUBLE = torch.float64
PROGRAM = Path(__file__).parents[1] / "helpers" / "fused_errors.py"
NEEDS_TRITON = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
NEEDS_CUDA = pytest.mark.skipif(
    not (_fused.IS_ON and torch.cuda.is_available()),
    reason="needs a CUDA device and triton",
)
# What is imported by a use of everything that a fused kernel could compute.
SWITCHED_OFF = """
import sys, torch
before = set(sys.modules)
from simplexcal.concrete import Concrete, moments_of_mean
d = Concrete(torch.zeros(2, 3, requires_grad=True), 1.0)
d.mean.sum().backward()
d.moments()
d.log_likelihood(torch.tensor([0, 1])).sum().backward()
Concrete.from_mean(torch.full((2, 3), 1 / 3), 1.0)
moments_of_mean(torch.full((2, 3), 1 / 3), torch.ones(2))
print(*(x for x in set(sys.modules) - before if "triton" in x or "fused_operators" in x))
"""
# So many rows that a thread may hold each.
MANY_ROWS = 2**13
MANY = [(8200, 2), (8193, 10), (8192, 32), (8192, 33)]
SIZES = [(1, 2), (1000, 3), (333, 10), (64, 16), (100, 37), (50, 255), (50, 257), (20, 21841)]


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.4.0", False), ("2.7.1+cu126", False), ("2.8.0", True), ("2.13.0+cpu", True)],
)
def test_the_kernels_need_the_triton_of_torch_2_8(version: str, expected: bool) -> None:
    assert _fused.is_new_enough(version) == expected


# --- in the interpreter ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    """What ``fused_errors`` finds: in a process of its own, for the interpreter."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", _fused.VARIABLE: "1"}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True
    )
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("this version of triton has an interpreter for an older numpy")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(params=["tiles", "rows"])
def by_any(request: pytest.FixtureRequest, interpreted: dict[str, Any]) -> dict[str, Any]:
    """What both kinds of kernels find: threads share rows, or each holds one."""
    if request.param == "rows":
        found: dict[str, Any] = interpreted["by_row"]
        return found
    return interpreted


@NEEDS_TRITON
def test_interpreted_moments_equal_the_reference(by_any: dict[str, Any]) -> None:
    found = by_any["random"]
    assert found["mean"] < 5e-7
    assert found["value"] < 3e-6
    assert found["slope"] < 1e-5
    assert found["log_mean"] < 2e-5


@NEEDS_TRITON
def test_interpreted_means_equal_the_golden_ones(by_any: dict[str, Any]) -> None:
    assert by_any["golden"]["mean"] < 5e-7


@NEEDS_TRITON
def test_interpreted_gradients_equal_those_of_the_reference(interpreted: dict[str, Any]) -> None:
    found = interpreted["gradients"]
    assert found["mean"] < 5e-6
    # These have factors 1 / p.
    assert found["log_mean"] < 2e-4
    assert found["many_labels"] < 2e-4
    # The reference in float32, to which it is left, and a slope of order 1 / ρ.
    assert found["potential"] < 2e-4


@NEEDS_TRITON
def test_interpreted_second_derivatives_are_those_of_the_reference(
    interpreted: dict[str, Any],
) -> None:
    assert interpreted["second_derivatives"]["mean"] < 1e-5
    assert interpreted["second_derivatives"]["log_mean"] < 1e-3


@NEEDS_TRITON
def test_interpreted_kernels_are_used_for_float32_alone(interpreted: dict[str, Any]) -> None:
    assert interpreted["dispatch"] == {
        "mean": True,
        "likelihood": True,
        "moments": True,
        "from_mean": True,
        "moments_of_mean": True,
        "float64": False,
        "transform": False,
    }


@NEEDS_TRITON
def test_a_compiled_graph_has_one_interpreted_operator(interpreted: dict[str, Any]) -> None:
    assert interpreted["compiled"] == ["simplexcal.mean.default"]


@NEEDS_TRITON
def test_interpreted_inversions_have_the_given_mean(by_any: dict[str, Any]) -> None:
    assert by_any["inversion"]["mean"] < 5e-7
    assert by_any["inversion"]["value"] < 3e-6
    assert by_any["inversion"]["slope"] < 1e-5


@NEEDS_TRITON
def test_interpreted_operators_are_registered_as_torch_demands(interpreted: dict[str, Any]) -> None:
    assert interpreted["operators"] == ["SUCCESS"]


@NEEDS_TRITON
def test_interpreted_special_rows(by_any: dict[str, Any]) -> None:
    found = by_any["special"]
    low, first, second, lowest = found["tied"]
    assert first == second > low > lowest
    assert found["masked"] == [0.0, 0.0]
    assert found["kept"] < 5e-7
    first, *others = found["huge"]
    assert abs(first - 1) < 5e-7
    assert others == [0.0, 0.0, 0.0]
    assert found["nan"]
    assert found["strided"]
    assert found["none"] == [0, 4]


@NEEDS_TRITON
def test_the_interpreted_head_is_as_exact_as_that_of_torch(interpreted: dict[str, Any]) -> None:
    found = interpreted["likelihood_head"]
    assert found["kernel"] < 2 * found["torch"] + 1e-7
    assert found["labels"] == 1.0


# --- on the device --------------------------------------------------------------------------------


def make_rows(n: int, k: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, k, generator=g)
    temperature = 10 ** (4 * torch.rand(n, generator=g) - 2)
    return logits.cuda(), temperature.cuda()


def make_labels(n: int, k: int, m: int = 1) -> Tensor:
    return torch.randint(k, (n, m), generator=torch.Generator().manual_seed(1)).cuda()


def same_kernel(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Any]:
    """Return what the fused kernel finds, and the reference in float64."""
    exact = [x.double() if x.is_floating_point() else x for x in arguments]
    return function(*arguments), function(*exact)


@NEEDS_CUDA
@pytest.mark.parametrize(("n", "k"), SIZES + MANY)
def test_moments_equal_the_reference(n: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fused, "MANY_ROWS", MANY_ROWS)
    rows = make_rows(n, k)
    assert _fused.applies(*rows)
    found, exact = same_kernel(_potential.potential, *rows)
    torch.testing.assert_close(found.mean.double(), exact.mean, rtol=0, atol=5e-7)
    torch.testing.assert_close(_potential.mean(*rows), found.mean, rtol=0, atol=2e-7)
    if _fused.applies_with_slope(*rows):
        torch.testing.assert_close(found.value.double(), exact.value, rtol=0, atol=5e-6)
        torch.testing.assert_close(found.slope.double(), exact.slope, rtol=0, atol=2e-5)
    else:
        reference = _potential.potential_in_torch(*rows)
        assert torch.equal(found.value, reference.value)
        assert torch.equal(found.slope, reference.slope)


@NEEDS_CUDA
@pytest.mark.parametrize("m", [1, 2, 20])
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_log_likelihoods_equal_the_reference(n: int, k: int, m: int) -> None:
    found, exact = same_kernel(_potential.log_mean_at, *make_rows(n, k), make_labels(n, k, m))
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=3e-5)


@NEEDS_CUDA
def test_means_equal_the_golden_ones(golden: list[dict[str, Any]]) -> None:
    for case in golden:
        logits, temperature = (torch.tensor(case[x]).cuda() for x in ("logits", "temperature"))
        mean = Concrete(logits, temperature).mean.cpu().double()
        exact = torch.tensor(case["mean"], dtype=DOUBLE)
        torch.testing.assert_close(mean, exact, rtol=0, atol=5e-7)


@NEEDS_CUDA
@pytest.mark.parametrize(("n", "k"), SIZES)
@pytest.mark.parametrize("name", ["mean", "potential", "log_mean_at"])
def test_gradients_are_as_exact_as_those_of_the_reference(
    name: str, n: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, temperature = make_rows(n, k)
    found = gradients(name, logits, temperature)
    exact = gradients(name, logits.double(), temperature.double())
    monkeypatch.setattr(_fused, "IS_ON", False)
    rounded = gradients(name, logits, temperature)
    for a, b, c in zip(found, exact, rounded, strict=True):
        # The means themselves, of which the gradients are differences, are good to 5e-7.
        allowed = 3 * (c - b).abs().max() + 1e-6 * (1 + b.abs().max())
        assert (a - b).abs().max() <= allowed


def gradients(name: str, logits: Tensor, temperature: Tensor) -> tuple[Tensor, ...]:
    inputs = (logits.requires_grad_(), temperature.requires_grad_())
    arguments = [*inputs]
    if name == "log_mean_at":
        arguments.append(make_labels(len(logits), logits.shape[1], 2))
    outputs = getattr(_potential, name)(*arguments)
    if isinstance(outputs, Tensor):
        outputs = (outputs,)
    g = torch.Generator().manual_seed(2)
    grads = [torch.randn(x.shape, generator=g).to(x) for x in outputs]
    return torch.autograd.grad(outputs, inputs, grads)


@NEEDS_CUDA
def test_second_derivatives_are_those_of_the_reference() -> None:
    found = []
    for dtype in (torch.float32, DOUBLE):
        inputs = [x.to(dtype).requires_grad_() for x in make_rows(50, 7)]
        loss = _potential.mean(*inputs).square().sum()
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        penalty = first[0].square().sum() + first[1].square().sum()
        found.append(torch.autograd.grad(penalty, inputs))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-5)


@NEEDS_CUDA
def test_function_transforms_are_those_of_the_reference() -> None:
    logits, temperature = make_rows(6, 5)

    def entropy(row: Tensor, lam: Tensor) -> Tensor:
        total: Tensor = torch.special.entr(_potential.mean(row[None], lam[None])).sum()
        return total

    per_row = torch.func.vmap(torch.func.grad(entropy))
    found, exact = same_kernel(per_row, logits, temperature)
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-5)


@NEEDS_CUDA
@pytest.mark.parametrize("many_rows", [1, MANY_ROWS])
@pytest.mark.parametrize("k", [4, 400])
def test_the_largest_logit_has_strictly_the_largest_mean(
    k: int, many_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_fused, "MANY_ROWS", many_rows)
    logits = torch.randn(100, k, generator=torch.Generator().manual_seed(0)).cuda()
    logits[:50] = (4 * logits[:50]).round() / 4  # ties
    logits[50:] = 1e-7 * logits[50:]  # nearly ties
    mean = Concrete(logits, 3.0).mean
    is_largest = logits == logits.amax(-1, keepdim=True)
    assert torch.equal(mean == mean.amax(-1, keepdim=True), is_largest)


@NEEDS_CUDA
@pytest.mark.parametrize("many_rows", [1, MANY_ROWS])
def test_masked_classes_have_no_mean(many_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fused, "MANY_ROWS", many_rows)
    logits, temperature = make_rows(40, 30)
    exact = _potential.mean(logits[:, :20].double(), temperature.double())
    for masked in (-1e9, -torch.inf):
        logits[:, 20:] = masked
        mean = _potential.mean(logits, temperature)
        assert (mean[:, 20:] == 0).all()
        torch.testing.assert_close(mean[:, :20].double(), exact, rtol=0, atol=5e-7)


@NEEDS_CUDA
@pytest.mark.parametrize("many_rows", [1, MANY_ROWS])
def test_nan_stays_in_its_row(many_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fused, "MANY_ROWS", many_rows)
    logits, temperature = make_rows(40, 30)
    exact = _potential.mean(logits, temperature)
    logits[3, 7] = torch.nan
    temperature[5] = torch.nan
    mean = _potential.mean(logits, temperature)
    torch.cuda.synchronize()
    is_nan = torch.zeros(40, dtype=torch.bool, device="cuda")
    is_nan[[3, 5]] = True
    assert mean[is_nan].isnan().all()
    assert torch.equal(mean[~is_nan], exact[~is_nan])


@NEEDS_CUDA
def test_memory_may_lie_in_any_order() -> None:
    logits, temperature = make_rows(100, 40)
    whole = _potential.mean(logits[:, ::2].contiguous(), temperature[:1].repeat(100))
    for part in (logits[:, ::2], logits.T.contiguous().T[:, ::2]):
        assert torch.equal(_potential.mean(part, temperature[:1].expand(100)), whole)
    padded = torch.nn.functional.pad(logits, (0, 3))[:, :40]
    assert torch.equal(_potential.mean(padded, temperature), _potential.mean(logits, temperature))
    assert _potential.mean(logits[:0], temperature[:0]).shape == (0, 40)


@NEEDS_CUDA
def test_rows_beyond_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fused, "MANY_ROWS", MANY_ROWS)
    n, k = 2**28 + 40, 8  # 2**31 numbers and some more
    if torch.cuda.mem_get_info()[0] < 8 * n * k + 2**31:
        pytest.skip("needs 20 GB of device memory")
    last = torch.randn(40, k, generator=torch.Generator().manual_seed(0)).cuda()
    logits = torch.zeros(n, k, device="cuda")
    logits[-40:] = last
    temperature = torch.ones((), device="cuda")
    mean = _potential.mean(logits, temperature.expand(n))
    exact = _potential.mean(last.double(), temperature.double().expand(40))
    torch.testing.assert_close(mean[-40:].double(), exact, rtol=0, atol=5e-7)


@NEEDS_CUDA
def test_a_compiled_graph_has_one_operator() -> None:
    rows = make_rows(50, 10)
    graphs = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(_potential.mean, fullgraph=True, backend=backend)
    assert torch.equal(compiled(*rows), _potential.mean(*rows))
    (graph,) = graphs
    calls = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert calls == ["simplexcal.mean.default"]


@NEEDS_CUDA
def test_an_exported_graph_has_operators_of_torch_alone() -> None:
    class Mean(torch.nn.Module):
        def forward(self, logits: Tensor, temperature: Tensor) -> Tensor:
            return _potential.mean(logits, temperature)

    program = torch.export.export(Mean(), make_rows(5, 4))
    assert "simplexcal" not in str(program.graph)


@NEEDS_CUDA
@pytest.mark.parametrize("name", ["mean", "potential", "log_mean_at"])
def test_operators_are_registered_as_torch_demands(name: str) -> None:
    logits, temperature = make_rows(5, 4)
    arguments = [logits.requires_grad_(), temperature.requires_grad_()]
    tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if name == "log_mean_at":
        arguments.append(make_labels(5, 4))
    if name != "potential":  # whose gradient torch.compile does not trace
        tests.append("test_aot_dispatch_dynamic")
    torch.library.opcheck(getattr(_fused.operators(), name), tuple(arguments), test_utils=tests)


@NEEDS_CUDA
def test_a_compiled_gradient_is_the_eager_one() -> None:
    logits, temperature = (x.requires_grad_() for x in make_rows(50, 10))
    labels = make_labels(50, 10)

    def loss(logits: Tensor, temperature: Tensor) -> Tensor:
        return -_potential.log_mean_at(logits, temperature, labels).mean()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    at = (logits, temperature)
    found = torch.autograd.grad(compiled(*at), at)
    expected = torch.autograd.grad(loss(*at), at)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@NEEDS_CUDA
@pytest.mark.parametrize(("n", "k"), SIZES + MANY)
def test_the_mean_at_the_location_is_the_given_one(
    n: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_fused, "MANY_ROWS", MANY_ROWS)
    logits, temperature = make_rows(n, k)
    probs = (logits.double() / 2).softmax(-1)
    found = Concrete.from_mean(probs.float(), temperature)
    mean = Concrete(found.logits.double(), temperature.double()).mean
    torch.testing.assert_close(mean, probs, rtol=0, atol=1e-6)
    exact = moments_of_mean(probs, temperature.double())
    for a, b in zip(moments_of_mean(probs.float(), temperature), exact, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=2e-5)


@NEEDS_CUDA
def test_gradients_of_the_location_are_those_of_the_reference() -> None:
    found = []
    for dtype in (torch.float32, DOUBLE):
        logits, temperature = (x.to(dtype) for x in make_rows(50, 7))
        inputs = ((logits / 2).softmax(-1).requires_grad_(), temperature.requires_grad_())
        location = Concrete.from_mean(*inputs, validate_args=False).logits
        grad = torch.randn(50, 7, generator=torch.Generator().manual_seed(3)).to(location)
        found.append(torch.autograd.grad(location, inputs, grad))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-3, atol=1e-3)


@NEEDS_CUDA
@pytest.mark.parametrize("k", [2, 3, 10, 19, 100, 1000])
def test_the_head_is_as_exact_as_that_of_torch(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2000, k, generator=g)
    noisy = logits / 1.5 + torch.randn(2000, k, generator=g)
    labels = noisy.softmax(-1).multinomial(1, generator=g).squeeze(1)
    calibrator = SimplexTemperatureScaling(n_steps=1, pool_size=256).fit(logits, labels).cuda()
    rows = 2 * logits[:501].cuda()
    rows[1, 0] = -torch.inf
    rows[2] *= 1e4
    outputs = Outputs(rows)
    with torch.no_grad():
        found = calibrator._mean(outputs, outputs.label)
        monkeypatch.setattr(_fused, "IS_ON", False)
        rounded = calibrator._mean(outputs, outputs.label)
        exact = deepcopy(calibrator).double()._mean(outputs.to(DOUBLE), outputs.label)
    allowed = 2 * (rounded - exact).abs().max() + 1e-7
    assert (found - exact).abs().max() <= allowed
    own = found.gather(1, outputs.label.unsqueeze(1))
    assert torch.equal(own, found.amax(1, keepdim=True))


# --- switched off ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "installed", "is_on"),
    [("", True, True), ("1", True, True), ("0", True, False), ("", False, False)],
)
def test_the_kernels_are_on_where_triton_is_unless_a_variable_switches_them_off(
    value: str, installed: bool, is_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(_fused.VARIABLE, value)
    spec = ModuleSpec("triton", None) if installed else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    assert runpy.run_path(_fused.__file__)["IS_ON"] == is_on


@pytest.mark.parametrize("value", ["", "0"])
def test_on_a_cpu_neither_triton_nor_the_operators_are_imported(value: str) -> None:
    environment = {**os.environ, _fused.VARIABLE: value}
    done = subprocess.run(
        [sys.executable, "-c", SWITCHED_OFF],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == []


def test_value_and_slope_of_very_many_classes_are_left_to_the_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_fused, "IS_ON", True)
    monkeypatch.setattr(_fused, "DEVICE_TYPE", "cpu")
    for k, expected in ((1000, True), (21841, False)):
        rows = (torch.zeros(2, k), torch.ones(2))
        assert _fused.applies(*rows)
        assert _fused.applies_with_slope(*rows) == expected


def test_the_kernels_are_for_float32_on_a_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fused, "IS_ON", True)
    for dtype in (torch.float32, DOUBLE):
        assert not _fused.applies(torch.zeros(2, 3, dtype=dtype), torch.ones(2, dtype=dtype))
