"""Compares STS with this library's other methods on networks that were in nobody's view.

usage: python -m experiments.rivals.networks FOLDER

FOLDER has a folder for each network, named as its setting and its seed, such as cifar10-resnet18-0.
The file test.safetensors there holds logits and labels of the 10 000 test images. None of them was
looked at when a method of the library was designed. The records are networks.jsonl and floors.jsonl
beside those of the other packages; `python -m experiments render` writes docs/results/rivals.md.
"""

import argparse
import platform
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Generator

import simplexcal as sc
from experiments.rivals.benchmark import N_BINS, compare
from experiments.rivals.cases import SIZES, Case, Split
from experiments.rivals.methods import OURS, Rival, all_rivals
from experiments.rivals.records import (
    FLOORS_PATH,
    NETWORKS_PATH,
    FloorRecord,
    RivalRecord,
    write_records,
)
from simplexcal import metrics

TITLES = {
    "cifar10-resnet18": "CIFAR-10, ResNet-18",
    "cifar10-vgg16-bn": "CIFAR-10, VGG16-BN",
    "cifar100-resnet18": "CIFAR-100, ResNet-18",
    "fmnist-lenet5": "Fashion-MNIST, LeNet-5",
    "fmnist-resnet18": "Fashion-MNIST, ResNet-18",
}


def network_cases(folder: Path) -> Iterator[Case]:
    """Yield each network of a folder.

    Args:
        folder: Has a folder for each network.
    """
    for setting, title in TITLES.items():
        for path in sorted(folder.glob(f"{setting}-*/test.safetensors")):
            seed = path.parent.name.removeprefix(f"{setting}-")
            yield Case(f"{title}, seed {seed}", title, partial(_split_in_halves, path))


def own_methods() -> list[Rival]:
    """Return the methods of this library, STS first.

    The branch of STS, which changes no probability, is trained for one step.
    """
    own = [rival for rival in all_rivals() if rival.package == OURS]
    return [replace(rival, fit=rival.untimed_fit or rival.fit) for rival in own]


def floors(case: Case, rival: Rival, n_splits: int, n: int) -> FloorRecord:
    """Return the ECE of a method beside that of a calibrated model with the same confidences.

    Args:
        case: The network.
        rival: The method.
        n_splits: Number of splits.
        n: Number of inputs to calibrate with.
    """
    eces = []
    limits = []
    for seed in range(n_splits):
        split = case.split(seed)
        probs = rival.fit(split.pool[slice(n)], split.pool_labels[:n])(split.test)
        confidence = probs.amax(-1)
        correct = probs.argmax(-1) == split.test_labels
        eces.append(metrics.ece(confidence, correct, N_BINS).item())
        limits.append(metrics.noise_floor(confidence, N_BINS).upper.item())
    return FloorRecord(case.name, rival.name, n, eces, limits)


def versions() -> dict[str, str]:
    """Return the versions of what is compared."""
    own = {"python": platform.python_version(), OURS: sc.__version__}
    return own | {name: metadata.version(name) for name in ("torch", "numpy")}


def _split_in_halves(path: Path, seed: int) -> Split:
    """Split the test images in two at random."""
    tensors = load_file(path)
    outputs = sc.Outputs(tensors["logits"].double())
    labels = tensors["labels"].long()
    order = torch.randperm(len(labels), generator=Generator().manual_seed(seed))
    pool, test = order.chunk(2)
    return Split(outputs[pool], labels[pool], outputs[test], labels[test], test)


def _without_times(record: RivalRecord) -> RivalRecord:
    return replace(record, fit_seconds=None, predict_seconds=None)


def main() -> None:
    """Run the comparison; the files are written after each network."""
    parser = argparse.ArgumentParser(prog="python -m experiments.rivals.networks")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--splits", type=int, default=2, help="random splits of each test set")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--output", type=Path, default=NETWORKS_PATH)
    parser.add_argument("--floors", type=Path, default=FLOORS_PATH)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rivals = own_methods()
    records: list[RivalRecord] = []
    found: list[FloorRecord] = []
    for case in network_cases(arguments.folder):
        for n in arguments.sizes:
            compared = compare(case, rivals, arguments.splits, n, versions())
            records += map(_without_times, compared)
        found.append(floors(case, rivals[0], arguments.splits, max(arguments.sizes)))
        write_records(records, arguments.output)
        write_records(found, arguments.floors)
        print(case.name, flush=True)


if __name__ == "__main__":
    main()
