"""Classifiers of every architecture: what becomes of each, and the table of them in the results."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

K, D, N = 5, 8, 64
IMAGE = (3, 8, 8)


class Case(NamedTuple):
    """A network, its inputs, and the number of features that it has, or None for logits alone."""

    make: Callable[[], Any]
    inputs: Callable[[], Any]
    n_features: int | None
    kind: str = "PyTorch, images"
    positions: str = ""  # what is classified in each input: "", "token" or "pixel"


class Refusal(NamedTuple):
    """A network and labels that are not calibrated, and the whole sentence that says why."""

    make: Callable[[], Any]
    inputs: Callable[[], Any]
    labels: Callable[[], Tensor]
    sentence: str
    kind: str = "PyTorch, images"


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


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 6)
        self.lstm = nn.LSTM(6, D // 2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(D, K)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(self.embedding(x))[0])
        return logits


class UNet(nn.Module):
    """One step down, one up, and the skip."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 4, 3, 2, 1)
        self.up = nn.ConvTranspose2d(4, 5, 2, 2)
        self.last = nn.Conv2d(D, D, 3, padding=1)
        self.head = nn.Conv2d(D, K, 1)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(self.down(x).relu())
        logits: Tensor = self.head(self.last(torch.cat([x, up], 1)).relu())
        return logits


class FCN(nn.Module):
    """Maps of half the size that are enlarged, and those of a second head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, D, 3, 2, 1)
        self.head, self.second = nn.Conv2d(D, K, 1), nn.Conv2d(D, K, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        body = self.body(x).relu()
        return {
            "out": functional.interpolate(self.head(body), x.shape[-2:], mode="bilinear"),
            "aux": functional.interpolate(self.second(body), x.shape[-2:], mode="bilinear"),
        }


class ResidualNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, D, 3, padding=1), nn.BatchNorm2d(D), nn.ReLU())
        layers = [nn.Conv2d(D, D, 3, padding=1), nn.BatchNorm2d(D), nn.ReLU()]
        self.block = nn.Sequential(*layers, nn.Conv2d(D, D, 3, padding=1), nn.BatchNorm2d(D))
        self.fc = nn.Linear(D, K)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = (x + self.block(x)).relu()
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class WithSecondHead(nn.Module):
    """Two heads while training, of which one is left in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.body = body()
        self.second, self.fc = nn.Linear(D, K), nn.Linear(D, K)

    def forward(self, x: Tensor) -> Any:
        x = self.body(x)
        if self.training:
            return self.fc(x), self.second(x)
        return self.fc(x)


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


def words() -> Tensor:
    return torch.randint(30, (N, 7))


def short_vocabulary() -> dict[str, Tensor]:
    return {name: x % 12 for name, x in text().items()}


def sentences_with_end() -> dict[str, Tensor]:
    ids = torch.randint(3, 30, (N, 7))
    ids[:, -1] = 2
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def choices() -> dict[str, Tensor]:
    return {name: x.unsqueeze(1).expand(-1, K, -1) for name, x in text().items()}


def some_labels() -> Tensor:
    return torch.arange(N) % 2


def vgg() -> nn.Module:
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()]
    classifier = [nn.Linear(64, D), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(D, K)]
    return nn.Sequential(nn.Sequential(*layers), nn.Sequential(*classifier))


def mobile_net() -> nn.Module:
    layers = [nn.Conv2d(3, D, 1), nn.BatchNorm2d(D), nn.ReLU6(inplace=True)]
    layers += [nn.Conv2d(D, D, 3, padding=1, groups=D), nn.Hardswish(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.2), nn.Linear(D, K))


def segformer() -> Any:
    return hugging_face_with(
        "SegformerForSemanticSegmentation",
        K,
        num_encoder_blocks=1,
        depths=[1],
        sr_ratios=[1],
        hidden_sizes=[4],
        patch_sizes=[3],
        strides=[2],
        num_attention_heads=[1],
        mlp_ratios=[2],
        decoder_hidden_size=D,
    )


def lightning_module() -> Any:
    lightning: Any = pytest.importorskip("pytorch_lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = before(nn.Linear(D, K))

        def forward(self, x: Tensor) -> Any:
            return self.net(x)

    return Module()


def hugging_face(name: str, **config: Any) -> Callable[[], Any]:
    return lambda: hugging_face_with(name, K, **config)


def hugging_face_with(name: str, n_labels: int, **config: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, in DeBERTa
        classifier = getattr(transformers, name)
        return classifier(classifier.config_class(**config, num_labels=n_labels))


PLAIN = {
    "hidden_size": D,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
TEXT = {"vocab_size": 30, "max_position_embeddings": 10}
GPT = {
    "n_embd": D,
    "n_layer": 1,
    "n_head": 2,
    "vocab_size": 30,
    "n_positions": 10,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WAVES = {
    **PLAIN,
    "conv_dim": [4, 4],
    "conv_kernel": [10, 3],
    "conv_stride": [5, 2],
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 6,
}
HF_TEXT = "Hugging Face, text"
HF_IMAGES = "Hugging Face, images"
HF_AUDIO = "Hugging Face, audio"
NO_LOGITS = (
    "`net` must return logits (N, K): as a tensor, as the first tensor of a tuple, or under the "
    "name 'logits' or 'out'; it returned"
)
WRAP = "Wrap it so that it returns them alone."
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
    "BERT": Case(hugging_face("BertForSequenceClassification", **PLAIN, **TEXT), text, D, HF_TEXT),
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
        HF_TEXT,
    ),
    "ViT": Case(
        hugging_face("ViTForImageClassification", **PLAIN, image_size=8, patch_size=4),
        images,
        D,
        HF_IMAGES,
    ),
    "ConvNext": Case(
        hugging_face(
            "ConvNextForImageClassification", hidden_sizes=[4, D], depths=[1, 1], num_stages=2
        ),
        images,
        D,
        HF_IMAGES,
    ),
    "ResNet": Case(
        hugging_face(
            "ResNetForImageClassification", embedding_size=4, hidden_sizes=[4, D], depths=[1, 1]
        ),
        images,
        D,
        HF_IMAGES,
    ),
    "wav2vec2": Case(
        hugging_face("Wav2Vec2ForSequenceClassification", **WAVES), sounds, 6, HF_AUDIO
    ),
    "audio spectrogram transformer": Case(
        hugging_face(
            "ASTForAudioClassification", **PLAIN, patch_size=8, max_length=32, num_mel_bins=16
        ),
        spectrograms,
        D,
        HF_AUDIO,
    ),
    "RoBERTa": Case(
        hugging_face("RobertaForSequenceClassification", **PLAIN, **TEXT), text, D, HF_TEXT
    ),
    "ALBERT": Case(
        hugging_face("AlbertForSequenceClassification", **PLAIN, **TEXT, embedding_size=4),
        text,
        D,
        HF_TEXT,
    ),
    "ELECTRA": Case(
        hugging_face("ElectraForSequenceClassification", **PLAIN, **TEXT, embedding_size=4),
        text,
        D,
        HF_TEXT,
    ),
    "DeBERTa-v2": Case(
        hugging_face("DebertaV2ForSequenceClassification", **PLAIN, **TEXT), text, D, HF_TEXT
    ),
    "GPT-2": Case(hugging_face("GPT2ForSequenceClassification", **GPT), text, D, HF_TEXT),
    "Llama": Case(
        hugging_face("LlamaForSequenceClassification", **PLAIN, **TEXT, pad_token_id=0),
        text,
        D,
        HF_TEXT,
    ),
    "T5": Case(
        hugging_face(
            "T5ForSequenceClassification",
            d_model=D,
            d_kv=4,
            d_ff=16,
            num_layers=1,
            num_heads=2,
            vocab_size=30,
            eos_token_id=2,
            pad_token_id=0,
            decoder_start_token_id=0,
        ),
        sentences_with_end,
        D,
        HF_TEXT,
    ),
    "multiple choice (BERT)": Case(
        hugging_face("BertForMultipleChoice", **PLAIN, **TEXT), choices, None, HF_TEXT
    ),
    "Swin": Case(
        hugging_face(
            "SwinForImageClassification",
            image_size=8,
            patch_size=2,
            embed_dim=D,
            depths=[1],
            num_heads=[2],
            window_size=2,
        ),
        images,
        D,
        HF_IMAGES,
    ),
    "DeiT": Case(
        hugging_face("DeiTForImageClassification", **PLAIN, image_size=8, patch_size=4),
        images,
        D,
        HF_IMAGES,
    ),
    "DeiT with a teacher": Case(
        hugging_face("DeiTForImageClassificationWithTeacher", **PLAIN, image_size=8, patch_size=4),
        images,
        None,
        HF_IMAGES,
    ),
    "BEiT": Case(
        hugging_face("BeitForImageClassification", **PLAIN, image_size=8, patch_size=4),
        images,
        D,
        HF_IMAGES,
    ),
    "RegNet": Case(
        hugging_face(
            "RegNetForImageClassification",
            embedding_size=4,
            hidden_sizes=[4, D],
            depths=[1, 1],
            groups_width=2,
        ),
        images,
        D,
        HF_IMAGES,
    ),
    "HuBERT": Case(hugging_face("HubertForSequenceClassification", **WAVES), sounds, 6, HF_AUDIO),
    "BERT, each token": Case(
        hugging_face("BertForTokenClassification", **PLAIN, **TEXT), text, D, HF_TEXT, "token"
    ),
    "GPT-2, the next token": Case(
        hugging_face("GPT2LMHeadModel", **{**GPT, "vocab_size": 12}),
        short_vocabulary,
        D,
        HF_TEXT,
        "token",
    ),
    "LSTM, each token": Case(Tagger, words, D, "PyTorch, text", "token"),
    "SegFormer": Case(segformer, images, D, HF_IMAGES, "pixel"),
    "U-Net": Case(UNet, images, D, positions="pixel"),
    "FCN, enlarged": Case(FCN, images, None, positions="pixel"),
    "VGG": Case(vgg, images, D),
    "ResNet of basic blocks": Case(ResidualNetwork, images, D),
    "MobileNet": Case(mobile_net, images, D),
    "Inception, whose second head only trains": Case(WithSecondHead, images, D),
    "LightningModule": Case(lightning_module, images, D),
}
REFUSALS: dict[str, Refusal] = {
    "multi-label": Refusal(
        lambda: before(nn.Linear(D, K)),
        images,
        lambda: torch.arange(N * K).view(N, K) % 2,
        "`labels` must have shape (64,), one value for each input; got (64, 5). Multi-label "
        "classification is not supported: calibrate each class as a binary classifier of its own.",
    ),
    "regression": Refusal(
        lambda: before(nn.Linear(D, 1)),
        images,
        lambda: torch.linspace(0, 1, N),
        "`labels` must be integers; got torch.float32. Number the classes from 0; one-hot labels "
        "need .argmax(-1).",
    ),
    "a softmax in the network": Refusal(
        lambda: before(nn.Sequential(nn.Linear(D, K), nn.Softmax(-1))),
        images,
        some_labels,
        "`net` must return logits, the values before the softmax; it returned probabilities. Pass "
        "probs=True, or wrap it so that it returns the logits.",
    ),
    "detection": Refusal(
        lambda: Changed(lambda z: [{"boxes": row, "scores": row} for row in z]),  # type: ignore[arg-type, return-value]
        images,
        some_labels,
        f"{NO_LOGITS} a list of 64: dict with 'boxes', 'scores', and so on. {WRAP}",
    ),
    "question answering (BERT)": Refusal(
        lambda: hugging_face_with("BertForQuestionAnswering", 2, **PLAIN, **TEXT),
        text,
        some_labels,
        f"{NO_LOGITS} a QuestionAnsweringModelOutput with 'start_logits', 'end_logits'. {WRAP}",
        HF_TEXT,
    ),
    "a body without a head (BERT)": Refusal(
        lambda: hugging_face_with("BertModel", K, **PLAIN, **TEXT),
        text,
        some_labels,
        f"{NO_LOGITS} a BaseModelOutputWithPoolingAndCrossAttentions with 'last_hidden_state', "
        f"'pooler_output'. {WRAP}",
        HF_TEXT,
    ),
    "maps smaller than the labels (SegFormer)": Refusal(
        segformer,
        images,
        lambda: torch.arange(N * 64).view(N, 8, 8) % K,
        "`labels` must have shape (64, 4, 4), one class for each position, as the network returns "
        "logits for positions; got (64, 8, 8). Let the network return logits of the labels' size, "
        "for instance with torch.nn.functional.interpolate.",
        HF_IMAGES,
    ),
}
