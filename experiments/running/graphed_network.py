"""A network whose forward pass on a GPU is one CUDA graph for each shape of the batch."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import simplexcal as sc
from experiments.pretraining.architectures import Classifier
from simplexcal.calibrators._cuda_graph import CudaGraphed


class GraphedNetwork(nn.Module):
    """A network's outputs as a function of images.

    Batches of 100 images are too small for a GPU: it would wait for the next kernel most of the
    time. A graph is captured at the fourth batch of a shape, with the batch-norm layers as they are
    then. So one object serves one kind of normalisation.

    Args:
        net: The network, in the mode in which it is to run.
        dtype: In what the features are computed; the logits are computed from them in float32.
    """

    def __init__(self, net: Classifier, dtype: torch.dtype) -> None:
        super().__init__()
        self.net = net
        self.dtype = dtype
        self.features: dict[int, Tensor] = {}  # by number of images
        self.run: Callable[[Tensor], object] = self._write_features
        if net.head.weight.is_cuda:
            self.run = CudaGraphed(self._write_features)

    @torch.no_grad()
    def forward(self, images: Tensor) -> sc.Outputs:
        """Return the outputs.

        Args:
            images: Normalised images (N, C, H, W).
        """
        n = len(images)
        if n not in self.features:
            self.features[n] = images.new_empty(n, self.net.head.in_features)
        self.run(images)
        features = self.features[n].clone()
        return sc.Outputs(self.net.head(features), features)

    def _write_features(self, images: Tensor) -> None:
        # A graph must not refer to what autocast caches until its end.
        with torch.autocast(
            images.device.type,
            self.dtype,
            enabled=self.dtype != torch.float32,
            cache_enabled=False,
        ):
            self.features[len(images)].copy_(self.net.body(images))
