"""The paper's networks, in the forms used for small images."""

from torch import Tensor, nn
from torch.nn.functional import relu


class Block(nn.Module):
    """Two 3 × 3 convolutions and a shortcut (He et al. 2016)."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(n_out)
        self.second = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(n_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or n_in != n_out:
            self.shortcut = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(f(x) + shortcut(x))."""
        inner = relu(self.first_norm(self.first(x)))
        return relu(self.second_norm(self.second(inner)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for small images: a 3 × 3 stem of stride 1, no pooling before the blocks; 512 features."""

    def __init__(self, n_channels: int = 3, n_classes: int = 10) -> None:
        super().__init__()
        stages = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        self.body = nn.Sequential(
            nn.Conv2d(n_channels, 64, 3, 1, 1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            *(block for i, o, stride in stages for block in (Block(i, o, stride), Block(o, o, 1))),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(512, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images (N, C, H, W)."""
        logits: Tensor = self.head(self.body(images))
        return logits
