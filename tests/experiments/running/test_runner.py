"""The runner, from tiny data in each official format to records; stopped, killed and taken up again."""

import json
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from experiments.__main__ import LEFT, main
from experiments.config.settings import ROWS, TABLE1_ROWS
from experiments.config.studies import STUDIES
from experiments.pretraining import architectures
from helpers import tiny
from torch import nn

# Networks that have learned next to nothing may leave a temperature undetermined, and that is said.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The logits say nothing about the labels"),
    pytest.mark.filterwarnings("ignore:The squared error is smallest at the bound"),
]

QUICK = ("none", "ts", "ets", "adats", "pts", "sts-paper")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    tiny.write_all(folder)
    return folder


@pytest.fixture
def small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every network but LeNet-5 be a small one."""

    def small(n_channels: int, n_classes: int) -> nn.Module:
        layers = [nn.Conv2d(n_channels, 8, 5, stride=4), nn.BatchNorm2d(8), nn.ReLU()]
        return architectures.Classifier(layers, 8, n_classes)

    for name in architectures.NETWORKS:
        if name != "lenet5":
            monkeypatch.setitem(architectures.NETWORKS, name, small)


def arguments(study: str, data: Path, cache: Path, *more: str) -> list[str]:
    return [
        "run",
        study,
        "--data",
        str(data),
        "--cache",
        str(cache),
        "--trial",
        "--workers",
        "0",
        *more,
    ]


def records(cache: Path) -> dict[str, Any]:
    """Return all records below a cache folder, by path."""
    results = cache / "trial" / "results"
    return {
        str(p.relative_to(results)): json.loads(p.read_text())
        for p in sorted(results.rglob("*.json"))
    }


def without_times(found: dict[str, Any]) -> dict[str, Any]:
    for record in found.values():
        del record["timings"], record["training"]["seconds"]
    return found


@pytest.mark.usefixtures("small_networks")
@pytest.mark.parametrize("row", TABLE1_ROWS)
def test_table_1_from_the_official_formats(row: str, data: Path, tmp_path: Path) -> None:
    assert (
        main(
            arguments("table1", data, tmp_path, "--rows", row, "--seeds", "3", "--methods", *QUICK)
        )
        == 0
    )
    found = records(tmp_path)
    assert list(found) == [f"table1/{row}/3/{method}.json" for method in sorted(QUICK)]
    for path, record in found.items():
        assert (record["row"], record["seed"], record["method"] in path) == (row, 3, True)
        assert record["labels_preserved"]
        assert record["accuracy"] == record["metrics"]["accuracy"]
        assert (
            record["metrics"]["n"]
            == sum(record["bins"]["count"])
            == {"stl10": 80, "cifar100": 800}.get(ROWS[row].data, 160)
        )
        assert all(value is not None for key, value in record["timings"].items())
        assert record["versions"].keys() == {"simplexcal", "torch", "python"}
    assert found[f"table1/{row}/3/sts-paper.json"]["mixed_in"] == "float32"
    assert found[f"table1/{row}/3/sts-paper.json"]["beta"] in [
        round(0.1 * i, 1) for i in range(2, 21)
    ]


def test_the_default_method_runs_too(data: Path, tmp_path: Path) -> None:
    assert (
        main(
            arguments(
                "table1",
                data,
                tmp_path,
                "--rows",
                "fmnist-lenet5",
                "--seeds",
                "0",
                "--methods",
                "sts",
            )
        )
        == 0
    )
    record = records(tmp_path)["table1/fmnist-lenet5/0/sts.json"]
    assert record["mixes"] == {
        "kind": "features",
        "per_class": 100,
        "n_shuffles": 10,
        "fresh": True,
    }
    assert record["mixed_in"] is None  # no image is mixed
    assert record["metrics"]["epistemic"] < 0


@pytest.mark.usefixtures("small_networks")
@pytest.mark.parametrize(
    ("study", "methods"),
    [
        ("dirichlet", ("dirichlet",)),
        ("time", ("adats", "sts-paper", "pts")),
        ("mixes", ("sts-r20-s5", "sts-r100-s1")),
        ("branch", ("sts-small",)),
        ("forms", ("none", "sts-paper")),
    ],
)
def test_the_other_studies(
    study: str, methods: tuple[str, ...], data: Path, tmp_path: Path
) -> None:
    row = "cifar10-resnet18" if study != "forms" else "stl10-resnet18-strided"
    assert (
        main(arguments(study, data, tmp_path, "--rows", row, "--seeds", "0", "--methods", *methods))
        == 0
    )
    found = records(tmp_path)
    assert list(found) == sorted(f"{study}/{row}/0/{method}.json" for method in methods)
    for record in found.values():
        assert 0 <= record["validation"]["ece"] <= 1
        if record["betas"] is not None:  # the chosen one is the best of all
            errors = {tried["beta"]: tried["validation"]["ece"] for tried in record["betas"]}
            assert record["beta"] == min(errors, key=lambda beta: errors[beta])
            assert record["validation"]["ece"] == errors[record["beta"]]
    assert all(
        (record["betas"] is None) == (record["method"] in ("none", "adats", "pts"))
        for record in found.values()
    )


@pytest.mark.usefixtures("small_networks")
def test_rows_of_one_data_set_train_together_and_each_network_as_if_alone(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ("cifar100-resnet50", "cifar100-densenet121")
    some = ("--seeds", "0,2", "--methods", "none")
    command = arguments(
        "table1", data, tmp_path / "together", "--rows", *rows, *some, "--at-once", "3"
    )
    assert main(command) == 0
    said = capsys.readouterr().err
    assert "cifar100-resnet50, seeds 0, 2 and cifar100-densenet121, seeds 0: pre-training" in said
    assert "\ncifar100-densenet121, seeds 2: pre-training" in re.sub(r"\d\d:\d\d:\d\d ", "", said)
    for row in rows:
        assert (
            main(
                arguments(
                    "table1", data, tmp_path / "alone", "--rows", row, *some, "--at-once", "1"
                )
            )
            == 0
        )
    together, alone = (without_times(records(tmp_path / name)) for name in ("together", "alone"))
    training = [record["training"] for record in together.values()]
    assert [(made["at_once"], made["rows"]) for made in training] == [
        (3, [*rows]),
        (1, [rows[1]]),
        (3, [*rows]),
        (3, [*rows]),
    ]
    for record in (*together.values(), *alone.values()):
        del record["training"]
    assert together == alone


@pytest.mark.usefixtures("small_networks")
def test_strangers_are_detected_with_the_calibrators_of_table_1(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some = ("--rows", "cifar10-resnet18", "--seeds", "0", "--methods", "none", "sts-paper")
    main(arguments("table1", data, tmp_path, *some))
    assert main(arguments("ood", data, tmp_path, *some)) == 0
    assert "left out lsun, which is not there" in capsys.readouterr().err
    found = records(tmp_path)
    names = {path.split("/")[1] for path in found if path.startswith("ood")}
    assert names == {"cifar10-resnet18-svhn", "cifar10-resnet18-tinyimagenet"}
    record = found["ood/cifar10-resnet18-svhn/0/sts-paper.json"]
    assert record["timings"]["calibration"] is None  # not fitted again, and the same
    assert record["metrics"] == found["table1/cifar10-resnet18/0/sts-paper.json"]["metrics"]
    assert (record["ood"]["n_in"], record["ood"]["n_out"]) == (160, 20)
    assert 0 <= record["ood"]["differential_entropy_auroc"] <= 1
    assert all(0 <= area <= 1 for area in record["ood"]["sampled_entropy_auroc"].values())
    plain = found["ood/cifar10-resnet18-svhn/0/none.json"]["ood"]
    assert "sampled_entropy_auroc" not in plain
    assert plain["differential_entropy_auroc"] is None
    assert (
        0 <= plain["energy_auroc"] == record["ood"]["energy_auroc"] <= 1
    )  # of the network, whatever the method


def test_a_factor_of_the_logits_leaves_temperature_scaling_as_it_is(
    data: Path, tmp_path: Path
) -> None:
    some = ("--rows", "fmnist-lenet5", "--seeds", "0", "--methods", "none", "ts", "ts-x0.3")
    assert main(arguments("variants", data, tmp_path, *some)) == 0
    plain, scaled = (
        records(tmp_path)[f"variants/fmnist-lenet5/0/{m}.json"] for m in ("ts", "ts-x0.3")
    )
    assert scaled["metrics"]["nll"] == pytest.approx(plain["metrics"]["nll"], abs=1e-4)
    assert scaled["labels_preserved"]


def test_fewer_images_calibrate_and_all_of_the_test_half_judge(data: Path, tmp_path: Path) -> None:
    some = ("--rows", "fmnist-lenet5", "--seeds", "1", "--methods", "ts-of-100", "ts-of-2000")
    assert main(arguments("few", data, tmp_path, *some)) == 0
    assert (
        main(arguments("table1", data, tmp_path, *some[:-2], "ts")) == 0
    )  # all 160 of the tiny data
    where = (
        "few/fmnist-lenet5/1/ts-of-100",
        "few/fmnist-lenet5/1/ts-of-2000",
        "table1/fmnist-lenet5/1/ts",
    )
    few, many, all_ = (records(tmp_path)[f"{name}.json"] for name in where)
    assert few["n_fit"] == 100
    assert many["metrics"]["nll"] == pytest.approx(all_["metrics"]["nll"], abs=1e-6)
    assert few["metrics"]["nll"] != pytest.approx(all_["metrics"]["nll"], abs=1e-6)
    assert few["metrics"]["n"] == all_["metrics"]["n"] == 160


def test_the_halves_exchanged_calibrate_with_what_judges_in_table_1(
    data: Path, tmp_path: Path
) -> None:
    some = ("--rows", "fmnist-lenet5", "--seeds", "1", "--methods")
    assert (
        main(arguments("exchanged", data, tmp_path, *some, "none-exchanged", "ts-exchanged")) == 0
    )
    assert main(arguments("table1", data, tmp_path, *some, "none", "ts")) == 0
    there = {m: records(tmp_path)[f"table1/fmnist-lenet5/1/{m}.json"] for m in ("none", "ts")}
    here = {
        m: records(tmp_path)[f"exchanged/fmnist-lenet5/1/{m}-exchanged.json"]
        for m in ("none", "ts")
    }
    assert here["none"]["exchanged"]
    assert not there["none"]["exchanged"]
    for half, other in (
        ("validation", "metrics"),
        ("metrics", "validation"),
    ):  # what no fit has touched
        assert here["none"][half]["nll"] == pytest.approx(there["none"][other]["nll"], abs=1e-6)
    assert (
        here["ts"]["validation"]["nll"] < there["ts"]["metrics"]["nll"]
    )  # fitted to it, against not
    assert here["ts"]["metrics"]["nll"] > there["ts"]["validation"]["nll"]


@pytest.mark.parametrize("study", ["variants", "uncertainty"])
def test_the_studies_of_lenet5(study: str, data: Path, tmp_path: Path) -> None:
    assert main(arguments(study, data, tmp_path, "--rows", "fmnist-lenet5", "--seeds", "0")) == 0
    found = records(tmp_path)
    assert len(found) == len(STUDIES[study].methods)
    assert all(record["labels_preserved"] for record in found.values())


def test_it_stops_in_time_and_goes_on(data: Path, tmp_path: Path) -> None:
    some = ("--rows", "fmnist-lenet5", "--seeds", "0,2", "--methods", "none", "ts")
    command = arguments("table1", data, tmp_path, *some)
    assert main([*command, "--seconds", "0"]) == LEFT
    assert not records(tmp_path)
    assert main(command) == 0
    assert len(records(tmp_path)) == 4
    before = {path: path.stat() for path in tmp_path.rglob("*.*")}
    assert main(command) == 0
    assert {path: path.stat() for path in tmp_path.rglob("*.*")} == before


@pytest.mark.usefixtures("small_networks")
def test_an_interrupted_training_goes_on_in_the_company_it_had(data: Path, tmp_path: Path) -> None:
    def command(*some: str) -> list[str]:
        return arguments("table1", data, tmp_path, "--methods", "none", "--seeds", *some)

    rows = ("stl10-vgg16-bn", "stl10-resnet18")
    assert main([*command("0,12", "--rows", *rows), "--at-once", "3", "--seconds", "0"]) == LEFT
    checkpoint = (
        tmp_path / "trial" / "training" / "stl10-vgg16-bn-0-12+stl10-resnet18-0.safetensors"
    )
    assert list(checkpoint.parent.iterdir()) == [checkpoint]
    assert (
        main(command("0-1", "--rows", "stl10-vgg16-bn")) == 0
    )  # another command, of which one network is in there
    found = records(tmp_path)
    assert [record["training"]["at_once"] for record in found.values()] == [3, 1]
    assert main(command("0,12", "--rows", *rows)) == 0
    assert not list(checkpoint.parent.iterdir())
    at_once = {(r["row"], r["seed"]): r["training"]["at_once"] for r in records(tmp_path).values()}
    first, second = rows
    assert at_once == {
        (first, 0): 3,
        (first, 1): 1,
        (first, 12): 3,
        (second, 0): 3,
        (second, 12): 1,
    }


@pytest.mark.usefixtures("small_networks")
def test_networks_of_one_augmentation_train_together(data: Path, tmp_path: Path) -> None:
    rows = (
        "stl10-resnet18-pooled",
        "stl10-resnet18-flips",
        "stl10-resnet18-strided",
        "stl10-resnet18-small",
    )
    some = ("--seeds", "0", "--methods", "none", "--rows", *rows)
    assert main(arguments("forms", data, tmp_path, *some)) == 0
    trainings = {record["row"]: record["training"] for record in records(tmp_path).values()}
    assert {row: training["at_once"] for row, training in trainings.items()} == dict(
        zip(rows, (2, 1, 2, 1), strict=True)
    )
    augments = {row: tuple(training["augment"].values()) for row, training in trainings.items()}
    assert augments == dict(
        zip(rows, ((4, None, True), (0, None, True), (4, None, True), (4, 32, True)), strict=True)
    )


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_job_that_fails_does_not_end_the_others(
    workers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write_fashion_mnist(tmp_path)
    labels = tmp_path / "fashion-mnist" / "t10k-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes().replace(bytes([9]), bytes([7])))  # a class is missing
    some = (
        "--rows",
        "fmnist-lenet5",
        "--seeds",
        "0",
        "--methods",
        "sts-paper",
        "none",
        "--workers",
        workers,
    )
    assert main(arguments("table1", tmp_path, tmp_path, *some)) == 1
    assert list(records(tmp_path)) == ["table1/fmnist-lenet5/0/none.json"]
    said = capsys.readouterr().err
    assert "jobs failed:\nfmnist-lenet5, seed 0, sts-paper: MissingClassError" in said
    assert "missing: 9" in said


def test_data_that_are_not_there_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(arguments("table1", tmp_path, tmp_path, "--rows", "cifar10-resnet18", "--seeds", "0"))
        == 1
    )
    assert "cifar-10-batches-bin" in capsys.readouterr().err


def test_bad_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "python -m experiments run STUDY" in capsys.readouterr().out
    for wrong in (
        ["--seeds", "a"],
        ["--rows", "mnist"],
        ["--methods", "best"],
        ["--rows", "stl10-vgg16-bn-flat"],
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["run", "table1", "--data", "x", "--cache", "x", *wrong])
    assert "--rows: table1 has fmnist-lenet5, " in capsys.readouterr().err


class Runner:
    """Commands in processes of their own, which start at once: the server has imported everything before."""

    def __init__(self) -> None:
        self.context = get_context("forkserver")
        self.context.set_forkserver_preload(
            ["experiments.__main__", "torch._dynamo"]
        )  # Adam wants the latter

    def start(self, command: list[str]) -> ForkServerProcess:
        process = self.context.Process(target=_quiet_main, args=(command,))
        process.start()
        return process


def _quiet_main(command: list[str]) -> None:
    import torch

    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os._exit(main(command))


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*.*") if not path.name.endswith(".part"))


def test_killed_ten_times_it_ends_with_the_same_records(data: Path, tmp_path: Path) -> None:
    methods = (
        "none",
        "ts",
        "pts",
        "sts-paper",
    )  # the slowest comes last, so that no kill comes too late
    some = ("--rows", "fmnist-lenet5", "--seeds", "0-1", "--methods", *methods)
    runner, undisturbed, killed = Runner(), tmp_path / "undisturbed", tmp_path / "killed"
    whole = runner.start(arguments("table1", data, undisturbed, *some))
    whole.join()
    assert whole.exitcode == 0
    n_files = sum(1 for _ in _files(undisturbed))
    moments = random.Random(0)
    seen: dict[Path, int] = {}
    for enough in sorted(moments.sample(range(n_files - 4), 10)):
        process = runner.start(arguments("table1", data, killed, *some))
        while process.is_alive() and sum(1 for _ in _files(killed)) < enough:
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.05))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        for path in (killed / "trial" / "results").rglob("*.json"):
            assert (
                seen.setdefault(path, path.stat().st_mtime_ns) == path.stat().st_mtime_ns
            )  # nothing is done twice
    last = runner.start(arguments("table1", data, killed, *some))
    last.join()
    assert last.exitcode == 0
    assert all(path.stat().st_mtime_ns == when for path, when in seen.items())
    assert without_times(records(killed)) == without_times(records(undisturbed))
    assert not list((killed / "trial" / "results").rglob("*.part"))


def test_workers_end_with_the_runner(data: Path, tmp_path: Path) -> None:
    command = arguments(
        "table1",
        data,
        tmp_path,
        "--rows",
        "fmnist-lenet5",
        "--seeds",
        "0",
        "--methods",
        "none",
        "sts",
    )
    process = Runner().start([*command, "--workers", "1"])
    while not records(tmp_path):
        assert process.is_alive()
        time.sleep(0.01)
    workers = _children(process.pid)
    process.kill()
    process.join()
    assert workers
    end = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert list(records(tmp_path)) == ["table1/fmnist-lenet5/0/none.json"]


def _children(parent: int | None) -> list[int]:
    """Return the processes whose parent this is."""
    stats = {
        int(p.parent.name): p.read_text().rpartition(")")[2].split()
        for p in Path("/proc").glob("[0-9]*/stat")
    }
    return [pid for pid, fields in stats.items() if int(fields[1]) == parent]
