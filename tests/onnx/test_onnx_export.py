"""onnxruntime against torch, for every method; and what an export must leave alone, refuse and
say."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from helpers.methods import METHODS, state
from helpers.quick_branches import quick_branches
from torch import Generator, Tensor, nn

import simplexcal
from simplexcal._validation import NotFittedError
from simplexcal.backbone import Backbone
from simplexcal.calibrators import (
    Calibrator,
    DirichletTemperatureScaling,
    SimplexTemperatureScaling,
    TemperatureScaling,
    Uncalibrated,
)
from simplexcal.concrete import Concrete, moments_of_mean
from simplexcal.demo.lenet5 import normalise
from simplexcal.demo.run import Data, prepare
from simplexcal.io import save_calibrator
from simplexcal.mixup import FeatureMixup
from simplexcal.model import CalibratedModel
from simplexcal.onnx import converter, export_calibrator, export_model
from simplexcal.types import Outputs, Prediction

ALL = METHODS | {
    "dirichlet-ts": lambda: DirichletTemperatureScaling(n_steps=20, widths=(8,), batch_size=10),
    "sts, the branch alone": lambda: SimplexTemperatureScaling(
        n_steps=20, pool_size=200, widths=(8,), likelihood_head=False
    ),
}
FEATURES = 12


@pytest.fixture(autouse=True, scope="module")
def _quick_branches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        quick_branches(patch, 20)
        yield


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def run(path: Path, **inputs: Tensor) -> dict[str, Tensor]:
    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    results = session.run(names, {name: x.numpy() for name, x in inputs.items()})
    return {name: torch.from_numpy(np.asarray(x)) for name, x in zip(names, results, strict=True)}


def assert_same(
    got: dict[str, Tensor],
    expected: Prediction,
    atol: float = 1e-5,
    rtol_epistemic: float | None = None,
) -> None:
    rtol = rtol_epistemic or atol
    assert torch.equal(got["label"], expected.label)
    assert torch.equal(got["probs"].argmax(-1), expected.label)
    for name in ("probs", "confidence", "aleatoric"):
        if name in got:
            torch.testing.assert_close(got[name], getattr(expected, name), rtol=0, atol=atol)
    if "epistemic" in got:
        torch.testing.assert_close(got["epistemic"], expected.epistemic, rtol=rtol, atol=atol)
    if "mutual_information" in got:
        mutual_information = got["mutual_information"]
        torch.testing.assert_close(
            mutual_information, expected.mutual_information, rtol=0, atol=2 * atol
        )
    for name in ("aleatoric", "epistemic", "mutual_information"):
        assert (name in got) == (getattr(expected, name) is not None)
    assert ("accepted" in got) == (expected.accepted is not None)


# --- network and calibrator in one graph ----------------------------------------------------------


class Case(NamedTuple):
    method: str
    model: CalibratedModel
    path: Path
    states: tuple[Any, Any]  # of network and calibrator before the export


@pytest.fixture(scope="module")
def data() -> Data:
    return prepare()


@pytest.fixture(scope="module")
def images(data: Data) -> Tensor:
    return normalise(data.test_images[:1000])


@pytest.fixture(scope="module", params=ALL)
def case(
    request: pytest.FixtureRequest,
    data: Data,
    images: Tensor,
    tmp_path_factory: pytest.TempPathFactory,
) -> Case:
    mixup = FeatureMixup(data.backbone.head, data.fit, data.fit_labels)
    rows = slice(0, 1500)
    calibrator = ALL[request.param]().fit(
        data.fit[rows], data.fit_labels[rows], mixup=mixup, generator=seeded()
    )
    calibrator.threshold(data.fit[1500:2500], coverage=0.7)
    data.backbone.net.train()
    states = (state(data.backbone.net), state(calibrator))
    path = tmp_path_factory.mktemp("graph") / "net.onnx"
    model = CalibratedModel(data.backbone, calibrator)
    model.to_onnx(path, images[:1])  # one row, which torch would take for a constant
    return Case(request.param, model, path, states)


def test_onnxruntime_says_what_torch_says_of_1000_images(case: Case, images: Tensor) -> None:
    expected = case.model.predict(images, batch_size=1000)
    # For a saturated input float32 has one digit of ln(-ln max p), which the likelihood head reads.
    # So small probabilities differ by 1e-4 of themselves, and with them their logarithms.
    rtol = 1e-5
    if case.method == "sts":
        rtol = 1e-4
    got = run(case.path, inputs=images)
    assert_same(got, expected, rtol_epistemic=rtol)
    for batch in (images[:257], images[999:]):
        assert_same(run(case.path, inputs=batch), case.model.predict(batch), rtol_epistemic=rtol)


def test_the_uncertainties_of_the_graph_belong_to_its_probabilities(
    case: Case, images: Tensor
) -> None:
    if case.method != "sts":
        pytest.skip("The method has no head and branch.")
    got = run(case.path, inputs=images)
    sts = cast(SimplexTemperatureScaling, case.model.calibrator)
    temperature = sts._temperature(case.model.backbone(images))
    exact = moments_of_mean(got["probs"].double(), temperature.double())
    close = partial(torch.testing.assert_close, check_dtype=False, atol=1e-5)
    close(got["epistemic"], exact.entropy, rtol=1e-5)
    close(got["aleatoric"], exact.expected_entropy, rtol=0)
    close(got["mutual_information"], exact.mutual_information, rtol=0)


def test_what_the_threshold_accepts_is_an_output(case: Case, images: Tensor) -> None:
    expected = case.model.predict(images, batch_size=1000)
    threshold = case.model.thresholds["coverage"]
    accepted = run(case.path, inputs=images)["accepted"]
    assert accepted.dtype == torch.bool
    assert 0.5 < accepted.double().mean() < 0.9
    # Only a confidence at the threshold may round to the other side of it.
    differs = accepted != expected.accepted
    assert (expected.confidence[differs] - threshold.value).abs().le(1e-5).all()
    metadata = {e.key: e.value for e in onnx.load(case.path).metadata_props}
    assert metadata["threshold_coverage"] == str(threshold)


def test_an_export_leaves_network_and_calibrator_as_they_were(case: Case) -> None:
    assert (state(case.model.backbone.net), state(case.model.calibrator)) == case.states


def test_the_file_is_valid_whole_and_says_what_it_is(case: Case) -> None:
    assert [path.name for path in case.path.parent.iterdir()] == ["net.onnx"]
    model = onnx.load(case.path, load_external_data=False)
    onnx.checker.check_model(model, full_check=True)
    assert (model.producer_name, model.producer_version) == ("simplexcal", simplexcal.__version__)
    facts = {entry.key: entry.value for entry in model.metadata_props}
    assert facts["method"] == case.method.partition(",")[0]
    assert facts["fingerprint"] == case.model.backbone.fingerprint()
    shape = model.graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in shape] == ["batch", 1, 28, 28]
    assert [x.name for x in model.graph.output] == list(
        run(case.path, inputs=torch.zeros(1, 1, 28, 28))
    )
    assert str(Path(simplexcal.__file__).parent).encode() not in case.path.read_bytes()


def test_onnxruntime_has_nothing_to_say_about_the_file(
    case: Case, capfd: pytest.CaptureFixture[str]
) -> None:
    run(case.path, inputs=torch.zeros(3, 1, 28, 28))
    assert capfd.readouterr() == ("", "")


def test_the_names_are_in_the_promised_order(case: Case) -> None:
    names = ["label", "probs", "confidence", "accepted"]
    if case.model.calibrator.has_uncertainties:
        names += ["aleatoric", "epistemic", "mutual_information"]
    assert list(run(case.path, inputs=torch.zeros(2, 1, 28, 28))) == names


NAMES = ["no", 'maybe, "ça va"', "是"]


def metadata_of(path: Path) -> dict[str, str]:
    metadata: dict[str, str] = (
        onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map
    )
    return metadata


@pytest.mark.parametrize("names", [NAMES, tuple(NAMES), np.array(NAMES)])
def test_the_names_of_the_classes_are_metadata(names: Any, tmp_path: Path) -> None:
    path = tmp_path / "names.onnx"
    calibrator = Uncalibrated().fit(Outputs(torch.eye(3)), torch.arange(3))
    export_calibrator(calibrator, path, class_names=names)
    metadata = metadata_of(path)
    assert json.loads(metadata["class_names"]) == NAMES
    assert (metadata["method"], metadata["simplexcal"]) == ("none", simplexcal.__version__)
    CalibratedModel(Backbone(nn.Linear(4, 3)), calibrator).to_onnx(
        path, torch.zeros(1, 4), class_names=names
    )
    assert json.loads(metadata_of(path)["class_names"]) == NAMES


def test_class_names_are_one_for_each_class(tmp_path: Path) -> None:
    path = tmp_path / "names.onnx"
    calibrator = Uncalibrated().fit(Outputs(torch.eye(3)), torch.arange(3))
    with pytest.raises(ValueError, match=r"`class_names` must name all 3 classes.*got 2\."):
        export_calibrator(calibrator, path, class_names=["no", "yes"])
    with pytest.raises(TypeError, match=r"`class_names` must be a list of 3 names; got the text"):
        export_calibrator(calibrator, path, class_names="abc")
    assert not path.exists()
    export_calibrator(calibrator, path)
    assert "class_names" not in metadata_of(path)


# --- the calibrator alone -------------------------------------------------------------------------


def fitted(method: str, k: int, dtype: torch.dtype = torch.float32) -> Calibrator:
    n = max(3 * k, 300)
    head = nn.Linear(FEATURES, k, dtype=dtype).requires_grad_(False)
    head.weight.copy_(torch.randn(k, FEATURES, generator=seeded(1)))
    head.bias.zero_()
    features = torch.randn(n, FEATURES, generator=seeded(2), dtype=dtype)
    outputs, labels = Outputs(head(features), features), torch.arange(n) % k
    likely = outputs.label.where(torch.rand(n, generator=seeded(3)) < 0.6, labels)
    likely[:k] = torch.arange(k)  # every class is there
    return ALL[method]().fit(
        outputs, likely, mixup=FeatureMixup(head, outputs, likely), generator=seeded()
    )


def rows(k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """257 rows: ordinary ones, and the extremes."""
    logits = 3 * torch.randn(257, k, generator=seeded(4), dtype=dtype)
    logits[:5] = 0.0
    logits[5:10, :2] = 30.0  # a tie at the top
    logits[10:15] = torch.where(torch.rand(5, k, generator=seeded(5)) < 0.5, 1e4, -1e4).to(dtype)
    logits[15:20] *= 1e4
    logits[20:25] = 100 * torch.nn.functional.one_hot(torch.arange(5) % k, k).to(dtype)  # saturated
    logits[25:30] = -1e4
    step = torch.tensor(torch.inf, dtype=dtype)
    logits[30:35, -1] = (
        logits[30:35].amax(-1).nextafter(step)
    )  # ahead by one rounding step, which no softmax sees
    logits[16:19] *= torch.tensor([[1e6], [1e16], [1e33]], dtype=dtype)
    logits[25] += 2.0**30
    return logits, torch.randn(257, FEATURES, generator=seeded(6), dtype=dtype)


def check_alone(
    calibrator: Calibrator, path: Path, k: int, dtype: torch.dtype, atol: float
) -> None:
    written = export_calibrator(calibrator, path, dtype=dtype)
    logits, features = rows(k, dtype)
    given = {"logits": logits, "features": features}
    for part in (slice(None), slice(7, 8), slice(100, 101)):
        got = run(path, **{name: given[name][part] for name in written.inputs})
        assert got["probs"].dtype == dtype
        assert_same(got, calibrator(Outputs(logits[part], features[part])), atol)
    assert ("features" in written.inputs) == (calibrator_uses_features(written.method))


def calibrator_uses_features(method: str) -> bool:
    return method in ("adats", "dirichlet-ts", "sts")


# The graph of STS takes seconds to export; that of 10 classes is tested above, with a network.
@pytest.mark.parametrize(
    ("k", "method"),
    [
        pytest.param(k, name, marks=[pytest.mark.slow] * (k == 10 and name.startswith("sts")))
        for k in (2, 10, 1000)
        for name in ALL
        if (k, name) != (1000, "dirichlet")  # whose fit has a million parameters
    ],
)
def test_a_calibrator_alone_takes_logits_however_extreme(
    method: str, k: int, tmp_path: Path
) -> None:
    check_alone(fitted(method, k), tmp_path / "file.onnx", k, torch.float32, 1e-5)


@pytest.mark.parametrize("method", ["ts", "adats", "sts"])
def test_float64_logits_keep_their_digits(method: str, tmp_path: Path) -> None:
    check_alone(
        fitted(method, 10), tmp_path / "file.onnx", 10, torch.float64, 1e-6
    )  # T itself is a float32


def test_without_mixes_the_head_answers_and_no_features_are_asked_for(tmp_path: Path) -> None:
    logits, features = rows(10, torch.float32)
    outputs = Outputs(logits[35:], features[35:])
    labels = outputs.label.where(
        torch.arange(len(outputs)) % 3 > 0, torch.arange(len(outputs)) % 10
    )
    calibrator = METHODS["sts"]().fit(outputs, labels, generator=seeded())
    written = export_calibrator(calibrator, tmp_path / "file.onnx")
    assert written.inputs == ["logits"]
    assert_same(run(tmp_path / "file.onnx", logits=logits), calibrator(Outputs(logits, features)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_largest_logit_keeps_the_strictly_largest_probability(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    calibrator = fitted("sts, the branch alone", 10)
    export_calibrator(calibrator, tmp_path / "file.onnx", dtype=dtype)
    logits = torch.randn(500, 10, generator=seeded(), dtype=dtype)
    top = logits.argmax(-1, keepdim=True)
    next_to = (top + 1) % 10
    logits.scatter_(
        1, next_to, logits.gather(1, top).nextafter(torch.tensor(-torch.inf, dtype=dtype))
    )
    features = torch.randn(500, FEATURES, generator=seeded(), dtype=dtype)
    probs = run(tmp_path / "file.onnx", logits=logits, features=features)["probs"]
    assert (probs.gather(1, top) > probs.gather(1, next_to)).all()


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        ("ts", torch.float32),
        ("ts", torch.float64),
        pytest.param("sts", torch.float32, marks=pytest.mark.slow),
    ],
)
def test_the_label_is_the_most_probable_class_where_logits_are_one_step_apart(
    method: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    calibrator = fitted(method, 3)
    written = export_calibrator(calibrator, tmp_path / "file.onnx", dtype=dtype)
    logits = torch.randn(2000, 3, generator=seeded(), dtype=dtype)
    logits[:, 0] = logits[:, 1].nextafter(torch.tensor(-torch.inf, dtype=dtype))
    features = torch.randn(2000, FEATURES, generator=seeded(1), dtype=dtype)
    given = {"logits": logits, "features": features}
    got = run(tmp_path / "file.onnx", **{name: given[name] for name in written.inputs})
    assert torch.equal(got["probs"].argmax(-1), logits.argmax(-1))
    assert torch.equal(got["probs"].amax(-1), got["confidence"])


def test_the_same_calibrator_gives_the_same_bytes(tmp_path: Path) -> None:
    calibrator = fitted("ts", 3)
    for name in "ab":
        export_calibrator(calibrator, tmp_path / name, fingerprint="f")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert [
        e.value for e in onnx.load(tmp_path / "a").metadata_props if e.key == "fingerprint"
    ] == ["f"]


# --- the moments ----------------------------------------------------------------------------------


class Moments(nn.Module):
    def forward(self, tensors: list[Tensor]) -> tuple[Tensor, ...]:
        logits, temperature = tensors
        m = Concrete(logits, temperature, validate_args=False).moments()
        return m.mean, m.expected_entropy, m.entropy


# With 1000 classes one of the 257 000 float32 means is off by 3.3e-6.
@pytest.mark.parametrize(
    ("k", "dtype", "atol"),
    [
        pytest.param(2, torch.float32, 1e-6, marks=pytest.mark.slow),
        (10, torch.float32, 1e-6),
        pytest.param(1000, torch.float32, 1e-5, marks=pytest.mark.slow),
        pytest.param(2, torch.float64, 1e-11, marks=pytest.mark.slow),
        (10, torch.float64, 1e-11),
        pytest.param(1000, torch.float64, 1e-11, marks=pytest.mark.slow),
    ],
)
def test_onnxruntime_has_the_moments_of_concrete(
    k: int, dtype: torch.dtype, atol: float, tmp_path: Path
) -> None:
    logits = rows(k, dtype)[0]
    temperature = (4 * torch.randn(257, generator=seeded(), dtype=dtype)).exp().clamp(1e-6, 1e6)
    temperature[0] = 1.0
    tensors = {"logits": logits, "temperature": temperature}
    model = converter.convert(Moments(), tensors, ("mean", "expected_entropy", "entropy"), (0,))
    (tmp_path / "file.onnx").write_bytes(model.SerializeToString())
    got = run(tmp_path / "file.onnx", **tensors)
    expected = Concrete(logits, temperature).moments()
    torch.testing.assert_close(got["mean"], expected.mean, rtol=0, atol=atol)
    torch.testing.assert_close(
        got["expected_entropy"], expected.expected_entropy, rtol=atol, atol=atol
    )
    torch.testing.assert_close(got["entropy"], expected.entropy, rtol=atol, atol=atol)


# --- other networks -------------------------------------------------------------------------------


def model_of(net: nn.Module, method: str, *inputs: Any) -> CalibratedModel:
    """Return a calibrated model; ``inputs`` are one tensor, or the parts of a tuple."""
    x = inputs[0] if len(inputs) == 1 else inputs
    backbone = Backbone(net)
    outputs = backbone(x)
    n, k = outputs.logits.shape
    labels = outputs.label.where(
        torch.arange(n) % 2 == 0, torch.arange(n) // 2 % k
    )  # half of them are right
    mixup = FeatureMixup(backbone.head, outputs, labels)
    return CalibratedModel(
        backbone, METHODS[method]().fit(outputs, labels, mixup=mixup, generator=seeded())
    )


class Two(nn.Module):
    """Takes two inputs, and will not be told its mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.inner(left)) * right)
        return logits

    def train(self, mode: bool = True) -> "Two":
        raise RuntimeError("merges the weights")


def test_several_inputs_keep_their_names_or_get_numbers(tmp_path: Path) -> None:
    net, path = Two(), tmp_path / "net.onnx"
    left, right = torch.randn(40, 5, generator=seeded()), torch.randn(40, 6, generator=seeded())
    model = model_of(net, "dirichlet-ts", left, right)
    model.to_onnx(path, {"left": left, "right": right.numpy()})
    assert_same(run(path, left=left[:7], right=right[:7]), model.predict((left[:7], right[:7])))
    model.to_onnx(path, (left, right))
    assert_same(
        run(path, input_0=left[:1], input_1=right[:1]), model.predict((left[:1], right[:1]))
    )
    with pytest.raises(
        ValueError, match=r"must have the same number of rows in every part; got \[1, 40\]"
    ):
        model.to_onnx(path, (left, right[:1]))


def test_a_double_array_is_an_example_in_the_dtype_of_the_network(tmp_path: Path) -> None:
    net, path = Two(), tmp_path / "net.onnx"
    left, right = torch.randn(40, 5, generator=seeded()), torch.randn(40, 6, generator=seeded())
    model = model_of(net, "dirichlet-ts", left, right)
    model.to_onnx(path, {"left": left.double().numpy(), "right": right.numpy().astype(">f8")})
    assert_same(run(path, left=left[:7], right=right[:7]), model.predict((left[:7], right[:7])))


def test_an_input_that_is_no_tensor_is_refused(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(5, 3)

        def forward(self, x: Tensor, times: int) -> Tensor:
            logits: Tensor = self.head(times * x)
            return logits

    x = torch.randn(40, 5, generator=seeded())
    model = model_of(Scaled(), "none", x, 2)
    with pytest.raises(
        TypeError, match=r"tuple of tensors, .*; got a int as 'input_1'. Wrap the network"
    ):
        model.to_onnx(tmp_path / "net.onnx", (x, 2))


class LastToken(nn.Module):
    """Applies its head to all tokens and picks one, as decoders do, and returns log-
    probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.body(x)))
        return logits[:, -2].log_softmax(-1)


@pytest.mark.slow
def test_of_all_tokens_the_features_of_the_picked_one_are_taken(tmp_path: Path) -> None:
    x = torch.randn(60, 5, 4, generator=seeded())
    model = model_of(LastToken(), "sts", x)
    model.to_onnx(tmp_path / "net.onnx", x, dynamic=(0, 1))
    for part in (x, x[:1], torch.randn(3, 9, 4, generator=seeded(1))):
        assert_same(run(tmp_path / "net.onnx", inputs=part), model.predict(part))


def test_a_small_number_that_saves_a_division_is_kept(tmp_path: Path) -> None:
    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(x / (x.norm(dim=-1, keepdim=True) + 1e-9))
            return logits

    x = torch.randn(60, 4, generator=seeded())
    x[0] = 0
    model = model_of(Normalised(), "ts", x)
    model.to_onnx(tmp_path / "net.onnx", x)
    got = run(tmp_path / "net.onnx", inputs=x)
    assert got["probs"].isfinite().all()
    assert_same(got, model.predict(x))


@pytest.mark.slow
def test_a_hugging_face_classifier_takes_texts_of_any_length(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "dim": 8,
        "hidden_dim": 16,
        "n_heads": 2,
        "n_layers": 1,
        "vocab_size": 30,
        "max_position_embeddings": 20,
    }
    torch.manual_seed(0)
    net = transformers.DistilBertForSequenceClassification(
        transformers.DistilBertConfig(**sizes, num_labels=4)
    )
    net.classifier.weight.data *= 50

    def texts(n: int, length: int) -> dict[str, Tensor]:
        mask = (torch.arange(length) < torch.randint(2, length + 1, (n, 1))).long()
        return {"input_ids": torch.randint(30, (n, length)), "attention_mask": mask}

    model, before = model_of(net, "sts", texts(60, 7)), state(net)
    model.to_onnx(tmp_path / "net.onnx", texts(2, 7), dynamic=(0, 1))
    assert state(net) == before
    for batch in (texts(1, 7), texts(9, 12)):
        assert_same(run(tmp_path / "net.onnx", **batch), model.predict(batch))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["ts", "adats", "sts"])
def test_a_network_on_a_gpu_is_exported_from_there(method: str, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    x = torch.randn(60, 4, generator=seeded())
    model = model_of(net, method, x).cuda()
    model.to_onnx(tmp_path / "net.onnx", x)
    assert {p.device.type for p in net.parameters()} == {"cuda"}
    assert_same(run(tmp_path / "net.onnx", inputs=x), model.cpu().predict(x))


# --- what cannot be exported ----------------------------------------------------------------------


class Chunked(Uncalibrated):
    def _predict(self, outputs: Outputs) -> Prediction:
        return Prediction(
            torch.cat([z.softmax(-1) for z in outputs.logits.split(64)]), outputs.label
        )


class Peeking(Uncalibrated):
    def _predict(self, outputs: Outputs) -> Prediction:
        logits = outputs.logits if outputs.logits.sum() > 0 else 2 * outputs.logits
        return Prediction(logits.softmax(-1), outputs.label)


@pytest.mark.parametrize("kind", [Chunked, Peeking])
def test_a_method_that_cannot_be_exported_says_so(
    kind: Callable[[], Calibrator], tmp_path: Path
) -> None:
    outputs = Outputs(torch.randn(100, 4, generator=seeded()))
    labels = outputs.label.where(torch.arange(100) % 2 == 0, torch.arange(100) // 2 % 4)
    calibrator = kind().fit(outputs, labels, generator=seeded())
    (tmp_path / "file.onnx").write_text("what was there before")
    with pytest.raises(
        ValueError,
        match=rf"^This {type(calibrator).__name__} cannot be exported: [^\n]+ Its predict",
    ):
        export_calibrator(calibrator, tmp_path / "file.onnx")
    assert [p.read_text() for p in tmp_path.iterdir()] == ["what was there before"]


class Halved(Uncalibrated):
    def _predict(self, outputs: Outputs) -> Prediction:
        return Prediction((outputs.logits / 2).softmax(-1), outputs.label)


class Mixture(SimplexTemperatureScaling):
    def _predict(self, outputs: Outputs) -> Prediction:
        own = outputs.logits.softmax(-1)
        return Prediction((own + self._mean(outputs, outputs.label)) / 2, outputs.label)


@pytest.mark.parametrize("kind", [Halved, pytest.param(Mixture, marks=pytest.mark.slow)])
def test_a_method_of_ones_own_is_exported_if_it_can_be(
    kind: Callable[[], Calibrator], tmp_path: Path
) -> None:
    logits = torch.randn(100, 4, generator=seeded())
    labels = logits.argmax(-1).where(torch.arange(100) % 2 == 0, torch.arange(100) // 2 % 4)
    calibrator = kind().fit(Outputs(logits), labels, generator=seeded())
    written = export_calibrator(calibrator, tmp_path / "file.onnx")
    assert written.method == type(calibrator).__name__
    assert_same(run(tmp_path / "file.onnx", logits=logits), calibrator(Outputs(logits)))


class Paired(nn.Module):
    """Sees inputs two by two, so it has no free batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(
            (x.reshape(2, -1, 4) - x.reshape(2, -1, 4).mean(1, keepdim=True)).reshape(-1, 4)
        )
        return logits


def test_a_network_that_cannot_be_exported_says_so_and_stays_as_it_was(tmp_path: Path) -> None:
    x = torch.randn(40, 4, generator=seeded())
    model = model_of(Paired().train(), "ts", x)
    before = state(model.backbone.net)
    with pytest.raises(
        ValueError,
        match=r"^This Paired with TemperatureScaling cannot be exported: [^\n]+ Export the",
    ):
        model.to_onnx(tmp_path / "net.onnx", x)
    assert state(model.backbone.net) == before
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_a_missing_package_is_named_with_the_command(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ImportError, match=rf'^Exporting needs {package}, .* Run pip install "simplexcal\[onnx\]".$'
    ):
        export_calibrator(TemperatureScaling(), "file.onnx")


def test_what_is_missing_is_said_before_anything_is_computed(tmp_path: Path, data: Data) -> None:
    with pytest.raises(NotFittedError, match="This TemperatureScaling is not fitted yet"):
        export_model(data.backbone, TemperatureScaling(), tmp_path / "net.onnx", None)
    with pytest.raises(
        FileNotFoundError, match=r"is to be written to a folder that does not exist. Make it first."
    ):
        export_calibrator(fitted("ts", 3), tmp_path / "nowhere" / "file.onnx")


def test_a_calibrator_takes_no_half_precision(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"`dtype` must be torch.float32 or torch.float64; got torch.float16."
    ):
        export_calibrator(fitted("sts", 3), tmp_path / "file.onnx", dtype=torch.float16)


def test_inference_mode_does_no_harm(tmp_path: Path) -> None:
    calibrator = fitted("ts", 3)
    with torch.inference_mode():
        export_calibrator(calibrator, tmp_path / "file.onnx")
    logits = torch.randn(5, 3, generator=seeded())
    assert_same(run(tmp_path / "file.onnx", logits=logits), calibrator(Outputs(logits)))


def test_weights_too_large_for_one_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(converter, "MAX_BYTES", 100)
    with pytest.raises(
        ValueError, match=r"An ONNX file holds less than 2 GiB; these weights take .* alone"
    ):
        export_calibrator(fitted("dirichlet-ts", 3), tmp_path / "file.onnx")


def test_an_export_is_silent(tmp_path: Path) -> None:
    path = tmp_path / "ets.safetensors"
    save_calibrator(fitted("ets", 3), path)
    code = (
        "from simplexcal.io import load_calibrator; from simplexcal.onnx import export_calibrator;"
        f"export_calibrator(load_calibrator({str(path)!r})[0], {str(tmp_path / 'ets.onnx')!r})"
    )  # in a process of its own, since torch says some things only once
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", code], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- heads of other forms ---


class OneLogit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(12, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = 3 * self.fc(self.body(x.flatten(1)).relu()).squeeze(1)
        return logits


def pooled_convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 1), nn.ReLU(), nn.Conv2d(6, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


# AdaTS reads features, and is exported faster than STS.
@pytest.mark.parametrize(
    ("make", "method"), [(OneLogit, "ts"), (OneLogit, "adats"), (pooled_convolution, "adats")]
)
def test_heads_of_other_forms_are_exported(
    make: Callable[[], nn.Module], method: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net = make()
    x = torch.randn(60, 3, 2, 2)
    labels = (4 * Backbone(net)(x).logits).softmax(-1).multinomial(1).squeeze(1)
    model = simplexcal.calibrate(net, (x, labels), METHODS[method]())
    model.to_onnx(tmp_path / "net.onnx", x[:3])
    assert_same(run(tmp_path / "net.onnx", inputs=x), model.predict(x))
