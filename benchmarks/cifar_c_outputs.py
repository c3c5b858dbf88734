"""Write the outputs of a ResNet-18 for clean and corrupted test images of CIFAR-10 or CIFAR-100.

usage: python benchmarks/cifar_c_outputs.py images DATASET DATA FOLDER
       python experiments/datasets/corruptions.py SOURCE FOLDER/images.npy FOLDER/corrupted NAME ...
       python benchmarks/cifar_c_outputs.py outputs DATASET DATA FOLDER WEIGHTS

DATASET is cifar10 or cifar100, DATA the folder of the data sets, WEIGHTS a safetensors file of the
network's parameters. The first line writes the images to be corrupted: the first 1000 of the test
half. The second corrupts them, in an environment of its own. The third writes FOLDER/outputs: the
outputs for both clean halves, and for each corruption in parts, which an interrupted run keeps.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from experiments.datasets.loading import Dataset, calibration_test_split, load
from experiments.datasets.normalisation import NORMALISATION, normalise
from experiments.pretraining.architectures import Classifier, resnet18
from safetensors.torch import load_file, save_file
from torch import Tensor

N_IMAGES = 1000
PART = 500
BATCH = 125


def corrupted_rows(n: int) -> Tensor:
    """Return the rows of the test images that are corrupted: the first of the test half.

    Args:
        n: Number of test images.
    """
    return calibration_test_split(n)[1][:N_IMAGES]


def write_images(data: Dataset, folder: Path) -> None:
    """Write the images to be corrupted, bytes (N, H, W, C).

    Args:
        data: The data set.
        folder: The folder to write to.
    """
    images = data.test_images[corrupted_rows(len(data.test_images))]
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "images.npy", images.permute(0, 2, 3, 1).contiguous().numpy())


@torch.inference_mode()
def write_outputs(network: Classifier, dataset: str, data: Dataset, folder: Path) -> None:
    """Write the outputs of a network; files that exist are left alone.

    Args:
        network: The network.
        dataset: Name of the data set.
        data: The data set.
        folder: The folder of the corrupted images, to which the outputs are written.
    """
    output = folder / "outputs"
    output.mkdir(exist_ok=True)
    halves = calibration_test_split(len(data.test_images))
    for name, rows in zip(("calibration", "test"), halves, strict=True):
        _write(output / name, network, dataset, data.test_images[rows], data.test_labels[rows])
    labels = data.test_labels[corrupted_rows(len(data.test_images))]
    for start in range(0, N_IMAGES, PART):
        part = slice(start, start + PART)
        for path in sorted((folder / "corrupted").glob("*.npy")):
            found = torch.from_numpy(np.load(path)[:, part]).permute(0, 1, 4, 2, 3)
            name = f"{path.stem}-{start}"
            repeated = labels[part].repeat(len(found))
            _write(output / name, network, dataset, found.flatten(0, 1), repeated)


def _write(stem: Path, network: Classifier, dataset: str, images: Tensor, labels: Tensor) -> None:
    """Write features, logits and labels of images."""
    path = stem.with_name(f"{stem.name}.safetensors")
    if path.exists():
        return
    features = []
    for batch in images.split(BATCH):
        normalised = normalise(batch, NORMALISATION[dataset])
        features.append(network.body(normalised.contiguous(memory_format=torch.channels_last)))
    found = torch.cat(features)
    partial = path.with_suffix(".part")
    tensors = {"features": found, "logits": network.head(found), "labels": labels}
    save_file(tensors, partial)
    partial.rename(path)
    print(path.name, flush=True)


def load_network(weights: Path) -> Classifier:
    """Return a ResNet-18 in evaluation mode.

    Args:
        weights: A safetensors file of its parameters.
    """
    state = load_file(weights)
    network = resnet18(n_classes=len(state["head.bias"]))
    network.load_state_dict(state)
    return network.float().eval()


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("images", "outputs"))
    parser.add_argument("dataset", choices=("cifar10", "cifar100"))
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("weights", type=Path, nargs="?")
    options = parser.parse_args()
    data = load(options.dataset, options.data)
    if options.what == "images":
        write_images(data, options.folder)
        return
    write_outputs(load_network(options.weights), options.dataset, data, options.folder)


if __name__ == "__main__":
    main()
