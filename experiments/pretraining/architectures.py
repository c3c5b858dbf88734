"""The paper's networks, in the forms used for small images: a 3 × 3 stem of stride 1, and no pooling before the blocks.

Each is a ``body`` that ends in a vector of features, and one linear layer, the ``head``. They take images of any side
from 28 on, since the body ends in a mean over the places that are left. Two have other forms for large images too.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from simplexcal.demo.lenet5 import LeNet5

VGG16 = (
    (64, 64),
    (128, 128),
    (256, 256, 256),
    (512, 512, 512),
    (512, 512, 512),
)  # channels, between the poolings
RESNET18, RESNET50 = (2, 2, 2, 2), (3, 4, 6, 3)  # blocks in each stage
DENSENET121, GROWTH = (6, 12, 24, 16), 32


class Classifier(nn.Module):
    """A body that gives features, the channels at ``side`` × ``side`` places, and a linear layer for their logits."""

    def __init__(
        self,
        body: Sequence[nn.Module],
        n_channels: int,
        n_classes: int,
        side: int = 1,
        pooling: nn.Module | None = None,
    ) -> None:
        super().__init__()
        pooling = pooling or nn.AdaptiveAvgPool2d(side)
        self.body = nn.Sequential(*body, pooling, nn.Flatten())
        self.head = nn.Linear(n_channels * side**2, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of normalised images (N, C, H, W)."""
        logits: Tensor = self.head(self.body(images))
        return logits


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions and a shortcut (He et al. 2016)."""

    expansion = 1

    def __init__(self, n_in: int, n_inner: int, stride: int) -> None:
        super().__init__()
        self.first, self.first_norm = _conv(n_in, n_inner, 3, stride), nn.BatchNorm2d(n_inner)
        self.second, self.second_norm = _conv(n_inner, n_inner, 3), nn.BatchNorm2d(n_inner)
        self.shortcut = _shortcut(n_in, n_inner, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(f(x) + shortcut(x))."""
        inner = relu(self.first_norm(self.first(x)))
        return relu(self.second_norm(self.second(inner)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """Convolutions 1 × 1, 3 × 3 and 1 × 1 to four times the channels, and a shortcut; the 3 × 3 one has the stride."""

    expansion = 4

    def __init__(self, n_in: int, n_inner: int, stride: int) -> None:
        super().__init__()
        n_out = self.expansion * n_inner
        self.first, self.first_norm = _conv(n_in, n_inner, 1), nn.BatchNorm2d(n_inner)
        self.second, self.second_norm = _conv(n_inner, n_inner, 3, stride), nn.BatchNorm2d(n_inner)
        self.third, self.third_norm = _conv(n_inner, n_out, 1), nn.BatchNorm2d(n_out)
        self.shortcut = _shortcut(n_in, n_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(f(x) + shortcut(x))."""
        inner = relu(self.first_norm(self.first(x)))
        inner = relu(self.second_norm(self.second(inner)))
        return relu(self.third_norm(self.third(inner)) + self.shortcut(x))


class DenseLayer(nn.Module):
    """Norm, relu, 1 × 1, norm, relu, 3 × 3: ``GROWTH`` channels more (Huang et al. 2017)."""

    def __init__(self, n_in: int) -> None:
        super().__init__()
        self.first_norm, self.first = nn.BatchNorm2d(n_in), _conv(n_in, 4 * GROWTH, 1)
        self.second_norm, self.second = nn.BatchNorm2d(4 * GROWTH), _conv(4 * GROWTH, GROWTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return x with the new channels behind its own."""
        inner = self.first(relu(self.first_norm(x)))
        return torch.cat([x, self.second(relu(self.second_norm(inner)))], 1)


def resnet18(n_channels: int = 3, n_classes: int = 10) -> Classifier:
    """Return a ResNet-18 with 512 features."""
    return _resnet(BasicBlock, RESNET18, _stem(n_channels), n_classes)


def resnet18_strided(n_channels: int = 3, n_classes: int = 10) -> Classifier:
    """Return a ResNet-18 as published for large images: its stem leaves a quarter of their side."""
    return _resnet(
        BasicBlock, RESNET18, [*_strided_stem(n_channels), nn.MaxPool2d(3, 2, 1)], n_classes
    )


def resnet18_pooled(n_channels: int = 3, n_classes: int = 10) -> Classifier:
    """Return a ResNet-18 whose stem for small images is followed by the published pooling: half of the side is left."""
    return _resnet(BasicBlock, RESNET18, [*_stem(n_channels), nn.MaxPool2d(3, 2, 1)], n_classes)


def resnet18_window(n_channels: int = 3, n_classes: int = 10) -> Classifier:
    """Return the ResNet-18 of the paper's STL-10 experiments.

    The stem for small images is followed by the published pooling. The last pooling averages a window of 4 × 4
    places: of the 6 × 6 places that 96 × 96 images leave it keeps the upper left window alone.
    """
    stem = [*_stem(n_channels), nn.MaxPool2d(3, 2, 1)]
    return _resnet(BasicBlock, RESNET18, stem, n_classes, pooling=nn.AvgPool2d(4))


def resnet18_halved(n_channels: int = 3, n_classes: int = 10) -> Classifier:
    """Return a ResNet-18 with the published stem but for its pooling: half of the side is left."""
    return _resnet(BasicBlock, RESNET18, _strided_stem(n_channels), n_classes)


def resnet50(n_channels: int = 3, n_classes: int = 10) -> Classifier:
    """Return a ResNet-50 with 2048 features."""
    return _resnet(Bottleneck, RESNET50, _stem(n_channels), n_classes)


def vgg16_bn(n_channels: int = 3, n_classes: int = 10) -> Classifier:
    """Return a VGG16 with batch normalisation (Simonyan and Zisserman 2014) and 512 features.

    What 32 × 32 images leave is one place; the 3 × 3 places of 96 × 96 ones are averaged (the paper's Appendix C.2).
    """
    return Classifier(_vgg16(n_channels), 512, n_classes)


def vgg16_bn_flat(n_channels: int = 3, n_classes: int = 10) -> Classifier:
    """Return a VGG16-BN whose 4608 features are all 3 × 3 places that 96 × 96 images leave."""
    return Classifier(_vgg16(n_channels), 512, n_classes, side=3)


def densenet121(n_channels: int = 3, n_classes: int = 10) -> Classifier:
    """Return a DenseNet-121 that grows by 32 channels a layer and has 1024 features."""
    n = 2 * GROWTH
    body: list[nn.Module] = [_conv(n_channels, n, 3)]
    for i, n_layers in enumerate(DENSENET121):
        if i > 0:  # the transition: half the channels, half the side
            body += [nn.BatchNorm2d(n), nn.ReLU(), _conv(n, n // 2, 1), nn.AvgPool2d(2)]
            n //= 2
        body += [DenseLayer(n + j * GROWTH) for j in range(n_layers)]
        n += n_layers * GROWTH
    return Classifier([*body, nn.BatchNorm2d(n), nn.ReLU()], n, n_classes)


def lenet5(n_channels: int = 1, n_classes: int = 10) -> LeNet5:
    """Return the demo's LeNet-5, which is for 28 × 28 grey images of ten classes alone."""
    if (n_channels, n_classes) != (1, 10):
        raise ValueError(
            f"LeNet-5 takes images of 1 channel and tells 10 classes apart; got {n_channels} and {n_classes}. "
            "Take another network."
        )
    return LeNet5()


NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {
    "lenet5": lenet5,
    "vgg16-bn": vgg16_bn,
    "vgg16-bn-flat": vgg16_bn_flat,
    "resnet18": resnet18,
    "resnet18-strided": resnet18_strided,
    "resnet18-halved": resnet18_halved,
    "resnet18-pooled": resnet18_pooled,
    "resnet18-window": resnet18_window,
    "resnet50": resnet50,
    "densenet121": densenet121,
}


def make(name: str, n_channels: int, n_classes: int, seed: int) -> nn.Module:
    """Return a network with the random weights of this seed; torch's global random state stays as it was."""
    if name not in NETWORKS:
        raise ValueError(f"`name` must be one of {', '.join(NETWORKS)}; got {name!r}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETWORKS[name](n_channels, n_classes)


def _resnet(
    block: type[BasicBlock] | type[Bottleneck],
    n_blocks: Sequence[int],
    stem: Sequence[nn.Module],
    n_classes: int,
    pooling: nn.Module | None = None,
) -> Classifier:
    body, n = [*stem], 64
    for stage, count in enumerate(n_blocks):
        for i in range(count):
            body.append(block(n, 64 << stage, stride=2 if stage > 0 and i == 0 else 1))
            n = block.expansion * (64 << stage)
    return Classifier(body, n, n_classes, pooling=pooling)


def _strided_stem(n_channels: int) -> list[nn.Module]:
    return [nn.Conv2d(n_channels, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]


def _vgg16(n_channels: int) -> list[nn.Module]:
    body: list[nn.Module] = []
    n_in = n_channels
    for stage in VGG16:
        for n_out in stage:
            body += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.BatchNorm2d(n_out), nn.ReLU()]
            n_in = n_out
        body.append(
            nn.MaxPool2d(2, ceil_mode=True)
        )  # of odd sides, which 28 × 28 leads to, nothing is cut off
    return body


def _stem(n_channels: int) -> list[nn.Module]:
    return [_conv(n_channels, 64, 3), nn.BatchNorm2d(64), nn.ReLU()]


def _conv(n_in: int, n_out: int, side: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, side, stride, side // 2, bias=False)


def _shortcut(n_in: int, n_out: int, stride: int) -> nn.Module:
    if stride == 1 and n_in == n_out:
        return nn.Identity()
    return nn.Sequential(_conv(n_in, n_out, 1, stride), nn.BatchNorm2d(n_out))
