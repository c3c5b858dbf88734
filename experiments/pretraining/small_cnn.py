"""A small convolutional network for CIFAR-10 that one CPU core trains in a quarter of an hour.

usage: python -m experiments.pretraining.small_cnn DATA OUTPUT.safetensors [--epochs 12]

It stands in for the paper's networks where there is no GPU: it reaches about 85 % on CIFAR-10, they
reach 95 %. DATA holds cifar-10-batches-bin.
"""

import argparse
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.config.settings import CROPS_AND_FLIPS
from experiments.datasets.loading import load
from experiments.datasets.normalisation import NORMALISATION
from experiments.pretraining.augmentation import AugmentedImages

BATCH_SIZE = 128
PEAK_LR = 0.2
WARM_UP = 0.2  # share of the steps
WEIGHT_DECAY = 5e-4
MOMENTUM = 0.9
N_EPOCHS = 12
SEED = 0


def _block(n_in: int, n_out: int, *, pool: bool) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(n_in, n_out, 3, padding=1, bias=False)]
    if pool:
        layers.append(nn.MaxPool2d(2))
    layers += [nn.BatchNorm2d(n_out), nn.ReLU()]
    return nn.Sequential(*layers)


class SmallCNN(nn.Module):
    """Five convolutions and a linear layer, for 32 × 32 colour images; 256 features before it."""

    def __init__(self, n_classes: int = 10) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _block(3, 32, pool=True),
            _block(32, 64, pool=True),
            _block(64, 128, pool=False),
            _block(128, 128, pool=True),
            _block(128, 256, pool=False),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(256, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images.

        Args:
            images: Normalised images, (N, 3, 32, 32).
        """
        logits: Tensor = self.head(self.body(images))
        return logits


def train(folder: Path, n_epochs: int = N_EPOCHS) -> SmallCNN:
    """Return the network trained on CIFAR-10: SGD, one cycle of the learning rate, crops and flips.

    Args:
        folder: The folder of the data sets.
        n_epochs: Number of epochs.
    """
    data = load("cifar10", folder)
    mean, std = NORMALISATION["cifar10"]
    images = AugmentedImages(
        data.train_images,
        data.train_labels,
        mean=mean,
        std=std,
        augmentation=CROPS_AND_FLIPS,
        device="cpu",
    )
    torch.manual_seed(SEED)
    network = SmallCNN()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        network.parameters(), PEAK_LR, MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True
    )
    n_steps = n_epochs * (len(images) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_LR, n_steps, pct_start=WARM_UP, cycle_momentum=False
    )
    start = time.perf_counter()
    for epoch in range(n_epochs):
        losses = []
        for plan in images.plan(BATCH_SIZE, SEED, epoch).unbind(1):
            x, y = images.cut(plan)
            loss = cross_entropy(network(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        seconds = time.perf_counter() - start
        print(
            f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.3f}, {seconds:.0f} s", flush=True
        )
    network.eval()
    return network


def load_network(weights: Path) -> SmallCNN:
    """Return the network with trained weights.

    Args:
        weights: A file that ``main`` wrote.
    """
    network = SmallCNN()
    network.load_state_dict(load_file(weights))
    network.eval()
    return network


def main(data: Path, output: Path, n_epochs: int) -> None:
    """Train the network and write its weights.

    Args:
        data: The folder of the data sets.
        output: The file of the weights.
        n_epochs: Number of epochs.
    """
    network = train(data, n_epochs)
    save_file({k: v.contiguous() for k, v in network.state_dict().items()}, output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--epochs", type=int, default=N_EPOCHS)
    options = parser.parse_args()
    main(options.data, options.output, options.epochs)
