"""Records and their files: exactly these keys, whole or not at all, whoever writes."""

import json
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from experiments.config.studies import STUDIES
from experiments.detection import records as detection_records
from experiments.rivals import records as rivals_records
from experiments.running import normalisation_records
from experiments.running.records import (
    SCHEMA_VERSION,
    Mixup,
    Record,
    RecordStore,
    SampledMetrics,
    format_line,
    parse_line,
)
from helpers.records import SAMPLED_OOD, betas, record

FULL = record(
    "ood",
    "cifar10-resnet18",
    3,
    "sts-paper",
    0.01,
    0.2,
    ood_set="svhn",
    ood=SAMPLED_OOD,
    betas=betas(0.1),
    mixup=Mixup("inputs", 10, 10, False),
    sampled=SampledMetrics(0.1, 0.9, 0.01),
)


@pytest.mark.parametrize("made", [FULL, record("time", "cifar10-resnet18", 0, "ts", 0.1, 0.2)])
def test_a_record_comes_back_from_its_line(made: Record) -> None:
    line = format_line(made)
    assert line.endswith("}\n")
    assert parse_line(line, "here") == made


def changed(path: str, value: Any) -> str:
    """Return the line of a record with another value, or without a key, at a dotted path."""
    made = FULL.to_json()
    *parents, last = path.split(".")
    at: Any = made
    for key in parents:
        at = at[int(key)] if key.isdigit() else at[key]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return json.dumps(made)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (changed("colour", 1), "x has unknown keys: colour."),
        (changed("metrics.gap", 1.0), "x, metrics has unknown keys: gap."),
        (changed("beta", ...), "x lacks keys: beta."),
        (changed("training.augmentation.flip", ...), "x, training, augmentation lacks keys: flip."),
        (changed("betas.1.test.nll", ...), "x, betas, test lacks keys: nll."),
        (changed("seed", None), "x, seed must not be null."),
        (changed("mixup", 3), "x, mixup must be a JSON object; got 3."),
        (changed("schema_version", 1), "x has schema version 1; this code reads version 3."),
        (changed("schema_version", ...), "x has schema version None; this code reads version 3."),
        ("[1]", "x has schema version None; this code reads version 3."),
        ('{"a"', "x is no JSON: "),
    ],
)
def test_what_is_no_record_is_rejected(line: str, sentence: str) -> None:
    with pytest.raises(ValueError, match="^" + sentence.replace(".", r"\.")):
        parse_line(line, "x")


def test_a_number_that_is_not_finite_is_rejected() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        format_line(replace(FULL, accuracy=float("nan")))


def test_a_file_is_sorted_and_a_record_is_replaced(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "new")
    made = [
        record("table1", "fmnist-lenet5", seed, method, 0.01, 0.2)
        for method, seed in (("ts", 10), ("ts", 2), ("none", 3))
    ]
    for one in made:
        store.write(one)
    found = store.read("table1", "fmnist-lenet5")
    assert [one.key for one in found] == [("none", 3, ""), ("ts", 2, ""), ("ts", 10, "")]
    store.write(replace(made[0], accuracy=0.5))
    assert [one.accuracy for one in store.read("table1", "fmnist-lenet5")] == [0.9, 0.9, 0.5]
    assert store.read("table1", "fmnist-resnet18") == []
    assert [p.name for p in (tmp_path / "new" / "table1").iterdir()] == ["fmnist-lenet5.jsonl"]


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    made = record("table1", "fmnist-lenet5", 0, "ts", 0.01, 0.2)
    store.write(made)
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.write(replace(made, seed=1, accuracy=float("inf")))
    assert store.read("table1", "fmnist-lenet5") == [made]


def test_what_an_interrupted_write_left_is_removed(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    made = record("table1", "fmnist-lenet5", 0, "ts", 0.01, 0.2)
    store.write(made)
    part = tmp_path / "table1" / ".0123.part"
    part.write_text('{"schema')
    assert store.read_study("table1") == [made]
    store.write(replace(made, seed=1))
    assert not part.exists()


def _write(folder: Path, seed: int) -> None:
    for method in ("none", "ts", "ets"):
        RecordStore(folder).write(record("table1", "fmnist-lenet5", seed, method, 0.01, 0.2))


def test_processes_that_write_to_one_file_lose_nothing(tmp_path: Path) -> None:
    context = get_context("fork")
    processes = [context.Process(target=_write, args=(tmp_path, seed)) for seed in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert len(RecordStore(tmp_path).read("table1", "fmnist-lenet5")) == 12


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "table1" / "fmnist-lenet5.jsonl"
    path.parent.mkdir()
    path.write_text(format_line(record("table1", "fmnist-lenet5", 0, "ts", 0.1, 0.2)) + "{}\n")
    with pytest.raises(ValueError, match=r"fmnist-lenet5\.jsonl', line 2 has schema version None"):
        RecordStore(tmp_path).read("table1", "fmnist-lenet5")


def test_the_records_of_the_repository_are_whole() -> None:
    store = RecordStore(Path(__file__).parents[3] / "experiments" / "results")
    studies = {path.name for path in store.folder.iterdir() if path.is_dir()}
    others = (rivals_records.PATH, detection_records.PATH)  # of other fields
    studies -= {normalisation_records.STUDY, *(path.parent.name for path in others)}
    assert studies <= set(STUDIES)
    for study in studies:
        for path in (store.folder / study).iterdir():
            records = store.read(study, path.stem)
            keys = [one.key for one in records]
            assert keys == sorted(set(keys))
            assert {(one.study, one.setting) for one in records} == {(study, path.stem)}
            assert {one.schema_version for one in records} == {SCHEMA_VERSION}
            assert path.read_text() == "".join(map(format_line, records))


def test_the_records_of_the_normalisation_are_whole(tmp_path: Path) -> None:
    folder = Path(__file__).parents[3] / "experiments" / "results"
    for path in (folder / normalisation_records.STUDY).iterdir():
        records = normalisation_records.read_records(folder, path.stem)
        assert {(one.setting, one.dry_run) for one in records} == {(path.stem, False)}
        for one in reversed(records):
            normalisation_records.write_record(tmp_path, one)
        written = tmp_path / normalisation_records.STUDY / path.name
        assert written.read_text() == path.read_text()
