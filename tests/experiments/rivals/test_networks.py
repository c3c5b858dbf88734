"""The comparison on networks that were in nobody's view: cases, floors and tables."""

from pathlib import Path

import torch
from experiments.page import rivals as page
from experiments.rivals import networks
from experiments.rivals.benchmark import compare
from experiments.rivals.records import (
    FloorRecord,
    read_floors,
    read_records,
    write_records,
)
from safetensors.torch import save_file
from torch import Generator


def write_network(folder: Path, name: str, seed: int) -> None:
    g = Generator().manual_seed(seed)
    logits = 3 * torch.randn(400, 4, generator=g)
    labels = (logits / 2).softmax(-1).multinomial(1, generator=g).squeeze(1)
    (folder / name).mkdir()
    save_file({"logits": logits, "labels": labels}, folder / name / "test.safetensors")


def test_networks_are_compared_and_rendered(tmp_path: Path) -> None:
    write_network(tmp_path, "cifar10-resnet18-1", 1)
    write_network(tmp_path, "cifar10-resnet18-0", 0)
    write_network(tmp_path, "fmnist-lenet5-0", 2)
    write_network(tmp_path, "unknown-0", 3)
    cases = list(networks.network_cases(tmp_path))
    assert [case.name for case in cases] == [
        "CIFAR-10, ResNet-18, seed 0",
        "CIFAR-10, ResNet-18, seed 1",
        "Fashion-MNIST, LeNet-5, seed 0",
    ]
    split = cases[0].split(0)
    assert len(split.test_labels) == 200
    assert not set(split.test_ids.tolist()) & set(
        torch.randperm(400, generator=Generator().manual_seed(0))[:200].tolist()
    )
    own = [rival for rival in networks.own_methods() if rival.name in ("STS", "TS")]
    records = [
        networks._without_times(record)
        for case in cases
        for record in compare(case, own, 1, 100, networks.versions())
    ]
    floors = [networks.floors(case, own[0], 2, 100) for case in cases]
    write_records(records, tmp_path / "networks.jsonl")
    write_records(floors, tmp_path / "floors.jsonl")
    assert read_records(tmp_path / "networks.jsonl") == records
    assert read_floors(tmp_path / "floors.jsonl") == floors
    found = page.networks_context(records, floors)
    assert found["n_cases"] == 3
    assert found["n_changed"] == 0
    assert found["n_floors"] == 6
    # Times are left out.
    assert all(row[-1] == page.MISSING for row in page.score_table(records).rows)


def test_a_split_above_its_floor_is_listed() -> None:
    floors = [
        FloorRecord("a", "STS", 100, [0.010, 0.020], [0.020, 0.021]),
        FloorRecord("b", "STS", 100, [0.010, 0.022], [0.020, 0.021]),
    ]
    assert page.floors_table(floors).rows == [["b", "1.00 (2.00), 2.20 (2.10)"]]
    assert page.networks_context([], floors)["n_below"] == 3
