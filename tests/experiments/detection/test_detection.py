"""The study of detectors, from tiny data and small networks to records and their page."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from experiments.detection import __main__ as command
from experiments.detection import distributions, study, training
from experiments.detection.networks import NetworkOutputs, read_network, read_networks
from experiments.detection.records import (
    DetectionRecord,
    DistributionRecord,
    read_distributions,
    read_records,
)
from experiments.page import detection as page
from experiments.pretraining import architectures
from experiments.running.records import write_lines
from helpers import tiny
from helpers.quick_branches import quick_branches
from torch import Generator, Tensor, nn

from simplexcal import metrics
from simplexcal.demo.fashion_mnist import calibration_test_split

SETTINGS = ("cifar10-resnet18", "fmnist-lenet5")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    tiny.write_all(folder)
    return folder


@pytest.fixture
def folder(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the outputs of two small networks of each of two settings."""

    def small(n_channels: int, n_classes: int) -> nn.Module:
        layers = [nn.Conv2d(n_channels, 8, 5, stride=4), nn.BatchNorm2d(8), nn.ReLU()]
        return architectures.Classifier(layers, 8, n_classes)

    for name in architectures.NETWORKS:
        monkeypatch.setitem(architectures.NETWORKS, name, small)
    for name in SETTINGS:
        two = replace(training.NETWORKS[name], n_seeds=2)
        monkeypatch.setitem(training.NETWORKS, name, two)
    quick_branches(monkeypatch, 5)
    out = tmp_path / "networks"
    options = ["--epochs", "1", "--settings", *SETTINGS]
    training.main([str(data), str(out), *options])
    return out


@pytest.mark.filterwarnings("ignore:The logits say nothing about the labels")
@pytest.mark.filterwarnings("ignore:`labels` lack")
def test_from_data_to_the_page(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{network.setting}-{network.seed}" for network in read_networks(folder)]
    assert names == [f"{name}-{seed}" for name in SETTINGS for seed in (0, 1)]
    path = tmp_path / "records.jsonl"
    monkeypatch.setattr("sys.argv", ["detection", str(folder), "--output", str(path)])
    command.main()
    records = read_records(path)
    n_scores = len(study.SOURCES) * len(study.SCORES) + len(study.DETECTORS)
    assert len(records) == 2 * n_scores * (5 + 2)  # sets of CIFAR-10, of Fashion-MNIST, and errors
    for record in records:
        assert 0 <= record.auroc <= 1
        assert 0 < record.aupr <= 1
        assert 0 <= record.fpr_95 <= 1
    shown = page.context(path, tmp_path / "none")
    tables = shown["detection_tables"]
    assert isinstance(tables, list)
    assert [table["title"] for table in tables] == ["CIFAR-10, ResNet-18", "Fashion-MNIST, LeNet-5"]
    assert str(shown["detection_summary"]).count("\n") == 1 + 5 + 2


def test_the_files_of_a_network(folder: Path) -> None:
    network = read_network(folder / "cifar10-resnet18-1")
    assert set(network.ood) == {"cifar100", "tinyimagenet", "svhn", "notmnist"}
    assert network.test.features is not None
    features = network.test.features
    assert torch.equal(features, features.half().float())
    assert network.head(features).allclose(network.test.logits, atol=1e-5)
    assert len(network.labels) == len(features)
    msp = -network.ood["svhn"].logits.softmax(-1).amax(-1)
    assert network.detectors["svhn.msp"].allclose(msp, atol=1e-6)
    assert not torch.equal(
        network.test.logits, read_network(folder / "cifar10-resnet18-0").test.logits
    )


def test_the_images_of_an_ood_set_are_drawn_with_a_fixed_seed() -> None:
    images = torch.arange(7000)
    some = training._some(images, None)
    assert len(some) == len(some.unique()) == training.N_OOD
    assert torch.equal(some, training._some(images, None))
    assert not torch.equal(some, images[: training.N_OOD])


def test_scores_of_records_by_hand() -> None:
    negative = torch.tensor([0.0, 1.0, 2.0])
    positive = torch.tensor([1.5, 3.0])
    network = NetworkOutputs("x", 0, None, Tensor(), nn.Linear(1, 1), {}, {})  # type: ignore[arg-type]
    record = study._record(network, "svhn", "features", "epistemic", negative, positive)
    assert record.auroc == pytest.approx(5 / 6)
    assert record.aupr == pytest.approx((1 + 2 / 3) / 2)
    assert record.fpr_95 == pytest.approx(1 / 3)
    assert (record.n_in, record.n_out) == (3, 2)


def made(seed: int, source: str, score: str, auroc: float, target: str = "svhn") -> DetectionRecord:
    return DetectionRecord(
        "cifar10-resnet18", seed, target, 10, 10, source, score, auroc, 0.5, 0.25
    )


def all_made(epistemic: float, knn: float, seed: int = 1) -> list[DetectionRecord]:
    values = dict.fromkeys(page.all_scores(), 0.5)
    values["features", "epistemic"] = epistemic
    values["detector", "knn"] = knn
    values["detector", "gen"] = 0.9
    return [made(seed, *key, auroc) for key, auroc in values.items()]


def test_the_page_counts_what_is_missed() -> None:
    assert page.misses(all_made(0.91, 0.91)) == {"pairs": 1, "best": 0, "knn": 0}
    assert page.misses(all_made(0.89, 0.894)) == {"pairs": 1, "best": 1, "knn": 0}
    both = all_made(0.95, 0.96) + all_made(0.8, 0.7, seed=2)
    assert page.misses(both) == {"pairs": 2, "best": 1, "knn": 1}


def test_the_summary_by_hand() -> None:
    table = page.summary_table(all_made(0.96, 0.96) + all_made(0.86, 0.7, seed=2))
    assert table.rows == [
        [
            "CIFAR-10, ResNet-18",
            "SVHN",
            "2",
            "91.00",
            "50.00",
            "90.00 (GEN)",
            "50.00",
            "83.00",
            "+1.00",
            "+8.00",
        ]
    ]


def test_tables_have_means_and_deviations() -> None:
    records = all_made(0.95, 0.96) + all_made(0.85, 0.7, seed=2)
    table = page.metric_table(records, "cifar10-resnet18", "auroc")
    cells = {row[0]: row[1] for row in table.rows}
    assert cells["epistemic, from features"] == f"90.00 ± {100 * math.sqrt(0.005):.2f}"
    assert cells["KNN"].startswith("83.00 ± ")


def test_versions_from_what_the_benchmark_prints(tmp_path: Path) -> None:
    line = {
        "network": "cifar10-resnet18-3",
        "source": "features",
        "violations": 5.0,
        "rank": 0.9,
        "nll": 0.2,
        "ece": 1.0,
        "errors": 90.0,
        "svhn": 80.0,
        "svhn (ts)": 70.0,
    }
    before = tmp_path / "before"
    after = tmp_path / "after"
    before.write_text(json.dumps(line) + "\n")
    after.write_text(json.dumps(line | {"svhn": 79.5, "errors": 91.0, "violations": 0.0}) + "\n")
    records = [
        *distributions.read_printed("old", before),
        *distributions.read_printed("new", after),
    ]
    assert records[0] == DistributionRecord(
        "old", "cifar10-resnet18", 3, "features", 5, 0.9, {"errors": 90.0, "svhn": 80.0}
    )
    path = tmp_path / "records.jsonl"
    write_lines(records, path)
    assert read_distributions(path) == records
    changes = page.changes_table(records)
    assert changes.rows == [
        ["new", "features", "OOD", "1", "-0.50", "-0.50", "1"],
        ["new", "features", "own errors", "1", "+1.00", "+1.00", "0"],
    ]
    assert page.versions_table(records).rows[0][2:] == ["SVHN", "80.00", "79.50"]


@pytest.mark.filterwarnings("ignore:The logits say nothing about the labels")
@pytest.mark.filterwarnings("ignore:`labels` lack")
def test_the_record_of_errors_is_that_of_a_wrong_label(folder: Path) -> None:
    network = read_network(folder / "fmnist-lenet5-0")
    _, test = calibration_test_split(len(network.labels))
    wrong = network.test.label[test] != network.labels[test]
    msp = network.detectors["test.msp"][test]
    found = [r for r in study.measure(network) if (r.target, r.score) == ("errors", "msp")]
    assert found[0].auroc == pytest.approx(metrics.auroc(msp.double(), wrong).item())
    assert found[0].n_out == int(wrong.sum())


def test_some_of_fewer_images_than_asked() -> None:
    images = torch.rand(30, 2, generator=Generator().manual_seed(0))
    assert len(training._some(images, None)) == 30
    assert len(training._some(images, 10)) == 10
