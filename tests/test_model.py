import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.methods import KEEPING, METHODS, state
from helpers.quick_branches import quick_branches
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from simplexcal._validation import NotFittedError
from simplexcal.backbone import Backbone, extract
from simplexcal.calibrators import (
    CALIBRATORS,
    Calibrator,
    EnsembleTemperatureScaling,
    SimplexTemperatureScaling,
    TemperatureScaling,
    Uncalibrated,
)
from simplexcal.calibrators.base import Task
from simplexcal.evaluation import evaluate
from simplexcal.io import load_calibrator, save_calibrator
from simplexcal.mixup import FeatureMixup, InputMixup
from simplexcal.model import CalibratedModel, _fit_device, calibrate, load
from simplexcal.types import Outputs, Prediction

N, K, D = 80, 4, 6
Data = tuple[Tensor, Tensor]
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Net(nn.Module):
    """All that a careless calibration would change.

    Classes 1 and 2 share their weights, so they always tie.
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Dropout(0.5), nn.Flatten()
        )
        self.neck = nn.Sequential(nn.Linear(2 * 16, D), nn.BatchNorm1d(D))
        self.classifier = nn.Linear(D, K)
        self.classifier.weight.data[2] = self.classifier.weight.data[1]
        self.classifier.bias.data[2] = self.classifier.bias.data[1]
        self.classifier.weight.data *= scale

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.neck(self.body(x)))
        return logits


def make_net(scale: float = 5.0, seed: int = 0) -> Net:
    torch.manual_seed(seed)
    net = Net(scale)
    net(torch.randn(50, 1, 6, 6))  # running statistics of its own
    net.body[1].eval()
    net.neck.eval()
    net.body[0].requires_grad_(False)
    net.classifier.register_forward_hook(lambda *_: None)
    net.body.register_forward_pre_hook(lambda *_: None)
    return net


def evaluated(net: nn.Module, x: Tensor) -> Tensor:
    """Return the logits of a copy of the network in eval mode."""
    with torch.no_grad():
        logits: Tensor = copy.deepcopy(net).eval()(x)
    return logits


def make_data(net: nn.Module, n: int = N, seed: int = 0) -> Data:
    """Return images, and labels that are the network's in about half of them."""
    g = Generator().manual_seed(seed)
    x = torch.randn(n, 1, 6, 6, generator=g)
    noise = torch.randint(K, (n,), generator=g)
    return x, torch.where(torch.rand(n, generator=g) < 0.4, evaluated(net, x).argmax(-1), noise)


def same(a: Prediction, b: Prediction) -> bool:
    return all(
        (x is None and y is None) or torch.equal(x, y)
        for x, y in zip(vars(a).values(), vars(b).values(), strict=True)
    )


def branch_alone() -> SimplexTemperatureScaling:
    """Return the part of the method that learns from mixup samples, and that alone."""
    return SimplexTemperatureScaling(n_steps=5, pool_size=100, widths=(8,), likelihood_head=False)


def seeded() -> Generator:
    return Generator().manual_seed(0)


class Case(NamedTuple):
    method: str
    net: Net
    before: list[Any]
    model: CalibratedModel


@pytest.fixture(scope="module", autouse=True)
def short_fits() -> Iterator[None]:
    """Shorten the one fit whose length is no setting; nothing here depends on its quality."""
    with pytest.MonkeyPatch.context() as patch:
        quick_branches(patch, 10)
        yield


pytestmark = pytest.mark.filterwarnings("ignore:.* may change predictions")


@pytest.fixture(scope="module", params=METHODS)
def case(request: pytest.FixtureRequest) -> Case:
    net = make_net()
    data, before = make_data(net), state(net)
    return Case(
        request.param,
        net,
        before,
        calibrate(net, data, METHODS[request.param](), generator=seeded()),
    )


@pytest.fixture(scope="module")
def net() -> Net:
    return make_net()


@pytest.fixture(scope="module")
def data(net: Net) -> Data:
    return make_data(net)


@pytest.fixture(scope="module")
def images() -> Tensor:
    """Unseen inputs, among them some that tie, some that are far away, and some all alike."""
    x = torch.randn(40, 1, 6, 6, generator=Generator().manual_seed(1))
    return torch.cat([x, 1e4 * x, torch.zeros(3, 1, 6, 6)])


# --- promises that every method keeps ---


def test_every_method_is_tried_here() -> None:
    assert {name: type(make()) for name, make in METHODS.items()} == CALIBRATORS


def test_the_network_is_untouched_bit_for_bit(case: Case, images: Tensor, tmp_path: Path) -> None:
    assert state(case.net) == case.before
    assert case.model.backbone.net is case.net
    case.model.predict(images)
    case.model.train().eval().requires_grad_(True).requires_grad_(False)
    case.model.save(tmp_path / "file")
    load(tmp_path / "file", case.net).predict(images)
    assert state(case.net) == case.before


def test_labels_are_those_of_the_network_even_where_classes_tie(case: Case, images: Tensor) -> None:
    if case.method not in KEEPING:
        pytest.skip("The method changes predictions.")
    logits = evaluated(case.net, images)
    assert (logits[:, 1] == logits[:, 2]).all()
    assert (logits.argmax(-1) == 1).any()  # where two classes are the largest
    assert torch.equal(case.model.predict(images).label, logits.argmax(-1))


@pytest.mark.parametrize("method", KEEPING)
def test_labels_are_those_of_the_network_where_its_softmax_is_saturated(
    method: str, images: Tensor
) -> None:
    net = make_net(scale=1e4)
    p = calibrate(net, make_data(net), METHODS[method](), generator=seeded()).predict(images)
    assert (evaluated(net, images).softmax(-1).amax(-1) == 1).any()
    assert torch.equal(p.label, evaluated(net, images).argmax(-1))
    torch.testing.assert_close(p.probs.sum(-1), torch.ones(len(images)))


def test_probabilities_are_distributions(case: Case, images: Tensor) -> None:
    probs = case.model(images)
    assert probs.shape == (len(images), K)
    assert (probs >= 0).all()
    torch.testing.assert_close(probs.sum(-1), torch.ones(len(images)))
    assert torch.equal(probs, case.model.predict(images).probs)
    assert not probs.requires_grad


def test_a_loaded_model_predicts_the_same_bits(case: Case, images: Tensor, tmp_path: Path) -> None:
    case.model.save(tmp_path / "file")
    loaded = load(str(tmp_path / "file"), copy.deepcopy(case.net).eval())
    assert same(loaded.predict(images), case.model.predict(images))


def test_a_model_loaded_onto_another_network_fails_clearly(case: Case, tmp_path: Path) -> None:
    path, other = tmp_path / "file", copy.deepcopy(case.net)
    case.model.save(path)
    other.classifier.bias.data[0] += 1e-7
    for net in (other, make_net(seed=1), copy.deepcopy(case.net).double(), nn.Linear(3, K)):
        with pytest.raises(
            ValueError,
            match=r"^'.*file' was calibrated for another network: .* calibrate this one.$",
        ):
            load(path, net)


def test_the_same_generator_gives_the_same_bits(case: Case, images: Tensor) -> None:
    torch.manual_seed(1234)
    again = calibrate(case.net, make_data(case.net), METHODS[case.method](), generator=seeded())
    assert same(again.predict(images), case.model.predict(images))


def test_without_a_generator_the_same_data_give_the_same_model(net: Net, data: Data) -> None:
    shuffled = DataLoader(TensorDataset(*data), 16, shuffle=True)
    predictions = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        model = calibrate(net, shuffled, METHODS["sts"]())
        assert torch.equal(torch.get_rng_state(), before)
        predictions.append(model.predict(data[0]))
    assert same(*predictions)


def test_a_generator_leaves_the_order_of_a_loader_to_torch(net: Net, data: Data) -> None:
    shuffled = DataLoader(TensorDataset(*data), 16, shuffle=True)
    before = torch.get_rng_state()
    calibrate(net, shuffled, "ts", generator=seeded())
    assert not torch.equal(torch.get_rng_state(), before)


# --- the model ---


@pytest.fixture(scope="module")
def model(net: Net, data: Data) -> CalibratedModel:
    return calibrate(net, data, METHODS["sts"](), generator=seeded())


def test_many_inputs_go_through_the_network_in_batches(
    net: Net, model: CalibratedModel, images: Tensor
) -> None:
    sizes: list[int] = []
    whole = model.predict(images)
    with net.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0]))):
        p = model.predict(images, batch_size=30)
        model(images.repeat(4, 1, 1, 1))
    assert sizes == [30, 30, 23, 256, 76]
    assert whole.aleatoric is not None
    assert whole.epistemic is not None
    for name in ("probs", "label", "aleatoric", "epistemic", "confidence"):
        torch.testing.assert_close(getattr(p, name), getattr(whole, name), rtol=1e-4, atol=1e-5)


def often_right(net: nn.Module, x: Tensor) -> Tensor:
    """Return labels of which the network predicts two of three, and others by chance."""
    rows = torch.arange(len(x))
    return evaluated(net, x).argmax(-1).where(rows % 3 > 0, rows % K)


class Counting(nn.Linear):
    """Counts its calls in a buffer."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__(4, K)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        self.calls += 1
        return super().forward(input)


def test_a_network_that_updates_its_buffers_fits_its_own_file(
    generator: Generator, tmp_path: Path
) -> None:
    net, x = nn.Sequential(Counting()), torch.randn(300, 4, generator=generator)
    model = calibrate(net, (x, often_right(net, x)), "ts")
    model.save(tmp_path / "model.safetensors")
    probs = model(x)
    assert torch.equal(load(tmp_path / "model.safetensors", net)(x), probs)


def test_a_batch_of_a_prediction_has_at_least_one_input(
    model: CalibratedModel, images: Tensor
) -> None:
    with pytest.raises(ValueError, match=r"`batch_size` must be at least 1; got 0"):
        model.predict(images, batch_size=0)


def test_a_frame_of_inputs_is_an_array(generator: Generator) -> None:
    net, x = nn.Linear(4, K), torch.randn(300, 4, generator=generator)
    model = calibrate(net, (pd.DataFrame(x.numpy()), often_right(net, x)), "ts")
    probs = model.predict(pd.DataFrame(x.numpy()), batch_size=100).probs
    assert torch.equal(probs, model.predict(x, batch_size=100).probs)


@pytest.mark.parametrize(
    ("method", "dtype"), [*((name, torch.bfloat16) for name in METHODS), ("pts", torch.float16)]
)
def test_every_method_keeps_its_digits_where_tensors_are_half_by_default(
    method: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    head = nn.Linear(D, K).requires_grad_(False)
    features = 3 * torch.randn(60, D, generator=seeded())
    outputs = Outputs(head(features), features)
    labels = outputs.label.where(torch.arange(60) % 3 > 0, torch.arange(60) % K)

    def fit() -> Calibrator:
        mixup = FeatureMixup(head, outputs, labels)
        return METHODS[method]().fit(outputs, labels, mixup=mixup, generator=seeded())

    expected = fit()
    torch.set_default_dtype(dtype)
    try:
        made = fit()
        probs = made(outputs).probs
        save_calibrator(made, tmp_path / "file.safetensors")
        again, _ = load_calibrator(tmp_path / "file.safetensors")
        assert torch.equal(again(outputs).probs, probs)
        assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(probs, expected(outputs).probs)


def test_batches_keep_absent_uncertainties_absent(net: Net, data: Data) -> None:
    p = calibrate(net, data, "ts").predict(data[0], batch_size=7)
    assert len(p) == N
    assert p.aleatoric is None
    assert p.epistemic is None


def test_arrays_and_no_inputs_at_all_are_inputs(model: CalibratedModel, images: Tensor) -> None:
    assert same(model.predict(images.numpy()), model.predict(images))
    assert same(model.predict([images]), model.predict(images))
    assert model(images[:0]).shape == (0, K)


def test_predictions_need_no_gradients_whoever_asks(model: CalibratedModel, images: Tensor) -> None:
    assert not copy.deepcopy(model).requires_grad_()(images.clone().requires_grad_()).requires_grad
    with torch.inference_mode():
        assert same(model.predict(images), model.predict(images))


def test_the_networks_modes_do_not_matter_to_predictions(
    model: CalibratedModel, net: Net, images: Tensor
) -> None:
    p = model.predict(images)
    other = CalibratedModel(
        Backbone(copy.deepcopy(net).train()), copy.deepcopy(model.calibrator)
    ).train()
    assert same(other.predict(images), p)


def test_the_state_of_the_model_is_the_calibrators_alone(model: CalibratedModel) -> None:
    assert {name.split(".")[0] for name in model.state_dict()} == {"calibrator"}
    assert not any(p.requires_grad for p in model.parameters())


def test_a_model_with_an_unfitted_calibrator_says_so(
    net: Net, images: Tensor, tmp_path: Path
) -> None:
    model = CalibratedModel(Backbone(net), TemperatureScaling())
    with pytest.raises(NotFittedError):
        model(images)
    with pytest.raises(NotFittedError):
        model.save(tmp_path / "file")


def test_a_calibrator_saved_without_a_fingerprint_is_taken_as_it_is(
    model: CalibratedModel, net: Net, images: Tensor, tmp_path: Path
) -> None:
    save_calibrator(model.calibrator, tmp_path / "file")
    assert same(
        load(tmp_path / "file", net, head="classifier").predict(images), model.predict(images)
    )


# --- thresholds ---


@pytest.fixture
def held_out(net: Net) -> Data:
    """Labelled images that no model here was fitted to."""
    return make_data(net, seed=5)


@pytest.fixture
def selective(model: CalibratedModel) -> CalibratedModel:
    """A model of its own, whose thresholds may change."""
    return CalibratedModel(model.backbone, copy.deepcopy(model.calibrator))


def test_a_threshold_is_kept_and_decides_what_is_accepted(
    selective: CalibratedModel, held_out: Data, images: Tensor
) -> None:
    assert selective.predict(images).accepted is None
    found = selective.threshold(held_out, coverage=0.8)
    assert selective.thresholds == {"coverage": found}
    assert (found.score, found.n) == ("confidence", N)
    p = selective.predict(images, batch_size=30)
    assert p.accepted is not None
    assert torch.equal(p.accepted, p.confidence >= found.value)
    assert 0 < int(p.accepted.sum()) < len(p)
    alarm = selective.threshold(held_out[0], false_alarm=0.2)
    assert alarm.score == "epistemic"
    p = selective.predict(images)
    assert p.accepted is not None
    assert p.epistemic is not None
    accepted = (p.confidence >= found.value) & (p.epistemic <= alarm.value)
    assert torch.equal(p.accepted, accepted)
    again = selective.threshold(held_out, coverage=0.5)
    assert selective.thresholds == {"coverage": again, "false_alarm": alarm}
    selective.thresholds.clear()
    assert selective.predict(images).accepted is None


def test_a_target_accuracy_is_found_on_labelled_data(
    selective: CalibratedModel, held_out: Data
) -> None:
    found = selective.threshold(held_out, target_accuracy=0.2, delta=0.1)
    p = selective.predict(held_out[0])
    right = p.label == held_out[1]
    assert p.accepted is not None
    assert found.accepted_share == pytest.approx(p.accepted.double().mean().item())
    assert found.accuracy == pytest.approx(right[p.accepted].double().mean().item())
    assert found.delta == 0.1
    with pytest.raises(ValueError, match="`labels` must be given for `target_accuracy`"):
        selective.threshold(held_out[0], target_accuracy=0.2)
    with pytest.raises(ValueError, match="No threshold on confidence promises"):
        selective.threshold(held_out, target_accuracy=0.9)


@pytest.mark.parametrize("form", ["tensors", "arrays", "dataset", "loader", "iterator"])
def test_held_out_data_have_any_form(form: str, selective: CalibratedModel, held_out: Data) -> None:
    expected = selective.threshold(held_out, coverage=0.8)
    found = selective.threshold(FORMS[form](*held_out), coverage=0.8)
    assert found.value == pytest.approx(expected.value, rel=1e-5)
    inputs_alone = selective.threshold(held_out[0].numpy(), coverage=0.8, batch_size=7)
    assert inputs_alone.value == pytest.approx(expected.value, rel=1e-5)


def test_thresholds_are_saved_and_a_new_fit_forgets_them(
    selective: CalibratedModel, net: Net, data: Data, held_out: Data, tmp_path: Path
) -> None:
    selective.threshold(held_out, coverage=0.8, score="mutual_information")
    selective.save(tmp_path / "file")
    loaded = load(tmp_path / "file", net)
    assert loaded.thresholds == selective.thresholds
    assert same(loaded.predict(held_out[0]), selective.predict(held_out[0]))
    outputs = loaded.backbone(data[0])
    assert loaded.calibrator.fit(outputs, data[1], generator=seeded()).thresholds == {}


def test_a_threshold_on_the_data_of_the_fit_is_a_warning(
    selective: CalibratedModel, net: Net, data: Data, held_out: Data, tmp_path: Path
) -> None:
    selective.threshold(held_out, coverage=0.8)  # no warning, which would be an error here
    with pytest.warns(UserWarning, match="the ones that the calibrator was fitted to"):
        selective.threshold(data, coverage=0.8)
    selective.save(tmp_path / "file")
    with pytest.warns(UserWarning, match="so the threshold guarantees nothing"):
        load(tmp_path / "file", net).threshold(data, coverage=0.8)


# --- data of any form ---

FORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "tensors": lambda x, y: (x, y),
    "arrays": lambda x, y: (x.numpy(), y.numpy()),
    "dataset": lambda x, y: TensorDataset(x, y),
    "loader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=16),
    "iterator": lambda x, y: iter([(x[:50], y[:50]), (x[50:], y[50:])]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mixup", ["features", "inputs"])
def test_data_of_any_form_give_the_same_model(
    form: str, mixup: str, net: Net, data: Data, images: Tensor
) -> None:
    given = FORMS[form](*data)
    model = calibrate(net, given, branch_alone(), mixup=mixup, generator=seeded(), batch_size=16)
    expected = calibrate(net, data, branch_alone(), mixup=mixup, generator=seeded())
    torch.testing.assert_close(model(images), expected(images), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_in_the_order_of_the_data(form: str, net: Net, data: Data) -> None:
    weights = torch.linspace(0, 2, N)
    outputs, labels = extract(net, data)
    expected = TemperatureScaling().fit(outputs, labels, sample_weight=weights)
    given = FORMS[form](*data)
    model = calibrate(net, given, "ts", sample_weight=weights.tolist())
    assert isinstance(model.calibrator, TemperatureScaling)
    torch.testing.assert_close(model.calibrator.temperature, expected.temperature)
    plain = TemperatureScaling().fit(outputs, labels)
    assert (expected.temperature - plain.temperature).abs() > 1e-3


def test_weights_need_data_that_keep_their_order_and_a_method_that_takes_them(
    net: Net, data: Data
) -> None:
    loader = DataLoader(TensorDataset(*data), batch_size=16, shuffle=True)
    weights = torch.ones(N)
    with pytest.raises(ValueError, match=r"in the order of the data, .* a RandomSampler. Pass "):
        calibrate(net, loader, "ts", sample_weight=weights)
    batches = BatchSampler(RandomSampler(range(N)), 16, drop_last=False)
    loader = DataLoader(TensorDataset(*data), batch_sampler=batches)
    with pytest.raises(ValueError, match=r"^`sample_weight` must be in the order of the data"):
        calibrate(net, loader, "ts", sample_weight=weights)
    with pytest.raises(ValueError, match=r"^`sample_weight` must be None: this Param"):
        calibrate(net, None, "pts", sample_weight=weights)
    with pytest.raises(ValueError, match=rf"^`sample_weight` must have shape \({N},\)"):
        calibrate(net, data, "ts", sample_weight=weights[1:])


def test_inputs_of_a_shuffling_loader_keep_their_labels(net: Net) -> None:
    labels = torch.arange(N) % K
    images = torch.randn(N, 1, 6, 6, generator=seeded())
    images[:, 0, 0, 0] = labels.float()
    seen: list[Data] = []

    class Spy(SimplexTemperatureScaling):
        def fit(self, outputs: Any, labels: Any, *, mixup: Any = None, **rest: Any) -> Any:
            seen.append((mixup.samples, labels))
            return super().fit(outputs, labels, mixup=mixup, **rest)

    loader = DataLoader(
        TensorDataset(images, labels), batch_size=16, shuffle=True, generator=seeded()
    )
    calibrate(net, loader, Spy(n_steps=1, pool_size=10, likelihood_head=False), mixup="inputs")
    inputs, their_labels = seen[0]
    assert torch.equal(inputs[:, 0, 0, 0].long(), their_labels)
    assert not torch.equal(their_labels, labels)


@pytest.mark.parametrize("make", [branch_alone, METHODS["dirichlet-ts"]])
def test_mixed_inputs_run_through_the_network_and_leave_it_untouched(
    make: Callable[[], Calibrator], images: Tensor
) -> None:
    net = make_net()
    data, before = make_data(net), state(net)
    by_inputs = calibrate(net, data, make(), mixup="inputs", generator=seeded())
    assert state(net) == before
    assert not vars(by_inputs.backbone)["_forward_pre_hooks"]
    by_features = calibrate(net, data, make(), generator=seeded())
    assert not same(by_inputs.predict(images), by_features.predict(images))


def test_inputs_are_mixed_before_a_network_normalises_them_in_place(
    net: Net, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor] = []
    make = InputMixup.__init__

    def record(self: InputMixup, network: Any, inputs: Tensor, *others: Any) -> None:
        seen.append(inputs.clone())
        make(self, network, inputs, *others)

    monkeypatch.setattr(InputMixup, "__init__", record)
    inputs, labels = data
    before = inputs.clone()
    net.register_forward_pre_hook(lambda _, args: args[0].sub_(0.5).div_(2))
    calibrate(net, (inputs, labels), branch_alone(), mixup="inputs")
    assert torch.equal(inputs, before)
    assert torch.equal(seen[0], before)


def test_methods_that_need_no_mixup_samples_run_the_network_once(net: Net, data: Data) -> None:
    seen: list[int] = []
    with net.register_forward_pre_hook(lambda _, args: seen.append(len(args[0]))):
        calibrate(net, data, "ts", mixup="inputs", batch_size=50)
    assert seen == [50, N - 50]


def test_a_hugging_face_classifier_is_calibrated_as_it_is(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "dim": 8,
        "hidden_dim": 16,
        "n_heads": 2,
        "n_layers": 1,
        "vocab_size": 30,
        "max_position_embeddings": 10,
    }
    torch.manual_seed(0)
    net = transformers.DistilBertForSequenceClassification(
        transformers.DistilBertConfig(**sizes, num_labels=K)
    )
    net.classifier.weight.data *= 50
    text = {
        "input_ids": torch.randint(30, (N, 7)),
        "attention_mask": torch.ones(N, 7, dtype=torch.long),
    }
    rows = [{name: x[i] for name, x in text.items()} | {"labels": i % K} for i in range(N)]
    before = state(net.train())
    model = calibrate(net, DataLoader(rows, batch_size=16), branch_alone(), generator=seeded())  # type: ignore[arg-type]
    p = model.predict(text)
    assert state(net) == before
    with torch.no_grad():
        assert torch.equal(p.label, net.eval()(**text).logits.argmax(-1))
    model.save(tmp_path / "file")
    assert same(load(tmp_path / "file", net).predict(text), p)
    with pytest.raises(
        TypeError, match=r'Inputs must be one tensor to be mixed; got dict. Use mixup="features".'
    ):
        calibrate(net, DataLoader(rows), branch_alone(), mixup="inputs")  # type: ignore[arg-type]


def test_a_method_can_train_on_its_outputs_even_in_inference_mode(net: Net, data: Data) -> None:
    class FullBatch(TemperatureScaling):
        def _fit(self, task: Task) -> None:
            (task.outputs.logits * self.temperature).sum().backward()
            assert self.log_temperature.grad is not None

    with torch.inference_mode():
        calibrate(net, data, FullBatch())


@NEEDS_CUDA
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mixup", ["features", "inputs"])
def test_everything_happens_on_the_networks_device(
    method: str, mixup: str, images: Tensor, tmp_path: Path
) -> None:
    net = make_net()
    data = make_data(net)
    model = calibrate(net.cuda(), data, METHODS[method](), mixup=mixup, generator=seeded())
    p = model.predict(images)
    assert {
        x.device.type
        for x in (p.probs, p.label, p.confidence, *model.calibrator.state_dict().values())
    } == {"cuda"}
    model.save(tmp_path / "file")
    assert same(load(tmp_path / "file", net).predict(images), p)
    on_cpu = load(tmp_path / "file", net.cpu())
    assert (
        on_cpu.predict(images).probs.device.type == model.predict(images).probs.device.type == "cpu"
    )
    assert on_cpu.cuda().predict(images).probs.device.type == "cuda"


def test_a_fit_is_on_the_cpu_where_the_networks_device_has_no_float64() -> None:
    found = [_fit_device(torch.device(name)).type for name in ("mps", "cuda", "cpu")]
    assert found == ["cpu", "cuda", "cpu"]


@pytest.mark.parametrize("mixup", ["features", "inputs"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)])
def test_a_fit_on_the_cpu_serves_a_network_elsewhere(
    device: str, mixup: str, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def on_the_cpu(where: torch.device) -> torch.device:
        asked.append(where.type)
        return torch.device("cpu")

    monkeypatch.setattr("simplexcal.model._fit_device", on_the_cpu)
    net = make_net()
    data = make_data(net)
    model = calibrate(net.to(device), data, METHODS["sts"](), mixup=mixup, generator=seeded())
    assert asked == [device]
    assert model.predict(images).probs.device.type == device


# --- methods and errors ---


def test_a_key_makes_a_calibrator_and_a_calibrator_is_fitted_itself(net: Net, data: Data) -> None:
    assert type(calibrate(net, data, "ets").calibrator) is EnsembleTemperatureScaling
    ts = TemperatureScaling()
    assert calibrate(net, data, ts).calibrator is ts
    assert torch.equal(
        calibrate(net, data, "ts")(data[0]), (evaluated(net, data[0]) / ts.temperature).softmax(-1)
    )


def test_simplex_temperature_scaling_is_the_default(
    net: Net, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CALIBRATORS, "sts", branch_alone)
    p = calibrate(net, data, generator=seeded()).predict(data[0])
    assert same(
        p,
        calibrate(net, data, branch_alone(), mixup="features", generator=seeded()).predict(data[0]),
    )


@pytest.mark.parametrize("mixup", ["features", "inputs"])
@pytest.mark.parametrize("make", [METHODS["sts"], branch_alone, METHODS["dirichlet-ts"]])
def test_a_class_without_samples_is_left_out_with_a_warning(
    mixup: str, make: Callable[[], Calibrator], net: Net, data: Data
) -> None:
    few = (data[0], data[1].clamp_max(2))
    with pytest.warns(UserWarning, match=r"`labels` lack 1 class of 4: 3\. ") as warned:
        model = calibrate(net, few, make(), mixup=mixup)
    assert [warning.filename for warning in warned] == [__file__]
    source_line = Path(__file__).read_text().splitlines()[warned[0].lineno - 1]
    assert "calibrate(net, few" in source_line
    p = model.predict(data[0])
    assert p.probs.shape == (N, K)
    for value in vars(p).values():
        assert value is None or value.isfinite().all()


def test_a_method_that_is_nothing_without_mixup_says_so(net: Net, data: Data) -> None:
    with pytest.raises(ValueError, match="`mixup` must be given"):
        calibrate(net, data, METHODS["dirichlet-ts"](), mixup=None)
    with pytest.raises(ValueError, match=r"`mixup` must mix inputs or features: .* got LogitM"):
        calibrate(net, data, METHODS["dirichlet-ts"](), mixup="logits")


def just_inputs(x: Tensor) -> Iterator[Tensor]:
    yield from x.split(16)


BAD: list[tuple[Callable[[Tensor, Tensor], Any], dict[str, Any], type[Exception], str]] = [
    (
        lambda x, y: (x, y),
        {"method": "magic"},
        ValueError,
        r"`method` must be .* one of none, ts, .*, sts.*; got 'magic'.",
    ),
    (
        lambda x, y: (x, y),
        {"mixup": "x"},
        ValueError,
        r'`mixup` must be "features", "inputs", "logits" or None; got \'x\'.',
    ),
    (
        lambda x, y: (x, y),
        {"head": "fc"},
        ValueError,
        r"`head` must name a layer of the network; got 'fc'. .*",
    ),
    (
        lambda x, y: (x, y + 1),
        {},
        ValueError,
        r"`labels` must be in 0..3 .*; found 4 .* Your labels start at 1: .*",
    ),
    (
        lambda x, y: (x, 0 * y),
        {},
        ValueError,
        r"`labels` must hold at least two classes; all 80 are class 0. .*",
    ),
    (
        lambda x, y: (x * float("nan"), y),
        {},
        ValueError,
        r"`logits` must be finite; found nan at position .*",
    ),
    (
        lambda x, y: DataLoader(TensorDataset(x)),
        {},
        ValueError,
        r"`data` must come with labels, .*; got a list of 1.",
    ),
    (
        lambda x, y: just_inputs(x),
        {},
        ValueError,
        r"`data` must come with labels, .*; got a Tensor.",
    ),
    (lambda x, y: iter(()), {}, ValueError, r"`data` is empty. .*"),
    (lambda x, y: 7, {}, TypeError, r"`data` must be a DataLoader, Dataset or pair .*; got int."),
    (
        lambda x, y: (x, y.float()),
        {},
        TypeError,
        r"`labels` must be integers; got torch.float32. .*",
    ),
]


@pytest.mark.parametrize(("make", "settings", "error", "message"), BAD)
def test_nonsense_gets_one_clear_sentence(
    make: Callable[[Tensor, Tensor], Any],
    settings: dict[str, Any],
    error: type[Exception],
    message: str,
    net: Net,
) -> None:
    before = state(net)
    x, y = torch.randn(N, 1, 6, 6), torch.arange(N) % K
    for mixup in ("features", "inputs", None):
        with pytest.raises(error, match=f"^{message}$"):
            calibrate(net, make(x, y), **{"mixup": mixup, "generator": seeded()} | settings)
    assert state(net) == before


def test_only_inputs_of_one_shape_and_a_float_dtype_are_mixed() -> None:
    net = nn.Sequential(nn.AdaptiveAvgPool1d(3), nn.Linear(3, 2))
    y = torch.tensor([0, 1])
    batches = [(torch.zeros(2, 5), y), (torch.zeros(2, 4), y)]
    with pytest.raises(
        ValueError,
        match=r"Inputs must be of one shape to be mixed; got \(5,\) and \(4,\). Use mixup=",
    ):
        calibrate(net, batches, METHODS["sts"](), mixup="inputs")
    tokens = nn.Sequential(nn.EmbeddingBag(5, 3), nn.Linear(3, 2))
    with pytest.raises(
        TypeError, match=r"`inputs` must be .*floating-point.* to be mixed; got torch.int64"
    ):
        calibrate(
            tokens, (torch.zeros(2, 4, dtype=torch.long), y), METHODS["sts"](), mixup="inputs"
        )


@pytest.mark.parametrize("mixup", ["features", "inputs"])
def test_a_weight_that_changes_when_it_is_read_is_left_alone(mixup: str) -> None:
    torch.manual_seed(0)
    head = nn.utils.parametrizations.spectral_norm(nn.Linear(D, K))
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, D), nn.ReLU(), head).train()
    x, y = make_data(net)
    before = state(net)
    calibrate(net, (x, y), METHODS["sts"](), mixup=mixup, generator=seeded())
    assert state(net) == before


@pytest.mark.parametrize("mixup", ["features", "inputs"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_works_where_tensors_are_double_by_default(method: str, mixup: str) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        net = make_net()
        x, y = make_data(net)
        assert (
            calibrate(net, (x, y), METHODS[method](), mixup=mixup, generator=seeded())(x)
            .isfinite()
            .all()
        )
    finally:
        torch.set_default_dtype(torch.float32)


def test_double_arrays_are_mixed_in_the_dtype_of_the_network(net: Net, data: Data) -> None:
    arrays = data[0].numpy().astype(np.float64), data[1].numpy()
    assert calibrate(net, arrays, branch_alone(), mixup="inputs")(arrays[0]).isfinite().all()


def test_read_only_arrays_are_mixed_without_a_warning(net: Net, data: Data) -> None:
    arrays = [x.numpy().copy() for x in data]
    for x in arrays:
        x.flags.writeable = False
    assert calibrate(net, tuple(arrays), branch_alone(), mixup="inputs")(data[0]).isfinite().all()


def test_the_evaluation_of_a_model_has_both_sides_and_paired_tests() -> None:
    net = make_net()
    images, labels = make_data(net, 300)
    model = calibrate(net, (images[:150], labels[:150]), "ts")
    test = TensorDataset(images[150:], labels[150:])
    found = model.evaluate(DataLoader(test, 40), n_bins=5)
    outputs = Outputs(evaluated(net, images[150:]))
    before = Uncalibrated()(outputs)
    after = model.calibrator(outputs)
    assert found.before.as_dict() == pytest.approx(evaluate(before, labels[150:], 5).as_dict())
    assert found.after.as_dict() == pytest.approx(evaluate(after, labels[150:], 5).as_dict())
    for score in ("ece", "nll", "brier"):
        change = getattr(found.after, score) - getattr(found.before, score)
        assert getattr(found, score).mean == pytest.approx(change, abs=1e-6)
    rows = torch.arange(150)
    gain = (after.probs / before.probs)[rows, labels[150:]].double().log()
    z = gain.mean() / gain.std(correction=0) * 150**0.5
    assert found.nll.p_value == pytest.approx(2 * NormalDist().cdf(-abs(z.item())), rel=1e-4)
    assert found.nll.low < found.nll.mean < found.nll.high
    assert found == model.evaluate(test, n_bins=5)
    text = str(found)
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 80
    assert text.endswith(found.verdict)
    assert f"{found.after.nll:.4f} | {found.nll.mean:+.4f}" in text


def test_an_evaluation_without_calibration_finds_no_change() -> None:
    net = make_net()
    data = make_data(net)
    with pytest.warns(UserWarning, match="These data are the ones that the calibrator was fitted"):
        found = calibrate(net, data, "none").evaluate(data)
    assert found.before == found.after
    assert found.ece.p_value == found.nll.p_value == found.brier.p_value == 1


def test_an_evaluation_needs_labels() -> None:
    net = make_net()
    images, labels = make_data(net)
    model = calibrate(net, (images, labels), "ts")
    with pytest.raises(ValueError, match=r"^`data` must come with labels"):
        model.evaluate(images)


def test_a_model_says_what_its_fit_has_achieved(tmp_path: Path) -> None:
    net = make_net()
    images, labels = make_data(net)
    model = calibrate(net, (images, labels), "ts")
    before = cross_entropy(evaluated(net, images), labels)
    after = evaluate(model.predict(images), labels).nll
    temperature = f"T = {model.calibrator.global_temperature:.4g}"
    start = f"CalibratedModel(TS, {K} classes, {temperature}"
    assert repr(model) == (
        f"{start}, NLL {before:.4f} -> {after:.4f} on the {N} inputs of the fit)"
    )
    model.save(tmp_path / "file")
    assert repr(load(tmp_path / "file", net)) == repr(model)
    assert repr(CalibratedModel(Backbone(net), TemperatureScaling())) == (
        "CalibratedModel(TS, not fitted)"
    )


class Listed:
    """A dataset that is none of torch's, such as those of Hugging Face."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.images[i], self.labels[i]


LABELLED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "pair": lambda x, y: (x, y),
    "pair as a list": lambda x, y: [x, y],
    "arrays": lambda x, y: (x.numpy(), y.numpy()),
    "list of labels": lambda x, y: (x, y.tolist()),
    "lists": lambda x, y: (x.tolist(), y.tolist()),
    "lists in a list": lambda x, y: [x.tolist(), y.tolist()],
    "inputs as a list": lambda x, y: x.tolist(),
    "list of samples": lambda x, y: list(zip(x, y, strict=True)),
    "list of samples with numbers": lambda x, y: list(zip(x, y.tolist(), strict=True)),
    "list of batches of lists": lambda x, y: [
        (x[:20].tolist(), y[:20].tolist()),
        (x[20:].tolist(), y[20:].tolist()),
    ],
    "column": lambda x, y: (x, pd.Series(y.numpy())),
    "dataset": TensorDataset,
    "dataset of a kind of its own": Listed,
    "loader": lambda x, y: DataLoader(TensorDataset(x, y), 7),
    "loader without labels": lambda x, y: DataLoader(TensorDataset(x), 7),
    "list of batches": lambda x, y: [(x[:20], y[:20]), (x[20:], y[20:])],
    "iterator of batches": lambda x, y: iter([(x[:20], y[:20]), (x[20:], y[20:])]),
    "iterator of inputs": lambda x, y: iter([x[:20], x[20:]]),
}


@pytest.mark.parametrize("kind", LABELLED)
def test_predict_takes_what_calibrate_takes_and_ignores_the_labels(kind: str) -> None:
    net = make_net()
    images, labels = make_data(net)
    model = calibrate(net, (images, labels), "ts")
    given = LABELLED[kind](images, labels)
    p = model.predict(given, batch_size=30)
    torch.testing.assert_close(p.probs, model.predict(images).probs)
    assert torch.equal(p.label, evaluated(net, images).argmax(-1))


@pytest.mark.parametrize("kind", [kind for kind in LABELLED if "inputs" not in kind])
def test_calibrate_and_evaluate_take_what_predict_takes(kind: str) -> None:
    if kind == "loader without labels":
        pytest.skip("It has no labels.")
    net = make_net()
    images, labels = make_data(net)
    model = calibrate(net, LABELLED[kind](images, labels), "ts", batch_size=30)
    expected = calibrate(net, (images, labels), "ts")
    torch.testing.assert_close(model.predict(images).probs, expected.predict(images).probs)
    test = make_data(net, seed=1)
    found = model.evaluate(LABELLED[kind](*test), batch_size=30)
    assert found.after.nll == pytest.approx(expected.evaluate(test).after.nll, rel=1e-5)


class Two(nn.Module):
    """Takes two inputs, the second of which is one integer for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(K, D)
        self.classifier = nn.Linear(D, K)

    def forward(self, x: Tensor, kind: Tensor) -> Tensor:
        logits: Tensor = self.classifier(x + self.embed(kind))
        return logits


def test_two_inputs_of_a_network_are_no_labels() -> None:
    torch.manual_seed(0)
    net = Two()
    x = torch.randn(40, D)
    kind = torch.randint(K, (40,))
    labels = net(x, kind).softmax(-1).multinomial(1).squeeze(1)
    model = calibrate(net, ((x, kind), labels), "ts")
    expected = model.calibrator(net(x, kind)).probs
    named = {"x": x, "kind": kind}
    for data in ((x, kind), ((x, kind), labels), named, {**named, "labels": labels}):
        torch.testing.assert_close(model.predict(data).probs, expected)
    batches = [{**named, "labels": labels}, {**named, "labels": labels}]
    torch.testing.assert_close(model.predict(batches).probs, torch.cat([expected, expected]))


def test_what_holds_no_inputs_gets_one_clear_sentence() -> None:
    net = make_net()
    model = calibrate(net, make_data(net), "ts")
    with pytest.raises(ValueError, match=r"^`x` is empty. Pass at least one batch; "):
        model.predict(iter([]))
    with pytest.raises(TypeError, match=r"^`x` must be a tensor, .*; got int\.$"):
        model.predict(3)


@pytest.mark.parametrize("head", [None, "2"])
def test_a_network_that_cannot_have_the_classes_is_an_error_when_loaded(
    head: str | None, tmp_path: Path
) -> None:
    logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.5], [0.0, 0.0, 3.0], [0.0, 2.0, 0.0]])
    path = tmp_path / "ts.safetensors"
    TemperatureScaling().fit(logits.repeat(9, 1), torch.tensor([0, 1, 2, 0]).repeat(9)).save(path)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    expected = r"is for 3 classes; `net` has no layer with so many outputs\."
    with pytest.raises(ValueError, match=expected):
        load(path, net, head=head)
    # A layer inside may have as many outputs; only a named head is known.
    inner = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    load(path, inner)
    with pytest.raises(ValueError, match=r"is for 3 classes"):
        load(path, inner, head="2")


def test_labels_in_the_place_of_the_method_are_named_in_one_line() -> None:
    net = make_net()
    images, labels = make_data(net)
    with pytest.raises(TypeError, match=r"got Tensor\. .* calibrate\(net, \(inputs, labels\)\)\.$"):
        calibrate(net, images, labels)  # type: ignore[arg-type]


# --- one logit, and functions ---


def binary_net() -> Any:
    torch.manual_seed(0)
    net: Any = nn.Sequential(nn.Linear(3, D), nn.ReLU(), nn.Linear(D, 1))
    net[2].weight.data *= 8
    return net


def binary_data(net: nn.Module, seed: int = 0) -> Data:
    generator = Generator().manual_seed(seed)
    x = torch.randn(N, 3, generator=generator)
    p = evaluated(net, x).flatten().sigmoid()
    return x, p.bernoulli(generator=generator).long()


BINARY_LABELS: dict[str, Callable[[Tensor], Any]] = {
    "floats (N,)": lambda y: y.float(),
    "floats (N, 1)": lambda y: y[:, None].double(),
    "bools": lambda y: y.bool(),
    "integers (N, 1)": lambda y: y[:, None],
    "array of floats": lambda y: y.float().numpy(),
    "list": lambda y: y.tolist(),
}


@pytest.mark.parametrize("method", METHODS)
def test_one_logit_is_a_classifier_of_two_classes(method: str, tmp_path: Path) -> None:
    net = binary_net()
    x, y = binary_data(net)
    z = evaluated(net, x).flatten()
    model = calibrate(net, (x, y), METHODS[method](), generator=seeded())
    two: Any = nn.Sequential(*net[:2], nn.Linear(D, 2))
    two[2].weight.data = torch.cat([torch.zeros(1, D), net[2].weight.data])
    two[2].bias.data = torch.cat([torch.zeros(1), net[2].bias.data])
    p = model.predict(x)
    if method in KEEPING:
        assert torch.equal(p.label, (z > 0).long())
    # Tolerance: a product with one row and one with two differ by rounding, and so do their fits.
    expected = calibrate(two, (x, y), METHODS[method](), generator=seeded()).predict(x)
    torch.testing.assert_close(p.probs, expected.probs, rtol=0, atol=1e-3)
    model.save(tmp_path / "file")
    assert same(load(tmp_path / "file", copy.deepcopy(net)).predict(x), p)
    test = binary_data(net, seed=1)
    if method in KEEPING:
        assert model.evaluate(test).after.accuracy == model.evaluate(test).before.accuracy
    assert model.threshold((test[0], test[1].float()), coverage=0.5).promise == "coverage"


@pytest.mark.parametrize("form", BINARY_LABELS)
def test_zeros_and_ones_of_any_type_are_labels_of_one_logit(form: str) -> None:
    net = binary_net()
    x, y = binary_data(net)
    expected = calibrate(net, (x, y), "ts")
    given = (x, BINARY_LABELS[form](y))
    model = calibrate(net, given, "ts")
    assert same(model.predict(given), expected.predict(x))
    if isinstance(given[1], Tensor):
        loader = DataLoader(TensorDataset(*given), batch_size=30)
        loaded = calibrate(net, loader, "ts")
        torch.testing.assert_close(loaded.predict(loader).probs, expected.predict(x).probs)


def test_a_logit_of_exactly_zero_is_class_0_and_one_input_may_be_squeezed() -> None:
    class Squeezed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.fc(x).squeeze()
            return logits

    torch.manual_seed(0)
    net = Squeezed()
    x, y = binary_data(net)
    model = calibrate(net, (x, y), "ts", batch_size=N - 1)
    zero = model.predict(torch.zeros(1, 3))
    assert zero.label.tolist() == [0]
    assert zero.probs.tolist() == [[0.5, 0.5]]


def test_probabilities_of_class_1_are_announced() -> None:
    net = binary_net()
    x, y = binary_data(net)
    sigmoid = nn.Sequential(net, nn.Sigmoid())
    for method in ("ts", "sts"):
        with pytest.raises(ValueError, match=r"^`net` must return logits; its one .* probs=True"):
            calibrate(sigmoid, (x, y), METHODS[method]())
    found = calibrate(sigmoid, (x, y), "ts", probs=True).predict(x)
    expected = calibrate(net, (x, y), "ts").predict(x)
    torch.testing.assert_close(found.probs, expected.probs, rtol=0, atol=1e-4)
    assert torch.equal(found.label, expected.label)


def test_labels_between_the_classes_and_multi_label_ones_are_errors() -> None:
    net = binary_net()
    x, y = binary_data(net)
    with pytest.raises(TypeError, match=r"`labels` must be integers; got torch\.float32"):
        calibrate(net, (x, 0.9 * y), "ts")
    many = nn.Linear(3, K)
    with pytest.raises(ValueError, match=r"Multi-label classification is not supported"):
        calibrate(many, (x, torch.ones(N, K)), "ts")


class Estimator:
    """What a scikit-learn classifier has."""

    def __init__(self) -> None:
        self.weight = np.random.default_rng(0).normal(size=(3, K))

    def decision_function(self, x: Any) -> Any:
        assert isinstance(x, np.ndarray)
        return x @ self.weight

    def predict_proba(self, x: Any) -> Any:
        e = np.exp(self.decision_function(x))
        return e / e.sum(-1, keepdims=True)


def from_torch(x: Tensor) -> Tensor:
    assert isinstance(x, Tensor)
    return x @ torch.from_numpy(Estimator().weight)


FUNCTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "arrays to logits": (Estimator().decision_function, {}),
    "arrays to probabilities": (Estimator().predict_proba, {"probs": True}),
    "tensors": (from_torch, {}),
    "method of a network": (nn.Linear(3, K, dtype=torch.float64).forward, {}),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("method", ["ts", "sts"])
def test_a_function_is_calibrated_by_its_logits(name: str, method: str, tmp_path: Path) -> None:
    function, settings = FUNCTIONS[name]
    x: Any = torch.randn(3 * N, 3, generator=Generator().manual_seed(0), dtype=torch.float64)
    if name.startswith("arrays"):
        x = x.numpy()
    outputs = Backbone(function, **settings)(x)
    assert outputs.features is None
    y = outputs.logits.softmax(-1).multinomial(1, generator=seeded()).squeeze(1)
    model = calibrate(function, (x[:N], y[:N]), METHODS[method](), **settings)
    p = model.predict(x)
    assert torch.equal(p.label, outputs.logits.argmax(-1))
    expected = METHODS[method]().fit(outputs[:N], y[:N])(outputs)
    torch.testing.assert_close(p.probs, expected.probs, rtol=0, atol=1e-9)
    assert model.evaluate((x[N:], y[N:])).after.n == 2 * N
    model.threshold((x[N:], y[N:]), coverage=0.5)
    model.save(tmp_path / "file")
    assert same(load(tmp_path / "file", function, **settings).predict(x), model.predict(x))
    assert load_calibrator(tmp_path / "file")[1]["fingerprint"] is None
    with pytest.raises(
        TypeError, match=r"^`net` must be a torch.nn.Module to be exported; .*tor, "
    ):
        model.to_onnx(tmp_path / "net.onnx", x)


def test_what_a_function_cannot_do_gets_one_clear_sentence() -> None:
    x = np.random.default_rng(0).normal(size=(N, 3))
    y = np.arange(N) % K
    estimator = Estimator()
    with pytest.raises(ValueError, match=r"^`net` must return logits, .* Pass probs=True, or"):
        calibrate(estimator.predict_proba, (x, y), "ts")
    for settings in ({"method": "adats"}, {"mixup": "inputs"}):
        with pytest.raises(ValueError, match=r"^`net` must be a torch.nn.Module that returns log"):
            calibrate(estimator.decision_function, (x, y), **settings)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^`net` must be a torch.nn.Module, or .*; got Estimator"):
        calibrate(estimator, (x, y), "ts")  # type: ignore[arg-type]
