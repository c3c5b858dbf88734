"""Random crops and flips, drawn for a whole epoch on the CPU and cut for a whole batch on the device.

Draws depend on the seed and the epoch alone: a training that is taken up again needs no random state, and a network
sees the same pictures on every device and in every company.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

PADDING = 4  # zeros around an image, out of which a crop of its own size is taken
MOST_EPOCHS = 100_000  # keeps the generators of different seeds apart


def draw(n: int, batch_size: int, augment: bool, seed: int, epoch: int) -> Tensor:
    """Return an epoch's plan (4, steps, batch): rows in random order, and each crop's top, left and flip (0 or 1).

    The rows that fill no whole batch are left out, other ones in each epoch.
    """
    generator = torch.Generator().manual_seed((seed + 1) * MOST_EPOCHS + epoch)
    n_used = n - n % batch_size
    rows = torch.randperm(n, generator=generator)[:n_used]
    changes = torch.zeros(3, n_used, dtype=torch.int64)
    if augment:
        changes[:2] = torch.randint(2 * PADDING + 1, (2, n_used), generator=generator)
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
        augment: bool,
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
        sides = [PADDING if augment else 0] * 4
        self.padded = pad(images.to(device), sides).permute(0, 2, 3, 1).contiguous()  # (N, H + 8, W + 8, C)
        self.labels = labels.to(device).long()
        self.y, self.x = (torch.arange(side, device=device) for side in images.shape[2:])
        self.scale = 1 / (255 * torch.tensor(std, device=device))
        self.shift = -torch.tensor(mean, device=device) / torch.tensor(std, device=device)

    def __len__(self) -> int:
        return len(self.labels)

    def plan(self, batch_size: int, seed: int, epoch: int) -> Tensor:
        """Return the plan (4, steps, batch) of one epoch, on the CPU."""
        return draw(len(self), batch_size, self.augment, seed, epoch)

    def cut(self, plan: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalised images (B, C, H, W), channels last in memory, and labels of one step's plan (4, B)."""
        rows, top, left, flip = plan.unsqueeze(-1)
        columns = left + self.x + flip * (len(self.x) - 1 - 2 * self.x)
        values = self.padded[rows.unsqueeze(-1), (top + self.y).unsqueeze(-1), columns.unsqueeze(1)]
        return (values * self.scale + self.shift).permute(0, 3, 1, 2), self.labels[rows.squeeze(-1)]
