"""The runner, from tiny data in each official format to records; stopped, killed and resumed."""

import json
import os
import random
import re
import signal
import time
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from experiments.__main__ import INCOMPLETE, main
from experiments.config.settings import SETTINGS, TABLE1_SETTINGS
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
        "--dry-run",
        "--workers",
        "0",
        *more,
    ]


def records(cache: Path) -> dict[str, Any]:
    """Return all records below a cache folder, as STUDY/SETTING[/OOD SET]/SEED/METHOD."""
    results = cache / "dry-run" / "results"
    found = {}
    for path in sorted(results.rglob("*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            parts = (record["study"], record["setting"], record["ood_set"], record["seed"])
            named = [str(part) for part in (*parts, record["method"]) if part is not None]
            found["/".join(named)] = record
    return found


def without_times(found: dict[str, Any]) -> dict[str, Any]:
    for record in found.values():
        del record["timings"], record["training"]["seconds"]
    return found


@pytest.mark.usefixtures("small_networks")
@pytest.mark.parametrize("setting", TABLE1_SETTINGS)
def test_table_1_from_the_official_formats(setting: str, data: Path, tmp_path: Path) -> None:
    assert (
        main(
            arguments(
                "table1", data, tmp_path, "--settings", setting, "--seeds", "3", "--methods", *QUICK
            )
        )
        == 0
    )
    found = records(tmp_path)
    assert list(found) == [f"table1/{setting}/3/{method}" for method in sorted(QUICK)]
    for path, record in found.items():
        assert (record["setting"], record["seed"], record["method"] in path) == (setting, 3, True)
        assert record["labels_preserved"]
        assert record["accuracy"] == record["metrics"]["accuracy"]
        assert (
            record["metrics"]["n"]
            == sum(record["bins"]["count"])
            == {"stl10": 80, "cifar100": 800}.get(SETTINGS[setting].dataset, 160)
        )
        assert all(value is not None for key, value in record["timings"].items())
        assert record["versions"].keys() == {"simplexcal", "torch", "python"}
    assert found[f"table1/{setting}/3/sts-paper"]["mixup_dtype"] == "float32"
    assert found[f"table1/{setting}/3/sts-paper"]["beta"] in [
        round(0.1 * i, 1) for i in range(2, 21)
    ]


def test_the_default_method_runs_too(data: Path, tmp_path: Path) -> None:
    assert (
        main(
            arguments(
                "table1",
                data,
                tmp_path,
                "--settings",
                "fmnist-lenet5",
                "--seeds",
                "0",
                "--methods",
                "sts",
            )
        )
        == 0
    )
    record = records(tmp_path)["table1/fmnist-lenet5/0/sts"]
    assert record["mixup"] == {
        "kind": "features",
        "per_class": 100,
        "n_shuffles": 10,
        "weights_per_sample": True,
    }
    assert record["mixup_dtype"] is None  # no image is mixed
    assert record["metrics"]["epistemic"] < 0


@pytest.mark.usefixtures("small_networks")
@pytest.mark.parametrize(
    ("study", "methods"),
    [
        ("dirichlet", ("dirichlet-ts",)),
        ("time", ("adats", "sts-paper", "pts")),
        ("mixup", ("sts-r20-s5", "sts-r100-s1")),
        ("branch", ("sts-small",)),
        ("architectures", ("none", "sts-paper")),
    ],
)
def test_the_other_studies(
    study: str, methods: tuple[str, ...], data: Path, tmp_path: Path
) -> None:
    setting = "cifar10-resnet18" if study != "architectures" else "stl10-resnet18-strided"
    assert (
        main(
            arguments(
                study, data, tmp_path, "--settings", setting, "--seeds", "0", "--methods", *methods
            )
        )
        == 0
    )
    found = records(tmp_path)
    assert list(found) == sorted(f"{study}/{setting}/0/{method}" for method in methods)
    for record in found.values():
        assert 0 <= record["calibration"]["ece"] <= 1
        if record["betas"] is not None:  # the chosen one is the best of all
            errors = {tried["beta"]: tried["calibration"]["ece"] for tried in record["betas"]}
            assert record["beta"] == min(errors, key=lambda beta: errors[beta])
            assert record["calibration"]["ece"] == errors[record["beta"]]
    assert all(
        (record["betas"] is None) == (record["method"] in ("none", "adats", "pts"))
        for record in found.values()
    )


@pytest.mark.usefixtures("small_networks")
def test_rows_of_one_data_set_train_concurrently_and_give_the_same_networks(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("cifar100-resnet50", "cifar100-densenet121")
    some = ("--seeds", "0,2", "--methods", "none")
    command = arguments(
        "table1", data, tmp_path / "together", "--settings", *settings, *some, "--concurrent", "3"
    )
    assert main(command) == 0
    said = capsys.readouterr().err
    assert "cifar100-resnet50, seeds 0, 2 and cifar100-densenet121, seeds 0: pre-training" in said
    assert "\ncifar100-densenet121, seeds 2: pre-training" in re.sub(r"\d\d:\d\d:\d\d ", "", said)
    for setting in settings:
        assert (
            main(
                arguments(
                    "table1",
                    data,
                    tmp_path / "alone",
                    "--settings",
                    setting,
                    *some,
                    "--concurrent",
                    "1",
                )
            )
            == 0
        )
    together, alone = (without_times(records(tmp_path / name)) for name in ("together", "alone"))
    training = [record["training"] for record in together.values()]
    assert [(made["concurrent"], made["settings"]) for made in training] == [
        (3, [*settings]),
        (1, [settings[1]]),
        (3, [*settings]),
        (3, [*settings]),
    ]
    for record in (*together.values(), *alone.values()):
        del record["training"]
    assert together == alone


@pytest.mark.usefixtures("small_networks")
def test_ood_data_are_detected_with_the_calibrators_of_table_1(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some = ("--settings", "cifar10-resnet18", "--seeds", "0", "--methods", "none", "sts-paper")
    main(arguments("table1", data, tmp_path, *some))
    assert main(arguments("ood", data, tmp_path, *some)) == 0
    assert "left out lsun, which is not there" in capsys.readouterr().err
    found = records(tmp_path)
    ood_sets = {path.split("/")[2] for path in found if path.startswith("ood")}
    assert ood_sets == {"svhn", "tinyimagenet"}
    record = found["ood/cifar10-resnet18/svhn/0/sts-paper"]
    assert record["timings"]["calibration"] is None  # not fitted again, and the same
    assert record["metrics"] == found["table1/cifar10-resnet18/0/sts-paper"]["metrics"]
    assert (record["ood"]["n_in"], record["ood"]["n_out"]) == (160, 20)
    assert 0 <= record["ood"]["epistemic_auroc"] <= 1
    assert all(0 <= area <= 1 for area in record["ood"]["sampled_entropy_auroc"].values())
    plain = found["ood/cifar10-resnet18/svhn/0/none"]["ood"]
    assert plain["sampled_entropy_auroc"] is None
    assert plain["epistemic_auroc"] is None
    assert (
        0 <= plain["energy_auroc"] == record["ood"]["energy_auroc"] <= 1
    )  # of the network, whatever the method


def test_a_factor_of_the_logits_leaves_temperature_scaling_as_it_is(
    data: Path, tmp_path: Path
) -> None:
    some = ("--settings", "fmnist-lenet5", "--seeds", "0", "--methods", "none", "ts", "ts-x0.3")
    assert main(arguments("variants", data, tmp_path, *some)) == 0
    plain, scaled = (records(tmp_path)[f"variants/fmnist-lenet5/0/{m}"] for m in ("ts", "ts-x0.3"))
    assert scaled["metrics"]["nll"] == pytest.approx(plain["metrics"]["nll"], abs=1e-4)
    assert scaled["labels_preserved"]


def test_few_labels_calibrate_and_the_whole_test_split_evaluates(
    data: Path, tmp_path: Path
) -> None:
    some = (
        "--settings",
        "fmnist-lenet5",
        "--seeds",
        "1",
        "--methods",
        "ts-100-labels",
        "ts-2000-labels",
    )
    assert main(arguments("few-labels", data, tmp_path, *some)) == 0
    assert (
        main(arguments("table1", data, tmp_path, *some[:-2], "ts")) == 0
    )  # all 160 of the tiny data
    where = (
        "few-labels/fmnist-lenet5/1/ts-100-labels",
        "few-labels/fmnist-lenet5/1/ts-2000-labels",
        "table1/fmnist-lenet5/1/ts",
    )
    few, many, all_ = (records(tmp_path)[name] for name in where)
    assert few["n_calibration"] == 100
    assert many["metrics"]["nll"] == pytest.approx(all_["metrics"]["nll"], abs=1e-6)
    assert few["metrics"]["nll"] != pytest.approx(all_["metrics"]["nll"], abs=1e-6)
    assert few["metrics"]["n"] == all_["metrics"]["n"] == 160


def test_swapped_splits_calibrate_with_the_test_split_of_table_1(
    data: Path, tmp_path: Path
) -> None:
    some = ("--settings", "fmnist-lenet5", "--seeds", "1", "--methods")
    assert main(arguments("swapped", data, tmp_path, *some, "none-swapped", "ts-swapped")) == 0
    assert main(arguments("table1", data, tmp_path, *some, "none", "ts")) == 0
    there = {m: records(tmp_path)[f"table1/fmnist-lenet5/1/{m}"] for m in ("none", "ts")}
    here = {m: records(tmp_path)[f"swapped/fmnist-lenet5/1/{m}-swapped"] for m in ("none", "ts")}
    assert here["none"]["swapped"]
    assert not there["none"]["swapped"]
    for half, other in (
        ("calibration", "metrics"),
        ("metrics", "calibration"),
    ):  # what no fit has touched
        assert here["none"][half]["nll"] == pytest.approx(there["none"][other]["nll"], abs=1e-6)
    assert (
        here["ts"]["calibration"]["nll"] < there["ts"]["metrics"]["nll"]
    )  # fitted to it, against not
    assert here["ts"]["metrics"]["nll"] > there["ts"]["calibration"]["nll"]


@pytest.mark.parametrize("study", ["variants", "uncertainty"])
def test_the_studies_of_lenet5(study: str, data: Path, tmp_path: Path) -> None:
    assert (
        main(arguments(study, data, tmp_path, "--settings", "fmnist-lenet5", "--seeds", "0")) == 0
    )
    found = records(tmp_path)
    assert len(found) == len(STUDIES[study].methods)
    assert all(record["labels_preserved"] for record in found.values())


def test_it_stops_in_time_and_goes_on(data: Path, tmp_path: Path) -> None:
    some = ("--settings", "fmnist-lenet5", "--seeds", "0,2", "--methods", "none", "ts")
    command = arguments("table1", data, tmp_path, *some)
    assert main([*command, "--seconds", "0"]) == INCOMPLETE
    assert not records(tmp_path)
    assert main(command) == 0
    assert len(records(tmp_path)) == 4
    before = {path: path.stat() for path in tmp_path.rglob("*.*")}
    assert main(command) == 0
    assert {path: path.stat() for path in tmp_path.rglob("*.*")} == before


@pytest.mark.usefixtures("small_networks")
def test_an_interrupted_training_resumes_with_the_same_networks(data: Path, tmp_path: Path) -> None:
    def command(*some: str) -> list[str]:
        return arguments("table1", data, tmp_path, "--methods", "none", "--seeds", *some)

    settings = ("stl10-vgg16-bn", "stl10-resnet18")
    assert (
        main([*command("0,12", "--settings", *settings), "--concurrent", "3", "--seconds", "0"])
        == INCOMPLETE
    )
    checkpoint = (
        tmp_path / "dry-run" / "training" / "stl10-vgg16-bn-0-12+stl10-resnet18-0.safetensors"
    )
    assert list(checkpoint.parent.iterdir()) == [checkpoint]
    assert (
        main(command("0-1", "--settings", "stl10-vgg16-bn")) == 0
    )  # another command, of which one network is in there
    found = records(tmp_path)
    assert [record["training"]["concurrent"] for record in found.values()] == [3, 1]
    assert main(command("0,12", "--settings", *settings)) == 0
    assert not list(checkpoint.parent.iterdir())
    concurrent = {
        (r["setting"], r["seed"]): r["training"]["concurrent"] for r in records(tmp_path).values()
    }
    first, second = settings
    assert concurrent == {
        (first, 0): 3,
        (first, 1): 1,
        (first, 12): 3,
        (second, 0): 3,
        (second, 12): 1,
    }


@pytest.mark.usefixtures("small_networks")
def test_networks_of_one_augmentation_train_concurrently(data: Path, tmp_path: Path) -> None:
    settings = (
        "stl10-resnet18-pooled",
        "stl10-resnet18-flips",
        "stl10-resnet18-strided",
        "stl10-resnet18-small",
    )
    some = ("--seeds", "0", "--methods", "none", "--settings", *settings)
    assert main(arguments("architectures", data, tmp_path, *some)) == 0
    trainings = {record["setting"]: record["training"] for record in records(tmp_path).values()}
    assert {setting: training["concurrent"] for setting, training in trainings.items()} == dict(
        zip(settings, (2, 1, 2, 1), strict=True)
    )
    augments = {
        setting: tuple(training["augmentation"].values()) for setting, training in trainings.items()
    }
    assert augments == dict(
        zip(
            settings,
            ((4, None, True), (0, None, True), (4, None, True), (4, 32, True)),
            strict=True,
        )
    )


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_job_that_fails_does_not_end_the_others(
    workers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write_fashion_mnist(tmp_path)
    calibrators = tmp_path / "dry-run" / "calibrators" / "fmnist-lenet5" / "0"
    (calibrators / "sts-paper.safetensors").mkdir(parents=True)  # A folder cannot be overwritten.
    some = (
        "--settings",
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
    assert list(records(tmp_path)) == ["table1/fmnist-lenet5/0/none"]
    said = capsys.readouterr().err
    assert "jobs failed:\nfmnist-lenet5, seed 0, sts-paper: IsADirectoryError" in said


def test_data_that_are_not_there_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            arguments(
                "table1", tmp_path, tmp_path, "--settings", "cifar10-resnet18", "--seeds", "0"
            )
        )
        == 1
    )
    assert "cifar-10-batches-bin" in capsys.readouterr().err


def test_bad_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "python -m experiments run STUDY" in capsys.readouterr().out
    for wrong in (
        ["--seeds", "a"],
        ["--settings", "mnist"],
        ["--methods", "best"],
        ["--settings", "stl10-vgg16-bn-flat"],
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["run", "table1", "--data", "x", "--cache", "x", *wrong])
    assert "--settings: table1 has fmnist-lenet5, " in capsys.readouterr().err


class Runner:
    """Commands in processes of their own; the server has imported everything before."""

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


def _progress(folder: Path) -> int:
    """Return the number of whole files in the cache and of records."""
    files = [path for path in folder.rglob("*.*") if path.suffix in (".json", ".safetensors")]
    return len(files) + len(records(folder))


def test_killed_ten_times_it_ends_with_the_same_records(data: Path, tmp_path: Path) -> None:
    methods = (
        "none",
        "ts",
        "pts",
        "sts-paper",
    )  # the slowest comes last, so that no kill comes too late
    some = ("--settings", "fmnist-lenet5", "--seeds", "0-1", "--methods", *methods)
    runner, undisturbed, killed = Runner(), tmp_path / "undisturbed", tmp_path / "killed"
    whole = runner.start(arguments("table1", data, undisturbed, *some))
    whole.join()
    assert whole.exitcode == 0
    most = _progress(undisturbed)
    moments = random.Random(0)
    seen: dict[str, Any] = {}
    for enough in sorted(moments.sample(range(most - 4), 10)):
        process = runner.start(arguments("table1", data, killed, *some))
        while process.is_alive() and _progress(killed) < enough:
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.05))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        found = records(killed)
        assert seen.items() <= found.items()  # with their times: nothing is done twice
        seen = found
    last = runner.start(arguments("table1", data, killed, *some))
    last.join()
    assert last.exitcode == 0
    assert seen.items() <= records(killed).items()
    assert without_times(records(killed)) == without_times(records(undisturbed))
    assert not list((killed / "dry-run" / "results").rglob("*.part"))


def test_workers_end_with_the_runner(data: Path, tmp_path: Path) -> None:
    command = arguments(
        "table1",
        data,
        tmp_path,
        "--settings",
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
    assert list(records(tmp_path)) == ["table1/fmnist-lenet5/0/none"]


def _children(parent: int | None) -> list[int]:
    """Return the processes whose parent this is."""
    stats = {
        int(p.parent.name): p.read_text().rpartition(")")[2].split()
        for p in Path("/proc").glob("[0-9]*/stat")
    }
    return [pid for pid, fields in stats.items() if int(fields[1]) == parent]
