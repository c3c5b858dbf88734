import copy
import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.methods import state
from hypothesis import given, settings
from hypothesis.strategies import integers
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, TensorDataset

from simplexcal.backbone import Backbone, extract
from simplexcal.types import Outputs

K, D, N = 5, 6, 23


class ConvNet(nn.Module):
    """All that a careless forward pass would change: statistics, modes, flags and hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten()
        )
        self.neck = nn.Sequential(nn.Linear(4 * 36, D), nn.BatchNorm1d(D), nn.Tanh())
        self.classifier = nn.Sequential(nn.Dropout(0.5), nn.Linear(D, K))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.neck(self.body(x)))
        return logits


@pytest.fixture
def net() -> ConvNet:
    torch.manual_seed(0)
    net = ConvNet()
    net(torch.randn(50, 3, 8, 8))  # running statistics of its own
    net.body[1].eval()
    net.classifier.eval()
    net.body[0].requires_grad_(False)
    net.classifier[1].register_forward_hook(lambda *_: None)
    net.body.register_forward_pre_hook(lambda *_: None)
    return net


@pytest.fixture
def images(generator: torch.Generator) -> Tensor:
    return torch.randn(N, 3, 8, 8, generator=generator)


@pytest.fixture
def labels(generator: torch.Generator) -> Tensor:
    return torch.randint(K, (N,), generator=generator)


def close(a: Outputs, b: Outputs, tolerance: float = 0.0) -> None:
    torch.testing.assert_close(a.logits, b.logits, rtol=0, atol=tolerance)
    torch.testing.assert_close(a.features, b.features, rtol=0, atol=tolerance)


def reproduces(backbone: Backbone, outputs: Outputs) -> None:
    assert outputs.features is not None
    torch.testing.assert_close(backbone.head(outputs.features), outputs.logits)


class Made(nn.Module):
    """A linear classifier whose logits are returned as ``returned`` makes them."""

    def __init__(self, returned: Callable[[Tensor], Any], k: int = K) -> None:
        super().__init__()
        self.returned, self.first, self.fc = returned, nn.Linear(4, D), nn.Linear(D, k)

    def forward(self, x: Tensor) -> Any:
        return self.returned(self.fc(self.first(x).tanh()))


@dataclass
class Scores:
    """A result that has no logits by this name."""

    scores: Tensor


# --- frozen whole ---


def test_a_call_changes_nothing_of_the_network(net: ConvNet, images: Tensor) -> None:
    before = state(net)
    Backbone(net)(images)
    Backbone(net, head="classifier.1")(images)
    assert state(net) == before


def test_extract_changes_nothing_of_the_network(
    net: ConvNet, images: Tensor, labels: Tensor
) -> None:
    before = state(net)
    extract(net, (images, labels), batch_size=4)
    assert state(net) == before


def test_an_exception_in_the_network_changes_nothing_of_it(net: ConvNet, images: Tensor) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    backbone, before = Backbone(net), state(net)
    with pytest.raises(RuntimeError, match="channels"):
        backbone(torch.zeros(2, 7, 8, 8))
    assert state(net) == before
    handle = net.classifier[1].register_forward_hook(fail)  # the head itself has run
    before = state(net)
    with pytest.raises(KeyboardInterrupt):
        backbone(images)
    assert state(net) == before
    handle.remove()
    backbone(images)


class Waits(nn.Module):
    """Gives other threads time to do harm."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.01)
        return x


@pytest.mark.parametrize("training", [False, True])
def test_threads_take_turns_with_the_network(training: bool, generator: torch.Generator) -> None:
    parts = Waits(), nn.BatchNorm1d(4), nn.Linear(4, D), Waits(), nn.Linear(D, K), Waits()
    net = nn.Sequential(*parts).train(training)
    inputs = torch.randn(12, 8, 4, generator=generator)
    alone, before = [Backbone(net)(x) for x in inputs], state(net)
    with ThreadPoolExecutor(4) as threads:
        for expected, found in zip(alone, threads.map(Backbone(net), inputs), strict=True):
            close(expected, found)
    assert state(net) == before


def test_features_that_are_overwritten_later_are_those_of_the_head(
    generator: torch.Generator,
) -> None:
    class Tidy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(4, D), nn.Linear(D, K)

        def forward(self, x: Tensor) -> Tensor:
            features = self.first(x)
            logits: Tensor = self.head(features)
            features.zero_()
            return logits

    backbone = Backbone(Tidy())
    reproduces(backbone, backbone(torch.randn(N, 4, generator=generator)))


class Counts(nn.Module):
    """Its forward pass changes buffers in every way, in evaluation mode too."""

    calls: Tensor
    mean: Tensor
    variance: Tensor
    last: Tensor
    empty: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, K)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("variance", torch.ones(4))
        self.register_buffer("last", torch.zeros(1, 4), persistent=False)
        self.register_buffer("empty", None)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        # Neither of the next two raises the version of a tensor.
        self.calls.data.add_(1)
        x = nn.functional.batch_norm(x, self.mean, self.variance, training=True)
        self.last = x
        self.empty = x
        self.register_buffer("cache", x, persistent=False)
        logits: Tensor = self.fc(x) * 1.0
        return logits


def test_buffers_that_the_network_updates_itself_stay(generator: torch.Generator) -> None:
    net, x = Counts(), torch.randn(9, 4, generator=generator)
    before = state(net)
    last = net.last
    backbone = Backbone(net)
    first = backbone(x)
    close(backbone(x), first)
    extract(net, (x, torch.zeros(9, dtype=torch.long)), batch_size=3)
    assert state(net) == before
    assert net.last is last
    assert net.empty is None
    assert "cache" not in dict(net.named_buffers())
    assert torch.equal(last, torch.zeros(1, 4))
    with pytest.raises(RuntimeError, match="running_mean should contain"):
        backbone(torch.zeros(2, 7))
    assert state(net) == before


def test_inputs_that_the_network_changes_in_place_stay(generator: torch.Generator) -> None:
    class Normalises(Made):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x.sub_(0.5).div_(2))

    net, x = Normalises(lambda z: z), torch.randn(6, 4, generator=generator)
    before = x.clone()
    for inputs in (x, [x], x.numpy()):
        Backbone(net)(inputs)
        assert torch.equal(x, before)
    extract(net, (x, torch.zeros(6, dtype=torch.long)), batch_size=4)
    assert torch.equal(x, before)


def test_a_modules_own_train_method_is_not_called(images: Tensor) -> None:
    class Merging(ConvNet):
        def train(
            self, mode: bool = True
        ) -> Any:  # as LoRA layers do, which then change their weights
            raise AssertionError

    assert len(Backbone(Merging())(images)) == N


def test_logits_and_features_are_those_of_the_eval_mode(net: ConvNet, images: Tensor) -> None:
    backbone, peer = Backbone(net), copy.deepcopy(net).eval()
    with torch.no_grad():
        expected = Outputs(peer(images), peer.neck(peer.body(images)))
    close(backbone(images), expected)  # finds the head
    close(backbone(images), expected)  # knows it
    assert backbone.head is net.classifier[1]


def test_the_head_makes_the_logits_of_the_features(net: ConvNet, images: Tensor) -> None:
    backbone = Backbone(net)
    outputs = backbone(images)
    assert outputs.features.shape == (N, D)
    torch.testing.assert_close(
        outputs.features @ backbone.head.weight.T + backbone.head.bias, outputs.logits
    )


def test_one_call_is_one_forward_pass(net: ConvNet, images: Tensor) -> None:
    runs: list[int] = []
    net.register_forward_pre_hook(lambda *_: runs.append(1))
    Backbone(net)(images)
    assert len(runs) == 1


def test_modes_flags_and_state_of_the_network_are_out_of_the_backbones_reach(net: ConvNet) -> None:
    before, backbone = state(net), Backbone(net)
    parent = nn.Sequential(backbone)
    parent.train().eval().train().requires_grad_(False).requires_grad_(True).zero_grad()
    assert state(net) == before
    assert not backbone.training
    assert not list(parent.parameters())
    assert not parent.state_dict()


def test_the_network_moves_with_the_backbone(net: ConvNet, images: Tensor) -> None:
    outputs = nn.Sequential(Backbone(net)).to(torch.float64)[0](images.double())
    assert outputs.logits.dtype == net.classifier[1].weight.dtype == torch.float64


def test_inputs_go_to_the_device_of_the_network(net: ConvNet, images: Tensor) -> None:
    seen: list[str] = []
    net.register_forward_pre_hook(lambda _, args: seen.append(args[0].device.type))
    backbone = Backbone(net).to("meta")
    with pytest.raises(
        RuntimeError, match="meta"
    ):  # a device without values, where nothing can be compared
        backbone(images)
    assert seen == ["meta"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_outputs_stay_on_the_device_and_extracted_ones_come_to_the_cpu(
    net: ConvNet, images: Tensor, labels: Tensor
) -> None:
    backbone = Backbone(net).to("cuda")
    outputs = backbone(images)
    assert outputs.logits.device.type == outputs.features.device.type == "cuda"
    extracted, _ = extract(backbone, (images, labels.cuda()))
    assert extracted.logits.device.type == "cpu"
    close(extracted, outputs.to("cpu"), 1e-5)


def test_outputs_can_be_used_for_training_even_if_made_in_inference_mode(
    net: ConvNet, images: Tensor
) -> None:
    with torch.inference_mode():
        outputs = Backbone(net)(images)
    assert not outputs.logits.requires_grad
    weight = torch.ones(K, requires_grad=True)
    later = nn.Linear(D, 1)
    ((outputs.logits * weight).sum() + later(outputs.features).sum()).backward()
    assert weight.grad is not None
    assert later.weight.grad is not None


def test_inputs_that_require_gradients_give_features_that_do_not() -> None:
    outputs = Backbone(nn.Linear(4, K))(torch.randn(3, 4, requires_grad=True))
    assert not outputs.features.requires_grad


# --- inputs and results of any form ---

RETURNED: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda z: z,
    "tuple": lambda z: (z, z.exp()),
    "tuple with a leading None": lambda z: (None, z, z.exp()),
    "dict": lambda z: {"hidden": z.exp(), "logits": z},
    "attribute": lambda z: type("Result", (), {"logits": z})(),
    "reshaped": lambda z: z.unsqueeze(1).squeeze(1),
    "copied": lambda z: z.clone(),
    "double and back": lambda z: z.double().float(),
}


@pytest.mark.parametrize("form", RETURNED)
def test_logits_are_found_in_a_result_of_any_form(form: str, generator: torch.Generator) -> None:
    net, x = Made(RETURNED[form]), torch.randn(7, 4, generator=generator)
    backbone = Backbone(net)
    with torch.no_grad():
        features = net.first(x).tanh()
        close(backbone(x), Outputs(net.fc(features), features))
    assert backbone.head is net.fc


def test_several_inputs_are_passed_on_by_position_and_by_name(generator: torch.Generator) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, K)

        def forward(self, a: Tensor, b: Tensor, scale: float = 1.0) -> Tensor:
            logits: Tensor = self.fc(input=a - scale * b)
            return logits

    a, b = torch.randn(2, 7, 4, generator=generator)
    backbone = Backbone(Two())
    close(backbone((a, b)), Outputs(backbone.head(a - b).detach(), a - b))
    close(backbone([a, b]), backbone({"b": b, "a": a}))
    close(backbone({"a": a, "b": b, "scale": 2.0}), backbone((a, 2 * b)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_float32(dtype: torch.dtype, generator: torch.Generator) -> None:
    net = Made(lambda z: z).to(dtype)
    outputs = Backbone(net)(torch.randn(7, 4, generator=generator).to(dtype))
    assert outputs.logits.dtype == outputs.features.dtype == torch.float32


def test_an_empty_batch_is_a_batch() -> None:
    outputs = Backbone(Made(lambda z: z))(torch.zeros(0, 4))
    assert (outputs.logits.shape, outputs.features.shape) == ((0, K), (0, D))


def test_logits_that_are_not_finite_are_left_to_the_fit() -> None:
    net = Made(lambda z: z)
    outputs = Backbone(net)(torch.tensor([[1.0, 2, 3, 4], [float("nan"), 0, 0, 0]]))
    assert outputs.logits[0].isfinite().all()
    assert outputs.logits[1].isnan().all()


# --- Hugging Face ---


@pytest.fixture
def text(generator: torch.Generator) -> dict[str, Tensor]:
    lengths = torch.randint(2, 8, (9, 1), generator=generator)
    mask = (torch.arange(7) < lengths).long()
    return {
        "input_ids": torch.randint(1, 30, (9, 7), generator=generator) * mask,
        "attention_mask": mask,
    }


def bert() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "dim": 8,
        "hidden_dim": 16,
        "n_heads": 2,
        "n_layers": 2,
        "vocab_size": 30,
        "max_position_embeddings": 10,
    }
    return transformers.DistilBertForSequenceClassification(
        transformers.DistilBertConfig(**sizes, num_labels=K)
    )


def gpt() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "n_embd": 8,
        "n_layer": 2,
        "n_head": 2,
        "vocab_size": 30,
        "n_positions": 10,
        "pad_token_id": 0,
    }
    config = transformers.GPT2Config(**sizes, num_labels=K, bos_token_id=None, eos_token_id=None)
    return transformers.GPT2ForSequenceClassification(config)


def test_a_hugging_face_classifier_works_as_it_is(text: dict[str, Tensor]) -> None:
    net = bert().train()
    backbone, before = Backbone(net), state(net)
    outputs = backbone(text)
    assert state(net) == before
    assert backbone.head is net.classifier
    reproduces(backbone, outputs)
    with torch.no_grad():
        assert torch.equal(outputs.logits, net.eval()(**text).logits)
    for key in ("labels", "label"):
        rows = [{name: x[i] for name, x in text.items()} | {key: i % K} for i in range(9)]
        pooled, y = extract(backbone, DataLoader(rows, batch_size=4))  # type: ignore[arg-type]
        close(pooled, outputs, 1e-5)
        assert y.tolist() == [i % K for i in range(9)]


def test_a_classifier_that_picks_one_token_after_the_head_gives_the_features_of_that_token(
    text: dict[str, Tensor],
) -> None:
    net = gpt()
    backbone = Backbone(net)
    outputs = backbone(text)
    assert backbone.head is net.score
    reproduces(backbone, outputs)
    with torch.no_grad():
        hidden = net.eval().transformer(**text).last_hidden_state
    last = text["attention_mask"].sum(1) - 1
    torch.testing.assert_close(outputs.features, hidden[torch.arange(9), last])


def test_a_whole_dict_of_tensors_is_cut_into_batches(text: dict[str, Tensor]) -> None:
    backbone, y = Backbone(bert()), torch.arange(9) % K
    one, labels = extract(backbone, text | {"labels": y}, batch_size=4)
    other, _ = extract(backbone, (text, y), batch_size=4)
    close(one, other)
    assert torch.equal(labels, y)


# --- the head ---


def test_a_head_can_be_named(net: ConvNet, images: Tensor) -> None:
    backbone = Backbone(net, head="classifier.1")
    assert backbone.head is net.classifier[1]  # before any call
    close(backbone(images), Backbone(net)(images))


def test_a_network_may_be_one_linear_layer() -> None:
    net, x = nn.Linear(4, K), torch.randn(3, 4)
    assert torch.equal(Backbone(net)(x).features, x)


def test_the_layer_that_made_the_logits_is_found_among_others_of_its_size() -> None:
    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.auxiliary, self.main, self.last = nn.Linear(K, K), nn.Linear(K, K), nn.Linear(K, K)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.auxiliary(x)
            return self.main(x), self.last(x)

    net = Twins()
    backbone = Backbone(net)
    reproduces(backbone, backbone(torch.randn(3, K)))
    assert backbone.head is net.main


def test_of_layers_with_the_same_output_the_last_is_the_head() -> None:
    identity = nn.Linear(K, K, bias=False)
    nn.init.eye_(identity.weight)
    backbone = Backbone(nn.Sequential(nn.Linear(4, K), identity))
    backbone(torch.randn(3, 4))
    assert backbone.head is identity


def test_a_token_that_is_not_finite_is_not_taken_for_another(generator: torch.Generator) -> None:
    net, x = Made(lambda z: z[:, 1]), torch.randn(7, 3, 4, generator=generator)
    x[:, 0] = x[2, 1] = float("nan")
    outputs = Backbone(net)(x)
    with torch.no_grad():
        torch.testing.assert_close(outputs.features[:2], net.first(x[:2, 1]).tanh())
    assert outputs.features[2].isnan().all()


def test_a_class_that_the_head_masks_stays_masked() -> None:
    net = Made(lambda z: z)
    net.fc.bias.data[0] = -torch.inf
    assert (Backbone(net)(torch.randn(3, 4)).logits[:, 0] == -torch.inf).all()
    net.returned = lambda z: torch.cat([z[:, :1], 2 * z[:, 1:]], 1)
    with pytest.raises(ValueError, match="those of 'fc' are changed after it"):
        Backbone(net, features=True)(torch.randn(3, 4))


def test_log_softmax_at_the_end_is_a_constant_that_does_not_matter() -> None:
    net, x = Made(lambda z: z.log_softmax(-1)), torch.randn(30, 4)
    backbone = Backbone(net)
    outputs = backbone(x)
    assert torch.equal(outputs.logits, net(x))
    torch.testing.assert_close(
        backbone.head(outputs.features).softmax(-1), outputs.logits.softmax(-1)
    )


CHANGED: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda z: z.softmax(-1),
    "tanh": torch.tanh,
    "a scale for each class": lambda z: z * torch.arange(1, K + 1),
    "a scale for each row": lambda z: 9 * nn.functional.normalize(z),
    "reorder": lambda z: z.flip(-1),
    "mask": lambda z: z.masked_fill(torch.arange(K) == 0, -torch.inf),
}


@pytest.mark.parametrize("change", CHANGED)
@pytest.mark.parametrize("named", [False, True])
def test_logits_that_are_changed_after_the_head_are_an_error_where_features_are_needed(
    change: str, named: bool, generator: torch.Generator
) -> None:
    message = (
        "`net` must return the output of a linear layer as its 5 logits; "
        "those of 'fc' are changed after it. "
        "Wrap it so that it returns them before softmax, scaling or pooling; or go without "
        'features: with a method that reads logits alone, or mixup="logits".'
    )
    wanted: dict[str, Any] = {"features": True}
    if named:
        wanted = {"head": "fc"}
    x = torch.randn(30, 4, generator=generator)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Backbone(Made(CHANGED[change]), **wanted)(x)


@pytest.mark.parametrize("change", sorted({*CHANGED} - {"softmax"}))
def test_logits_that_are_changed_after_the_head_come_alone_with_one_warning(
    change: str, generator: torch.Generator
) -> None:
    net = Made(CHANGED[change])
    before = state(net)
    backbone = Backbone(net)
    x = torch.randn(30, 4, generator=generator)
    with pytest.warns(UserWarning, match=r"^No layer of this network .* `head` if there") as warned:
        outputs = backbone(x)
    assert [warning.filename for warning in warned] == [__file__]
    assert outputs.features is None
    assert torch.equal(outputs.logits, net(x))
    assert backbone(x[:3]).features is None
    assert state(net) == before
    with pytest.raises(RuntimeError, match="has no head that is known"):
        _ = backbone.head
    assert Backbone(net, features=False)(x).features is None


def test_probabilities_are_an_error_unless_they_are_announced(generator: torch.Generator) -> None:
    net, x = Made(CHANGED["softmax"]), torch.randn(30, 4, generator=generator)
    message = r"^`net` must return logits, .*; it returned probabilities. Pass probs=True, or"
    with pytest.raises(ValueError, match=message):
        Backbone(net)(x)
    outputs = Backbone(net, probs=True)(x)
    torch.testing.assert_close(outputs.logits, net(x).log())
    assert outputs.features is None
    with pytest.raises(ValueError, match="a network of probabilities gives logits alone"):
        Backbone(net, features=True, probs=True)


FIXED: dict[str, Callable[[Tensor], Tensor]] = {
    "scale": lambda z: 1.0001 * z,
    "scale in place": lambda z: z.mul_(2),
    "bias": lambda z: z + torch.arange(K),
    "scale, bias and log_softmax": lambda z: (torch.arange(K) - z / 3).log_softmax(-1),
}


@pytest.mark.parametrize("change", FIXED)
@pytest.mark.parametrize("head", [None, "fc"])
def test_a_fixed_scale_and_bias_after_the_layer_belong_to_the_head(
    change: str, head: str | None, generator: torch.Generator
) -> None:
    net = Made(FIXED[change])
    before = state(net)
    backbone, x = Backbone(net, head), torch.randn(30, 4, generator=generator)
    outputs = backbone(x)
    torch.testing.assert_close(outputs.features, net.first(x).tanh())
    made = backbone.head(outputs.features)
    torch.testing.assert_close(made.log_softmax(-1), net(x).log_softmax(-1))
    # What is known of the head comes from the largest batch.
    close(backbone(x[:1]), outputs[:1], 1e-6)
    torch.testing.assert_close(backbone.head(outputs.features), made)
    assert state(net) == before


def test_a_scale_is_not_believed_on_a_few_inputs_unless_features_are_needed(
    generator: torch.Generator,
) -> None:
    x = torch.randn(7, 4, generator=generator)
    with pytest.warns(UserWarning, match="No layer of this network"):
        assert Backbone(Made(lambda z: 2 * z))(x).features is None
    net = Made(lambda z: 2 * z)
    outputs = Backbone(net, features=True)(x[:1])
    torch.testing.assert_close(outputs.features, net.first(x[:1]).tanh())


def test_rows_that_are_not_finite_or_all_alike_do_not_hide_a_scale(
    generator: torch.Generator,
) -> None:
    net, x = Made(lambda z: 2 * z), torch.randn(30, 4, generator=generator)
    x[3] = torch.nan
    backbone = Backbone(net)
    features = net.first(x).tanh()
    for some in (slice(None), slice(3, 4), [5, 5], slice(3, 5)):
        torch.testing.assert_close(backbone(x[some]).features, features[some], equal_nan=True)
    torch.testing.assert_close(backbone.head(features[4:]), net(x[4:]))


def test_tokens_that_are_averaged_after_the_head_have_their_mean_as_features(
    generator: torch.Generator,
) -> None:
    net = Made(lambda z: z.mean(1))
    backbone, x = Backbone(net), torch.randn(30, 7, 4, generator=generator)
    outputs = backbone(x)
    torch.testing.assert_close(outputs.features, net.first(x).tanh().mean(1))
    reproduces(backbone, outputs)


def test_a_users_hook_that_changes_the_logits_leaves_them_alone(
    generator: torch.Generator,
) -> None:
    net = Made(lambda z: z)
    # Called alone, the layer runs this hook too, so that a head with a factor of 2 would be wrong.
    net.fc.register_forward_hook(lambda layer, args, output: 2 * output)
    with pytest.warns(UserWarning, match="No layer of this network"):
        assert Backbone(net)(torch.randn(30, 4, generator=generator)).features is None


def test_a_network_without_a_linear_head_gets_one_clear_sentence() -> None:
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(9, 12), nn.Unflatten(1, (3, 2, 2)), nn.Conv2d(3, K, 2), nn.Flatten()
    )
    with pytest.raises(
        ValueError, match=r"its 5 logits; no linear layer with 5 outputs ran. .* mixup="
    ):
        Backbone(net, features=True)(torch.randn(2, 9))


def test_a_head_that_is_none_is_named_with_those_that_are(net: ConvNet) -> None:
    message = (
        r"^`head` must name a layer of the network; got 'fc'. "
        r"The last linear ones are \['neck.0', 'classifier.1'\].$"
    )
    with pytest.raises(ValueError, match=message):
        Backbone(net, head="fc")
    with pytest.raises(ValueError, match="as its 5 logits; no linear layer with 5 outputs ran"):
        Backbone(net, head="neck.0")(torch.zeros(1, 3, 8, 8))


def test_the_head_is_known_after_the_first_call(net: ConvNet, images: Tensor) -> None:
    backbone = Backbone(net)
    with pytest.raises(RuntimeError, match="Call the backbone once, or pass head="):
        _ = backbone.head
    backbone(images)
    assert backbone.head is net.classifier[1]


@pytest.mark.parametrize(
    ("net", "error", "message"),
    [
        (
            "resnet18",
            TypeError,
            r"^`net` must be a torch.nn.Module, or a function .*; got str. For logits, use Outp",
        ),
        (
            Made,
            TypeError,
            r"^`net` must be a torch.nn.Module, or a function .*; got type. For logits, use Outp",
        ),
        (
            Made(lambda z: z[:, :0]),
            ValueError,
            r"^`logits` must have shape \(N, K\) .* For a binary model",
        ),
        (
            Made(lambda z: (1, 2)),
            TypeError,
            r"^`net` must return logits .*; it returned a tuple of int, int. Wrap it so that",
        ),
        (
            Made(lambda z: {"scores": z, "hidden": z}),
            TypeError,
            r"^`net` must return logits .*; it returned a dict with 'scores', 'hidden'. Wrap it",
        ),
        (
            Made(lambda z: Scores(z)),
            TypeError,
            r"^`net` must return logits .*; it returned a Scores with 'scores'. Wrap it",
        ),
        (
            Made(lambda z: (z.mean(), z)),
            TypeError,
            r"^`net` must return logits .*; it returned a tuple of Tensor of shape \(\), Tensor",
        ),
        (
            Made(lambda z: "cat"),
            TypeError,
            r"^`net` must return logits .*; it returned a str. Wrap it",
        ),
    ],
)
def test_what_is_no_classifier_gets_one_clear_sentence(
    net: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Backbone(net)(torch.zeros(3, 4))


def test_a_compiled_network_is_read_uncompiled() -> None:
    net, x = Made(lambda z: z), torch.randn(3, 4)
    compiled = type(
        "OptimizedModule", (nn.Module,), {}
    )()  # what torch.compile returns, without the compiler
    compiled._orig_mod = net
    close(Backbone(compiled)(x), Backbone(net)(x))
    assert Backbone(compiled).fingerprint() == Backbone(net).fingerprint()


def test_a_network_with_a_part_that_was_compiled_and_called_is_read_uncompiled(
    generator: torch.Generator,
) -> None:
    x = torch.randn(3, 4, generator=generator)
    plain: Any = Made(lambda z: z)
    wrapped, in_place = copy.deepcopy(plain), copy.deepcopy(plain)
    wrapped.fc = torch.compile(wrapped.fc, backend="eager")
    in_place.compile(backend="eager")
    for net in (wrapped, in_place):
        with torch.no_grad():
            net(x)
        close(Backbone(net)(x), Backbone(plain)(x))


def test_a_parallel_network_is_the_network_that_it_wraps(tmp_path: Path) -> None:
    net, x = Made(lambda z: z), torch.randn(3, 4)
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for wrapped in (
            nn.DataParallel(net),
            DistributedDataParallel(net),
            nn.DataParallel(nn.DataParallel(net)),
        ):
            backbone = Backbone(wrapped)
            close(backbone(x), Backbone(net)(x))
            assert backbone.fingerprint() == Backbone(net).fingerprint()
            assert backbone.head is Backbone(net, backbone._head_name).head
    finally:
        torch.distributed.destroy_process_group()


def test_torchs_encoder_stays_on_its_fast_path() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    seen: list[bool] = []

    def look(module: nn.Module, *_: object) -> None:
        seen.append(any(m._forward_hooks for m in module.modules()))

    net = nn.Sequential(nn.TransformerEncoder(layer, 1), nn.Flatten(), nn.Linear(24, K))
    net[0].register_forward_pre_hook(look)
    Backbone(net)(torch.randn(2, 3, 8))
    assert seen == [False]


# --- fingerprint ---


def test_the_fingerprint_is_of_the_weights_and_nothing_else(net: ConvNet, images: Tensor) -> None:
    backbone = Backbone(net)
    before = backbone.fingerprint()
    assert re.fullmatch("[0-9a-f]{64}", before)
    backbone(images)
    net.eval().requires_grad_(False)
    assert backbone.fingerprint() == Backbone(copy.deepcopy(net)).fingerprint() == before


CHANGES: dict[str, Callable[[Any], Any]] = {
    "one weight": lambda net: net.classifier[1].weight.data[0, 0].add_(1e-6),
    "one running mean": lambda net: net.body[1].running_mean[0].add_(1e-3),
    "the number of batches": lambda net: net.body[1].num_batches_tracked.add_(1),
    "the sign of a zero": lambda net: net.body[1].bias.data[0].neg_(),
    "the precision": lambda net: net.double(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_fingerprint_changes_with(change: str, net: ConvNet) -> None:
    before = Backbone(net).fingerprint()
    CHANGES[change](net)
    assert Backbone(net).fingerprint() != before


def quantised(weight: Tensor, bias: float = 0.0) -> nn.Module:
    net: Any = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, K))
    for parameter in net.parameters():
        parameter.data.zero_()
    net[0].weight.data.copy_(weight)
    net[0].bias.data.fill_(bias)
    made: nn.Module = torch.ao.quantization.quantize_dynamic(net, {"0"})
    return made


def with_buffer(value: Tensor, *, persistent: bool = True) -> nn.Module:
    net = nn.Linear(4, K)
    for parameter in net.parameters():
        parameter.data.zero_()
    net.register_buffer("own", value, persistent=persistent)
    return net


def by_packed_weights() -> list[nn.Module]:
    return [
        quantised(torch.ones(8, 4)),
        quantised(torch.eye(8)[:, :4]),
        quantised(torch.full((8, 4), 2.0)),
        quantised(torch.ones(8, 4), bias=1.0),
    ]


def by_quantised_tensors() -> list[nn.Module]:
    ones, zeros = torch.ones(2, 3), torch.zeros(2, dtype=torch.long)
    scales = torch.tensor([0.5, 0.25])
    return [
        with_buffer(torch.quantize_per_channel(ones, scales, zeros, 0, torch.qint8)),
        with_buffer(torch.quantize_per_tensor(ones, 0.5, 0, torch.qint8)),
        with_buffer(torch.quantize_per_tensor(ones / 2, 0.25, 0, torch.qint8)),
    ]


def by_buffers_that_are_not_saved() -> list[nn.Module]:
    return [with_buffer(torch.full((3,), x), persistent=False) for x in (0.0, 1.0)]


def by_sparse_buffers() -> list[nn.Module]:
    eye = torch.eye(4)
    return [
        with_buffer(eye.to_sparse()),
        with_buffer(2 * eye.to_sparse()),
        with_buffer(eye.to_sparse_csr()),
        with_buffer(eye.to_sparse_csc()),
        with_buffer(eye.flip(0).to_sparse_csr()),
        with_buffer(eye.to_sparse_bsr((2, 2))),
    ]


def by_complex_buffers() -> list[nn.Module]:
    return [with_buffer(torch.full((3,), x, dtype=torch.complex64)) for x in (0.0, 1j)]


@pytest.mark.filterwarnings("ignore:.*deprecated", "ignore:Sparse")
@pytest.mark.parametrize(
    "make",
    [
        by_packed_weights,
        by_quantised_tensors,
        by_buffers_that_are_not_saved,
        by_sparse_buffers,
        by_complex_buffers,
    ],
)
def test_the_fingerprint_tells_networks_apart(make: Callable[[], list[nn.Module]]) -> None:
    nets = make()
    fingerprints = [Backbone(net).fingerprint() for net in nets]
    assert len(set(fingerprints)) == len(nets)
    assert fingerprints == [Backbone(net).fingerprint() for net in make()]


def test_the_fingerprint_knows_names_shapes_and_dtypes() -> None:
    zeros = torch.zeros(4)
    tensors = [
        ("a", zeros),
        ("b", zeros),
        ("a", zeros.reshape(2, 2)),
        ("a", zeros.to(torch.int32)),
    ]  # the same bytes
    nets = [nn.Module() for _ in tensors]
    for net, (name, tensor) in zip(nets, tensors, strict=True):
        net.register_buffer(name, tensor)
    assert len({Backbone(net).fingerprint() for net in nets}) == 4


# --- extract ---


def test_arrays_in_another_byte_order_and_frames_are_arrays(generator: torch.Generator) -> None:
    net = Made(lambda z: z)
    x, y = torch.randn(7, 4, generator=generator), torch.arange(7) % K
    expected, _ = extract(net, (x, y), batch_size=3)
    whole = Backbone(net)(x)
    others = [
        (x.numpy().astype(">f4"), y.numpy().astype(">i8")),
        (pd.DataFrame(x.numpy()), pd.Series(y.numpy())),
        (x, pd.Series(y.numpy())),
    ]
    for given_x, given_y in others:
        outputs, labels = extract(net, (given_x, given_y), batch_size=3)
        close(outputs, expected)
        assert torch.equal(labels, y)
        close(Backbone(net)(given_x), whole)


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_has_at_least_one_input(size: int) -> None:
    with pytest.raises(ValueError, match=rf"`batch_size` must be at least 1; got {size}"):
        extract(Made(lambda z: z), (X, Y), batch_size=size)


class Rows(Dataset[Any]):
    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.images[i], int(self.labels[i])


def batches(x: Any, y: Any, size: int = 8) -> Iterator[Any]:
    return ((x[i : i + size], y[i : i + size]) for i in range(0, len(y), size))


def read_only(x: Tensor) -> Any:
    array = x.numpy().copy()
    array.flags.writeable = False
    return array


FORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "DataLoader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=8),
    "Dataset": Rows,
    "tensors": lambda x, y: (x, y),
    "list of tensors": lambda x, y: [x, y],
    "int32 labels": lambda x, y: (x, y.to(torch.int32)),
    "arrays": lambda x, y: (x.numpy(), y.numpy()),
    "read-only arrays": lambda x, y: (read_only(x), read_only(y)),
    "array and uint16 labels": lambda x, y: (x.numpy(), y.numpy().astype(np.uint16)),
    "generator": batches,
    "generator of arrays": lambda x, y: batches(x.numpy(), y.numpy()),
    "list of batches": lambda x, y: list(batches(x, y, 12)),
    "one batch": lambda x, y: [(x, y)],
    "dataset by its interface": lambda x, y: type(
        "Hub", (), {"__len__": lambda _: N, "__getitem__": lambda _, i: (x[i], y[i])}
    )(),
}


@pytest.mark.parametrize("form", FORMS)
def test_labelled_data_of_any_form_give_the_same(
    form: str, net: ConvNet, images: Tensor, labels: Tensor
) -> None:
    outputs, y = extract(net, FORMS[form](images, labels), batch_size=8)
    close(outputs, Backbone(net)(images), 1e-5)
    assert y.dtype == torch.int64
    assert torch.equal(y, labels)


def test_arrays_of_floats_come_in_the_dtype_of_the_network(generator: torch.Generator) -> None:
    x, labels = torch.randn(N, 4, generator=generator), np.arange(N) % K
    net = Made(lambda z: z)
    single, double = (
        extract(net, (x.numpy().astype(dtype), labels))[0] for dtype in (np.float32, np.float64)
    )
    close(single, double)
    assert extract(net.double(), (x.numpy(), labels))[0].logits.dtype == torch.float64


def test_a_dataset_leaves_torchs_global_random_state_alone(
    net: ConvNet, images: Tensor, labels: Tensor
) -> None:
    before = torch.get_rng_state()
    extract(net, TensorDataset(images, labels))
    assert torch.equal(torch.get_rng_state(), before)


@settings(max_examples=20)
@given(size=integers(1, 2 * N))
def test_the_batch_size_does_not_matter(size: int) -> None:
    torch.manual_seed(0)
    net, x, y = ConvNet(), torch.randn(N, 3, 8, 8), torch.arange(N) % K
    outputs, labels = extract(net, (x, y), batch_size=size)
    close(outputs, Backbone(net)(x), 1e-5)
    assert torch.equal(labels, y)


def test_mapped_outputs_equal_those_in_memory(
    net: ConvNet, images: Tensor, labels: Tensor, tmp_path: Path
) -> None:
    backbone = Backbone(net)
    kept, y = extract(backbone, batches(images, labels))
    mapped, z = extract(backbone, batches(images, labels), storage=tmp_path / "new" / "folder")
    close(mapped, kept)
    assert torch.equal(y, z)
    assert (tmp_path / "new" / "folder" / "features.bin").stat().st_size == 4 * N * D


def test_logits_alone_are_mapped_too(images: Tensor, labels: Tensor, tmp_path: Path) -> None:
    backbone = Backbone(ConvNet(), features=False)
    kept, _ = extract(backbone, (images, labels), batch_size=4)
    mapped, y = extract(backbone, (images, labels), batch_size=4, storage=tmp_path)
    assert mapped.features is None
    assert kept.features is None
    assert torch.equal(mapped.logits, kept.logits)
    assert torch.equal(y, labels)


def test_a_second_extraction_to_a_folder_leaves_the_first_result_alone(
    net: ConvNet, images: Tensor, labels: Tensor, tmp_path: Path
) -> None:
    first, _ = extract(net, (images, labels), storage=str(tmp_path))
    second, y = extract(net, (images[:3], labels[:3]), storage=str(tmp_path))
    close(first, Backbone(net)(images))
    assert len(second) == len(y) == 3


def test_a_change_to_mapped_outputs_stays_in_memory(
    net: ConvNet, images: Tensor, labels: Tensor, tmp_path: Path
) -> None:
    outputs, _ = extract(net, (images, labels), storage=tmp_path)
    before = (tmp_path / "logits.bin").read_bytes()
    outputs.logits.zero_()
    assert (tmp_path / "logits.bin").read_bytes() == before


def test_features_do_not_share_memory_with_a_loader_that_reuses_its_own() -> None:
    buffer = torch.empty(2, 4)
    data = ((buffer.fill_(i), torch.tensor([0, 1])) for i in range(3))
    outputs, _ = extract(nn.Linear(4, K), data)
    assert outputs.features is not None
    assert outputs.features[:, 0].tolist() == [0, 0, 1, 1, 2, 2]


def test_a_test_set_may_hold_one_class(net: ConvNet, images: Tensor) -> None:
    assert (extract(net, (images, torch.full((N,), 3)))[1] == 3).all()


def test_nothing_is_printed_unless_progress_is_wanted(
    net: ConvNet, images: Tensor, labels: Tensor, capfd: pytest.CaptureFixture[str]
) -> None:
    extract(net, (images, labels))
    assert capfd.readouterr() == ("", "")
    pytest.importorskip("rich")
    close(extract(net, batches(images, labels), progress=True)[0], Backbone(net)(images), 1e-5)
    assert "Extracting" in capfd.readouterr().err


def test_progress_needs_no_rich(
    net: ConvNet,
    images: Tensor,
    labels: Tensor,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    assert len(extract(net, (images, labels), progress=True)[1]) == N
    assert capfd.readouterr() == ("", "")


X, Y = torch.zeros(6, 4), torch.zeros(6, dtype=torch.int64)
BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "empty loader": (
        DataLoader(TensorDataset(X[:0], Y[:0])),
        ValueError,
        r"`data` is empty. Pass at least one batch; .*",
    ),
    "empty pair": ((X[:0], Y[:0]), ValueError, r"`data` is empty. .*"),
    "read before": (
        iter(()),
        ValueError,
        r"`data` is empty. .* an iterator that was read before gives no more.",
    ),
    "inputs only": (
        X,
        ValueError,
        r"`data` must come with labels, as \(inputs, labels\) or a dict .*; got a Tensor.",
    ),
    "loader of inputs": (
        DataLoader(TensorDataset(X)),
        ValueError,
        r"`data` must come with labels, .*; got a list of 1.",
    ),
    "three": ([(X, Y, Y)], ValueError, r"`data` must come with labels, .*; got a tuple of 3."),
    "dict of inputs": (
        [{"input": X}],
        ValueError,
        r"`data` must come with labels, .*; got a dict.",
    ),
    "frame": (
        pd.DataFrame({"x": [1.0]}),
        ValueError,
        r"`data` must come with labels, .*; got a DataFrame.",
    ),
    "one": (
        7,
        TypeError,
        r"`data` must be a DataLoader, Dataset or pair \(inputs, labels\); got int.",
    ),
    "short": (
        (X, Y[:5]),
        ValueError,
        r"`labels` must have shape \(6,\), one value for each input; got \(5,\). .*",
    ),
    "long": (
        (X, Y.repeat(2)),
        ValueError,
        r"`labels` must have shape \(6,\), one value for each input; got \(12,\). .*",
    ),
    "short batch": (
        [(X, Y), (X, Y[:5])],
        ValueError,
        r"`labels` must have shape \(6,\), .*; got \(5,\). .*",
    ),
    "one-hot": (
        (X, Y[:, None].repeat(1, K)),  # of the first batch
        ValueError,
        r"`labels` .*; got \(5, 5\). One-hot labels need .*",
    ),
    "multi-label": (
        (X, torch.ones(6, K, dtype=torch.int64)),  # of the first batch
        ValueError,
        r"`labels` .*; got \(5, 5\). Multi-label classification is not supported: calibrate .*",
    ),
    "multi-label of floats": (
        [(X, torch.ones(6, K))],
        ValueError,
        r"`labels` .*; got \(6, 5\). Multi-label classification is not supported: calibrate .*",
    ),
    "float": (
        (X, Y.float()),
        TypeError,
        r"`labels` must be integers; got torch.float32. Number the classes from 0; .*",
    ),
    "bool": (
        [(X, Y.bool())],
        TypeError,
        r"`labels` must be integers; got torch.bool. Number the classes from 0; .*",
    ),
    "names": (
        (X, np.array(["cat"] * 6)),
        TypeError,
        r"`labels` must be .* numbers; got ndarray of <U3. Number the classes from 0.",
    ),
    "none": (
        [(X, None)],
        TypeError,
        r"`labels` must be .* numbers; got NoneType. Number the classes from 0.",
    ),
    "list": (
        (X, ["cat"] * 6),
        TypeError,
        r"`labels` must be .* numbers; got list. Number the classes from 0.",
    ),
    "number": (
        [(X, 3)],
        ValueError,
        r"`labels` must have shape \(6,\), one value for each input; got \(\). .*",
    ),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("to_disk", [False, True])
def test_bad_data_get_one_clear_sentence(case: str, to_disk: bool, tmp_path: Path) -> None:
    data, error, message = BAD[case]
    with pytest.raises(error, match=f"^{message}$"):
        extract(Made(lambda z: z), data, batch_size=5, storage=tmp_path if to_disk else None)
