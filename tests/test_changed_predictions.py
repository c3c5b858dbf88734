"""Methods that change predictions: everything says so, and takes the label of the method."""

import json
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow.parquet as pq
import pytest
import torch
from helpers.command_line import simplexcal
from helpers.methods import KEEPING, METHODS
from helpers.user_files import write
from sklearn.datasets import load_iris
from sklearn.naive_bayes import GaussianNB
from torch import Generator, Tensor, nn

import simplexcal as sc
from simplexcal.onnx import export_calibrator
from simplexcal.report import write_report
from simplexcal.sklearn import SimplexCalibratedClassifier

CHANGING = [name for name in METHODS if name not in KEEPING]
K = 4


def simulate(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return logits whose labels are biased towards the last classes."""
    g = Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, K, generator=g)
    labels = (logits / 2 + torch.linspace(-1, 1, K)).softmax(-1).multinomial(1, generator=g)
    return logits, labels.squeeze(1)


@pytest.fixture
def fitted() -> sc.Calibrator:
    return sc.VectorScaling(10.0).fit(*simulate(500))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with data for a fit and for a test."""
    for name, seed in (("val", 0), ("test", 1)):
        logits, labels = simulate(500, seed)
        np.savez(tmp_path / f"{name}.npz", logits=logits.numpy(), labels=labels.numpy())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def n_changed(calibrator: sc.Calibrator) -> int:
    logits, _ = simulate(500, 1)
    prediction = calibrator(logits)
    assert torch.equal(prediction.label, prediction.probs.argmax(-1))
    return int((prediction.label != logits.argmax(-1)).sum())


def test_two_methods_change_predictions_and_their_titles_say_so() -> None:
    assert CHANGING == ["vector", "dirichlet"]
    for name, method in sc.CALIBRATORS.items():
        assert method.keeps_predictions == (name in KEEPING)
        assert ("which changes predictions" in method.title) == (name in CHANGING)


@pytest.mark.parametrize("method", METHODS)
def test_calibrate_warns_once_of_a_method_that_may_change_predictions(method: str) -> None:
    if METHODS[method]().uses_mixup or METHODS[method]().needs_features:
        pytest.skip("It reads features, which the network here has not.")
    data = simulate(500)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        sc.calibrate(nn.Identity(), data, METHODS[method]())
    told = [w for w in found if "may change predictions" in str(w.message)]
    assert len(told) == (method in CHANGING)
    for warning in told:
        assert warning.filename == __file__


@pytest.mark.filterwarnings("ignore:.* may change predictions")
def test_evaluate_counts_them(fitted: sc.Calibrator) -> None:
    model = sc.calibrate(nn.Identity(), simulate(500), sc.VectorScaling(10.0))
    test = simulate(500, 1)
    comparison = model.evaluate(test)
    n = n_changed(fitted)
    assert n > 20
    assert comparison.n_changed == n
    assert f"Vector changes {n} predictions." in str(comparison)
    right = (test[0].argmax(-1) == test[1]).double().mean().item()
    assert comparison.before.accuracy == pytest.approx(right)
    label = fitted(test[0]).label
    assert comparison.after.accuracy == pytest.approx((label == test[1]).double().mean().item())
    kept = sc.calibrate(nn.Identity(), simulate(500), "ts").evaluate(test)
    assert kept.n_changed == 0
    assert "changes" not in str(kept)


@pytest.mark.filterwarnings("ignore:.* may change predictions")
def test_evaluate_counts_the_tokens_whose_class_changes(fitted: sc.Calibrator) -> None:
    logits, labels = simulate(500)
    net = nn.Identity()
    fit = (logits.view(50, 10, K), labels.view(50, 10))
    model = sc.calibrate(net, fit, sc.VectorScaling(10.0))
    logits, labels = simulate(500, 1)
    test = (logits.view(50, 10, K), labels.view(50, 10))
    assert model.evaluate(test, batch_size=20).n_changed == n_changed(fitted)
    label = model.predict(test).label
    assert torch.equal(label.flatten(), fitted(logits).label)


def test_the_report_says_it(fitted: sc.Calibrator, tmp_path: Path) -> None:
    logits, labels = simulate(500, 1)
    promise = "it never changes the predicted class"
    predictions = {"none": sc.Uncalibrated()(logits), "vector": fitted(logits)}
    page = write_report(tmp_path / "page.html", predictions, labels).read_text()
    assert f"Vector changes {n_changed(fitted)} predictions." in page
    assert promise not in page
    alone = write_report(tmp_path / "page.html", {"vector": fitted(logits)}, labels).read_text()
    assert promise not in alone
    kept = {
        "none": sc.Uncalibrated()(logits),
        "ts": sc.TemperatureScaling().fit(logits, labels)(logits),
    }
    page = write_report(tmp_path / "page.html", kept, labels).read_text()
    assert promise in page
    assert "predictions." not in page.split("less.")[1][:40]


def test_the_report_on_tokens_says_it(fitted: sc.Calibrator, tmp_path: Path) -> None:
    logits, labels = simulate(500, 1)
    shape = (50, 10)

    def tokens(p: sc.Prediction) -> sc.Prediction:
        return sc.Prediction(p.probs.view(*shape, K), p.label.view(shape))

    predictions = {"none": tokens(sc.Uncalibrated()(logits)), "vector": tokens(fitted(logits))}
    page = write_report(tmp_path / "page.html", predictions, labels.view(shape)).read_text()
    assert f"Vector changes {n_changed(fitted)} predictions." in page


@pytest.mark.usefixtures("folder")
def test_the_command_line_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert simplexcal("calibrate val.npz --method vector -o v.safetensors") == 0
    assert "Vector may change predictions" in capsys.readouterr().err
    command = "evaluate test.npz --calibrator v.safetensors"
    calibrator = sc.load_calibrator("v.safetensors")
    n = n_changed(calibrator)
    assert simplexcal(command) == 0
    assert f"Vector changes {n} predictions." in capsys.readouterr().out
    assert simplexcal(f"{command} --json") == 0
    assert json.loads(capsys.readouterr().out)["changed_predictions"] == {"vector": n}
    logits, _ = simulate(500, 1)
    write(Path("rows.parquet"), {"logits": logits.numpy()})
    assert simplexcal("score v.safetensors rows.parquet --output out.parquet") == 0
    predicted = pq.read_table("out.parquet")["predicted"].to_pylist()
    assert predicted == calibrator(logits).label.tolist()


def test_a_graph_gives_the_class_of_the_method(fitted: sc.Calibrator, tmp_path: Path) -> None:
    export_calibrator(fitted, tmp_path / "v.onnx")
    logits, _ = simulate(500, 1)
    session = onnxruntime.InferenceSession(tmp_path / "v.onnx")
    label, probs = session.run(["label", "probs"], {"logits": logits.numpy()})
    prediction = fitted(logits)
    assert label.tolist() == prediction.label.tolist()
    np.testing.assert_allclose(probs, prediction.probs, atol=1e-6)
    compiled = fitted.probs_alone(sc.Outputs(logits))
    assert torch.equal(compiled, prediction.probs)


@pytest.mark.parametrize("method", CHANGING)
def test_a_scikit_learn_classifier_predicts_the_class_of_the_method(method: str) -> None:
    inputs, labels = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[labels]
    noisy = inputs + np.random.default_rng(0).normal(size=inputs.shape)
    with pytest.warns(UserWarning, match="may change predictions") as found:
        model = SimplexCalibratedClassifier(
            GaussianNB(priors=[0.05, 0.05, 0.9]), method=METHODS[method]()
        ).fit(noisy, names)
    assert len(found) == 1
    probs = model.predict_proba(noisy)
    assert (model.predict(noisy) == model.classes_[probs.argmax(1)]).all()
    assert (model.predict(noisy) != model.estimator_.predict(noisy)).any()


def test_few_inputs_may_make_the_classes_worse() -> None:
    logits, labels = simulate(6)
    with pytest.warns(
        UserWarning, match=r"The predicted classes may get worse\. Calibrate on more"
    ):
        sc.VectorScaling(10.0).fit(logits, labels)
