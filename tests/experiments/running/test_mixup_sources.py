import torch
from experiments.pretraining.architectures import make
from experiments.running.mixup_sources import forward_in
from torch import Generator

import simplexcal as sc


def test_mixed_images_get_the_networks_outputs(generator: Generator) -> None:
    net, images = make("vgg16-bn", 3, 10, 0).eval(), torch.randn(8, 3, 32, 32, generator=generator)
    outputs, exact = forward_in(net, torch.float32)(images), sc.Backbone(net)(images)
    assert outputs.features is not None
    assert exact.features is not None
    assert torch.equal(outputs.features, exact.features)
    torch.testing.assert_close(outputs.logits, exact.logits)


def test_features_may_be_rounded_but_logits_are_theirs(generator: Generator) -> None:
    net, images = make("vgg16-bn", 3, 10, 0).eval(), torch.randn(8, 3, 32, 32, generator=generator)
    outputs, exact = forward_in(net, torch.bfloat16)(images), sc.Backbone(net)(images)
    assert outputs.features is not None
    assert exact.features is not None
    assert outputs.features.dtype == outputs.logits.dtype == torch.float32
    error = (outputs.features - exact.features).norm() / exact.features.norm()
    assert 1e-4 < error < 0.05  # in bfloat16 indeed, and no worse
    head = net.get_submodule("head")
    torch.testing.assert_close(outputs.logits, head(outputs.features).detach())
    assert not outputs.logits.requires_grad
