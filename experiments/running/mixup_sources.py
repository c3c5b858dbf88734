"""Where a method's mixup samples come from: a trained network and its calibration images."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

import simplexcal as sc
from experiments.config.methods import MixupScheme
from experiments.config.run_config import RunConfig
from experiments.config.settings import SETTINGS
from experiments.datasets.loading import calibration_test_split, load
from experiments.datasets.normalisation import NORMALISATION, normalise
from experiments.pretraining.learner import set_memory_format
from experiments.pretraining.network_id import NetworkId
from experiments.pretraining.outputs import last_layer, trained_network


def mixup_source(
    scheme: MixupScheme,
    network: NetworkId,
    outputs: sc.Outputs,
    labels: Tensor,
    config: RunConfig,
) -> sc.InputMixup | sc.FeatureMixup | sc.LogitMixup:
    """Return the source of mixup samples, on the device of the outputs.

    Args:
        scheme: How the samples are made.
        network: The trained network.
        outputs: Its outputs to calibrate with.
        labels: Their classes.
        config: Folders and device of the run.
    """
    numbers = (scheme.per_class, scheme.n_shuffles, scheme.weights_per_sample)
    if scheme.kind == "logits":
        return sc.LogitMixup(outputs, labels, *numbers)
    device = outputs.logits.device
    if scheme.kind == "features":
        head = last_layer(*network, config).to(device)
        return sc.FeatureMixup(head, outputs, labels, *numbers)
    net = trained_network(*network, config).to(device)
    set_memory_format(net, torch.channels_last)
    setting = SETTINGS[network.setting]
    images = load(setting.dataset, config.data).test_images
    calibration, _ = calibration_test_split(len(images))
    inputs = normalise(images[calibration], NORMALISATION[setting.dataset]).to(device)
    forward = forward_in(net, setting.dtype(str(device)))
    return sc.InputMixup(forward, inputs, labels, *numbers)


def forward_in(net: nn.Module, dtype: torch.dtype) -> Callable[[Tensor], sc.Outputs]:
    """Return the network's outputs as a function of images.

    Args:
        net: The network.
        dtype: In what the features are computed; the logits are computed from them in float32.
    """
    backbone = sc.Backbone(net)

    @torch.no_grad()
    def outputs(images: Tensor) -> sc.Outputs:
        with torch.autocast(images.device.type, dtype, enabled=dtype != torch.float32):
            features = cast(Tensor, backbone(images).features).float()
        return sc.Outputs(backbone.head(features), features)

    return outputs
