"""Networks that classify each token or pixel: calibrate, predict, save and load."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from simplexcal import (
    Backbone,
    CalibratedModel,
    Outputs,
    SimplexTemperatureScaling,
    calibrate,
    extract,
    load,
)
from simplexcal.dense import DenseOutputs

K = 4
VOID = 255


class Segmenter(nn.Module):
    """A convolution and a 1 × 1 head: logits (N, K, H, W)."""

    def __init__(self, k: int = K) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(6, k, 1)

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.head(self.body(x))
        return 4 * maps if self.training else maps


class Tagger(nn.Module):
    """An embedding, a recurrent layer and a linear head: logits (N, T, K)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.recurrent = nn.GRU(8, 6, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, K)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        hidden, _ = self.recurrent(self.embedding(input_ids))
        return {"logits": self.head(hidden)}


class Returning(nn.Module):
    """A network whose result is changed."""

    def __init__(self, net: nn.Module, change: Any) -> None:
        super().__init__()
        self.net = net
        self.change = change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.net(x))


def labels_of(logits: Tensor, dim: int, seed: int = 2) -> Tensor:
    """Return labels drawn from the softmax of half the logits: the network is over-confident."""
    generator = torch.Generator().manual_seed(seed)
    probs = (logits / 2).softmax(dim).movedim(dim, -1)
    drawn = probs.reshape(-1, K).multinomial(1, generator=generator)
    return drawn.view(probs.shape[:-1])


@pytest.fixture(scope="module")
def images() -> tuple[nn.Module, Tensor, Tensor]:
    """Return a segmentation network, 10 images, and labels of which some are void."""
    torch.manual_seed(0)
    net = Segmenter().eval()
    x = torch.randn(10, 2, 12, 9)
    with torch.no_grad():
        net.head.weight *= 6
        labels = labels_of(net(x), 1)
    labels[:, :2] = VOID
    return net, x, labels


@pytest.fixture(scope="module")
def texts() -> tuple[nn.Module, dict[str, Tensor]]:
    """Return a tagger and 40 texts of which some tokens are masked."""
    torch.manual_seed(1)
    net = Tagger().eval()
    ids = torch.randint(20, (40, 11))
    mask = (torch.arange(11) < torch.randint(5, 12, (40, 1))).long()
    with torch.no_grad():
        net.head.weight *= 6
        labels = labels_of(net(ids)["logits"], -1)
    labels[mask == 0] = 77  # no class: only the mask tells
    return net, {"input_ids": ids, "attention_mask": mask, "labels": labels}


# --- outputs ---


def test_outputs_of_pixels_are_rows_with_the_features_of_a_convolution(images: Any) -> None:
    net, x, _ = images
    backbone = Backbone(net)
    outputs = backbone(x)
    assert isinstance(outputs, DenseOutputs)
    assert outputs.shape == (10, 12, 9)
    assert torch.equal(outputs.logits[:108].T.view(K, 12, 9), net(x)[0])
    assert backbone.head_name == "head"
    torch.testing.assert_close(backbone.head(outputs.features), outputs.logits)


def test_outputs_of_tokens_are_rows_with_the_features_of_a_linear_layer(texts: Any) -> None:
    net, data = texts
    backbone = Backbone(net)
    outputs = backbone({"input_ids": data["input_ids"]})
    assert isinstance(outputs, DenseOutputs)
    assert outputs.shape == (40, 11)
    torch.testing.assert_close(backbone.head(outputs.features), outputs.logits)


def test_a_fixed_scale_after_the_head_leaves_features(images: Any) -> None:
    net, x, _ = images
    backbone = Backbone(Returning(net, lambda maps: maps / 2))
    outputs = backbone(x)
    assert outputs.features is not None
    torch.testing.assert_close(backbone.head(outputs.features), outputs.logits)


# Of torch's own, where it traces a Function with a gradient.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiled_model_gives_maps(images: Any) -> None:
    torch.compiler.reset()
    net, x, labels = images
    model = calibrate(net, (x, labels), quick_sts())
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-6, atol=1e-7)


def test_the_out_of_torchvision_is_read(images: Any) -> None:
    net, x, _ = images
    dense = Backbone(Returning(net, lambda maps: OrderedDict(aux=maps[:, :2], out=maps)))(x)
    assert torch.equal(dense.logits, Backbone(net)(x).logits)


def test_one_logit_for_each_pixel_is_two_classes(images: Any) -> None:
    _, x, _ = images
    torch.manual_seed(3)
    net = Segmenter(1).eval()
    with torch.no_grad():
        labels = (torch.rand(10, 1, 12, 9) < net(x).sigmoid()).float()
    model = calibrate(net, (x, labels), "ts")
    p = model.predict((x, labels))
    assert p.probs.shape == (10, 2, 12, 9)
    assert torch.equal(p.label == 1, net(x)[:, 0] > 0)


# --- extract ---


def test_a_sample_of_the_positions_that_count_is_extracted(images: Any, tmp_path: Path) -> None:
    net, x, labels = images
    outputs, found = extract(net, (x, labels), batch_size=3)
    assert type(outputs) is Outputs
    assert len(outputs) == len(found) == int((labels != VOID).sum())
    assert torch.equal(found, labels[labels != VOID])
    outputs, found = extract(net, (x, labels), batch_size=3, max_positions=100)
    assert len(outputs) == len(found) == 100
    stored, _ = extract(net, (x, labels), batch_size=3, max_positions=100, storage=tmp_path)
    assert torch.equal(stored.logits, outputs.logits)


def test_masked_tokens_do_not_count(texts: Any) -> None:
    net, data = texts
    outputs, found = extract(net, data)
    assert torch.equal(found, data["labels"][data["attention_mask"] == 1])
    # As batches in the Hugging Face form:
    halves = [{name: part[i::2] for name, part in data.items()} for i in range(2)]
    again, _ = extract(net, halves)
    assert len(again) == len(outputs)


def test_a_mask_says_the_same_as_ignored_labels_everywhere(texts: Any, tmp_path: Path) -> None:
    net, data = texts
    mask = data["attention_mask"]
    ignored = {**data, "labels": data["labels"].masked_fill(mask == 0, -100)}
    unmasked = {name: part for name, part in ignored.items() if name != "attention_mask"}
    models = [calibrate(net, x, "ts") for x in (data, ignored, unmasked)]
    pairs = zip(models, (data, ignored, unmasked), strict=True)
    evaluations: list[Any] = [model.evaluate(x) for model, x in pairs]
    assert evaluations[0].after.n_positions == mask.sum()
    assert evaluations[0] == evaluations[1] == evaluations[2]
    assert torch.equal(models[0].predict(data).probs, models[2].predict(unmasked).probs)
    path = models[0].write_report(tmp_path / "report.html", data)
    assert f"{int(mask.sum())} tokens" in path.read_text()


# --- calibrate and predict ---


def quick_sts() -> SimplexTemperatureScaling:
    """Return STS with few steps."""
    return SimplexTemperatureScaling(n_steps=5, pool_size=200)


@pytest.mark.parametrize("method", ["ts", "sts"])
def test_predictions_of_pixels_are_maps(images: Any, method: str) -> None:
    net, x, labels = images
    loader = DataLoader(TensorDataset(x, labels), 4)
    calibrator = quick_sts() if method == "sts" else "ts"
    model = calibrate(net, loader, calibrator, max_positions=500)
    assert "on the 500 positions of the fit" in repr(model)
    p = model.predict(loader)
    assert p.probs.shape == (10, K, 12, 9)
    assert torch.equal(p.label, net(x).argmax(1))
    assert torch.equal(p.probs.argmax(1), p.label)
    torch.testing.assert_close(p.probs.sum(1), torch.ones(10, 12, 9))
    assert p.confidence.shape == (10, 12, 9)
    assert torch.equal(model(x), p.probs)
    if method == "sts":
        assert p.aleatoric is not None
        assert p.aleatoric.shape == (10, 12, 9)
    # Position by position it is the calibrator's prediction for the position's logits.
    rows = model.calibrator(model.backbone(x))
    assert torch.equal(p.probs[3, :, 5, 7], rows.probs[3 * 108 + 5 * 9 + 7])


def test_predictions_of_tokens_are_maps(texts: Any) -> None:
    net, data = texts
    model = calibrate(net, data, quick_sts())
    p = model.predict(data)
    assert p.probs.shape == (40, 11, K)
    assert torch.equal(p.label, net(data["input_ids"])["logits"].argmax(-1))
    assert torch.equal(model(data["input_ids"]), p.probs)


def test_a_temperature_of_pixels_is_found_from_a_sample(images: Any) -> None:
    net, x, labels = images
    temperature = calibrate(net, (x, labels), "ts").calibrator.global_temperature
    assert temperature == pytest.approx(2, abs=0.5)
    again = calibrate(net, (x, labels), "ts", batch_size=3).calibrator.global_temperature
    assert again == pytest.approx(temperature, rel=1e-5)


def test_another_label_can_be_ignored(images: Any) -> None:
    net, x, labels = images
    other = labels.clone()
    other[other == VOID] = K
    expected = calibrate(net, (x, labels), "ts")(x)
    assert torch.equal(calibrate(net, (x, other), "ts", ignore_index=K)(x), expected)
    with pytest.raises(ValueError, match=r"0\.\.3 for 4 classes; found 4"):
        calibrate(net, (x, other), "ts")


def test_batches_of_several_lengths_are_fitted_to_and_predicted_one_by_one(texts: Any) -> None:
    net, data = texts
    batches = [(data["input_ids"][:, :7], data["labels"][:, :7].clamp_max(3)) for _ in range(2)]
    batches.append((data["input_ids"][:, :5], data["labels"][:, :5].clamp_max(3)))
    model = calibrate(net, batches, "ts")
    assert model.predict(batches[2]).label.shape == (40, 5)
    with pytest.raises(ValueError, match=r"one shape.*Pad the inputs to one size"):
        model.predict(batches)


# --- save and load ---


def test_a_saved_model_predicts_maps_and_ignores_labels(images: Any, tmp_path: Path) -> None:
    net, x, labels = images
    model = calibrate(net, (x, labels), quick_sts(), max_positions=500)
    model.save(tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors", net)
    assert loaded.is_dense
    expected = model.predict(x)
    found = loaded.predict((x, labels))
    assert torch.equal(found.probs, expected.probs)
    assert found.epistemic is not None
    assert expected.epistemic is not None
    assert torch.equal(found.epistemic, expected.epistemic)


# --- what is refused ---


def test_what_a_dense_network_cannot_be_fitted_with_is_refused(images: Any) -> None:
    net, x, labels = images
    with pytest.raises(ValueError, match="`sample_weight` must be None for a network that"):
        calibrate(net, (x, labels), "ts", sample_weight=torch.ones(10))
    with pytest.raises(ValueError, match='`mixup` must be "features" or "logits" for a network'):
        calibrate(net, (x, labels), mixup="inputs")
    with pytest.raises(ValueError, match=r"shape \(10, 12, 9\).*got \(10,\)"):
        calibrate(net, (x, labels[:, 4, 4]), "ts")
    quarter = Returning(net, lambda maps: maps[:, :, ::3, ::3])
    with pytest.raises(ValueError, match=r"got \(10, 12, 9\).*interpolate"):
        calibrate(quarter, (x, labels), "ts")
    with pytest.raises(ValueError, match="as many as the inputs, 10; got 9"):
        calibrate(net, (x, labels[:9]), "ts")
    with pytest.raises(ValueError, match="`max_positions` must be at least 1; got 0"):
        calibrate(net, (x, labels), "ts", max_positions=0)
    model: CalibratedModel = calibrate(net, (x, labels), "ts")
    with pytest.raises(ValueError, match="independent inputs, which the tokens or pixels"):
        model.threshold((x, labels), coverage=0.9)
