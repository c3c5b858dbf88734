"""The results page of CamVid is what its record says, and the record keeps its limits."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

BENCHMARKS = str(Path(__file__).parents[1] / "benchmarks")
with mock.patch.object(sys, "path", [BENCHMARKS, *sys.path]):
    camvid: Any = importlib.import_module("camvid")
    page: Any = importlib.import_module("camvid_page")
RECORD = json.loads(camvid.RECORD.read_text())


def test_the_page_is_what_the_record_says() -> None:
    text = page.PAGE.read_text()
    assert page.render(text, RECORD) == text
    shown = [found[2] for found in page.TABLE.finditer(text)]
    assert sorted(shown) == sorted(page.TABLES)


def test_another_record_gives_another_page() -> None:
    text = page.PAGE.read_text()
    other = json.loads(json.dumps(RECORD))
    other["scores"]["all"]["ts"]["nll"] = 1.2345
    assert "1.2345" in page.render(text, other)


def test_no_prediction_changes_and_all_pixels_count() -> None:
    tables = [*RECORD["scores"].values(), RECORD["same_drives"]]
    for table in tables:
        assert list(table) == list(camvid.ALL_METHODS)
        assert len({row["accuracy"] for row in table.values()}) == 1
    drives = [name for name in RECORD["scores"] if name != "all"]
    for score in ("n", "n_positions"):
        parts = sum(RECORD["scores"][drive]["none"][score] for drive in drives)
        assert parts == RECORD["scores"]["all"]["none"][score]


def test_the_scores_of_the_classes_belong_to_those_of_all() -> None:
    for row in RECORD["scores"]["all"].values():
        n = sum(own["n"] for own in row["classes"])
        nll = sum(own["n"] * own["nll"] for own in row["classes"])
        assert n == row["n_positions"]
        assert nll / n == pytest.approx(row["nll"])


def test_limits_of_memory_and_of_onnxruntime() -> None:
    memory = RECORD["memory"]
    assert max(memory.values()) - memory["network"] <= page.MIB_OF_LIMIT
    for found in RECORD["onnx"]["differences"].values():
        assert found["labels"] == 0
        assert found["probs"] <= camvid.TOLERANCE


def test_what_the_prose_says_about_the_nll() -> None:
    others = ("none", "ts", "ets")
    all_images = RECORD["scores"]["all"]
    assert all(all_images["sts"]["nll"] > all_images[m]["nll"] for m in others)
    for table in (
        RECORD["network"]["nll"],
        {m: x["nll"] for m, x in RECORD["same_drives"].items()},
    ):
        assert all(table["sts"] < table[m] for m in others)
    for drives in RECORD["class_terms"].values():
        sts, ts, without = (drives[m]["nll"] for m in ("sts", "ts", "sts_without"))
        assert abs(without - ts) < 0.2 * abs(sts - ts)
