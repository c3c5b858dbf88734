"""`simplexcal monitor`: files of `predict` and `score`, the page, and what it is not told."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.command_line import error_of, simplexcal

import simplexcal as sc

MONITOR = "monitor reference.parquet batch.parquet"


@pytest.fixture
def predicted(fitted: Path, arrays: dict[str, npt.NDArray[Any]]) -> Path:
    """The current folder, with predictions of 300 inputs, and of 90 that are less certain."""
    np.savez(fitted / "far.npz", logits=arrays["logits"][:90] / 8)
    assert simplexcal("predict net.safetensors val.npz -o reference.parquet") == 0
    assert simplexcal("predict net.safetensors far.npz -o batch.parquet") == 0
    return fitted


def record_of(capsys: pytest.CaptureFixture[str], command: str) -> dict[str, Any]:
    capsys.readouterr()
    assert simplexcal(f"{command} --json") == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


@pytest.mark.usefixtures("predicted")
def test_the_record_is_that_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    record = record_of(capsys, f"{MONITOR} --tolerance 0.2 --level 0.9 --method atc")
    found = sc.monitor("reference.parquet", "batch.parquet", tolerance=0.2, level=0.9, method="atc")
    assert record == json.loads(json.dumps(found.as_dict()))
    assert (record["n_reference"], record["n"], record["verdict"]) == (300, 90, "recalibrate")


@pytest.mark.usefixtures("predicted")
def test_the_page_names_its_files(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert simplexcal(f"{MONITOR} -o page.html --title Monday") == 0
    text = capsys.readouterr().out
    assert "Recalibrate: confidence has drifted by" in text
    assert text.endswith("Wrote page.html. Open it in a browser.\n")
    page = Path("page.html").read_text()
    assert "<title>Monday</title>" in page
    assert "reference.parquet (SHA-256 " in page


def test_scored_rows_need_no_probabilities(
    predicted: Path, arrays: dict[str, npt.NDArray[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    for name, n, factor in (("known", 300, 1), ("new", 90, 8)):
        columns: dict[str, Any] = {f"logit_{i}": arrays["logits"][:n, i] / factor for i in range(3)}
        columns |= {"label": arrays["labels"][:n], "id": np.arange(n)}
        pq.write_table(pa.table(columns), predicted / f"{name}.parquet")
        options = "--labels label"
        score = f"score net.safetensors {name}.parquet -o {name}-scored.parquet {options}"
        assert simplexcal(score) == 0
    assert "prob_0" not in pq.read_schema("new-scored.parquet").names
    record = record_of(capsys, "monitor known-scored.parquet new-scored.parquet")
    expected = record_of(capsys, MONITOR)
    for own, other in zip(record["drifts"], expected["drifts"], strict=True):
        assert own["distance"] == pytest.approx(other["distance"])
    assert record["accuracy"]["components"]["atc"] == pytest.approx(
        expected["accuracy"]["components"]["atc"]
    )
    assert record["reference_accuracy"] == pytest.approx(expected["reference_accuracy"])
    assert "matching" not in record["accuracy"]["components"]


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("monitor val.npz batch.parquet", "Calibrate them first: simplexcal predict."),
        ("monitor batch.parquet gone.csv", "'gone.csv': No such file or directory."),
        (f"{MONITOR} -o page.txt", "must end in .html"),
        (f"{MONITOR} -o batch.parquet", "must end in .html"),
        (f"{MONITOR} --tolerance 2", "--tolerance"),
        (f"{MONITOR} --method best", "--method"),
        ("monitor batch.parquet reference.parquet --method atc", "--method must be 'confidence'"),
        ("monitor reference.parquet other.parquet", "BATCH must have the 3 classes of REFERENCE"),
        ("monitor reference.parquet maps.npz", "tokens or pixels"),
        ("monitor bare.parquet batch.parquet", "REFERENCE has labels and no predicted classes"),
        ("monitor text.parquet batch.parquet", "must hold predictions, with `confidence`"),
    ],
)
@pytest.mark.usefixtures("predicted")
def test_bad_input_gives_one_sentence(
    command: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    probs = np.full((4, 2), 0.5, np.float32)
    pq.write_table(pa.table({"prob_0": probs[:, 0], "prob_1": probs[:, 1]}), "other.parquet")
    maps = np.full((4, 5, 3), 1 / 3, np.float32)
    np.savez("maps.npz", probs=maps, predicted=np.zeros((4, 5), int))
    bare = {"confidence": np.full(4, 0.5, np.float32), "label": np.arange(4) % 2}
    pq.write_table(pa.table(bare), "bare.parquet")
    pq.write_table(pa.table({"words": ["a", "b"]}), "text.parquet")
    capsys.readouterr()
    assert sentence in error_of(capsys, command)
    assert not Path("page.html").exists()
