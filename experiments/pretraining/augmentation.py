"""Random crops and flips, drawn for a whole epoch on the CPU and cut for a batch on the device.

The draws depend on the seed and the epoch alone. A resumed training needs no random state, and a
network sees the same images on every device, whichever networks train beside it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from experiments.config.settings import Augmentation

MOST_EPOCHS = 100_000  # keeps the generators of different seeds apart


def draw_plan(n: int, batch_size: int, n_offsets: int, flip: bool, seed: int, epoch: int) -> Tensor:
    """Return an epoch's plan (4, steps, batch): image, top, left and flip (0 or 1) of each crop.

    The images come in random order. Those that fill no whole batch are left out, other ones in
    each epoch.

    Args:
        n: The number of images.
        batch_size: Images in a batch.
        n_offsets: The number of possible tops, and of possible lefts.
        flip: Whether one image in two is flipped.
        seed: The network's seed.
        epoch: The epoch, from 0.
    """
    generator = torch.Generator().manual_seed((seed + 1) * MOST_EPOCHS + epoch)
    n_used = n - n % batch_size
    rows = torch.randperm(n, generator=generator)[:n_used]
    changes = torch.zeros(3, n_used, dtype=torch.int64)
    if n_offsets > 1:
        changes[:2] = torch.randint(n_offsets, (2, n_used), generator=generator)
    if flip:
        changes[2] = torch.randint(2, (n_used,), generator=generator)
    return torch.cat([rows.unsqueeze(0), changes]).view(4, -1, batch_size)


class AugmentedImages:
    """Labelled images on a device, padded once, from which few kernels cut normalised batches.

    Args:
        images: Bytes (N, C, H, W).
        labels: Classes (N,).
        mean: Mean of each channel, on the scale from 0 to 1.
        std: Standard deviation of each channel, on that scale.
        augmentation: What is done to each image.
        device: Where the images are to be.

    Raises:
        ValueError: If images and labels do not fit together, or a crop is larger than the images.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        augmentation: Augmentation,
        device: torch.device | str,
    ) -> None:
        _check_images(images, labels, len(mean))
        height, width = _crop_shape(images, augmentation)
        margin = min(images.shape[2] - height, images.shape[3] - width)
        self.n_offsets = margin + 2 * augmentation.padding + 1
        if self.n_offsets < 1:
            raise ValueError(
                f"A crop of {height} × {width} does not fit into images of "
                f"{tuple(images.shape[2:])}."
            )
        self.augmentation = augmentation
        padded = pad(images.to(device), [augmentation.padding] * 4)
        self.padded = padded.permute(0, 2, 3, 1).contiguous()
        self.labels = labels.to(device).long()
        self.y = torch.arange(height, device=device)
        self.x = torch.arange(width, device=device)
        deviation = torch.tensor(std, device=device)
        self.scale = 1 / (255 * deviation)
        self.shift = -torch.tensor(mean, device=device) / deviation

    def __len__(self) -> int:
        return len(self.labels)

    def plan(self, batch_size: int, seed: int, epoch: int) -> Tensor:
        """Return the plan (4, steps, batch) of one epoch, on the CPU.

        Args:
            batch_size: Images in a batch.
            seed: The network's seed.
            epoch: The epoch, from 0.
        """
        flip = self.augmentation.flip
        return draw_plan(len(self), batch_size, self.n_offsets, flip, seed, epoch)

    def cut(self, plan: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised images (B, C, H, W), channels last in memory, and their labels.

        Args:
            plan: One step of an epoch's plan, (4, B).
        """
        rows, top, left, flip = plan.unsqueeze(-1)
        mirrored = len(self.x) - 1 - 2 * self.x
        columns = left + self.x + flip * mirrored
        lines = top + self.y
        values = self.padded[rows.unsqueeze(-1), lines.unsqueeze(-1), columns.unsqueeze(1)]
        images = (values * self.scale + self.shift).permute(0, 3, 1, 2)
        return images, self.labels[rows.squeeze(-1)]


def _check_images(images: Tensor, labels: Tensor, n_channels: int) -> None:
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != n_channels:
        raise ValueError(
            f"`images` must be bytes (N, {n_channels}, H, W), with a channel for each mean; got "
            f"{images.dtype} {tuple(images.shape)}. Pass them as experiments.datasets loads them."
        )
    if labels.shape != images.shape[:1]:
        raise ValueError(
            f"`labels` must have shape ({len(images)},), one for each image; "
            f"got {tuple(labels.shape)}."
        )


def _crop_shape(images: Tensor, augmentation: Augmentation) -> tuple[int, int]:
    if augmentation.side is None:
        return images.shape[2], images.shape[3]
    return augmentation.side, augmentation.side
