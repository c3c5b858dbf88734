"""The grammar that all commands share: positional data, kinds and names of arrays, help, tables."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from helpers.command_line import error_of, simplexcal
from helpers.user_files import write

from simplexcal.cli import COMMANDS, EXAMPLES
from simplexcal.cli._inputs import read_source
from simplexcal.io.tables import read_predictions

Arrays = dict[str, npt.NDArray[Any]]
SUFFIXES = [".npz", ".safetensors", ".parquet", ".csv", ".pt"]
READING = ["calibrate", "predict", "evaluate", "report", "threshold", "ood", "score"]
EVALUATE = "evaluate val.npz --calibrator net.safetensors"


def save(path: Path, arrays: Arrays) -> Path:
    """Write arrays under any names; in rows an array (N, K) has the columns name0, name1, …."""
    if path.suffix == ".pt":
        torch.save({name: torch.from_numpy(x) for name, x in arrays.items()}, path)
    elif path.suffix in (".parquet", ".csv"):
        columns: Arrays = {}
        for name, x in arrays.items():
            if x.ndim == 1:
                columns[name] = x
            else:
                columns |= {f"{name}{i}": x[:, i] for i in range(x.shape[1])}
        table = pa.table(columns)
        if path.suffix == ".csv":
            pa.csv.write_csv(table, path)
        else:
            pq.write_table(table, path)
    else:
        write(path, arrays)
    return path


def output_of(capsys: pytest.CaptureFixture[str], command: str) -> str:
    capsys.readouterr()
    assert simplexcal(command) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def record_of(capsys: pytest.CaptureFixture[str], command: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(output_of(capsys, f"{command} --json"))
    return record


def softmax(logits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return torch.from_numpy(logits).softmax(-1).numpy()


# --- what a file holds ---


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", ["logits", "probs"])
def test_what_a_file_holds_is_read_from_its_names(
    name: str, suffix: str, fitted: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"logits": arrays["logits"], "probs": softmax(arrays["logits"])}[name]
    stem = name
    if suffix in (".parquet", ".csv"):
        stem = f"{name.removesuffix('s')}_"
    save(fitted / f"x{suffix}", {stem: values, "labels": arrays["labels"]})
    found = record_of(capsys, f"evaluate x{suffix}")["methods"]["none"]
    expected = record_of(capsys, "evaluate val.npz")["methods"]["none"]
    assert found["nll"] == pytest.approx(expected["nll"], rel=1e-5)


def test_logits_between_0_and_1_are_logits(
    fitted: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    probs = softmax(arrays["logits"])
    np.savez(fitted / "x.npz", logits=probs, labels=arrays["labels"])
    found = record_of(capsys, "evaluate x.npz")["methods"]["none"]
    assert found["confidence"] == pytest.approx(softmax(probs).max(1).mean(), rel=1e-5)


@pytest.mark.usefixtures("fitted")
@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet", ".csv"])
def test_what_predict_wrote_are_predictions(
    suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simplexcal(f"predict net.safetensors val.npz -o p{suffix}") == 0
    assert list(record_of(capsys, f"evaluate p{suffix}")["methods"]) == ["p"]
    again = f"calibrate p{suffix} --method ts -o twice.safetensors"
    error = error_of(capsys, again)
    assert error == (
        f"'p{suffix}' holds predictions, and a network's outputs are needed. "
        "Pass --kind probs to take its probabilities as such.\n"
    )
    assert simplexcal(f"{again} --kind probs") == 0
    assert list(record_of(capsys, f"evaluate p{suffix} --kind probs")["methods"]) == ["none"]


@pytest.mark.parametrize(
    ("command", "choice"),
    [
        ("calibrate x.npz --method ts -o c.safetensors", "--kind logits or --kind probs"),
        ("predict net.safetensors x.npz -o p.npz", "--kind logits or --kind probs"),
        ("evaluate x.npz", "--kind logits or --kind probs or --kind predictions"),
        ("ood val.npz x.npz", "--kind logits or --kind probs or --kind predictions"),
        ("score net.safetensors x.parquet -o y.parquet", "--kind logits or --kind probs"),
    ],
)
def test_a_file_that_holds_more_than_one_needs_kind(
    command: str, choice: str, fitted: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    both = {"logits": arrays["logits"], "probs": softmax(arrays["logits"][:, ::-1].copy())}
    np.savez(fitted / "x.npz", labels=arrays["labels"], **both)  # type: ignore[arg-type]
    write(fitted / "x.parquet", both)
    error = error_of(capsys, command)
    assert re.search(r"x\.\w+' holds `logits` and `probs`\. Say which are meant: ", error)
    assert error.endswith(f"pass {choice}.\n")
    if not command.startswith("ood"):
        assert simplexcal(f"{command} --kind logits") == 0


def test_a_name_says_which_of_two_is_meant(
    fitted: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    probs = softmax(arrays["logits"])
    np.savez(fitted / "x.npz", logits=-arrays["logits"], probs=probs, labels=arrays["labels"])
    expected = record_of(capsys, "evaluate val.npz")["methods"]["none"]["nll"]
    found = record_of(capsys, "evaluate x.npz --probs probs")["methods"]["none"]["nll"]
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("suffix", [".npy", ".pt"])
def test_one_array_without_a_name_needs_kind(
    suffix: str, fitted: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    if suffix == ".npy":
        np.save(fitted / "x.npy", arrays["logits"])
    else:
        torch.save(torch.from_numpy(arrays["logits"]), fitted / "x.pt")
    command = f"predict net.safetensors x{suffix} -o p.npz"
    assert error_of(capsys, command) == (
        f"'x{suffix}' holds one array without a name. Say what it is: "
        "pass --kind logits or --kind probs.\n"
    )
    error = error_of(capsys, f"{command} --logits z --kind logits")
    assert error == (
        f"'x{suffix}' holds one array without a name. Leave out --logits; --kind says what it is.\n"
    )
    assert simplexcal(f"{command} --kind logits") == 0
    assert len(read_predictions("p.npz")[0]) == len(arrays["logits"])


@pytest.mark.usefixtures("fitted")
def test_a_file_without_outputs_says_what_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("x.npz", scores=np.zeros((2, 3)), y=np.zeros(2))
    assert error_of(capsys, "evaluate x.npz") == (
        "'x.npz' must hold `logits` or `probs`; found 'scores', 'y'. "
        "If they have another name, pass --logits or --probs.\n"
    )
    np.savez("x.npz", inputs=np.zeros((2, 3)))
    error = error_of(capsys, "evaluate x.npz")
    assert error == "'x.npz' holds the `inputs` of a network. Pass --model, which takes them.\n"


# --- names of arrays ---


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_arrays_of_any_name_are_mapped(suffix: str, fitted: Path, arrays: Arrays) -> None:
    keys = np.arange(300) + 7
    own = {"z_": arrays["logits"], "f_": arrays["features"], "y": arrays["labels"], "key": keys}
    # Arrays with the usual names are others, and are not read.
    stem = "logits"
    if suffix in (".parquet", ".csv"):
        stem = "logit_"
    decoys = {stem: arrays["logits"][:, :2].copy(), "labels": 0 * keys, "id": 0 * keys}
    save(fitted / f"x{suffix}", own | decoys)
    names = "--logits z_ --features f_ --labels y --id key"
    mapped = {"logits": "z_", "features": "f_", "labels": "y", "id": "key"}
    outputs = read_source(fitted / f"x{suffix}", None, None, mapped).table.outputs
    assert outputs.features is not None
    assert outputs.features.numpy() == pytest.approx(arrays["features"])
    assert simplexcal(f"predict net.safetensors x{suffix} {names} -o p.npz") == 0
    assert simplexcal("predict net.safetensors val.npz -o q.npz") == 0
    with np.load("p.npz") as found, np.load("q.npz") as expected:
        assert found["id"].astype(int).tolist() == keys.tolist()
        assert found["labels"].tolist() == expected["labels"].tolist()
        assert found["probs"] == pytest.approx(expected["probs"], abs=1e-5)


def test_a_name_may_be_a_column_of_lists(
    fitted: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pa.table({"z": arrays["logits"].tolist(), "y": arrays["labels"]})
    pq.write_table(table, fitted / "x.parquet")
    expected = record_of(capsys, EVALUATE)
    command = "evaluate x.parquet --logits z --labels y --calibrator net.safetensors"
    found = record_of(capsys, command)
    for method in ("none", "ts"):
        assert found["methods"][method]["ece"] == pytest.approx(expected["methods"][method]["ece"])
    again = "score net.safetensors x.parquet --logits z --id y -o y.parquet"
    assert record_of(capsys, again)["rows"] == 300


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("flag", ["logits", "probs", "labels", "features", "id"])
def test_a_name_that_the_file_lacks_is_one_sentence_with_the_names_it_has(
    flag: str, suffix: str, fitted: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(fitted / f"x{suffix}", {"z_": arrays["logits"], "y": arrays["labels"]})
    command = f"predict net.safetensors {path.name} --logits z_ --{flag} gone -o p.npz"
    if flag == "probs":
        command = command.replace("--logits z_ ", "")
    error = error_of(capsys, command)
    has = "'z_', 'y'"
    if suffix in (".parquet", ".csv"):
        has = "'z_0' to 'z_2', 'y'"
    if suffix == ".safetensors":
        has = "'y', 'z_'"
    assert error == f"--{flag} is 'gone', which '{path.name}' does not hold; it holds {has}.\n"


def test_score_takes_the_same_names(
    fitted: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = np.arange(300)[::-1] + 5
    save(fitted / "x.parquet", {"z_": arrays["logits"], "logit_": arrays["features"], "key": keys})
    score = "score net.safetensors x.parquet -o y.parquet"
    assert record_of(capsys, f"{score} --logits z_ --id key --with-probs")["rows"] == 300
    scored = pq.read_table("y.parquet")
    assert scored["key"].to_pylist() == keys.tolist()
    assert simplexcal("predict net.safetensors val.npz -o p.npz") == 0
    prediction, _ = read_predictions("p.npz")
    found = np.stack([scored[f"prob_{i}"].to_numpy() for i in range(3)], axis=1)
    assert found == pytest.approx(prediction.probs.numpy(), abs=1e-6)
    capsys.readouterr()
    error = error_of(capsys, f"{score} --logits gone")
    assert error.startswith("--logits is 'gone', which '")
    assert error.endswith(
        "does not hold; it holds 'z_0' to 'z_2', 'logit_0' to 'logit_3', 'key'.\n"
    )


def test_scored_rows_with_their_classes_can_be_evaluated(
    fitted: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = np.arange(300)
    save(fitted / "x.parquet", {"z_": arrays["logits"], "y": arrays["labels"], "id": keys})
    score = "score net.safetensors x.parquet --logits z_ --labels y --with-probs -o y.parquet"
    assert simplexcal(score) == 0
    assert pq.read_table("y.parquet")["label"].to_pylist() == arrays["labels"].tolist()
    found = record_of(capsys, "evaluate y.parquet")["methods"]["y"]
    expected = record_of(capsys, EVALUATE)["methods"]["ts"]
    assert found["nll"] == pytest.approx(expected["nll"], rel=1e-5)
    threshold = record_of(capsys, "threshold y.parquet --target-accuracy 0.7")
    assert (threshold["n"], threshold["level"]) == (300, 0.7)


def test_labels_of_raw_inputs_are_mapped_too(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = np.zeros((20, 1, 28, 28), np.float32)
    np.savez(folder / "x.npz", inputs=inputs, y=np.arange(20) % 10)
    command = "evaluate x.npz --model simplexcal.demo.lenet5:LeNet5"
    assert record_of(capsys, f"{command} --labels y")["methods"]["none"]["n"] == 20
    assert "or name them with --labels" in error_of(capsys, command)


# --- help ---


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_short_and_plain(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = output_of(capsys, f"{command} -h")
    assert text == output_of(capsys, f"{command} --help")
    assert max(map(len, text.splitlines())) <= 80
    for word in ("path", "PATH", "INTEGER", "FLOAT", "<str>", "<int>", "<float>", "range", "{"):
        assert word not in re.sub(r"\[default:[^]]*\]", "", text), word
    if command:
        assert f"Example:\n    {EXAMPLES[command]}\n" in text
        assert EXAMPLES[command].startswith(f"simplexcal {command}")


@pytest.mark.parametrize("command", READING)
def test_every_command_that_reads_data_has_the_same_options(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = output_of(capsys, f"{command} -h")
    for flag in ("--kind", "--logits NAME", "--probs NAME", "--features NAME", "--model NAME"):
        assert f"\n  {flag} " in text
    if command != "ood":  # It uses no true classes.
        assert "\n  --labels NAME " in text
    if command != "ood":  # It prints no rows.
        assert "\n  --id NAME " in text


@pytest.mark.parametrize(
    "command",
    [
        "calibrate val.npz --input logits -o c.safetensors",
        "score net.safetensors --input rows.parquet -o y.parquet",
        "score net.safetensors rows.parquet --key id -o y.parquet",
        "export net.safetensors --data val.npz -o y.onnx",
    ],
)
@pytest.mark.usefixtures("fitted")
def test_there_are_no_other_spellings(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows.parquet").touch()
    assert "No such option" in error_of(capsys, command)


@pytest.mark.usefixtures("fitted")
def test_the_examples_run_and_print_what_fits_a_terminal(
    arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("test", "ood"):
        np.savez(f"{name}.npz", logits=arrays["logits"][::-1], labels=arrays["labels"][::-1])
    write(Path("rows.parquet"), {"logits": arrays["logits"]})
    for name in ("reference", "batch"):
        output_of(capsys, f"predict net.safetensors val.npz -o {name}.parquet")
    for command, example in EXAMPLES.items():
        if command not in ("demo", "calibrate"):  # These take long, and others test them.
            text = output_of(capsys, example.removeprefix("simplexcal "))
            assert max(map(len, text.splitlines())) <= 80, text
    text = output_of(capsys, "calibrate val.npz --method ts -o ts.safetensors")
    assert max(map(len, text.splitlines())) <= 80, text


# --- tables ---


@pytest.mark.usefixtures("fitted")
def test_a_table_fits_a_terminal_and_ends_with_the_verdict_of_the_report(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = Path("a-calibrator-with-a-name-that-no-table-has-room-for.safetensors")
    long.write_bytes(Path("net.safetensors").read_bytes())
    text = output_of(capsys, f"{EVALUATE} --calibrator {long}")
    assert max(map(len, text.splitlines())) <= 80
    table, legend, verdict = text.split("\n\n")
    assert len(table.splitlines()) == 5
    assert len({line[:11] for line in table.splitlines()}) == 5
    for word in ("ECE", "floor", "NLL", "AURC", "acc."):
        assert word in legend
    assert verdict.startswith("Verdict: ")
    said = record_of(capsys, EVALUATE)["verdict"]
    assert simplexcal("report val.npz --calibrator net.safetensors -o r.html") == 0
    assert said in Path("r.html").read_text().replace("\u202f", " ")


@pytest.mark.usefixtures("fitted")
def test_the_tolerance_is_that_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    strict = record_of(capsys, "evaluate val.npz --tolerance 0.001")["verdict"]
    lax = record_of(capsys, "evaluate val.npz --tolerance 0.5")["verdict"]
    assert lax == "This network is well calibrated."
    assert strict != lax
    assert "--tolerance must" in error_of(capsys, "evaluate val.npz --tolerance 2")
