"""The paper's networks, as used for small images: a 3 × 3 stem of stride 1 without pooling.

Each is a ``body`` that ends in a vector of features, and one linear layer, the ``head``. They take
images of any side from 28 on, since the body ends in a global average pooling. Two have variants
for larger images.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from simplexcal.demo.lenet5 import LeNet5

# channels of the convolutions between the poolings
VGG16_CHANNELS = (
    (64, 64),
    (128, 128),
    (256, 256, 256),
    (512, 512, 512),
    (512, 512, 512),
)
# blocks, or layers, in each stage
RESNET18_BLOCKS = (2, 2, 2, 2)
RESNET50_BLOCKS = (3, 4, 6, 3)
DENSENET121_LAYERS = (6, 12, 24, 16)
GROWTH = 32


class Classifier(nn.Module):
    """A body that gives features, and a linear layer that gives their logits.

    Args:
        body: The layers before the last pooling.
        n_channels: Channels after the body.
        n_classes: The number of classes.
        side: Height and width of what the last pooling leaves.
        pooling: The last pooling; None means adaptive average pooling to ``side``.
    """

    def __init__(
        self,
        body: Sequence[nn.Module],
        n_channels: int,
        n_classes: int,
        side: int = 1,
        pooling: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if pooling is None:
            pooling = nn.AdaptiveAvgPool2d(side)
        self.body = nn.Sequential(*body, pooling, nn.Flatten())
        self.head = nn.Linear(n_channels * side**2, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits.

        Args:
            images: Normalised images (N, C, H, W).
        """
        logits: Tensor = self.head(self.body(images))
        return logits


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions and a shortcut (He et al. 2016).

    Args:
        n_in: Channels of the input.
        n_inner: Channels of both convolutions.
        stride: Stride of the first.
    """

    expansion = 1

    def __init__(self, n_in: int, n_inner: int, stride: int) -> None:
        super().__init__()
        self.first = _conv(n_in, n_inner, 3, stride)
        self.first_norm = nn.BatchNorm2d(n_inner)
        self.second = _conv(n_inner, n_inner, 3)
        self.second_norm = nn.BatchNorm2d(n_inner)
        self.shortcut = _shortcut(n_in, n_inner, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(f(x) + shortcut(x)).

        Args:
            x: Feature maps (N, C, H, W).
        """
        inner = relu(self.first_norm(self.first(x)))
        return relu(self.second_norm(self.second(inner)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """Convolutions 1 × 1, 3 × 3 and 1 × 1 to four times the channels, and a shortcut.

    Args:
        n_in: Channels of the input.
        n_inner: Channels of the first two convolutions.
        stride: Stride of the 3 × 3 convolution.
    """

    expansion = 4

    def __init__(self, n_in: int, n_inner: int, stride: int) -> None:
        super().__init__()
        n_out = self.expansion * n_inner
        self.first = _conv(n_in, n_inner, 1)
        self.first_norm = nn.BatchNorm2d(n_inner)
        self.second = _conv(n_inner, n_inner, 3, stride)
        self.second_norm = nn.BatchNorm2d(n_inner)
        self.third = _conv(n_inner, n_out, 1)
        self.third_norm = nn.BatchNorm2d(n_out)
        self.shortcut = _shortcut(n_in, n_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(f(x) + shortcut(x)).

        Args:
            x: Feature maps (N, C, H, W).
        """
        inner = relu(self.first_norm(self.first(x)))
        inner = relu(self.second_norm(self.second(inner)))
        return relu(self.third_norm(self.third(inner)) + self.shortcut(x))


class DenseLayer(nn.Module):
    """Norm, relu, 1 × 1, norm, relu, 3 × 3: ``GROWTH`` channels more (Huang et al. 2017).

    Args:
        n_in: Channels of the input.
    """

    def __init__(self, n_in: int) -> None:
        super().__init__()
        self.first_norm = nn.BatchNorm2d(n_in)
        self.first = _conv(n_in, 4 * GROWTH, 1)
        self.second_norm = nn.BatchNorm2d(4 * GROWTH)
        self.second = _conv(4 * GROWTH, GROWTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return x with the new channels behind its own.

        Args:
            x: Feature maps (N, C, H, W).
        """
        inner = self.first(relu(self.first_norm(x)))
        return torch.cat([x, self.second(relu(self.second_norm(inner)))], 1)


def resnet18(n_channels: int = 3, n_classes: int = 10) -> Classifier:
    """Return a ResNet-18 with 512 features.

    Args:
        n_channels: Channels of the images.
        n_classes: The number of classes.
    """
    return _resnet(BasicBlock, RESNET18_BLOCKS, _stem(n_channels), n_classes)


def resnet18_strided(n_channels: int = 3, n_classes: int = 10) -> Classifier:
    """Return a ResNet-18 as published for large images: its stem leaves a quarter of the side.

    Args:
        n_channels: Channels of the images.
        n_classes: The number of classes.
    """
    stem = [*_strided_stem(n_channels), _stem_pooling()]
    return _resnet(BasicBlock, RESNET18_BLOCKS, stem, n_classes)


def resnet18_pooled(n_channels: int = 3, n_classes: int = 10) -> Classifier:
    """Return a ResNet-18 whose 3 × 3 stem is followed by max-pooling: half of the side is left.

    Args:
        n_channels: Channels of the images.
        n_classes: The number of classes.
    """
    stem = [*_stem(n_channels), _stem_pooling()]
    return _resnet(BasicBlock, RESNET18_BLOCKS, stem, n_classes)


def resnet18_window(n_channels: int = 3, n_classes: int = 10) -> Classifier:
    """Return the ResNet-18 of the paper's STL-10 experiments.

    Its 3 × 3 stem is followed by max-pooling. The last pooling averages a window of 4 × 4: of the
    6 × 6 positions that 96 × 96 images leave, it keeps only the upper left window.

    Args:
        n_channels: Channels of the images.
        n_classes: The number of classes.
    """
    stem = [*_stem(n_channels), _stem_pooling()]
    return _resnet(BasicBlock, RESNET18_BLOCKS, stem, n_classes, pooling=nn.AvgPool2d(4))


def resnet18_halved(n_channels: int = 3, n_classes: int = 10) -> Classifier:
    """Return a ResNet-18 with the published stem except for its pooling: half of the side is left.

    Args:
        n_channels: Channels of the images.
        n_classes: The number of classes.
    """
    return _resnet(BasicBlock, RESNET18_BLOCKS, _strided_stem(n_channels), n_classes)


def resnet50(n_channels: int = 3, n_classes: int = 10) -> Classifier:
    """Return a ResNet-50 with 2048 features.

    Args:
        n_channels: Channels of the images.
        n_classes: The number of classes.
    """
    return _resnet(Bottleneck, RESNET50_BLOCKS, _stem(n_channels), n_classes)


def vgg16_bn(n_channels: int = 3, n_classes: int = 10) -> Classifier:
    """Return a VGG16 with batch normalisation (Simonyan and Zisserman 2014) and 512 features.

    Images of 32 × 32 leave one position; the 3 × 3 positions that 96 × 96 images leave are
    averaged (the paper's Appendix C.2).

    Args:
        n_channels: Channels of the images.
        n_classes: The number of classes.
    """
    return Classifier(_vgg16(n_channels), 512, n_classes)


def vgg16_bn_flat(n_channels: int = 3, n_classes: int = 10) -> Classifier:
    """Return a VGG16-BN whose 4608 features are all 3 × 3 positions that 96 × 96 images leave.

    Args:
        n_channels: Channels of the images.
        n_classes: The number of classes.
    """
    return Classifier(_vgg16(n_channels), 512, n_classes, side=3)


def densenet121(n_channels: int = 3, n_classes: int = 10) -> Classifier:
    """Return a DenseNet-121 that grows by 32 channels a layer and has 1024 features.

    Args:
        n_channels: Channels of the images.
        n_classes: The number of classes.
    """
    n = 2 * GROWTH
    body: list[nn.Module] = [_conv(n_channels, n, 3)]
    for stage, n_layers in enumerate(DENSENET121_LAYERS):
        if stage > 0:  # A transition halves the channels and the side.
            body += [nn.BatchNorm2d(n), nn.ReLU(), _conv(n, n // 2, 1), nn.AvgPool2d(2)]
            n //= 2
        for _ in range(n_layers):
            body.append(DenseLayer(n))
            n += GROWTH
    return Classifier([*body, nn.BatchNorm2d(n), nn.ReLU()], n, n_classes)


def lenet5(n_channels: int = 1, n_classes: int = 10) -> LeNet5:
    """Return the demo's LeNet-5.

    Args:
        n_channels: Channels of the images; it takes 1 only.
        n_classes: The number of classes; it has 10 only.

    Raises:
        ValueError: If other numbers are asked for.
    """
    if (n_channels, n_classes) != (1, 10):
        raise ValueError(
            "LeNet-5 takes images of 1 channel and has 10 classes; "
            f"got {n_channels} and {n_classes}. Take another network."
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
    """Return a network with random weights; torch's global random state stays as it was.

    Args:
        name: A key of ``NETWORKS``.
        n_channels: Channels of the images.
        n_classes: The number of classes.
        seed: Decides the weights.

    Raises:
        ValueError: If the name is unknown.
    """
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
    body = list(stem)
    n = 64
    for stage, count in enumerate(n_blocks):
        n_inner = 64 << stage
        for i in range(count):
            stride = 1
            if stage > 0 and i == 0:
                stride = 2
            body.append(block(n, n_inner, stride))
            n = block.expansion * n_inner
    return Classifier(body, n, n_classes, pooling=pooling)


def _stem(n_channels: int) -> list[nn.Module]:
    return [_conv(n_channels, 64, 3), nn.BatchNorm2d(64), nn.ReLU()]


def _strided_stem(n_channels: int) -> list[nn.Module]:
    return [_conv(n_channels, 64, 7, stride=2), nn.BatchNorm2d(64), nn.ReLU()]


def _stem_pooling() -> nn.Module:
    return nn.MaxPool2d(3, 2, 1)


def _vgg16(n_channels: int) -> list[nn.Module]:
    body: list[nn.Module] = []
    n_in = n_channels
    for stage in VGG16_CHANNELS:
        for n_out in stage:
            body += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.BatchNorm2d(n_out), nn.ReLU()]
            n_in = n_out
        # Nothing is cut off of odd sides, to which 28 × 28 images lead.
        body.append(nn.MaxPool2d(2, ceil_mode=True))
    return body


def _conv(n_in: int, n_out: int, side: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, side, stride, side // 2, bias=False)


def _shortcut(n_in: int, n_out: int, stride: int) -> nn.Module:
    if stride == 1 and n_in == n_out:
        return nn.Identity()
    return nn.Sequential(_conv(n_in, n_out, 1, stride), nn.BatchNorm2d(n_out))
