"""How near features are to a class of the calibration data: a factor for λ(x)."""

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn.functional import normalize

from simplexcal._chunking import map_rows

# How many nats ln λ falls when the distance falls by its standard deviation.
STRENGTH = 0.1
# From this quantile of the calibration distances on, λ is the branch's.
FAR = 0.99
# The central 68 % of a normal distribution are two standard deviations wide.
CENTRAL = (0.16, 0.84)
DEEPEST = -1.0  # of ln(factor)
MAX_NUMBERS = 2**21  # in the class means
ABSENT = 16.0  # Where a class has no mean, the squared distance is more than that of any other.
SMALLEST = 1e-12  # of a squared distance, and of a length that features are divided by
NARROWEST = 1e-3  # standard deviation of distances between unit vectors


class FeatureDistance(nn.Module):
    """ln(factor) = slope · min(d(x) - far, 0), with d(x) = min_k ‖x/‖x‖ - m_k‖.

    x are the features, or what the branch reads in their place, and m_k is the mean of those of
    class k, each scaled to length 1. The branch learns λ from mixup samples, which lie between the
    classes. An input that is farther from all classes than nearly all calibration inputs keeps this
    λ. The nearer an input is to a class, the smaller is its λ, and with it the differential
    entropy.

    Args:
        n_classes: K.
        n_features: D.
    """

    means: Tensor
    squared_norms: Tensor
    slope: Tensor
    far: Tensor

    def __init__(self, n_classes: int, n_features: int) -> None:
        super().__init__()
        self.register_buffer("means", torch.zeros(n_classes, n_features))
        self.register_buffer("squared_norms", torch.zeros(n_classes))
        self.register_buffer("slope", torch.zeros(()))
        self.register_buffer("far", torch.zeros(()))

    @torch.no_grad()
    def fit(self, features: Tensor, labels: Tensor) -> None:
        """Learn the means, and what distances calibration inputs have that are not in a mean.

        Args:
            features: Features of the calibration inputs, (N, D).
            labels: Their true classes, (N,).
        """
        unit = normalize(features.to(self.means.dtype), dim=-1)
        counts = labels.bincount(minlength=len(self.means)).to(unit)
        sums = torch.zeros_like(self.means).index_add_(0, labels, unit)
        self.means.copy_(sums / counts.clamp_min(1).unsqueeze(-1))
        self.squared_norms.copy_(self.means.square().sum(-1))
        self.squared_norms[counts == 0] = ABSENT

        def others(rows: Tensor, own: Tensor) -> Tensor:
            return self._left_out(rows, own, counts)

        distances = map_rows(others, unit, labels, width=sum(self.means.shape))
        ordered = distances.sort().values
        low, high, far = (ordered[round(share * (len(ordered) - 1))] for share in (*CENTRAL, FAR))
        deviation = (high - low) / 2
        self.far.copy_(far)
        self.slope.copy_(STRENGTH / deviation.clamp_min(NARROWEST))

    def forward(self, features: Tensor) -> Tensor:
        """Return ln(factor) for each input, (N,), at most 0.

        Args:
            features: (N, D).
        """
        features = features.to(self.means.dtype)
        # The classes come first, so that the loops are as long as there are inputs.
        products = self.means @ features.T / vector_norm(features, dim=-1).clamp_min(SMALLEST)
        squared = 1 + self.squared_norms.unsqueeze(-1) - 2 * products
        distance: Tensor = squared.amin(0).clamp_min(SMALLEST).sqrt()
        return (self.slope * (distance - self.far)).clamp(DEEPEST, 0.0)

    def _squared_distances(self, unit: Tensor) -> Tensor:
        """Return ‖x - m_k‖² for features of length 1, (N, K)."""
        return 1 + self.squared_norms - 2 * unit @ self.means.T

    def _left_out(self, unit: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        """Return the distance (N,) that each calibration input has if its mean leaves it out.

        Without x, the mean of its n_k inputs is farther from it by the factor n_k / (n_k - 1).
        """
        squared = self._squared_distances(unit)
        own = labels.unsqueeze(-1)
        growth = (counts / (counts - 1).clamp_min(0))[own]
        left_out = (squared.gather(-1, own) * growth.square()).clamp_max(ABSENT)
        squared = squared.scatter(-1, own, left_out.nan_to_num(ABSENT))
        return squared.amin(-1).clamp_min(SMALLEST).sqrt()
