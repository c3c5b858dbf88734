"""Random crops and flips, drawn for a whole epoch on the CPU and cut for a whole batch on the device.

Draws depend on the seed and the epoch alone: a training that is taken up again needs no random state, and a network
sees the same pictures on every device and in every company.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

MOST_EPOCHS = 100_000  # keeps the generators of different seeds apart


class Augmentation(NamedTuple):
    """What is done to an image: zeros around it, out of which a crop is taken, and a flip of one in two.

    A crop is as large as the image, or has ``side`` rows and columns.
    """

    padding: int = 4
    side: int | None = None
    flip: bool = True


CROPS_AND_FLIPS = Augmentation()
NOTHING = Augmentation(padding=0, flip=False)


def draw(n: int, batch_size: int, places: int, flip: bool, seed: int, epoch: int) -> Tensor:
    """Return an epoch's plan (4, steps, batch): rows in random order, and each crop's top, left and flip (0 or 1).

    There are ``places`` tops and as many lefts. The rows that fill no whole batch are left out, other ones in each
    epoch.
    """
    generator = torch.Generator().manual_seed((seed + 1) * MOST_EPOCHS + epoch)
    n_used = n - n % batch_size
    rows = torch.randperm(n, generator=generator)[:n_used]
    changes = torch.zeros(3, n_used, dtype=torch.int64)
    if places > 1:
        changes[:2] = torch.randint(places, (2, n_used), generator=generator)
    if flip:
        changes[2] = torch.randint(2, (n_used,), generator=generator)
    return torch.cat([rows.unsqueeze(0), changes]).view(4, -1, batch_size)


class Pictures:
    """Labelled byte images (N, C, H, W) on a device, padded once, out of which few kernels cut normalised batches."""

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        augment: Augmentation,
        device: torch.device | str,
    ) -> None:
        n_channels = len(mean)
        if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != n_channels:
            raise ValueError(
                f"`images` must be bytes (N, {n_channels}, H, W), with a channel for each mean; got {images.dtype} "
                f"{tuple(images.shape)}. Pass them as experiments.data loads them."
            )
        if labels.shape != images.shape[:1]:
            raise ValueError(
                f"`labels` must have shape ({len(images)},), one for each image; got {tuple(labels.shape)}."
            )
        self.augment = augment
        height, width = images.shape[2:] if augment.side is None else (augment.side, augment.side)
        self.places = (
            min(images.shape[2] - height, images.shape[3] - width) + 2 * augment.padding + 1
        )
        if self.places < 1:
            raise ValueError(
                f"A crop of {height} × {width} does not fit into images of {tuple(images.shape[2:])}."
            )
        self.padded = pad(images.to(device), [augment.padding] * 4).permute(0, 2, 3, 1).contiguous()
        self.labels = labels.to(device).long()
        self.y, self.x = (torch.arange(side, device=device) for side in (height, width))
        self.scale = 1 / (255 * torch.tensor(std, device=device))
        self.shift = -torch.tensor(mean, device=device) / torch.tensor(std, device=device)

    def __len__(self) -> int:
        return len(self.labels)

    def plan(self, batch_size: int, seed: int, epoch: int) -> Tensor:
        """Return the plan (4, steps, batch) of one epoch, on the CPU."""
        return draw(len(self), batch_size, self.places, self.augment.flip, seed, epoch)

    def cut(self, plan: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalised images (B, C, H, W), channels last in memory, and labels of one step's plan (4, B)."""
        rows, top, left, flip = plan.unsqueeze(-1)
        columns = left + self.x + flip * (len(self.x) - 1 - 2 * self.x)
        values = self.padded[rows.unsqueeze(-1), (top + self.y).unsqueeze(-1), columns.unsqueeze(1)]
        return (values * self.scale + self.shift).permute(0, 3, 1, 2), self.labels[rows.squeeze(-1)]
