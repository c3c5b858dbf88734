"""onnxruntime against torch, for networks that classify each token or pixel."""

from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from simplexcal import CalibratedModel, Prediction, SimplexTemperatureScaling, calibrate

K = 4


class Segmenter(nn.Module):
    """Two convolutions and a scale: logits (N, K, H, W)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(2, 5, 3, padding=1)
        self.head = nn.Conv2d(5, K, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x).relu())
        return 6 * logits


class Tagger(nn.Module):
    """Embeddings beside the mean of those that the mask keeps: logits (N, T, K)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.head = nn.Linear(16, K)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        words = self.embedding(input_ids)
        mask = attention_mask.unsqueeze(-1)
        mean = (words * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        return {"logits": 4 * self.head(torch.cat([words, mean.expand_as(words)], -1))}


def quick_sts() -> SimplexTemperatureScaling:
    """Return STS with few steps."""
    return SimplexTemperatureScaling(n_steps=5, pool_size=200)


def run(path: Path, **inputs: Tensor) -> dict[str, Tensor]:
    """Return the outputs of a graph by their names."""
    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    values = session.run(names, {name: x.numpy() for name, x in inputs.items()})
    return {name: torch.from_numpy(x) for name, x in zip(names, values, strict=True)}


def assert_same(found: dict[str, Tensor], expected: Prediction) -> None:
    """Compare a graph's outputs with a prediction."""
    for name, values in found.items():
        wanted = getattr(expected, name)
        assert values.shape == wanted.shape
        if name == "label":
            assert torch.equal(values, wanted)
        else:
            torch.testing.assert_close(values, wanted, rtol=1e-5, atol=1e-5)


def labels_of(probs: Tensor) -> Tensor:
    """Return labels of these probabilities, (N, T, K) or (N, K, H, W)."""
    if probs.dim() == 4:
        probs = probs.movedim(1, -1)
    drawn = probs.reshape(-1, probs.shape[-1]).multinomial(1)
    return drawn.view(probs.shape[:-1])


@pytest.fixture(scope="module")
def images() -> tuple[nn.Module, Tensor, Tensor]:
    """Return a segmentation network, images and labels."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Segmenter().eval()
        x = torch.randn(6, 2, 7, 9)
        return net, x, labels_of((net(x) / 2).softmax(1))


def export(model: CalibratedModel, path: Path, inputs: Any, **options: Any) -> Path:
    """Return the path of the graph that was written."""
    model.to_onnx(path, inputs, **options)
    return path


@pytest.mark.slow
def test_a_graph_gives_maps_of_any_number_of_images(images: Any, tmp_path: Path) -> None:
    net, x, labels = images
    model = calibrate(net, (x, labels), quick_sts())
    path = export(model, tmp_path / "net.onnx", x[:1])
    for n in (1, 6):
        found = run(path, inputs=x[:n])
        assert list(found)[:3] == ["label", "probs", "confidence"]
        assert list(found)[3:] == ["aleatoric", "epistemic", "mutual_information"]
        assert found["probs"].shape == (n, K, 7, 9)
        assert_same(found, model.predict(x[:n]))


def test_a_graph_takes_images_of_any_size(images: Any, tmp_path: Path) -> None:
    net, x, labels = images
    model = calibrate(net, (x, labels), "ts")
    path = export(model, tmp_path / "net.onnx", x[:2], dynamic=(0, 2, 3))
    smaller = x[:3, :, :5, :4].contiguous()
    assert_same(run(path, inputs=smaller), model.predict(smaller))


def test_a_graph_gives_maps_of_texts_of_any_length(tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = Tagger().eval()
        ids = torch.randint(20, (8, 11))
        mask = (torch.arange(11) < torch.tensor([[11], [4]] * 4)).long()
        labels = labels_of(net(ids, mask)["logits"].softmax(-1))
    texts = {"input_ids": ids, "attention_mask": mask}
    model = calibrate(net, {**texts, "labels": labels}, "ts")
    path = export(model, tmp_path / "net.onnx", texts, dynamic=(0, 1))
    for n, length in ((1, 3), (8, 11)):
        part = {name: x[:n, :length].contiguous() for name, x in texts.items()}
        found = run(path, **part)
        assert found["probs"].shape == (n, length, K)
        assert_same(found, model.predict(part))


def test_one_logit_for_each_pixel_gives_two_classes(images: Any, tmp_path: Path) -> None:
    _, x, _ = images
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        net = nn.Conv2d(2, 1, 3, padding=1).eval()
        labels = (torch.rand(6, 7, 9) < net(x).sigmoid().squeeze(1)).long()
    model = calibrate(net, (x, labels), "ts")
    found = run(export(model, tmp_path / "net.onnx", x[:2]), inputs=x)
    assert found["probs"].shape == (6, 2, 7, 9)
    assert_same(found, model.predict(x))
