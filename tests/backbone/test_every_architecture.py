"""What becomes of classifiers of every architecture: features and logits, or logits alone."""

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import architecture_table
from helpers.architectures import CASES, REFUSALS, images
from helpers.methods import METHODS, state
from helpers.quick_branches import quick_branches
from torch import Tensor

from simplexcal.backbone import Backbone
from simplexcal.dense import DenseOutputs
from simplexcal.mixup import FeatureMixup, head_error
from simplexcal.model import calibrate, load

WITHOUT_FEATURES = [
    name
    for name, case in CASES.items()
    if case.n_features is None and not case.positions and case.inputs is images
]


@pytest.fixture(autouse=True, scope="module")
def _quick_branches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        quick_branches(patch, 10)
        yield


def labels_of(backbone: Backbone, x: Any) -> Tensor:
    """Return labels of which the logits, of any size and with any bias, say something."""
    outputs = Backbone(backbone.net, features=False)(x)
    logits = outputs.logits
    varied = logits - logits.mean(-1, keepdim=True)
    varied -= varied.mean(0)
    probs: Tensor = (3 * varied / varied.std()).softmax(-1)
    labels = probs.multinomial(1).squeeze(1)
    if isinstance(outputs, DenseOutputs):
        return labels.view(outputs.shape)
    return labels


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
        mixed = FeatureMixup(head, outputs, labels.flatten()).sample(1.0, 50)
        assert mixed.outputs.logits.isfinite().all()


@pytest.mark.filterwarnings("ignore:The logits say nothing about the labels")
@pytest.mark.parametrize("name", CASES)
def test_temperature_scaling_asks_no_architecture_for_a_head(name: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    net, x = case.make(), case.inputs()
    labels = labels_of(Backbone(net), x)
    runs: list[int] = []
    net.register_forward_pre_hook(lambda *_: runs.append(1))
    model = calibrate(net, (x, labels), "ts")  # any other warning would be an error
    assert len(runs) == 1
    assert model.backbone(x).features is None
    assert torch.equal(model.predict(x).label.flatten(), model.backbone(x).logits.argmax(-1))


@pytest.mark.parametrize("name", WITHOUT_FEATURES)
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


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_no_classifier_is_refused_in_one_sentence(name: str) -> None:
    refusal = REFUSALS[name]
    torch.manual_seed(0)
    with pytest.raises((TypeError, ValueError)) as error:
        calibrate(refusal.make(), (refusal.inputs(), refusal.labels()), "ts")
    assert str(error.value) == refusal.sentence


def test_the_page_has_the_architectures_that_are_tested() -> None:
    page = architecture_table.PAGE.read_text()
    assert architecture_table.table() in page
    assert architecture_table.render(page) == page
