"""The networks have their published sizes, take the paper's images, and show their head."""

import pytest
import torch
from experiments.pretraining import architectures
from torch import nn

import simplexcal as sc

# Sizes of the networks for ImageNet, as published, minus their 7 × 7 stem and last layer, plus the
# 3 × 3 stem and our last layer:
#   ResNet-18: 11 689 512 - 9 408 - 513 000 + 1 728 + 5 130
#   ResNet-50: 25 557 032 - 9 408 - 2 049 000 + 1 728 + 204 900
#   DenseNet: 7 978 856 - 9 408 - 128 (its stem's norm) - 1 025 000 + 1 728 + 10 250 or 102 500
#   ResNet-18 with the published stem: 11 689 512 - 513 000 + 5 130
# VGG16 has 14 714 688 in its convolutions, 2 × 4 224 in the norms of their channels, and 5 130 in
# the last layer, or 46 090 with 3 × 3 positions.
# LeNet-5 has 156 + 2 416 + 48 120 + 10 164 + 850.
SIZES = {
    ("lenet5", 1, 10): 61_706,
    ("vgg16-bn", 3, 10): 14_728_266,
    ("vgg16-bn-flat", 3, 10): 14_769_226,
    ("resnet18", 3, 10): 11_173_962,
    ("resnet18-strided", 3, 10): 11_181_642,
    ("resnet18-halved", 3, 10): 11_181_642,
    ("resnet18-pooled", 3, 10): 11_173_962,
    ("resnet18-window", 3, 10): 11_173_962,
    ("resnet50", 3, 100): 23_705_252,
    ("densenet121", 3, 10): 6_956_298,
    ("densenet121", 3, 100): 7_048_548,
}
FEATURES = {
    "lenet5": 84,
    "vgg16-bn": 512,
    "vgg16-bn-flat": 4608,
    "resnet18": 512,
    "resnet18-strided": 512,
    "resnet18-halved": 512,
    "resnet18-pooled": 512,
    "resnet18-window": 512,
    "resnet50": 2048,
    "densenet121": 1024,
}
IMAGES = {28: 1, 32: 3, 96: 3}  # side and channels of Fashion-MNIST, CIFAR and STL-10
ONE_SIDE = {"lenet5": 28, "resnet18-window": 96}  # networks for images of one side alone


@pytest.mark.parametrize(("name", "n_channels", "n_classes"), SIZES)
def test_the_number_of_parameters_is_the_published_one(
    name: str, n_channels: int, n_classes: int
) -> None:
    with torch.device("meta"):
        net = architectures.make(name, n_channels, n_classes, 0)
    assert sum(p.numel() for p in net.parameters()) == SIZES[name, n_channels, n_classes]


@pytest.mark.parametrize(
    ("name", "side"),
    [(name, side) for name in FEATURES for side in IMAGES if ONE_SIDE.get(name, side) == side],
)
def test_the_library_finds_the_head(name: str, side: int) -> None:
    backbone = sc.Backbone(architectures.make(name, IMAGES[side], 10, 0))
    outputs = backbone(torch.zeros(2, IMAGES[side], side, side))
    assert outputs.logits.shape == (2, 10)
    assert outputs.n_features == FEATURES[name]
    assert backbone.head is backbone.net.head


def test_the_last_feature_maps_have_the_usual_sides() -> None:
    sides = {
        "vgg16-bn": {28: 1, 32: 1, 96: 3},
        "vgg16-bn-flat": {96: 3},
        "resnet18": {28: 4, 32: 4, 96: 12},
        "resnet18-strided": {96: 3},
        "resnet18-halved": {96: 6},
        "resnet18-pooled": {96: 6},
        "densenet121": {28: 3, 32: 4, 96: 12},
    }
    for name, expected in sides.items():
        for side, left in expected.items():
            with torch.device("meta"):
                net = architectures.make(name, IMAGES[side], 10, 0).eval()
                body = net.get_submodule("body")
                assert isinstance(body, nn.Sequential)
                assert body[:-2](torch.zeros(2, IMAGES[side], side, side)).shape[2:] == (left, left)


def test_the_window_is_the_upper_left_one() -> None:
    body = architectures.make("resnet18-window", 3, 10, 0).get_submodule("body")
    assert isinstance(body, nn.Sequential)
    pooling = body[-2]
    places = torch.arange(36.0).view(1, 1, 6, 6)
    assert torch.equal(pooling(places), places[:, :, :4, :4].mean((2, 3), keepdim=True))


def test_the_stride_of_a_bottleneck_is_in_its_middle() -> None:
    block = architectures.Bottleneck(16, 8, 2)
    assert [c.stride for c in (block.first, block.second, block.third)] == [(1, 1), (2, 2), (1, 1)]


def test_a_dense_layer_keeps_its_input_in_front(generator: torch.Generator) -> None:
    x = torch.randn(2, 5, 4, 4, generator=generator)
    y = architectures.DenseLayer(5)(x)
    assert y.shape == (2, 37, 4, 4)
    assert torch.equal(y[:, :5], x)


def test_a_seed_is_a_network_and_leaves_the_global_state() -> None:
    before = torch.get_rng_state()
    first, second, other = (architectures.make("lenet5", 1, 10, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    for a, b, c in zip(first.parameters(), second.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_an_unknown_network_and_an_unfit_lenet5_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"one of lenet5, vgg16-bn, vgg16-bn-flat, resnet18, .*; got 'resnet'"
    ):
        architectures.make("resnet", 3, 10, 0)
    with pytest.raises(ValueError, match="images of 1 channel and has 10 classes; got 3 and 10"):
        architectures.make("lenet5", 3, 10, 0)
