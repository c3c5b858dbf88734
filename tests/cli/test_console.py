"""What a user sees when something is wrong: one line, and an exit code."""

import io
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
import pytest
import torch
from helpers.command_line import error_of, simplexcal
from helpers.user_files import content, write

from simplexcal import NotFittedError, __version__
from simplexcal.cli import COMMANDS
from simplexcal.cli._console import echo_result, explain, run

Arrays = dict[str, npt.NDArray[Any]]
CALIBRATE = "calibrate val.npz -o net.safetensors"


def without(arrays: Arrays, name: str) -> Arrays:
    return {key: x for key, x in arrays.items() if key != name}


WRONG: dict[str, tuple[Callable[[Arrays], Arrays], str]] = {
    "logits that are called probs": (
        lambda a: {"probs": a["logits"], "labels": a["labels"]},
        "Or pass their name as --logits",
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
    error = error_of(capsys, "calibrate wrong.npz -o net.safetensors")
    assert message.lower() in error.lower()
    assert not (folder / "net.safetensors").exists()


@pytest.mark.usefixtures("fitted")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("calibrate val.npz --kind guess -o net.safetensors", "guess"),
        ("calibrate val.npz --seed -1 -o net.safetensors", "from 0 on"),
        (
            "calibrate missing.npz -o net.safetensors",
            "'missing.npz': No such file or directory.",
        ),
        ("calibrate val.npz", "--output"),
        (
            "calibrate val.npz -o net.pkl",
            "--output must end in .safetensors; got 'net.pkl'.",
        ),
        ("calibrate val.npz -o no/such/net.safetensors", "no folder"),
        (f"{CALIBRATE} --method magic", "'magic' is not one of none, ts"),
        (f"{CALIBRATE} --mixup inputs", "--model"),
        (f"{CALIBRATE} --head fc", "--model"),
        (f"{CALIBRATE} --model a:b --kind logits", "one or the other"),
        (f"{CALIBRATE} --model a:b --logits z", "one or the other"),
        ("calibrate val.npz --model nowhere:b -o n.safetensors", "inputs"),
        ("predict val.npz val.npz -o out.npz", "not a whole safetensors file"),
        ("predict net.safetensors val.npz -o out.txt", "must end in"),
        ("evaluate val.npz --kind predictions", "probs"),
        ("evaluate val.npz --kind predictions --calibrator net.safetensors", "Leave out"),
        ("report val.npz -o report.pdf", "must end in .html"),
        (
            "predict gone.safetensors val.npz -o out.npz",
            "'gone.safetensors': No such",
        ),
        (
            "evaluate val.npz --calibrator gone.safetensors",
            "'gone.safetensors': No such",
        ),
        (
            "predict net.safetensors val.npz -o val.npz",
            "'val.npz' is read by this",
        ),
        (
            "predict net.safetensors val.npz -o net.safetensors",
            "is read by this",
        ),
        ("nonsense", "nonsense"),
    ],
)
def test_a_wrong_command_is_one_line(
    command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in error_of(capsys, command)


def test_a_folder_is_no_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "folder.safetensors").mkdir()
    error = error_of(capsys, "calibrate val.npz -o folder.safetensors")
    assert "'folder.safetensors' is a folder. Give the name of a file." in error


def test_inputs_that_the_network_cannot_take(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(folder / "inputs.npz", inputs=np.zeros((4, 3, 2, 2), np.float32), labels=np.arange(4))
    network = "--model simplexcal.demo.lenet5:LeNet5"
    error = error_of(capsys, f"calibrate inputs.npz {network} -o net.safetensors")
    assert "The network cannot take the `inputs` of 'inputs.npz'" in error


def test_another_number_of_classes_is_named(
    fitted: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(fitted / "two.npz", logits=arrays["logits"][:, :2])
    error = error_of(capsys, "predict net.safetensors two.npz -o out.npz")
    assert "is for 3 classes; 'two.npz' has 2" in error


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet", ".csv"])
def test_a_damaged_file_is_predicted_or_rejected_in_one_line(
    suffix: str, fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(fitted / f"x{suffix}", content())
    rng = random.Random(0)
    whole = path.read_bytes()
    codes = []
    for _ in range(60):
        damaged = bytearray(whole)
        if rng.random() < 0.3:
            damaged = damaged[: rng.randrange(len(whole))]
        for _ in range(min(len(damaged), rng.randrange(1, 20))):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        code = simplexcal(f"predict net.safetensors {path.name} -o out.csv")
        codes.append(code)
        err = capsys.readouterr().err
        assert (code, err.count("\n")) in ((0, 0), (2, 1)), err
    assert 2 in codes


def test_more_classes_than_memory_are_one_line(
    fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = {"logits": {"dtype": "F32", "shape": [2**20, 2**30], "data_offsets": [0, 2**52]}}
    text = json.dumps(header).encode()
    (fitted / "huge.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    error_of(capsys, "predict net.safetensors huge.safetensors -o out.csv")


def allocate_too_much() -> None:
    torch.zeros(2**50)


@pytest.mark.usefixtures("folder")
def test_too_little_memory_is_bad_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simplexcal.cli.calibrate.read_data", lambda *_, **__: allocate_too_much())
    assert "not enough memory" in error_of(capsys, CALIBRATE)


def test_a_warning_is_one_line(
    folder: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(folder / "val.npz", logits=arrays["logits"], labels=arrays["logits"].argmax(1))
    assert simplexcal(f"{CALIBRATE} --method ts") == 0
    err = capsys.readouterr().err
    assert err.startswith("warning: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [
        ValueError("the value"),
        TypeError("the type"),
        OSError("the disk"),
        ImportError("the package"),
        NotFittedError("the fit"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.usefixtures("folder")
def test_errors_of_the_library_are_bad_input(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raise_in_calibrate(monkeypatch, error)
    assert error_of(capsys, CALIBRATE) == f"{error}\n"
    assert explain(error) == str(error)


def raise_in_calibrate(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def read_source(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("simplexcal.cli.calibrate.read_data", read_source)


@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError("division by zero"), RuntimeError("a bug"), KeyError("x"), AssertionError()],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.usefixtures("folder")
def test_any_other_error_is_a_defect_of_ours(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raise_in_calibrate(monkeypatch, error)
    assert simplexcal(CALIBRATE) == 1
    assert capsys.readouterr() == (
        "",
        f"error: {error!r}. This is a defect of simplexcal; please report it, with the traceback "
        "that SIMPLEXCAL_DEBUG=1 in the environment shows.\n",
    )


@pytest.mark.parametrize(
    ("error", "code"), [(ValueError("the value"), 2), (ZeroDivisionError("a bug"), 1)]
)
@pytest.mark.usefixtures("folder")
def test_the_traceback_is_shown_on_request(
    error: Exception,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raise_in_calibrate(monkeypatch, error)
    monkeypatch.setenv("SIMPLEXCAL_DEBUG", "0")
    assert simplexcal(CALIBRATE) == code
    line = capsys.readouterr().err
    monkeypatch.setenv("SIMPLEXCAL_DEBUG", "1")
    assert simplexcal(CALIBRATE) == code
    traceback = capsys.readouterr().err
    assert "Traceback (most recent call last):" in traceback
    assert line.count("\n") == 1
    assert f"raise error\n{type(error).__name__}: {error}" in traceback
    assert traceback.endswith(line)


def test_the_traceback_of_a_wrong_option_is_shown_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMPLEXCAL_DEBUG", "1")
    assert simplexcal("nonsense") == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):")
    assert err.splitlines()[-1].startswith("error: No such command")


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("command", [interrupt, lambda: 130], ids=["python's", "typer's"])
def test_an_interruption_is_one_line(
    command: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command) == 130
    assert capsys.readouterr() == ("", "error: interrupted\n")


def test_a_closed_pipe_is_no_error() -> None:
    command = [sys.executable, "-m", "simplexcal", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.usefixtures("folder")
def test_a_pipe_that_is_closed_during_a_command_is_no_error() -> None:
    command = [sys.executable, "-m", "simplexcal", "evaluate", "val.npz"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_numbers_that_json_lacks_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    echo_result("", {"a": {"b": -math.inf, "c": 1.5}, "d": math.nan}, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"a": {"b": None, "c": 1.5}, "d": None}


def test_help_says_what_each_command_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert simplexcal("--help") == 0
    out = capsys.readouterr().out
    assert simplexcal("") == 0
    assert capsys.readouterr().out == out
    assert "..." not in out.partition("Commands:")[2]
    for command in COMMANDS:
        assert command in out
    assert "SIMPLEXCAL_DEBUG=1 in the environment shows the traceback" in " ".join(out.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_shows_its_options_once(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simplexcal(f"{command} --help") == 0
    out = capsys.readouterr().out
    assert "Args:" not in out
    assert len(re.findall(r"--output\b(?!s)", out)) <= 1


@pytest.mark.usefixtures("fitted")
def test_the_command_is_installed_and_quiet_when_piped() -> None:
    executable = str(Path(sys.executable).with_name("simplexcal"))
    command = [executable, "evaluate", "val.npz"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "none" in done.stdout
    command = [sys.executable, "-m", "simplexcal", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"simplexcal {__version__}\n"


def test_without_the_extra_there_is_one_line() -> None:
    code = (
        "import sys; sys.modules['typer'] = None; "
        "from simplexcal.__main__ import main; raise SystemExit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert 'pip install "simplexcal[cli,report]"' in done.stderr


def test_a_name_that_stdout_cannot_show_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(content, encoding="ascii"))
    assert run(lambda: echo_result("é\udcff.parquet: 3 rows", {}, as_json=False)) == 0
    sys.stdout.flush()
    assert content.getvalue() == rb"\xe9\udcff.parquet: 3 rows" + b"\n"
