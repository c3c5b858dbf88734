"""The likelihood head as graphs have it, against the library's; and graphs with some outputs."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from helpers.parquet_rows import K, fitted, outputs
from torch import Generator, Tensor, nn

from simplexcal.calibrators import SimplexTemperatureScaling
from simplexcal.calibrators import _likelihood_head as plain
from simplexcal.calibrators._likelihood_head import HeadSettings, LikelihoodHead
from simplexcal.cli import main
from simplexcal.model import CalibratedModel
from simplexcal.onnx import OnnxNetwork, _short_head, export_calibrator
from simplexcal.onnx._short_head import ShortHead
from simplexcal.types import Outputs


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def random_head(k: int, dtype: torch.dtype) -> LikelihoodHead:
    """Return a head in which all terms count: an increasing m, for all margins, and large terms."""
    head = LikelihoodHead(k, HeadSettings()).to(dtype)
    n = plain.N_CELLS
    width = 25 / n
    slopes = 0.1 + torch.rand(4, n, generator=seeded(1), dtype=torch.float64)
    starts = torch.cat([torch.zeros(4, 1), (width * slopes).cumsum(1)[:, :-1]], 1) - 10
    first = torch.stack([starts[:-1], slopes[:-1]], -1)
    change = torch.stack([starts.diff(dim=0), slopes.diff(dim=0)], -1)
    head.table.copy_(torch.cat([first, change], -1).flatten(0, 1))
    head.low.fill_(-15.0)
    head.cell_width.fill_(width)
    head.margins.copy_(torch.tensor([0.1, 1.0, 3.0, 9.0]))
    head.top_changes.normal_(generator=seeded(2))
    for name in ("bias", "confusion", "class_slope", "predicted_slope"):
        getattr(head, name).normal_(generator=seeded(3)).mul_(0.3)
    return head


def logits_of(k: int) -> Tensor:
    z = 4 * torch.randn(2000, k, generator=seeded(4), dtype=torch.float64)
    z[:200] *= 0.01
    z[200:400] *= 30
    z[400:600] *= 1e4
    z[600:800, : k // 2] = -1e4  # masked
    z[800:900, : k // 2] = -torch.inf
    z[900:950] = 0.0
    z[950:1000, -2:] = 20.0
    z[1000:1100] += 1e3
    return z


@pytest.mark.parametrize("k", [2, 10, 40, 300])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_the_short_head_is_the_head(
    k: int, dtype: torch.dtype, atol: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As many steps as there may be classes above the predicted one.
    monkeypatch.setattr(plain, "N_LEVELS", k)
    head = random_head(k, dtype)
    sts = SimplexTemperatureScaling()
    sts.build(k, None)
    sts.log_temperature.fill_(0.3)
    sts.to(dtype).head_network = head
    outputs = Outputs(logits_of(k).to(dtype))
    found = ShortHead(head, sts.log_temperature.exp())(outputs.logits)
    assert torch.equal(found.label, outputs.label)
    assert torch.equal(found.probs.argmax(-1), outputs.label)
    # The library divides before it subtracts, which costs float32 some digits of large logits.
    torch.testing.assert_close(found.probs, sts._mean(outputs, outputs.label), atol=atol, rtol=0)


@pytest.mark.parametrize("k", [3, 20, 100])
def test_the_level_is_the_root(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "N_LEVELS", 100)
    probs = torch.randn(500, k, generator=seeded(), dtype=torch.float64).softmax(-1)
    predicted = probs.argmin(-1, keepdim=True)
    one_hot = torch.zeros_like(probs).scatter(-1, predicted, 1.0)
    expected = plain.keep_prediction(probs, predicted)
    for most in (k, 2):
        monkeypatch.setattr(_short_head, "MAX_SORTED", most)
        found = _short_head._keep_prediction(probs, predicted, one_hot)
        assert torch.equal(found.argmax(-1, keepdim=True), predicted)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def run(path: Path, names: list[str], **arrays: Tensor) -> list[Tensor]:
    session = onnxruntime.InferenceSession(path)
    found = session.run(names, {name: x.numpy() for name, x in arrays.items()})
    return [torch.from_numpy(np.asarray(x)) for x in found]


def test_a_graph_has_the_outputs_that_are_asked_for(tmp_path: Path) -> None:
    data = outputs(50)
    assert data.features is not None
    some, every = tmp_path / "some.onnx", tmp_path / "every.onnx"
    written = export_calibrator(fitted("sts"), some, outputs=["confidence", "label", "probs"])
    # The features are for the uncertainties alone.
    assert (written.inputs, written.outputs) == (["logits"], ["label", "probs", "confidence"])
    export_calibrator(fitted("sts"), every)
    expected = run(every, written.outputs, logits=data.logits, features=data.features)
    found = run(some, written.outputs, logits=data.logits)
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
    n_nodes = [len(onnx.load(path).graph.node) for path in (some, every)]
    assert n_nodes[0] < n_nodes[1] / 4
    names = ["mutual_information"]
    written = export_calibrator(fitted("sts"), some, outputs=names)
    assert (written.inputs, written.outputs) == (["logits", "features"], names)


@pytest.mark.parametrize("wanted", [[], ["probs", "logits"], ["accepted"], "probs"])
def test_outputs_that_there_are_not_are_refused(wanted: list[str], tmp_path: Path) -> None:
    expected = "`outputs` must be some of the outputs .*, label, probs, confidence"
    with pytest.raises(ValueError, match=expected):
        export_calibrator(fitted("sts"), tmp_path / "x.onnx", outputs=wanted)
    assert not (tmp_path / "x.onnx").exists()


def test_a_network_has_the_outputs_that_are_asked_for(tmp_path: Path) -> None:
    net = nn.Linear(6, K).eval()
    inputs = torch.randn(4, 6, generator=seeded())
    path, whole = tmp_path / "net.onnx", tmp_path / "whole.onnx"
    torch.onnx.export(net, (inputs,), path, dynamo=True, verbose=False, external_data=False)
    network = OnnxNetwork(path, kind="logits")
    calibrated = CalibratedModel(network, fitted("ts"))
    calibrated.to_onnx(whole, outputs=("label", "probs"))
    assert [x.name for x in onnx.load(whole).graph.output][-2:] == ["label", "probs"]
    with pytest.raises(ValueError, match='`outputs` must have "label" and "probs"'):
        calibrated.to_onnx(whole, outputs=("probs",))


def test_the_command_line_takes_the_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted("sts").save(tmp_path / "sts.safetensors")
    command = ["export", str(tmp_path / "sts.safetensors"), "-o", str(tmp_path / "x.onnx")]
    assert main([*command, "--outputs", "label,probs"]) == 0
    assert "Inputs: logits.\nOutputs: label, probs.\n" in capsys.readouterr().out
    assert main([*command, "--outputs", "logits"]) == 2
    assert capsys.readouterr().err.startswith("error: --outputs must be some of the outputs")
