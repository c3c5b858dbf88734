"""What becomes of classifiers of every architecture: features and logits, or logits alone."""

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from helpers.methods import METHODS, state
from helpers.quick_branches import quick_branches
from torch import Tensor, nn
from torch.nn import functional

from simplexcal.backbone import Backbone
from simplexcal.mixup import FeatureMixup, head_error
from simplexcal.model import calibrate, load

K, D, N = 5, 8, 64
IMAGE = (3, 8, 8)


class Case(NamedTuple):
    """A network, its inputs, and the number of features that it has, or None for logits alone."""

    make: Callable[[], Any]
    inputs: Callable[[], Any]
    n_features: int | None


class Changed(nn.Module):
    """A body, a linear layer, and what is done with its output."""

    def __init__(self, change: Callable[[Tensor], Tensor], k: int = K) -> None:
        super().__init__()
        self.body, self.fc, self.change = body(), nn.Linear(D, k), change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.fc(self.body(x)))


class Cosine(nn.Module):
    """s · cos(f, w_k), with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(K, D))
        self.scale = nn.Parameter(torch.tensor(7.0))

    def forward(self, x: Tensor) -> Tensor:
        weight = functional.normalize(self.weight)
        return self.scale * functional.linear(functional.normalize(x), weight)


class CosineOfLinear(nn.Module):
    """The same, with the weight of a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(D, K, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weight = functional.normalize(self.fc.weight)
        return 7 * functional.linear(functional.normalize(x), weight)


class VisionTransformer(nn.Module):
    """The class token of torch's own encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, D, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, D))
        layer = nn.TransformerEncoderLayer(D, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.heads = nn.Sequential(nn.Linear(D, K))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1)
        logits: Tensor = self.heads(self.encoder(tokens)[:, 0])
        return logits


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(7, 4, 3, padding=1)
        self.norm, self.classifier = nn.BatchNorm2d(11), nn.Linear(11, K)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, self.first(x)], 1)
        x = torch.cat([x, self.second(x)], 1)
        x = functional.adaptive_avg_pool2d(functional.relu(self.norm(x), inplace=True), 1)
        logits: Tensor = self.classifier(x.flatten(1))
        return logits


def body() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, D), nn.ReLU())


def before(head: nn.Module) -> nn.Module:
    return nn.Sequential(body(), nn.Dropout(0.5), head)


def pooled_convolution(*, relu: bool) -> nn.Module:
    """SqueezeNet's classifier, whose ReLU is before the mean."""
    layers: list[nn.Module] = [nn.Conv2d(3, D, 3), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(D, K, 1)]
    if relu:
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(nn.Linear(D, K))


def new_weight_norm() -> Any:
    return nn.utils.parametrizations.weight_norm(nn.Linear(D, K))


def images() -> Tensor:
    return torch.randn(N, *IMAGE)


def text() -> dict[str, Tensor]:
    ids = torch.randint(1, 30, (N, 7))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def sounds() -> Tensor:
    return torch.randn(N, 400)


def spectrograms() -> Tensor:
    return torch.randn(N, 32, 16)


def hugging_face(name: str, **config: Any) -> Callable[[], Any]:
    def make() -> Any:
        transformers = pytest.importorskip("transformers")
        classifier = getattr(transformers, name)
        return classifier(classifier.config_class(**config, num_labels=K))

    return make


PLAIN = {
    "hidden_size": D,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
TEXT = {"vocab_size": 30, "max_position_embeddings": 10}
CASES: dict[str, Case] = {
    "SqueezeNet": Case(lambda: pooled_convolution(relu=True), images, None),
    "fully convolutional": Case(lambda: pooled_convolution(relu=False), images, D),
    "convolution of a 1 x 1 map": Case(
        lambda: nn.Sequential(nn.Conv2d(3, D, 8), nn.ReLU(), nn.Conv2d(D, K, 1), nn.Flatten()),
        images,
        D,
    ),
    "convolution, then the largest": Case(
        lambda: nn.Sequential(nn.Conv2d(3, K, 1), nn.AdaptiveMaxPool2d(1), nn.Flatten()),
        images,
        None,
    ),
    "DenseNet": Case(DenseNet, images, 11),
    "vision transformer": Case(VisionTransformer, images, D),
    "cosine": Case(lambda: before(Cosine()), images, D),
    "cosine of a linear layer": Case(lambda: before(CosineOfLinear()), images, D),
    "weight norm, old": Case(lambda: before(old_weight_norm()), images, D),
    "weight norm, new": Case(lambda: before(new_weight_norm()), images, D),
    "scale": Case(lambda: Changed(lambda z: z / 0.3), images, D),
    "bias": Case(lambda: Changed(lambda z: z + torch.arange(K)), images, D),
    "log_softmax": Case(lambda: Changed(lambda z: z.log_softmax(-1)), images, D),
    "scale of each row": Case(lambda: Changed(functional.normalize), images, None),
    "one logit (N, 1)": Case(lambda: Changed(lambda z: z, 1), images, D),
    "one logit (N,)": Case(lambda: Changed(lambda z: 2 * z.squeeze(), 1), images, D),
    "one logit, changed": Case(lambda: Changed(lambda z: z.sinh(), 1), images, None),
    "BERT": Case(hugging_face("BertForSequenceClassification", **PLAIN, **TEXT), text, D),
    "DistilBERT": Case(
        hugging_face(
            "DistilBertForSequenceClassification",
            dim=D,
            hidden_dim=16,
            n_heads=2,
            n_layers=1,
            **TEXT,
        ),
        text,
        D,
    ),
    "ViT": Case(
        hugging_face("ViTForImageClassification", **PLAIN, image_size=8, patch_size=4), images, D
    ),
    "ConvNext": Case(
        hugging_face(
            "ConvNextForImageClassification", hidden_sizes=[4, D], depths=[1, 1], num_stages=2
        ),
        images,
        D,
    ),
    "ResNet": Case(
        hugging_face(
            "ResNetForImageClassification", embedding_size=4, hidden_sizes=[4, D], depths=[1, 1]
        ),
        images,
        D,
    ),
    "wav2vec2": Case(
        hugging_face(
            "Wav2Vec2ForSequenceClassification",
            **PLAIN,
            conv_dim=[4, 4],
            conv_kernel=[10, 3],
            conv_stride=[5, 2],
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
            classifier_proj_size=6,
        ),
        sounds,
        6,
    ),
    "audio spectrogram transformer": Case(
        hugging_face(
            "ASTForAudioClassification", **PLAIN, patch_size=8, max_length=32, num_mel_bins=16
        ),
        spectrograms,
        D,
    ),
}


@pytest.fixture(autouse=True, scope="module")
def _quick_branches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        quick_branches(patch, 10)
        yield


def labels_of(backbone: Backbone, x: Any) -> Tensor:
    """Return labels of which the logits, of any size and with any bias, say something."""
    logits = Backbone(backbone.net, features=False)(x).logits
    varied = logits - logits.mean(-1, keepdim=True)
    varied -= varied.mean(0)
    probs: Tensor = (3 * varied / varied.std()).softmax(-1)
    return probs.multinomial(1).squeeze(1)


def rows(x: Any, some: slice) -> Any:
    if isinstance(x, dict):
        return {name: part[some] for name, part in x.items()}
    return x[some]


@pytest.mark.parametrize("name", CASES)
def test_every_architecture_is_calibrated_with_the_features_that_it_has(
    name: str, tmp_path: Any
) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    net, x = case.make().train(), case.inputs()
    labels = labels_of(Backbone(net), x)
    before = state(net)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = calibrate(net, (x, labels), METHODS["sts"]())
    assert model.calibrator.n_features == case.n_features
    alone = [w for w in caught if "No layer of this network" in str(w.message)]
    assert len(alone) == (case.n_features is None)
    prediction = model.predict(x)
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", copy.deepcopy(net))
    # One input is enough to a model that is loaded.
    first = again.predict(rows(x, slice(1)))
    torch.testing.assert_close(first.probs, prediction.probs[:1], rtol=0, atol=1e-5)
    torch.testing.assert_close(first.epistemic, prediction[:1].epistemic, rtol=1e-4, atol=1e-4)
    assert state(net) == before
    if case.n_features is not None:
        outputs = model.backbone(x)
        head: Any = model.backbone.head
        assert head_error(head, outputs) < 1e-4
        mixed = FeatureMixup(head, outputs, labels).sample(1.0, 50)
        assert mixed.outputs.logits.isfinite().all()


@pytest.mark.parametrize("name", CASES)
def test_temperature_scaling_asks_no_architecture_for_a_head(name: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    net, x = case.make(), case.inputs()
    labels = labels_of(Backbone(net), x)
    runs: list[int] = []
    net.register_forward_pre_hook(lambda *_: runs.append(1))
    model = calibrate(net, (x, labels), "ts")  # a warning would be an error
    assert len(runs) == 1
    assert model.backbone(x).features is None
    assert torch.equal(model.predict(x).label, model.backbone(x).logits.argmax(-1))


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].n_features is None])
@pytest.mark.parametrize("settings", [{"method": "adats"}, {"mixup": "inputs"}])
def test_what_needs_features_gets_one_clear_error_without_them(
    name: str, settings: dict[str, str]
) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    net, x = case.make(), case.inputs()
    labels = labels_of(Backbone(net), x)
    with pytest.raises(ValueError, match=r"^`net` must return the output of a linear layer as its"):
        calibrate(net, (x, labels), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["fully convolutional", "cosine", "scale", "one logit (N,)"])
def test_a_head_of_another_form_can_be_named(name: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    net, x = case.make(), case.inputs()
    backbone = Backbone(net)
    expected = backbone(x)
    assert backbone.head_name is not None
    named = Backbone(net, backbone.head_name)
    found = named(x)
    torch.testing.assert_close(found.features, expected.features)
    torch.testing.assert_close(
        named.head(found.features).log_softmax(-1), expected.logits.log_softmax(-1)
    )
