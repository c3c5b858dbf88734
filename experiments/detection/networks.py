"""Folders with a network's outputs: FOLDER/SETTING-SEED/SET.safetensors.

SET is "test" (features, logits, labels, head_weight and head_bias, for the test images in their
order), the name of an out-of-distribution set (features and logits), and "detectors" (the scores of
``experiments.running.ood_detectors``, each under "SET.DETECTOR").
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load_file
from torch import Tensor, nn

import simplexcal as sc

TEST = "test"
DETECTORS = "detectors"


class NetworkOutputs(NamedTuple):
    """A network's outputs.

    Args:
        setting: Data set and architecture.
        seed: The seed.
        test: Outputs for the test images.
        labels: Their classes.
        head: The last linear layer.
        ood: Outputs for each out-of-distribution set.
        detectors: Scores of the detectors, each under "SET.DETECTOR".
    """

    setting: str
    seed: int
    test: sc.Outputs
    labels: Tensor
    head: nn.Linear
    ood: dict[str, sc.Outputs]
    detectors: dict[str, Tensor]


def read_networks(folder: Path) -> Iterator[NetworkOutputs]:
    """Yield the networks of a folder, by name.

    Args:
        folder: The folder of the networks' folders.
    """
    for path in sorted(folder.glob(f"*/{TEST}.safetensors")):
        yield read_network(path.parent)


def read_network(folder: Path) -> NetworkOutputs:
    """Return the network of a folder.

    Args:
        folder: The folder, SETTING-SEED.
    """
    setting, _, seed = folder.name.rpartition("-")
    test = load_file(folder / f"{TEST}.safetensors")
    weight = test["head_weight"]
    head = nn.Linear(weight.shape[1], weight.shape[0])
    head.load_state_dict({"weight": weight.float(), "bias": test["head_bias"].float()})
    ood = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors = load_file(path)
        if path.stem not in (TEST, DETECTORS) and {"features", "logits"} <= set(tensors):
            ood[path.stem] = _outputs(tensors)
    detectors = load_file(folder / f"{DETECTORS}.safetensors")
    return NetworkOutputs(
        setting, int(seed), _outputs(test), test["labels"].long(), head, ood, detectors
    )


def _outputs(tensors: dict[str, Tensor]) -> sc.Outputs:
    return sc.Outputs(tensors["logits"].float(), tensors["features"].float())
