"""Which variant of LeNet-5 comes nearest to the paper's accuracy? The paper gives only the name.

usage: python -m experiments.pretraining.lenet5_variants DATA [cuda]

Two seeds of each variant are trained by the paper's recipe and evaluated uncalibrated. It writes
one line for each variant and seed, in minutes on a GPU. DATA is the folder of
``python -m experiments run --data``.
"""

import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.config.paper import N_BINS, TABLE1
from experiments.config.run_config import RESULTS
from experiments.config.settings import NO_AUGMENTATION
from experiments.datasets.loading import load
from experiments.datasets.normalisation import NORMALISATION, normalise
from experiments.pretraining.network_id import NetworkId
from experiments.pretraining.training import train
from simplexcal.metrics import ece

RESULTS_PATH = RESULTS / "lenet5_variants.jsonl"
PAPER_ACCURACY = TABLE1["fmnist-lenet5"]["accuracy"].mean
SEEDS = (0, 1)
ORDER_SEED = 1000  # Added to a seed, it gives the order of the images.
VARIANTS: dict[str, dict[str, Any]] = {
    "tanh, average pooling": {"activation": nn.Tanh, "pooling": nn.AvgPool2d},
    "ReLU, average pooling": {"pooling": nn.AvgPool2d},
    "ReLU, max-pooling": {},
    "ReLU, max-pooling, bfloat16": {"bfloat16": True},
    "ReLU, max-pooling, no padding": {"padding": 0},
    "ReLU, max-pooling, no padding, bfloat16": {"padding": 0, "bfloat16": True},
}


@dataclass(frozen=True)
class Evaluated:
    """A trained network on all test images, uncalibrated.

    Args:
        variant: A key of ``VARIANTS``.
        seed: The network's seed.
        accuracy: The share of correct predictions.
        ece: The expected calibration error.
        nll: The negative log-likelihood.
    """

    variant: str
    seed: int
    accuracy: float
    ece: float
    nll: float


class LeNet5Variant(nn.Module):
    """A LeNet-5.

    Args:
        activation: The activation.
        pooling: The pooling.
        padding: Pixels by which 28 × 28 images are padded on each side, 2 or 0.
        bfloat16: Compute in bfloat16 by autocast.
    """

    def __init__(
        self,
        activation: type[nn.Module] = nn.ReLU,
        pooling: type[nn.Module] = nn.MaxPool2d,
        padding: int = 2,
        bfloat16: bool = False,
    ) -> None:
        super().__init__()
        self.uses_bfloat16 = bfloat16
        n_flat = 256
        if padding:
            n_flat = 400
        self.layers = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=padding),
            activation(),
            pooling(2),
            nn.Conv2d(6, 16, 5),
            activation(),
            pooling(2),
            nn.Flatten(),
            nn.Linear(n_flat, 120),
            activation(),
            nn.Linear(120, 84),
            activation(),
            nn.Linear(84, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits.

        Args:
            images: Normalised images (N, 1, 28, 28).
        """
        device = images.device.type
        with torch.autocast(device, torch.bfloat16, self.uses_bfloat16, cache_enabled=False):
            logits: Tensor = self.layers(images)
        return logits.float()


def run(data: Path, device: str, out: Path = RESULTS_PATH, epochs: int = 200) -> None:
    """Train all variants concurrently, and evaluate them on the test images.

    Args:
        data: The folder of the data sets.
        device: Where to train.
        out: The file to write.
        epochs: Passes through the images.
    """
    images = load("fashion-mnist", data)
    normalisation = NORMALISATION["fashion-mnist"]
    ids = [NetworkId(name, seed) for name in VARIANTS for seed in SEEDS]
    networks = [_network(name, seed).to(device) for name, seed in ids]
    train(
        networks,
        images.train_images,
        images.train_labels,
        mean=normalisation.mean,
        std=normalisation.std,
        augmentation=NO_AUGMENTATION,
        seeds=[ORDER_SEED + seed for _, seed in ids],
        epochs=epochs,
        dtype=torch.float32,
    )
    inputs = normalise(images.test_images, normalisation).to(device)
    labels = images.test_labels.to(device)
    with out.open("w") as file, torch.no_grad():
        for network, net in zip(ids, networks, strict=True):
            evaluated = _evaluate(network, net(inputs), labels)
            file.write(json.dumps(asdict(evaluated)) + "\n")


def read(path: Path = RESULTS_PATH) -> dict[str, list[Evaluated]]:
    """Return what was evaluated, for each variant.

    Args:
        path: The file that ``run`` wrote.
    """
    evaluated: dict[str, list[Evaluated]] = {name: [] for name in VARIANTS}
    for line in path.read_text().splitlines():
        found = Evaluated(**json.loads(line))
        evaluated[found.variant].append(found)
    return evaluated


def nearest_to_paper(path: Path = RESULTS_PATH) -> str:
    """Return the variant whose mean accuracy over the seeds is nearest to the paper's.

    Args:
        path: The file that ``run`` wrote.
    """
    distances = {}
    for name, evaluated in read(path).items():
        mean = statistics.mean([found.accuracy for found in evaluated])
        distances[name] = abs(100 * mean - PAPER_ACCURACY)
    return min(distances, key=lambda name: distances[name])


def _network(name: str, seed: int) -> LeNet5Variant:
    torch.manual_seed(seed)
    return LeNet5Variant(**VARIANTS[name])


def _evaluate(network: NetworkId, logits: Tensor, labels: Tensor) -> Evaluated:
    confidence, label = logits.softmax(-1).max(-1)
    correct = label == labels
    return Evaluated(
        variant=network.setting,
        seed=network.seed,
        accuracy=correct.float().mean().item(),
        ece=ece(confidence, correct, N_BINS).item(),
        nll=cross_entropy(logits, labels).item(),
    )


def main(arguments: list[str]) -> None:
    """Run the command line of this module.

    Args:
        arguments: The folder of the data sets and, if wanted, the device.
    """
    if len(arguments) not in (1, 2):
        raise SystemExit(__doc__)
    device = "cpu"
    if len(arguments) == 2:
        device = arguments[1]
    run(Path(arguments[0]), device)


if __name__ == "__main__":
    main(sys.argv[1:])
