"""The pre-trained networks, and their outputs, in the cache."""

import json
import time
from typing import Any, NamedTuple, cast

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

import simplexcal as sc
from experiments.config.run_config import Place, write_json
from experiments.config.settings import ROWS
from experiments.datasets.loading import NORMALISATION, halves, load, load_ood, normalise
from experiments.pretraining.architectures import make
from simplexcal.io import load_outputs, save_outputs


class Halves(NamedTuple):
    """A network's outputs and labels to calibrate with and to judge by, and seconds for the outputs of the latter."""

    fit: sc.Outputs
    fit_labels: Tensor
    test: sc.Outputs
    test_labels: Tensor
    seconds: float

    def scaled(self, factor: float) -> "Halves":
        """Return the halves with all logits times a factor."""
        fit, test = (
            sc.Outputs(factor * outputs.logits, outputs.features)
            for outputs in (self.fit, self.test)
        )
        return self._replace(fit=fit, test=test)

    def exchanged(self) -> "Halves":
        """Return the halves with their parts exchanged: the test half calibrates, the validation half judges."""
        return Halves(self.test, self.test_labels, self.fit, self.fit_labels, self.seconds)

    def fewer(self, n_fit: int, seed: int) -> "Halves":
        """Return the halves with only so many images to calibrate with, drawn by the seed."""
        rows = torch.randperm(len(self.fit), generator=torch.Generator().manual_seed(seed))[:n_fit]
        return self._replace(fit=self.fit[rows], fit_labels=self.fit_labels[rows])


def network(name: str, seed: int, place: Place) -> nn.Module:
    """Return a pre-trained network, on the CPU."""
    net = untrained(name, seed)
    net.load_state_dict(load_file(place.cached("networks", name, seed)))
    return net.eval()


def training_of(name: str, seed: int, place: Place) -> dict[str, Any]:
    """Return how a network was trained, and in how many seconds."""
    with safe_open(place.cached("networks", name, seed), "pt") as file:
        settings: dict[str, Any] = json.loads(file.metadata()["training"])
    return settings


def untrained(name: str, seed: int) -> nn.Module:
    """Return a row's network with the random weights of a seed."""
    row = ROWS[name]
    return make(
        row.network, len(NORMALISATION[row.data].mean), 100 if row.data == "cifar100" else 10, seed
    )


def write_outputs(name: str, seed: int, place: Place) -> None:
    """Run a network on the test images, unless its outputs are in the cache, and time it on those that judge."""
    path = place.cached("outputs", name, seed)
    if path.exists():
        return
    row = ROWS[name]
    images = load(row.data, place.data)
    inputs, backbone = (
        normalise(images.test_images, NORMALISATION[row.data]),
        sc.Backbone(network(name, seed, place)),
    )
    backbone.to(place.device)
    outputs, labels = sc.extract(backbone, (inputs, images.test_labels))
    test = halves(len(labels))[1]
    start = time.perf_counter()
    sc.extract(backbone, (inputs[test], labels[test]))
    write_json(path.with_suffix(".json"), {"seconds": time.perf_counter() - start})
    save_outputs(outputs, labels, path)


def write_strangers(name: str, seed: int, stranger: str, place: Place) -> None:
    """Run a network on images of another data set, unless the outputs are in the cache."""
    path = place.cached("outputs", name, seed, stranger)
    if path.exists():
        return
    inputs = normalise(load_ood(stranger, place.data), NORMALISATION[ROWS[name].data])
    backbone = sc.Backbone(network(name, seed, place)).to(place.device)
    outputs, _ = sc.extract(backbone, (inputs, torch.zeros(len(inputs), dtype=torch.int64)))
    save_outputs(outputs, None, path)


def read_strangers(name: str, seed: int, stranger: str, place: Place) -> sc.Outputs:
    """Return a network's outputs for another data set from the cache, on the CPU."""
    return load_outputs(place.cached("outputs", name, seed, stranger))[0]


def read_outputs(name: str, seed: int, place: Place) -> Halves:
    """Return a network's outputs from the cache, on the CPU."""
    path = place.cached("outputs", name, seed)
    outputs, stored = load_outputs(path)
    labels = cast(Tensor, stored)
    fit, test = halves(len(labels))
    seconds = float(json.loads(path.with_suffix(".json").read_text())["seconds"])
    return Halves(outputs[fit], labels[fit], outputs[test], labels[test], seconds)
