"""Hugging Face: calibrated networks in the pipelines of transformers, and names of classes."""

from typing import Any

import pytest
import tokenizers
import torch
import transformers
from PIL import Image
from torch import Generator, Tensor, nn

from simplexcal import Backbone, CalibratedModel, TemperatureScaling, calibrate
from simplexcal.integrations.huggingface import pipeline_model

WORDS = ["[PAD]", "[UNK]", "good", "bad", "film", "cast", "plot", "and", "the", "a"]
TEXTS = [f"{a} {b} and {c}" for a in WORDS[2:4] for b in WORDS[4:7] for c in WORDS[2:]]
NAMES = {0: "negative", 1: "neutral", 2: "positive"}
SIZES = {"dim": 16, "hidden_dim": 32, "n_layers": 1, "n_heads": 2, "vocab_size": len(WORDS)}


@pytest.fixture
def tokenizer() -> Any:
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]"
    )


def make_net(kind: str, **settings: Any) -> Any:
    """Return a small DistilBERT with large logits."""
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(**SIZES, **{"id2label": NAMES} | settings)
    return getattr(transformers, f"DistilBertFor{kind}Classification")(config).eval()


def draw(logits: Tensor) -> Tensor:
    """Return labels for which the network is over-confident."""
    rows = (logits / 3).softmax(-1).flatten(0, -2)
    labels = rows.multinomial(1, generator=Generator().manual_seed(0))
    return labels.view(logits.shape[:-1])


@torch.no_grad()
def fit(net: Any, inputs: dict[str, Tensor]) -> CalibratedModel:
    """Give a random network logits that differ from input to input, and calibrate it."""
    rows = net(**inputs).logits.flatten(0, -2)
    centre = rows.mean(0)
    scale = 6 / (rows - centre).std()
    net.classifier.weight.mul_(scale)
    net.classifier.bias.sub_(centre).mul_(scale)
    return calibrate(net, {**inputs, "labels": draw(net(**inputs).logits)}, "ts")


def test_a_pipeline_gives_calibrated_scores_and_the_names(tokenizer: Any) -> None:
    net = make_net("Sequence")
    inputs = dict(tokenizer(TEXTS, padding=True, return_tensors="pt"))
    inputs.pop("token_type_ids", None)
    model = fit(net, inputs)
    assert model.class_names == list(NAMES.values())
    before = {name: x.clone() for name, x in net.state_dict().items()}
    own_forward = net.forward

    shared = pipeline_model(model)
    pipe = transformers.pipeline("text-classification", model=shared, tokenizer=tokenizer)
    found = pipe(TEXTS, top_k=None, batch_size=4)

    expected = model.predict(inputs).probs
    for i, scores in enumerate(found):
        by_name = {entry["label"]: entry["score"] for entry in scores}
        assert [by_name[name] for name in NAMES.values()] == pytest.approx(
            expected[i].tolist(), abs=1e-6
        )
    assert (expected - net(**inputs).logits.softmax(-1)).abs().max() > 0.01
    assert net.forward == own_forward
    assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items())


def test_the_shared_network_has_the_weights_themselves() -> None:
    net = make_net("Sequence")
    model = CalibratedModel(Backbone(net), TemperatureScaling())
    shared = pipeline_model(model)
    assert type(shared) is type(net)
    assert shared.classifier.weight is net.classifier.weight
    shared.extra = nn.Linear(2, 2)
    assert not hasattr(net, "extra")


def test_a_pipeline_of_tokens_gives_calibrated_scores(tokenizer: Any) -> None:
    net = make_net("Token")
    inputs = dict(tokenizer(TEXTS, padding=True, return_tensors="pt"))
    inputs.pop("token_type_ids", None)
    model = fit(net, inputs)
    shared = pipeline_model(model)
    pipe = transformers.pipeline(
        "token-classification", model=shared, tokenizer=tokenizer, ignore_labels=[]
    )
    found = pipe(TEXTS[0])
    one = dict(tokenizer(TEXTS[:1], return_tensors="pt"))
    one.pop("token_type_ids", None)
    prediction = model.predict(one)
    assert [entry["entity"] for entry in found] == [NAMES[int(i)] for i in prediction.label[0]]
    scores = [float(entry["score"]) for entry in found]
    assert scores == pytest.approx(prediction.confidence[0].tolist(), abs=1e-6)


def test_a_pipeline_of_images_gives_calibrated_scores() -> None:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=8,
        id2label=NAMES,
    )
    net = transformers.ViTForImageClassification(config).eval()
    processor = transformers.ViTImageProcessor(size={"height": 16, "width": 16})
    pixels = torch.randn(60, 3, 16, 16)
    model = fit(net, {"pixel_values": pixels})
    shared = pipeline_model(model)
    pipe = transformers.pipeline("image-classification", model=shared, image_processor=processor)
    image = Image.new("RGB", (16, 16), (200, 30, 60))
    found = {entry["label"]: entry["score"] for entry in pipe(image)}
    probs = model.predict(dict(processor(image, return_tensors="pt"))).probs[0]
    expected = dict(zip(NAMES.values(), probs.tolist(), strict=True))
    assert found == pytest.approx(expected, abs=1e-6)


def test_other_networks_are_refused() -> None:
    net = nn.Linear(4, 3)
    x = torch.randn(50, 4)
    model = calibrate(net, (x, draw(net(x))), "ts")
    with pytest.raises(TypeError, match=r"must be a calibrated transformers.PreTrainedModel"):
        pipeline_model(model)


def test_networks_of_independent_labels_are_refused() -> None:
    net = make_net("Sequence", problem_type="multi_label_classification")
    model = CalibratedModel(Backbone(net), TemperatureScaling())
    with pytest.raises(ValueError, match="for which a pipeline uses softmax"):
        pipeline_model(model)
