"""The command line as a user meets it: files in, files out, one line on a mistake."""

import json
import math
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
import torch
from helpers.user_files import content, write
from safetensors.torch import load_file, save_file

import simplexcal
from simplexcal.cli import main
from simplexcal.cli._console import run, say
from simplexcal.demo import run as showcase
from simplexcal.demo.fashion_mnist import images_and_labels
from simplexcal.demo.lenet5 import LeNet5, normalise
from simplexcal.io import load_calibrator
from simplexcal.io.tables import read_predictions

MAKEFILE = Path(__file__).parents[2] / "Makefile"
WEIGHTS = Path(showcase.__file__).with_name("lenet5.safetensors")
Arrays = dict[str, npt.NDArray[Any]]


@pytest.fixture
def arrays() -> Arrays:
    """Over-confident outputs of a linear network with 3 classes and 4 features, and their labels."""
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=3).astype(np.float32)
    features = rng.normal(size=(300, 4)).astype(np.float32)
    truth = features @ weight.T + bias
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(1)
    return {
        "logits": truth * 3,
        "features": features,
        "labels": labels,
        "head_weight": 3 * weight,
        "head_bias": bias * 3,
    }


@pytest.fixture
def folder(tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "val.npz", **arrays)  # type: ignore[arg-type]
    return tmp_path


@pytest.fixture
def fitted(folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert (
        main(
            ["calibrate", "val.npz", "--input", "logits", "--method", "ts", "-o", "net.safetensors"]
        )
        == 0
    )
    capsys.readouterr()
    return folder


def error_of(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """Return the one line that a mistake gives, without its prefix."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err.removeprefix("error: ")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("method", ["none", "ts", "ets", "sts"])
@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet", ".csv"])
def test_from_outputs_to_judged_predictions(
    method: str, suffix: str, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "calibrate",
                "val.npz",
                "--input",
                "logits",
                "--method",
                method,
                "-o",
                "net.safetensors",
            ]
        )
        == 0
    )
    assert (
        main(["predict", "net.safetensors", "val.npz", "--input", "logits", "-o", f"out{suffix}"])
        == 0
    )
    capsys.readouterr()
    assert main(["evaluate", f"out{suffix}", "--input", "predictions", "--json"]) == 0
    out, err = capsys.readouterr()
    judged = json.loads(out)["methods"]["out"]
    assert judged["accuracy"] == pytest.approx(
        (arrays["logits"].argmax(1) == arrays["labels"]).mean()
    )
    assert err == ""
    prediction, labels = read_predictions(f"out{suffix}")
    assert labels is not None
    assert torch.equal(prediction.label, torch.from_numpy(arrays["logits"].argmax(1)))
    assert (prediction.epistemic is not None) == (method == "sts")


@pytest.mark.usefixtures("fitted")
def test_calibration_mends_what_the_table_shows(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["evaluate", "val.npz", "--input", "logits", "--calibrator", "net.safetensors"]
    assert main([*command, "--json"]) == 0
    methods = json.loads(capsys.readouterr().out)["methods"]
    assert list(methods) == ["none", "ts"]
    assert methods["ts"]["nll"] < methods["none"]["nll"]
    assert methods["ts"]["accuracy"] == methods["none"]["accuracy"]
    assert main(command) == 0
    table = capsys.readouterr().out
    assert "none" in table
    assert "ts" in table


def test_two_calibrators_of_one_method_keep_both_names(
    fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (fitted / "other.safetensors").write_bytes((fitted / "net.safetensors").read_bytes())
    calibrators = ["--calibrator", "net.safetensors", "--calibrator", "other.safetensors"]
    assert main(["evaluate", "val.npz", "--input", "logits", *calibrators, "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["methods"]) == ["none", "ts", "ts (other)"]


def test_the_same_seed_gives_the_same_file(folder: Path) -> None:
    for name in ("a", "b"):
        assert (
            main(
                [
                    "calibrate",
                    "val.npz",
                    "--input",
                    "logits",
                    "--seed",
                    "3",
                    "-o",
                    f"{name}.safetensors",
                ]
            )
            == 0
        )
    assert (folder / "a.safetensors").read_bytes() == (folder / "b.safetensors").read_bytes()


def test_saved_outputs_with_their_last_layer_give_the_branch(folder: Path, arrays: Arrays) -> None:
    without = {name: x for name, x in arrays.items() if not name.startswith("head")}
    np.savez(folder / "headless.npz", **without)  # type: ignore[arg-type]
    for name in ("val", "headless"):
        assert (
            main(["calibrate", f"{name}.npz", "--input", "logits", "-o", f"{name}.safetensors"])
            == 0
        )
    fitted = [load_calibrator(f"{name}.safetensors")[0] for name in ("val", "headless")]
    assert [float(calibrator.state_dict()["beta"]) for calibrator in fitted] == [1.0, 0.0]


def test_a_class_without_samples_is_a_warning(
    folder: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = arrays["labels"] != 2
    per_row = ("logits", "features", "labels")
    few = {name: x[rows] if name in per_row else x for name, x in arrays.items()}
    np.savez(folder / "few.npz", **few)  # type: ignore[arg-type]
    assert main(["calibrate", "few.npz", "--input", "logits", "-o", "few.safetensors"]) == 0
    assert "missing: 2. Add such samples" in capsys.readouterr().err
    assert (
        main(["predict", "few.safetensors", "val.npz", "--input", "logits", "-o", "out.npz"]) == 0
    )


def test_a_report_is_written(fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--input",
        "logits",
        "--calibrator",
        "net.safetensors",
        "-o",
        "report.html",
        "--title",
        "A <b> title",
    ]
    assert main(["report", "val.npz", *arguments]) == 0
    assert capsys.readouterr().out.startswith("report.html: 300 inputs, none, ts.")
    page = (fitted / "report.html").read_text()
    assert "A &lt;b&gt; title" in page


def test_a_network_on_raw_inputs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, labels = images_and_labels()
    inputs = normalise(images[:300]).numpy()
    np.savez(
        folder / "inputs.npz",
        inputs=inputs,
        labels=labels[:300].numpy(),
        images=images[:300].numpy(),
    )
    network = ["--model", "simplexcal.demo.lenet5:LeNet5", "--weights", str(WEIGHTS)]
    assert main(["calibrate", "inputs.npz", *network, "-o", "net.safetensors", "--json"]) == 0
    assert main(["predict", "net.safetensors", "inputs.npz", *network, "-o", "out.npz"]) == 0
    net = LeNet5()
    net.load_state_dict(load_file(WEIGHTS))
    assert torch.equal(
        read_predictions("out.npz")[0].label, net(torch.from_numpy(inputs)).argmax(-1)
    )
    assert (
        main(
            [
                "report",
                "inputs.npz",
                *network,
                "--calibrator",
                "net.safetensors",
                "-o",
                "report.html",
            ]
        )
        == 0
    )
    capsys.readouterr()
    save_file(LeNet5().state_dict(), folder / "other.safetensors")
    other = ["--model", "simplexcal.demo.lenet5:LeNet5", "--weights", "other.safetensors"]
    message = error_of(
        capsys, ["predict", "net.safetensors", "inputs.npz", *other, "-o", "out.npz"]
    )
    assert "calibrated for another network" in message


def without(arrays: Arrays, name: str) -> Arrays:
    return {key: x for key, x in arrays.items() if key != name}


WRONG: dict[str, tuple[Callable[[Arrays], Arrays], str]] = {
    "probs where logits are meant": (
        lambda a: {"probs": a["logits"], "labels": a["labels"]},
        "holds `probs`",
    ),
    "no labels": (lambda a: without(a, "labels"), "holds no true classes"),
    "labels from 1": (lambda a: a | {"labels": a["labels"] + 1}, "start at 1: subtract 1"),
    "one class": (lambda a: a | {"labels": 0 * a["labels"]}, "at least two classes"),
    "NaN": (lambda a: a | {"logits": a["logits"] * np.nan}, "nan"),
    "NaN in features": (lambda a: a | {"features": a["features"] * np.nan}, "nan"),
    "no rows": (lambda a: {name: x[:0] for name, x in a.items()}, ""),
    "ragged": (lambda a: a | {"labels": a["labels"][:-1]}, "labels"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_one_line(
    change: Callable[[Arrays], Arrays],
    message: str,
    folder: Path,
    arrays: Arrays,
    capsys: pytest.CaptureFixture[str],
) -> None:
    np.savez(folder / "wrong.npz", **change(arrays))  # type: ignore[arg-type]
    said = error_of(
        capsys, ["calibrate", "wrong.npz", "--input", "logits", "-o", "net.safetensors"]
    )
    assert message.lower() in said.lower()
    assert not (folder / "net.safetensors").exists()


@pytest.mark.usefixtures("fitted")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["calibrate", "val.npz", "-o", "net.safetensors"], "--input logits or --input probs"),
        (["calibrate", "val.npz", "--input", "guess", "-o", "net.safetensors"], "guess"),
        (
            ["calibrate", "missing.npz", "--input", "logits", "-o", "net.safetensors"],
            "'missing.npz': No such file or directory.",
        ),
        (["calibrate", "val.npz", "--input", "logits"], "--output"),
        (
            ["calibrate", "val.npz", "--input", "logits", "-o", "net.pkl"],
            "must end in .safetensors",
        ),
        (
            ["calibrate", "val.npz", "--input", "logits", "-o", "no/such/net.safetensors"],
            "no folder",
        ),
        (
            [
                "calibrate",
                "val.npz",
                "--input",
                "logits",
                "-o",
                "n.safetensors",
                "--method",
                "magic",
            ],
            "magic",
        ),
        (
            [
                "calibrate",
                "val.npz",
                "--input",
                "logits",
                "-o",
                "n.safetensors",
                "--mixup",
                "inputs",
            ],
            "--model",
        ),
        (
            ["calibrate", "val.npz", "--input", "logits", "-o", "n.safetensors", "--head", "fc"],
            "--model",
        ),
        (
            ["calibrate", "val.npz", "--input", "logits", "--model", "a:b", "-o", "n.safetensors"],
            "one of the two",
        ),
        (["calibrate", "val.npz", "--model", "nowhere:b", "-o", "n.safetensors"], "inputs"),
        (
            ["predict", "val.npz", "val.npz", "--input", "logits", "-o", "out.npz"],
            "not a whole safetensors file",
        ),
        (
            ["predict", "net.safetensors", "val.npz", "--input", "logits", "-o", "out.txt"],
            "must end in",
        ),
        (["evaluate", "val.npz", "--input", "predictions"], "probs"),
        (
            ["evaluate", "val.npz", "--input", "predictions", "--calibrator", "net.safetensors"],
            "leave out",
        ),
        (["report", "val.npz", "--input", "logits", "-o", "report.pdf"], "must end in .html"),
        (
            ["predict", "gone.safetensors", "val.npz", "--input", "logits", "-o", "out.npz"],
            "'gone.safetensors': No such",
        ),
        (
            ["evaluate", "val.npz", "--input", "logits", "--calibrator", "gone.safetensors"],
            "'gone.safetensors': No such",
        ),
        (
            ["predict", "net.safetensors", "val.npz", "--input", "logits", "-o", "val.npz"],
            "'val.npz' is read by this",
        ),
        (
            ["predict", "net.safetensors", "val.npz", "--input", "logits", "-o", "net.safetensors"],
            "is read by this",
        ),
        (["nonsense"], "nonsense"),
    ],
)
def test_a_wrong_command_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in error_of(capsys, arguments)


def test_a_folder_is_no_output(fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (fitted / "folder.safetensors").mkdir()
    command = ["calibrate", "val.npz", "--input", "logits", "-o", "folder.safetensors"]
    assert "'folder.safetensors' is a folder. Give the name of a file." in error_of(capsys, command)


def test_every_calibrator_is_judged_whatever_the_names(
    fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [Path(f"run{i}/net.safetensors") for i in range(3)]
    for path in paths:
        (fitted / path).parent.mkdir()
        (fitted / path).write_bytes((fitted / "net.safetensors").read_bytes())
    options = [part for path in paths for part in ("--calibrator", str(path))]
    assert main(["evaluate", "val.npz", "--input", "logits", *options, "--json"]) == 0
    _, first, *others = json.loads(capsys.readouterr().out)["methods"]
    assert others == [f"{first} (net)", f"{first} (run2/net.safetensors)"]


def test_what_json_has_no_number_for_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    say("", {"a": {"b": -math.inf, "c": 1.5}, "d": math.nan}, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"a": {"b": None, "c": 1.5}, "d": None}


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet", ".csv"])
def test_a_damaged_file_is_predicted_or_refused_in_one_line(
    suffix: str, fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, rng = write(fitted / f"x{suffix}", content()), random.Random(0)
    whole = path.read_bytes()
    codes = []
    for _ in range(60):
        damaged = bytearray(whole[: rng.randrange(len(whole))] if rng.random() < 0.3 else whole)
        for _ in range(min(len(damaged), rng.randrange(1, 20))):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        codes.append(
            main(["predict", "net.safetensors", path.name, "--input", "logits", "-o", "out.csv"])
        )
        err = capsys.readouterr().err
        assert (codes[-1], err.count("\n")) in ((0, 0), (2, 1)), err
    assert 2 in codes


def test_more_classes_than_memory_are_one_line(
    fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = {"logits": {"dtype": "F32", "shape": [2**20, 2**30], "data_offsets": [0, 2**52]}}
    text = json.dumps(header).encode()
    (fitted / "huge.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    error_of(
        capsys,
        ["predict", "net.safetensors", "huge.safetensors", "--input", "logits", "-o", "out.csv"],
    )


def test_inputs_that_the_network_cannot_take(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(folder / "inputs.npz", inputs=np.zeros((4, 3, 2, 2), np.float32), labels=np.arange(4))
    network = ["--model", "simplexcal.demo.lenet5:LeNet5"]
    assert "cannot take" in error_of(
        capsys, ["calibrate", "inputs.npz", *network, "-o", "net.safetensors"]
    )


def test_another_number_of_classes_is_named(
    fitted: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(fitted / "two.npz", logits=arrays["logits"][:, :2])
    command = ["predict", "net.safetensors", "two.npz", "--input", "logits", "-o", "out.npz"]
    assert "is for 3 classes; 'two.npz' has 2" in error_of(capsys, command)


def test_a_warning_is_one_line(
    folder: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(folder / "val.npz", logits=arrays["logits"], labels=arrays["logits"].argmax(1))
    assert (
        main(
            ["calibrate", "val.npz", "--input", "logits", "--method", "ts", "-o", "net.safetensors"]
        )
        == 0
    )
    err = capsys.readouterr().err
    assert err.startswith("warning: ")
    assert err.count("\n") == 1


@pytest.mark.usefixtures("folder")
def test_a_defect_is_no_traceback_either(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simplexcal.cli.calibrate.read_source", lambda *_, **__: 1 / 0)
    assert main(["calibrate", "val.npz", "--input", "logits", "-o", "net.safetensors"]) == 1
    assert capsys.readouterr().err == (
        "error: ZeroDivisionError('division by zero'), which is a defect of simplexcal; please report it.\n"
    )


@pytest.mark.usefixtures("fitted")
def test_the_command_is_installed_and_quiet_when_piped() -> None:
    command = [
        str(Path(sys.executable).with_name("simplexcal")),
        "evaluate",
        "val.npz",
        "--input",
        "logits",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "none" in done.stdout
    done = subprocess.run(
        [sys.executable, "-m", "simplexcal", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"simplexcal {simplexcal.__version__}\n"


def test_without_the_extra_there_is_one_line() -> None:
    code = "import sys; sys.modules['typer'] = None; from simplexcal.__main__ import main; raise SystemExit(main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert 'pip install "simplexcal[cli,report]"' in done.stderr


def test_rows_are_scored_as_they_are_predicted(
    fitted: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    logits = arrays["logits"].copy()
    logits[7] = np.nan
    write(fitted / "rows.parquet", {"logits": logits, "id": np.arange(len(logits)) + 100})
    command = [
        "score",
        "net.safetensors",
        "--input",
        "rows.parquet",
        "--output",
        "out.parquet",
        "--probs",
    ]
    assert main([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["rows"], said["n_rejected"]) == (299, 1)
    assert (
        main(["predict", "net.safetensors", "val.npz", "--input", "logits", "-o", "all.parquet"])
        == 0
    )
    scored, predicted = pq.read_table("out.parquet"), pq.read_table("all.parquet")
    good = np.delete(np.arange(300), 7)
    assert scored["id"].to_pylist() == (good + 100).tolist()
    assert scored["predicted"].to_pylist() == predicted["predicted"].take(good).to_pylist()
    assert scored["confidence"].to_numpy() == pytest.approx(
        predicted["confidence"].take(good).to_numpy(), rel=1e-6
    )
    assert pq.read_table(said["rejected"])["id"].to_pylist() == [107]
    capsys.readouterr()
    missing = ["score", "net.safetensors", "--input", "missing.parquet", "--output", "out.parquet"]
    assert "missing.parquet" in error_of(capsys, missing)


@pytest.mark.long
def test_the_demo_is_what_make_demo_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = re.search(
        r"^demo:.*\n\t\$\(BIN\)/simplexcal (.*)$", MAKEFILE.read_text(), re.MULTILINE
    )
    assert recipe is not None
    monkeypatch.chdir(tmp_path)
    command = [str(Path(sys.executable).with_name("simplexcal")), *recipe[1].split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    for name in showcase.METHODS:
        assert f"| {name} " in done.stdout
    assert "The report: simplexcal-demo.html" in done.stdout
    page = (tmp_path / "simplexcal-demo.html").read_text()
    assert "Fashion-MNIST" in page
    assert len(page) < 3_000_000


def test_help_says_what_each_command_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert main([]) == 0
    assert capsys.readouterr().out == out
    assert "..." not in out.partition("Commands:")[2]
    for command in ("demo", "calibrate", "predict", "evaluate", "report", "export", "score"):
        assert command in out


def test_one_class_can_be_judged(
    fitted: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(fitted / "one.npz", logits=arrays["logits"][:1], labels=arrays["labels"][:1])
    assert main(["evaluate", "one.npz", "--input", "logits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["methods"]["none"]["n"] == 1


def test_inputs_may_be_double(folder: Path) -> None:
    images, labels = images_and_labels()
    np.savez(
        folder / "double.npz",
        inputs=normalise(images[:200]).double().numpy(),
        labels=labels[:200].numpy(),
    )
    network = ["--model", "simplexcal.demo.lenet5:LeNet5", "--weights", str(WEIGHTS)]
    assert (
        main(["calibrate", "double.npz", *network, "--method", "ts", "-o", "net.safetensors"]) == 0
    )


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("command", [interrupt, lambda: 130], ids=["python's", "typer's"])
def test_an_interruption_is_one_line(
    command: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command) == 130
    assert capsys.readouterr() == ("", "error: interrupted\n")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = [sys.executable, "-m", "simplexcal", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0
