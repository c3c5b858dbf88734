"""Promises that only a GPU can break; skipped where there is none."""

import warnings
from collections.abc import Iterator
from copy import deepcopy

import pytest
import torch
from helpers.methods import METHODS
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import simplexcal as sc
from simplexcal import Concrete
from simplexcal.calibrators._cuda_graph import N_WARM_UP
from simplexcal.calibrators._optim import minimise, row_batches

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_neither_tf32_nor_autocast_lowers_the_precision() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.randn(1000, 50, device="cuda", generator=generator)
    exact = Concrete(logits.double(), 0.7).mean
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            mean = Concrete(logits, 0.7).mean
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(mean.double(), exact, rtol=0, atol=1e-6)


def test_nan_with_validation_off_stays_nan_and_does_not_kill_the_context() -> None:
    logits = torch.tensor([[float("nan"), 1.0], [2.0, 1.0]], device="cuda")
    mean = Concrete(logits, 1.0, validate_args=False).mean
    torch.cuda.synchronize()
    assert mean[0].isnan().all()
    assert mean[1].isfinite().all()


def test_samples_take_a_generator_of_the_device() -> None:
    d = Concrete(torch.zeros(3, device="cuda"), 1.0)
    a, b = (d.sample((5,), torch.Generator("cuda").manual_seed(3)) for _ in range(2))
    assert torch.equal(a, b)


def test_two_devices_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"`logits` and `temperature` must be on one device; got cuda:0 and cpu"
    ):
        Concrete(torch.zeros(3, device="cuda"), torch.tensor(1.0))


@pytest.mark.parametrize("name", METHODS)
def test_a_fit_on_the_gpu_is_the_fit_on_the_cpu(name: str) -> None:
    g = torch.Generator().manual_seed(0)
    head, features = nn.Linear(12, 4), torch.randn(500, 12, generator=g)
    for parameter in head.parameters():
        nn.init.normal_(parameter, generator=g)
    labels = torch.multinomial((head(features) / 2).softmax(-1), 1, generator=g).squeeze(1)
    probs = []
    for device in ("cpu", "cuda"):
        outputs = sc.Outputs(head(features).detach(), features).to(device)
        mixup = sc.FeatureMixup(head, outputs, labels)
        calibrator = METHODS[name]().fit(
            outputs, labels, mixup=mixup, generator=torch.Generator().manual_seed(1)
        )
        probs.append(calibrator(outputs).probs.cpu())
    torch.testing.assert_close(*probs, rtol=0, atol=2e-4)


def test_steps_that_are_replayed_are_those_that_are_not() -> None:
    g = torch.Generator("cuda").manual_seed(0)
    x, y = (
        torch.randn(70, 5, device="cuda", generator=g),
        torch.randn(70, 3, device="cuda", generator=g),
    )
    start = torch.randn(5, 3, device="cuda", generator=g)

    def batches() -> Iterator[tuple[Tensor, ...]]:
        # Five batches, the last one smaller.
        for rows in row_batches(70, 16, torch.Generator().manual_seed(2), x.device):
            yield (rows,)

    def loss(weight: Tensor, at: Tensor) -> Tensor:
        return mse_loss(x[at] @ weight, y[at])

    def trained(cuda_graph: bool) -> nn.Parameter:
        weight = nn.Parameter(start.clone())
        minimise(
            lambda rows: loss(weight, rows),
            batches(),
            [weight],
            n_steps=60,
            learning_rate=0.1,
            weight_decay=0.01,
            lr_decay=True,
            cuda_graph=cuda_graph,
        )
        return weight

    torch.testing.assert_close(trained(cuda_graph=True), trained(cuda_graph=False))


def test_a_network_is_calibrated_where_it_is(generator: torch.Generator) -> None:
    net, x = (
        nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)).cuda(),
        torch.randn(200, 6, generator=generator),
    )
    y = net(x.cuda()).softmax(-1).multinomial(1).squeeze(1).cpu()
    model = sc.calibrate(net, (x, y), METHODS["sts"](), mixup="inputs", generator=generator)
    p = model.predict(x)
    assert {
        v.device.type for v in (p.probs, p.label, p.aleatoric, p.epistemic) if v is not None
    } == {"cuda"}
    assert torch.equal(p.label, net(x.cuda()).argmax(-1))


def test_an_evaluation_is_the_same_on_the_gpu() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2000, 10, generator=generator)
    labels = logits.softmax(-1).multinomial(1, generator=generator).squeeze(1)
    here, there = (
        sc.evaluate(sc.Prediction((1.3 * z).softmax(-1), z.argmax(-1)), y)
        for z, y in ((logits, labels), (logits.cuda(), labels.cuda()))
    )
    assert there.as_dict() == pytest.approx(here.as_dict(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_predictions_that_are_replayed_are_those_that_are_not(name: str) -> None:
    calibrator, outputs = fitted_on_the_gpu(name)
    for _ in range(2 * N_WARM_UP):
        for n in (1, 7, 500):  # Graphs of several forms take turns.
            rows = outputs[:n]
            expected = eager(calibrator, rows)
            found = vars(calibrator(rows))
            for field, value in expected.items():
                torch.testing.assert_close(found[field], value, rtol=0, atol=0, equal_nan=True)


def test_a_replayed_prediction_stays_when_the_next_one_comes() -> None:
    calibrator, outputs = fitted_on_the_gpu("sts")
    first, second = outputs[:100], outputs[100:200]
    for _ in range(N_WARM_UP + 1):
        calibrator(first)
    probs = calibrator(first).probs
    kept = probs.clone()
    calibrator(second)
    torch.cuda.synchronize()
    assert torch.equal(probs, kept)


def test_graphs_are_dropped_when_the_calibrator_changes() -> None:
    calibrator, outputs = fitted_on_the_gpu("ts")
    rows = outputs[:100]
    for _ in range(N_WARM_UP + 1):
        before = calibrator(rows).probs
    calibrator.load_state_dict({key: 2 * x for key, x in calibrator.state_dict().items()})
    assert torch.equal(calibrator(rows).probs, eager(calibrator, rows)["probs"])
    assert not torch.equal(calibrator(rows).probs, before)
    calibrator.to("cpu").to("cuda")
    assert torch.equal(calibrator(rows).probs, eager(calibrator, rows)["probs"])
    copied = deepcopy(calibrator)
    assert torch.equal(copied(rows).probs, calibrator(rows).probs)


def test_streams_do_not_share_the_memory_of_a_graph() -> None:
    calibrator, outputs = fitted_on_the_gpu("sts")
    expected = [eager(calibrator, outputs[start : start + 50])["probs"] for start in (0, 50)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    found: list[Tensor] = []
    for _ in range(N_WARM_UP + 3):
        found = []
        for stream, start in zip(streams, (0, 50), strict=True):
            with torch.cuda.stream(stream):
                found.append(calibrator(outputs[start : start + 50]).probs)
    torch.cuda.synchronize()
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def test_a_prediction_on_the_gpu_waits_for_nothing() -> None:
    net = (
        nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3)).cuda().eval()
    )
    x = torch.randn(200, 6, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    y = net(x).softmax(-1).multinomial(1).squeeze(1)
    model = sc.calibrate(net, (x, y), METHODS["sts"]())
    for _ in range(N_WARM_UP + 2):
        model.predict(x[:50])
    try:
        with warnings.catch_warnings():
            # torch says at the first use that it does not detect every wait.
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
            torch.cuda.set_sync_debug_mode("error")
        p = model.predict(x[:50])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(p.label, net(x[:50]).argmax(-1))


def fitted_on_the_gpu(name: str) -> tuple[sc.Calibrator, sc.Outputs]:
    g = torch.Generator().manual_seed(0)
    head, features = nn.Linear(12, 4), torch.randn(500, 12, generator=g)
    for parameter in head.parameters():
        nn.init.normal_(parameter, generator=g)
    labels = torch.multinomial((head(features) / 2).softmax(-1), 1, generator=g).squeeze(1)
    outputs = sc.Outputs(head(features).detach(), features).to("cuda")
    mixup = sc.FeatureMixup(head.cuda(), outputs, labels)
    return METHODS[name]().fit(outputs, labels, mixup=mixup), outputs


@torch.no_grad()
def eager(calibrator: sc.Calibrator, outputs: sc.Outputs) -> dict[str, Tensor]:
    """Return the fields of a prediction that is made without a graph."""
    rows = [x for x in (outputs.logits, outputs.features) if x is not None]
    values = calibrator._predict_rows(*rows)
    return dict(zip(calibrator._fields, values, strict=True))
