"""Trains the networks of the study, and writes their outputs and the scores of the detectors.

usage: python -m experiments.detection.training DATA FOLDER [--settings ...] [--device cuda]

DATA holds the data sets as ``experiments.datasets.loading`` reads them. The networks of a setting
train concurrently. Weights and features are rounded to half precision, and the logits follow from
the rounded features. Of an out-of-distribution set, 5000 random images are kept.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Generator, Tensor, nn

import simplexcal as sc
from experiments.config.settings import CROPS_AND_FLIPS, NO_AUGMENTATION, Setting
from experiments.datasets.loading import Dataset, load, load_ood
from experiments.datasets.normalisation import NORMALISATION, normalise
from experiments.detection.networks import DETECTORS, TEST
from experiments.pretraining.architectures import make
from experiments.pretraining.training import train
from experiments.running.ood_detectors import TrainingFeatures, all_scores

N_OOD = 5000
BATCH = 1000
NEAR = {"cifar10": "cifar100", "cifar100": "cifar10"}


@dataclass(frozen=True)
class Networks:
    """Some networks of one kind.

    Args:
        setting: How they are trained.
        n_seeds: How many there are.
    """

    setting: Setting
    n_seeds: int


NETWORKS = {
    "cifar10-resnet18": Networks(
        Setting("cifar10", "resnet18", "CIFAR-10, ResNet-18", CROPS_AND_FLIPS, 30), 5
    ),
    "cifar10-vgg16-bn": Networks(
        Setting("cifar10", "vgg16-bn", "CIFAR-10, VGG16-BN", CROPS_AND_FLIPS, 30), 1
    ),
    "cifar100-resnet18": Networks(
        Setting("cifar100", "resnet18", "CIFAR-100, ResNet-18", CROPS_AND_FLIPS, 30), 4
    ),
    "fmnist-lenet5": Networks(
        Setting("fashion-mnist", "lenet5", "Fashion-MNIST, LeNet-5", NO_AUGMENTATION, 60), 3
    ),
    "fmnist-resnet18": Networks(
        Setting("fashion-mnist", "resnet18", "Fashion-MNIST, ResNet-18", NO_AUGMENTATION, 30), 2
    ),
}


@dataclass(frozen=True)
class Options:
    """Options of a training.

    Args:
        data: The folder of the data sets.
        folder: The folder of the networks' folders.
        device: Where to train.
        epochs: Passes through the images; None: those of the setting.
        n_images: Images of each kind to use; None: all.
    """

    data: Path
    folder: Path
    device: str = "cpu"
    epochs: int | None = None
    n_images: int | None = None


def train_networks(name: str, options: Options) -> None:
    """Train the networks of a setting, and write what is asked of them.

    Args:
        name: A key of NETWORKS.
        options: Options of the training.
    """
    setting = NETWORKS[name].setting
    seeds = range(NETWORKS[name].n_seeds)
    dataset = _shortened(load(setting.dataset, options.data), options.n_images)
    normalisation = NORMALISATION[setting.dataset]
    n_channels = len(normalisation.mean)
    n_classes = len(dataset.classes)
    networks = [make(setting.network, n_channels, n_classes, seed) for seed in seeds]
    networks = [network.to(options.device) for network in networks]
    train(
        networks,
        dataset.train_images,
        dataset.train_labels,
        mean=normalisation.mean,
        std=normalisation.std,
        augmentation=setting.augmentation,
        seeds=seeds,
        epochs=options.epochs or setting.epochs,
        dtype=setting.dtype(options.device),
    )
    images = {TEST: dataset.test_images, **ood_images(setting.dataset, options)}
    for seed, network in zip(seeds, networks, strict=True):
        round_to_half(network.eval())
        tensors = outputs_of(network, dataset, images, setting.dataset)
        write(options.folder / f"{name}-{seed}", tensors)


def ood_images(dataset: str, options: Options) -> dict[str, Tensor]:
    """Return the out-of-distribution images for networks of a data set.

    Args:
        dataset: The data set.
        options: Options of the training.
    """
    glyphs = _some(load_ood("notmnist", options.data), options.n_images)
    if dataset not in NEAR:
        return {"notmnist": glyphs}
    near = NEAR[dataset]
    images = {near: _some(load(near, options.data).test_images, options.n_images)}
    for name in ("tinyimagenet", "svhn"):
        images[name] = _some(load_ood(name, options.data), options.n_images)
    padded = nn.functional.pad(glyphs, (2, 2, 2, 2))
    return {**images, "notmnist": padded.expand(-1, 3, -1, -1)}


@torch.no_grad()
def round_to_half(network: nn.Module) -> None:
    """Round the weights and statistics of a network to half precision.

    Args:
        network: The network.
    """
    for tensor in [*network.parameters(), *network.buffers()]:
        if tensor.is_floating_point():
            tensor.copy_(tensor.half().float())


def outputs_of(
    network: nn.Module, dataset: Dataset, images: dict[str, Tensor], name: str
) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of each file of a network.

    Args:
        network: The network.
        dataset: Its data set.
        images: The images of each set.
        name: Name of the data set.
    """
    backbone = sc.Backbone(network)
    trained = _features(backbone, dataset.train_images, name).float()
    weight = backbone.head.weight.detach()
    bias = backbone.head.bias.detach()
    labels = dataset.train_labels.to(weight.device)
    training = TrainingFeatures(trained, trained @ weight.T + bias, labels, weight, bias)
    files: dict[str, dict[str, Tensor]] = {DETECTORS: {}}
    for set_name, of_set in images.items():
        features = _features(backbone, of_set, name)
        exact = features.to(weight)
        outputs = sc.Outputs(exact @ weight.T + bias, exact)
        files[set_name] = {"features": features, "logits": outputs.logits}
        for detector, scores in all_scores(outputs, training).items():
            files[DETECTORS][f"{set_name}.{detector}"] = scores.float()
    files[TEST] |= {"labels": dataset.test_labels, "head_weight": weight, "head_bias": bias}
    return files


def write(folder: Path, files: dict[str, dict[str, Tensor]]) -> None:
    """Write the files of a network.

    Args:
        folder: Its folder.
        files: The tensors of each file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensors in files.items():
        on_cpu = {key: value.cpu().contiguous() for key, value in tensors.items()}
        save_file(on_cpu, folder / f"{name}.safetensors")


@torch.no_grad()
def _features(backbone: sc.Backbone, images: Tensor, dataset: str) -> Tensor:
    normalisation = NORMALISATION[dataset]
    device = next(backbone.net.parameters()).device
    parts = []
    for part in images.split(BATCH):
        features = backbone(normalise(part, normalisation).to(device)).features
        if features is None:
            raise ValueError("The network has no features.")
        parts.append(features.half())
    return torch.cat(parts)


def _some(images: Tensor, n_images: int | None) -> Tensor:
    order = torch.randperm(len(images), generator=Generator().manual_seed(0))
    return images[order[: min(N_OOD, n_images or N_OOD)]]


def _shortened(dataset: Dataset, n_images: int | None) -> Dataset:
    return dataset._replace(
        train_images=dataset.train_images[:n_images],
        train_labels=dataset.train_labels[:n_images],
        test_images=dataset.test_images[:n_images],
        test_labels=dataset.test_labels[:n_images],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the networks of some settings.

    Args:
        arguments: Those of the command line; None: those of the process.
    """
    parser = argparse.ArgumentParser(prog="python -m experiments.detection.training")
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--settings", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, help="fewer, to try things out")
    parser.add_argument("--n-images", type=int, help="fewer images, to try things out")
    chosen = parser.parse_args(arguments)
    options = Options(chosen.data, chosen.folder, chosen.device, chosen.epochs, chosen.n_images)
    for name in chosen.settings:
        train_networks(name, options)


if __name__ == "__main__":
    main()
