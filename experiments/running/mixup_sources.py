"""Where a method's mixed samples come from: a network of the cache and the test images that calibrate it."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

import simplexcal as sc
from experiments.config.methods import Mixes
from experiments.config.run_config import Place
from experiments.config.settings import ROWS
from experiments.datasets.loading import NORMALISATION, halves, load, normalise
from experiments.pretraining.learner import arrange
from experiments.pretraining.outputs import network


def mixup(
    mixes: Mixes, row: str, seed: int, outputs: sc.Outputs, labels: Tensor, place: Place
) -> sc.InputMixup | sc.FeatureMixup:
    """Return the source of these mixes, on the device of the outputs to calibrate with."""
    scheme, device = (mixes.per_class, mixes.n_shuffles, mixes.fresh), outputs.logits.device
    net = network(row, seed, place).to(device)
    arrange(net, torch.channels_last)
    if mixes.kind == "features":
        return sc.FeatureMixup(cast(nn.Linear, net.get_submodule("head")), outputs, labels, *scheme)
    images = load(ROWS[row].data, place.data).test_images
    inputs = normalise(images[halves(len(images))[0]], NORMALISATION[ROWS[row].data])
    return sc.InputMixup(
        outputs_of(net, ROWS[row].dtype(str(device))), inputs.to(device), labels, *scheme
    )


def outputs_of(net: nn.Module, dtype: torch.dtype) -> Callable[[Tensor], sc.Outputs]:
    """Return the network's outputs as a function of images: features computed in ``dtype``, logits from them."""
    backbone = sc.Backbone(net)

    @torch.no_grad()
    def outputs(images: Tensor) -> sc.Outputs:
        with torch.autocast(images.device.type, dtype, enabled=dtype != torch.float32):
            features = cast(Tensor, backbone(images).features).float()
        return sc.Outputs(backbone.head(features), features)

    return outputs
