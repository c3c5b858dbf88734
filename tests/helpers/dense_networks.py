"""Tiny networks that classify each pixel or token, made without arguments and always the same."""

import torch
from torch import Generator, Tensor, nn

N_CLASSES = 3


def _fill(net: nn.Module) -> None:
    generator = Generator().manual_seed(0)
    for parameter in net.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)


class Segmentation(nn.Module):
    """Two convolutions; the second is the head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Conv2d(4, N_CLASSES, 1)
        _fill(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, 3, H, W)."""
        logits: Tensor = self.head(self.body(images).relu())
        return logits


class Tagger(nn.Module):
    """An embedding and a linear head; the share of tokens that count scales its input."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 4)
        self.head = nn.Linear(4, N_CLASSES, bias=False)
        _fill(self)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return logits (N, T, 3)."""
        x = self.embedding(input_ids)
        if attention_mask is not None:
            x = x * attention_mask.float().mean(1)[:, None, None]
        logits: Tensor = self.head(x)
        return logits


class MasklessTagger(nn.Module):
    """The same without a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.tagger = Tagger()

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return logits (N, T, 3)."""
        logits: Tensor = self.tagger(input_ids)
        return logits
