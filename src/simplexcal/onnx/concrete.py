"""The moments of the Concrete distribution once more, in few operations, all of which ONNX has.

The mathematics and the matrices are those of ``_potential`` and ``_kernel``; tests compare the two. ``Concrete`` itself
cannot be traced: it cuts its rows into chunks, which would fix the size of the batch. And a runtime pays for every node
of a graph, so here the polynomials of the classes are kept for their second use, and the dependence on ρ is
interpolated between T Chebyshev points by the barycentric formula: the same polynomial as the series of T terms.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.polynomial.chebyshev import chebpts1, chebvander
from torch import Tensor, nn

from simplexcal.concrete._gumbel_sum import LAST_RATIO
from simplexcal.concrete._kernel import BEND, FADING, TOP, kernel_for
from simplexcal.concrete.distribution import EULER_GAMMA


class Moments(NamedTuple):
    """E[π] (N, K), and the expected and the differential entropy (N,)."""

    mean: Tensor
    expected_entropy: Tensor
    entropy: Tensor


class ExportableConcrete(nn.Module):
    """The moments of Concrete distributions with K classes, for logits (N, K) of one dtype and temperatures (N,).

    Constants are tensors: a Python number would reach the graph as a float32, whatever the dtype of the logits.
    """

    ratios: Tensor  # (T,)       the Chebyshev points in ρ
    alternating: Tensor  # (T,)  and their barycentric weights
    derivative: Tensor  # (T, T) from values at the points to derivatives there
    nodes: Tensor  # (T·R, Q)    e^-z ψ_r(ρ, z) at the points
    collect: Tensor  # (P, R)
    share: Tensor  # (R, P)
    unit_step: Tensor  # (Q,)
    fading: Tensor
    stretch: Tensor
    gamma: Tensor
    constant: Tensor
    eps: Tensor
    tiny: Tensor

    def __init__(self, n_classes: int, dtype: torch.dtype) -> None:
        super().__init__()
        kernel, k = kernel_for(torch.empty(1, n_classes, dtype=dtype, device="cpu")), n_classes
        self.n_classes, self.spacing, self.resolution = k, kernel.spacing, kernel.resolution
        points = chebpts1(kernel.resolution.terms)
        values = chebvander(points, len(points) - 1)  # of the Chebyshev polynomials, at the points
        double = {
            "ratios": (points + 1) * (LAST_RATIO / 2),
            "alternating": (-1.0) ** np.arange(len(points)) * np.sqrt(1 - points**2),
            "derivative": values @ kernel.derivative.numpy() @ np.linalg.inv(values),
            "nodes": (values @ kernel.nodes.numpy().reshape(len(points), -1)).reshape(
                kernel.nodes.shape
            ),
            "collect": np.pad(kernel.collect.numpy(), ((0, 1), (0, 0))),
            "share": kernel.share.numpy(),
            "unit_step": kernel.unit_step.numpy(),
            "tiny": np.array(1e-300),
        }
        own = {
            "fading": np.array(FADING),
            "stretch": np.array(kernel.resolution.stretch),
            "gamma": np.array(EULER_GAMMA),
            "constant": np.array(k * math.fsum(1 / i for i in range(1, k)) - math.lgamma(k)),
            "eps": np.array(torch.finfo(dtype).eps),
        }
        for name, array in {**double, **own}.items():
            self.register_buffer(
                name, torch.from_numpy(array).to(dtype if name in own else torch.float64)
            )

    def forward(self, logits: Tensor, temperature: Tensor) -> Moments:
        """Return the moments; ``concrete._moments`` has the formulas."""
        k, scale = self.n_classes, temperature.clamp_min(1.0)
        a = (logits - logits.amax(-1, keepdim=True)) / scale.unsqueeze(-1)
        ratio = temperature / scale / scale
        m, mean, slope = self._potential(a, ratio)
        mean = self._keep_order(mean, logits)
        hot = m - self.gamma - (a * mean).sum(-1) - ratio * slope
        expected_entropy = torch.where(temperature >= 1, hot, slope).clamp_min(0)
        shape_term = (a.sum(-1) - k * (m - self.gamma)) * scale / temperature
        entropy = self.constant - (k - 1) * temperature.log() + shape_term
        return Moments(mean, expected_entropy, entropy)

    def _potential(self, a: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return m (N,), ∂m/∂a (N, K) and ∂m/∂ρ (N,); all products of matrices are float64, as in ``_potential``."""
        near = a.clamp_min(-self.resolution.depth)
        weight, polynomials = torch.exp(a - self.fading * near), self._polynomials(near)
        sums = (weight.unsqueeze(1) * polynomials).sum(-1).double() @ self.collect
        shares = self._shares(ratio)
        cdf = torch.exp(-((shares.unsqueeze(-1) * sums.unsqueeze(1)).flatten(1) @ self.nodes))
        adjoint = (cdf @ self.nodes.T).unflatten(1, (shares.shape[1], sums.shape[1]))
        coefficients = ((shares.unsqueeze(1) @ adjoint).squeeze(1) @ self.share).to(a.dtype)
        mass = weight * (coefficients.unsqueeze(-1) * polynomials).sum(1)
        slopes = ((shares @ self.derivative).unsqueeze(1) @ adjoint).squeeze(1)
        m = (self.unit_step - cdf).sum(-1) * self.spacing
        slope = (slopes * sums).sum(-1) * self.spacing
        return m.to(a.dtype), mass / mass.sum(-1, keepdim=True), slope.to(a.dtype)

    def _polynomials(self, a: Tensor) -> Tensor:
        """Return s_p(u(a)), (N, P, K)."""
        u = (a / (BEND - a) * self.stretch + TOP).unsqueeze(1)
        twice, s = u + u, [torch.ones_like(u), u]
        for p in range(2, len(self.collect)):
            s.append(s[-2] + twice * s[-1] if p % 2 else s[-2] - twice * s[-1])
        return torch.cat(s, 1)

    def _shares(self, ratio: Tensor) -> Tensor:
        """Return what each point contributes to the interpolated value at ρ, (N, T); at a point itself, it alone."""
        gap = ratio.double().unsqueeze(-1) - self.ratios
        shares = self.alternating / torch.where(gap == 0, self.tiny, gap)
        return shares / shares.sum(-1, keepdim=True)

    def _keep_order(self, probs: Tensor, logits: Tensor) -> Tensor:
        """Give the largest logit the strictly largest entry, and tied logits equal ones."""
        best = probs.gather(-1, logits.argmax(-1, keepdim=True))
        below = torch.minimum(
            probs, best - best * self.eps
        )  # a factor of 1 - ε would be taken for 1, and left out
        return torch.where(logits == logits.amax(-1, keepdim=True), best, below)
