"""The commands as a user runs them: files in, files out."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
import torch
from helpers.command_line import error_of, simplexcal
from helpers.user_files import write
from safetensors.torch import load_file, save_file

from simplexcal.calibrators import CALIBRATORS
from simplexcal.cli._inputs import read_source
from simplexcal.demo import run as demo_run
from simplexcal.demo.fashion_mnist import images_and_labels
from simplexcal.demo.lenet5 import LeNet5, normalise
from simplexcal.io import load_calibrator, save_calibrator
from simplexcal.io.tables import read_predictions
from simplexcal.mixup import FeatureMixup, LogitMixup
from simplexcal.types import Outputs

MAKEFILE = Path(__file__).parents[2] / "Makefile"
README = MAKEFILE.with_name("README.md")
WEIGHTS = Path(demo_run.__file__).with_name("lenet5.safetensors")
LENET5 = "--model simplexcal.demo.lenet5:LeNet5"
TRAINED_LENET5 = f"{LENET5} --weights {shlex.quote(str(WEIGHTS))}"
Arrays = dict[str, npt.NDArray[Any]]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("method", ["none", "ts", "ets", "sts"])
@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet", ".csv"])
def test_from_outputs_to_evaluated_predictions(
    method: str, suffix: str, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = f"calibrate val.npz --method {method} -o net.safetensors"
    assert simplexcal(fit) == 0
    assert simplexcal(f"predict net.safetensors val.npz -o out{suffix}") == 0
    capsys.readouterr()
    assert simplexcal(f"evaluate out{suffix} --json") == 0
    out, err = capsys.readouterr()
    evaluated = json.loads(out)["methods"]["out"]
    labels = arrays["logits"].argmax(1)
    assert evaluated["accuracy"] == pytest.approx((labels == arrays["labels"]).mean())
    assert err == ""
    prediction, true_labels = read_predictions(f"out{suffix}")
    assert true_labels is not None
    assert torch.equal(prediction.label, torch.from_numpy(labels))
    assert (prediction.epistemic is not None) == (method == "sts")


@pytest.mark.usefixtures("fitted")
def test_calibration_improves_what_the_table_shows(capsys: pytest.CaptureFixture[str]) -> None:
    command = "evaluate val.npz --calibrator net.safetensors"
    assert simplexcal(f"{command} --json") == 0
    methods = json.loads(capsys.readouterr().out)["methods"]
    assert list(methods) == ["none", "ts"]
    assert methods["ts"]["nll"] < methods["none"]["nll"]
    assert methods["ts"]["accuracy"] == methods["none"]["accuracy"]
    assert simplexcal(command) == 0
    table = capsys.readouterr().out
    assert "none" in table
    assert "ts" in table


def test_two_calibrators_of_one_method_keep_both_names(
    fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (fitted / "other.safetensors").write_bytes((fitted / "net.safetensors").read_bytes())
    calibrators = "--calibrator net.safetensors --calibrator other.safetensors"
    assert simplexcal(f"evaluate val.npz {calibrators} --json") == 0
    assert list(json.loads(capsys.readouterr().out)["methods"]) == ["none", "ts", "ts (other)"]


def test_every_calibrator_is_evaluated_whatever_the_names(
    fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [Path(f"run{i}/net.safetensors") for i in range(3)]
    for path in paths:
        (fitted / path).parent.mkdir()
        (fitted / path).write_bytes((fitted / "net.safetensors").read_bytes())
    calibrators = " ".join(f"--calibrator {path}" for path in paths)
    assert simplexcal(f"evaluate val.npz {calibrators} --json") == 0
    _, first, *others = json.loads(capsys.readouterr().out)["methods"]
    assert others == [f"{first} (net)", f"{first} (run2/net.safetensors)"]


def test_the_same_seed_gives_the_same_file(folder: Path) -> None:
    for name in ("a", "b"):
        command = f"calibrate val.npz --seed 3 -o {name}.safetensors"
        assert simplexcal(command) == 0
    assert (folder / "a.safetensors").read_bytes() == (folder / "b.safetensors").read_bytes()


def test_the_branch_reads_features_where_there_is_the_last_layer(
    folder: Path, arrays: Arrays
) -> None:
    without = {name: x for name, x in arrays.items() if not name.startswith("head")}
    np.savez(folder / "headless.npz", **without)  # type: ignore[arg-type]
    outputs = Outputs(torch.from_numpy(arrays["logits"]), torch.from_numpy(arrays["features"]))
    n_features = []
    for name in ("val", "headless"):
        command = f"calibrate {name}.npz -o net.safetensors"
        assert simplexcal(command) == 0
        calibrator, _ = load_calibrator("net.safetensors")
        n_features.append(calibrator.n_features)
        assert (calibrator(outputs).epistemic > -300).all()
    assert n_features == [4, None]


def test_what_is_mixed(folder: Path) -> None:
    source = read_source(folder / "val.npz", "logits", None, {})
    assert isinstance(source.mixup("features"), FeatureMixup)
    assert isinstance(source.mixup("logits"), LogitMixup)
    with pytest.raises(ValueError, match="--mixup inputs needs the network itself"):
        source.mixup("inputs")


def test_a_class_without_samples_is_a_warning(
    folder: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = arrays["labels"] != 2
    few = dict(arrays)
    for name in ("logits", "features", "labels"):
        few[name] = arrays[name][rows]
    np.savez(folder / "few.npz", **few)  # type: ignore[arg-type]
    assert simplexcal("calibrate few.npz -o few.safetensors") == 0
    assert "`labels` lack 1 class of 3: 2. " in capsys.readouterr().err
    assert simplexcal("predict few.safetensors val.npz -o out.npz") == 0


def test_a_last_layer_that_does_not_give_the_logits_is_rejected(
    folder: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    del arrays["head_bias"]
    np.savez(folder / "unbiased.npz", **arrays)  # type: ignore[arg-type]
    assert simplexcal("calibrate unbiased.npz -o net.safetensors") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "`head_weight` and `head_bias` must turn `features` into `logits`; they are off" in said
    assert not (folder / "net.safetensors").exists()


def test_a_report_is_written(fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--calibrator net.safetensors -o report.html --title 'A <b> title'"
    assert simplexcal(f"report val.npz {options}") == 0
    assert capsys.readouterr().out.startswith("report.html: 300 inputs, none, ts.")
    page = (fitted / "report.html").read_text()
    assert "A &lt;b&gt; title" in page


def test_a_report_shows_ids_ood_data_and_its_files(fitted: Path, arrays: Arrays) -> None:
    n = len(arrays["labels"])
    keyed = arrays | {"id": np.array([f"photo-{i}" for i in range(n)])}
    np.savez(fitted / "keyed.npz", **keyed)  # type: ignore[arg-type]
    np.savez(fitted / "far.npz", logits=arrays["logits"][:40] / 9)
    options = "--calibrator net.safetensors --ood far.npz --tolerance 0.02 -o report.html"
    assert simplexcal(f"report keyed.npz {options}") == 0
    page = (fitted / "report.html").read_text()
    for words in ("photo-", "keyed.npz (SHA-256", "far.npz", "tells 40 out-of-distribution"):
        assert words in page
    assert "2\u202fpercentage points" in page


def test_a_network_on_raw_inputs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, labels = images_and_labels()
    inputs = normalise(images[:300]).numpy()
    np.savez(
        folder / "inputs.npz",
        inputs=inputs,
        labels=labels[:300].numpy(),
        images=images[:300].numpy(),
    )
    assert simplexcal(f"calibrate inputs.npz {TRAINED_LENET5} -o net.safetensors --json") == 0
    predict = "predict net.safetensors inputs.npz -o out.npz"
    assert simplexcal(f"{predict} {TRAINED_LENET5}") == 0
    net = LeNet5()
    net.load_state_dict(load_file(WEIGHTS))
    expected = net(torch.from_numpy(inputs)).argmax(-1)
    assert torch.equal(read_predictions("out.npz")[0].label, expected)
    report = "report inputs.npz --calibrator net.safetensors -o report.html"
    assert simplexcal(f"{report} {TRAINED_LENET5}") == 0
    capsys.readouterr()
    save_file(LeNet5().state_dict(), folder / "other.safetensors")
    message = error_of(capsys, f"{predict} {LENET5} --weights other.safetensors")
    assert "calibrated for another network" in message


def test_inputs_may_be_double(folder: Path) -> None:
    images, labels = images_and_labels()
    inputs = normalise(images[:200]).double().numpy()
    np.savez(folder / "double.npz", inputs=inputs, labels=labels[:200].numpy())
    command = "calibrate double.npz --method ts -o net.safetensors"
    assert simplexcal(f"{command} {TRAINED_LENET5}") == 0


def test_one_input_can_be_evaluated(
    fitted: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(fitted / "one.npz", logits=arrays["logits"][:1], labels=arrays["labels"][:1])
    assert simplexcal("evaluate one.npz --json") == 0
    assert json.loads(capsys.readouterr().out)["methods"]["none"]["n"] == 1


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_the_largest_logits_are_predicted(fitted: Path, suffix: str) -> None:
    write(fitted / f"x{suffix}", {"logits": np.array([[1.0, 2.0, 3.0], [1e308, -1e308, 0.0]])})
    assert simplexcal(f"predict net.safetensors x{suffix} -o y.parquet") == 0
    rows = pq.read_table(fitted / "y.parquet")
    assert rows["predicted"].to_pylist() == [2, 0]
    assert rows["confidence"].to_pylist()[1] == 1


def test_a_confidence_that_is_not_finite_is_an_error_and_no_file(
    fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibrator: Any = load_calibrator(fitted / "net.safetensors")[0]
    calibrator.log_temperature.data.fill_(-1000.0)  # T = 0
    save_calibrator(calibrator, fitted / "broken.safetensors")
    write(fitted / "x.npz", {"logits": np.array([[1.0, 2.0, 3.0]])})
    command = "predict broken.safetensors x.npz -o y.parquet"
    assert re.search(r"prediction in row 0 .* is not finite", error_of(capsys, command))
    assert not (fitted / "y.parquet").exists()


def test_rows_are_scored_as_they_are_predicted(
    fitted: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    logits = arrays["logits"].copy()
    logits[7] = np.nan
    write(fitted / "rows.parquet", {"logits": logits, "id": np.arange(len(logits)) + 100})
    score = "score net.safetensors --output out.parquet"
    assert simplexcal(f"{score} rows.parquet --with-probs --json") == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["rows"], record["n_rejected"]) == (299, 1)
    assert simplexcal("predict net.safetensors val.npz -o all.parquet") == 0
    scored = pq.read_table("out.parquet")
    good = np.delete(np.arange(300), 7)
    predicted = pq.read_table("all.parquet").take(good)
    assert scored["id"].to_pylist() == (good + 100).tolist()
    assert scored["predicted"].to_pylist() == predicted["predicted"].to_pylist()
    expected = predicted["confidence"].to_numpy()
    assert scored["confidence"].to_numpy() == pytest.approx(expected, rel=1e-6)
    assert pq.read_table(record["rejected"])["id"].to_pylist() == [107]
    capsys.readouterr()
    assert "missing.parquet" in error_of(capsys, f"{score} missing.parquet")


@pytest.mark.long
def test_the_demo_is_what_make_demo_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = r"^demo:.*\n\t\$\(BIN\)/simplexcal (.*)$"
    recipe = re.search(rule, MAKEFILE.read_text(), re.MULTILINE)
    assert recipe is not None
    monkeypatch.chdir(tmp_path)
    command = [str(Path(sys.executable).with_name("simplexcal")), *recipe[1].split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "The report: simplexcal-demo.html" in done.stdout
    page = (tmp_path / "simplexcal-demo.html").read_text()
    assert "Fashion-MNIST" in page
    for name in demo_run.METHODS:
        row = re.search(rf"^\| {name} .*$", done.stdout, re.MULTILINE)
        assert row is not None
        accuracy, ece = re.findall(r"\d+\.\d\d", row[0])[:2]
        assert f"{accuracy}\N{NARROW NO-BREAK SPACE}%" in page
        assert f"{ece}\N{NARROW NO-BREAK SPACE}%" in page
    assert len(page) < 3_000_000
    # Another processor may change the last digit.
    figures = [float(x) for x in re.findall(r"\| +(\d+\.\d\d|0\.\d{4})(?= \|)", done.stdout)]
    text = README.read_text().split("The network's ECE is")[1].split("On one network")[0]
    for shown in re.findall(r"0\.\d{4}|\d\.\d\d(?= %)", text):
        assert min(abs(float(shown) - x) for x in figures) <= 3 * 10 ** -len(shown.split(".")[1])


@pytest.mark.parametrize("name", ["none", "ts"])
def test_predictions_are_not_taken_for_the_method_that_their_file_is_called_after(
    name: str, fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simplexcal(f"predict net.safetensors val.npz -o {name}.parquet") == 0
    capsys.readouterr()
    assert simplexcal(f"evaluate {name}.parquet --json") == 0
    assert list(json.loads(capsys.readouterr().out)["methods"]) == [f"{name}.parquet"]
    assert simplexcal(f"report {name}.parquet -o page.html") == 0
    page = (fitted / "page.html").read_text()
    assert CALIBRATORS[name].title not in page


@pytest.mark.parametrize("command", ["evaluate", "report -o page.html"])
def test_data_of_the_fit_are_a_warning_where_they_are_evaluated(
    command: str, fitted: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simplexcal("calibrate val.npz --method ts -o own.safetensors") == 0
    np.savez(fitted / "new.npz", logits=arrays["logits"][::2], labels=arrays["labels"][::2])
    capsys.readouterr()
    assert simplexcal(f"{command} val.npz --calibrator own.safetensors") == 0
    warning = "'own.safetensors' was fitted to the data in 'val.npz'"
    assert capsys.readouterr().err.startswith(f"warning: {warning}")
    assert simplexcal(f"{command} new.npz --calibrator own.safetensors") == 0
    assert warning not in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_a_fit_names_the_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert simplexcal("calibrate val.npz --method ts -o own.safetensors") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    command = last.partition(": simplexcal ")[2].replace("DATA", "val.npz")
    assert command.startswith("evaluate ")
    assert simplexcal(command) == 0
