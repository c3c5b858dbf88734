"""The trained networks and their outputs, in the cache."""

import json
import time
from typing import Any, NamedTuple, cast

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

import simplexcal as sc
from experiments.config.run_config import RunConfig
from experiments.config.settings import SETTINGS
from experiments.datasets.loading import calibration_test_split, load, load_ood
from experiments.datasets.normalisation import NORMALISATION, normalise
from experiments.pretraining.architectures import make
from simplexcal.io import load_outputs, save_outputs
from simplexcal.io._atomic import atomic_write

N_CLASSES = {"fashion-mnist": 10, "cifar10": 10, "cifar100": 100, "stl10": 10}


class SplitOutputs(NamedTuple):
    """A network's outputs on the two splits of the test images.

    Args:
        calibration: Outputs to calibrate with.
        calibration_labels: Their classes.
        test: Outputs to evaluate on.
        test_labels: Their classes.
        seconds: The time that the network took for the outputs of the test split.
    """

    calibration: sc.Outputs
    calibration_labels: Tensor
    test: sc.Outputs
    test_labels: Tensor
    seconds: float

    def scaled(self, factor: float) -> "SplitOutputs":
        """Return the splits with all logits multiplied.

        Args:
            factor: The factor.
        """
        calibration = sc.Outputs(factor * self.calibration.logits, self.calibration.features)
        test = sc.Outputs(factor * self.test.logits, self.test.features)
        return self._replace(calibration=calibration, test=test)

    def swapped(self) -> "SplitOutputs":
        """Return the splits swapped: the test split calibrates, the calibration split tests."""
        return self._replace(
            calibration=self.test,
            calibration_labels=self.test_labels,
            test=self.calibration,
            test_labels=self.calibration_labels,
        )

    def subsampled(self, n_calibration: int, seed: int) -> "SplitOutputs":
        """Return the splits with fewer images to calibrate with.

        Args:
            n_calibration: The number of images to keep.
            seed: Decides which.
        """
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randperm(len(self.calibration), generator=generator)[:n_calibration]
        return self._replace(
            calibration=self.calibration[rows], calibration_labels=self.calibration_labels[rows]
        )


def untrained_network(setting: str, seed: int) -> nn.Module:
    """Return a setting's network with random weights.

    Args:
        setting: The network's setting.
        seed: Decides the weights.
    """
    chosen = SETTINGS[setting]
    n_channels = len(NORMALISATION[chosen.dataset].mean)
    return make(chosen.network, n_channels, N_CLASSES[chosen.dataset], seed)


def trained_network(setting: str, seed: int, config: RunConfig) -> nn.Module:
    """Return a trained network from the cache, on the CPU and in evaluation mode.

    Args:
        setting: The network's setting.
        seed: The network's seed.
        config: Folders and device of the run.
    """
    net = untrained_network(setting, seed)
    net.load_state_dict(load_file(config.network_path(setting, seed)))
    return net.eval()


def last_layer(setting: str, seed: int, config: RunConfig) -> nn.Linear:
    """Return the last linear layer of a trained network from the cache, on the CPU.

    Args:
        setting: The network's setting.
        seed: The network's seed.
        config: Folders and device of the run.
    """
    with safe_open(config.network_path(setting, seed), "pt") as file:
        weight = file.get_tensor("head.weight")
        bias = file.get_tensor("head.bias")
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer


def training_metadata(setting: str, seed: int, config: RunConfig) -> dict[str, Any]:
    """Return how a network was trained, and in how many seconds.

    Args:
        setting: The network's setting.
        seed: The network's seed.
        config: Folders and device of the run.
    """
    with safe_open(config.network_path(setting, seed), "pt") as file:
        metadata: dict[str, Any] = json.loads(file.metadata()["training"])
    return metadata


def write_outputs(setting: str, seed: int, config: RunConfig) -> None:
    """Run a network on the test images, and time it on those of the test split.

    Outputs that are in the cache are kept. Features are rounded to half precision, and the logits
    follow from the rounded features, so that a file of half the size holds the same outputs.

    Args:
        setting: The network's setting.
        seed: The network's seed.
        config: Folders and device of the run.
    """
    path = config.outputs_path(setting, seed)
    if path.exists():
        return
    dataset = SETTINGS[setting].dataset
    images = load(dataset, config.data)
    inputs = normalise(images.test_images, NORMALISATION[dataset])
    backbone = sc.Backbone(trained_network(setting, seed, config)).to(config.device)
    outputs, labels = sc.extract(backbone, (inputs, images.test_labels))
    outputs = _rounded(outputs, last_layer(setting, seed, config))
    _, test = calibration_test_split(len(labels))
    start = time.perf_counter()
    sc.extract(backbone, (inputs[test], labels[test]))
    seconds = time.perf_counter() - start
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path.with_suffix(".json"), json.dumps({"seconds": seconds}).encode())
    save_outputs(outputs, labels, path)


def read_outputs(setting: str, seed: int, config: RunConfig) -> SplitOutputs:
    """Return a network's outputs from the cache, on the CPU.

    Args:
        setting: The network's setting.
        seed: The network's seed.
        config: Folders and device of the run.
    """
    path = config.outputs_path(setting, seed)
    outputs, stored = load_outputs(path)
    labels = cast(Tensor, stored)
    calibration, test = calibration_test_split(len(labels))
    seconds = float(json.loads(path.with_suffix(".json").read_text())["seconds"])
    return SplitOutputs(
        outputs[calibration], labels[calibration], outputs[test], labels[test], seconds
    )


def write_ood_outputs(setting: str, seed: int, ood_set: str, config: RunConfig) -> None:
    """Run a network on an out-of-distribution data set, unless the outputs are in the cache.

    Args:
        setting: The network's setting.
        seed: The network's seed.
        ood_set: The data set.
        config: Folders and device of the run.
    """
    path = config.outputs_path(setting, seed, ood_set)
    if path.exists():
        return
    normalisation = NORMALISATION[SETTINGS[setting].dataset]
    inputs = normalise(load_ood(ood_set, config.data), normalisation)
    backbone = sc.Backbone(trained_network(setting, seed, config)).to(config.device)
    no_labels = torch.zeros(len(inputs), dtype=torch.int64)
    outputs, _ = sc.extract(backbone, (inputs, no_labels))
    outputs = _rounded(outputs, last_layer(setting, seed, config))
    save_outputs(outputs, None, path)


def read_ood_outputs(setting: str, seed: int, ood_set: str, config: RunConfig) -> sc.Outputs:
    """Return a network's outputs for an out-of-distribution data set, on the CPU.

    Args:
        setting: The network's setting.
        seed: The network's seed.
        ood_set: The data set.
        config: Folders and device of the run.
    """
    return load_outputs(config.outputs_path(setting, seed, ood_set))[0]


@torch.no_grad()
def _rounded(outputs: sc.Outputs, head: nn.Linear) -> sc.Outputs:
    """Return features rounded to half precision, and their logits."""
    features = cast(Tensor, outputs.features).cpu().half().float()
    return sc.Outputs(head(features), features)
