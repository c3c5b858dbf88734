"""Vector scaling."""

import torch
from torch import Tensor

from simplexcal.calibrators._centred import centred, floored
from simplexcal.calibrators._linear_calibrator import LinearCalibrator


class VectorScaling(LinearCalibrator):
    """softmax(w ∘ x + b), a weight and a bias for each class (Guo et al. 2017, Sec. 4.2).

    It changes predictions. Here x are the logits divided by the T of temperature scaling, less
    their mean. The published method has no penalty and overfits where a class has few inputs; this
    one minimises

      mean -ln p_y + r/2n · (Σ_k (w_k - 1)² + Σ_k b_k²),

    which is convex, and nothing is random. The penalty draws it towards temperature scaling.

    Args:
        strength: r, positive. None chooses it by cross-validation on the data of the fit.
    """

    key = "vector"
    abbreviation = "Vector"
    title = "vector scaling, which changes predictions"
    strengths = (0.1, 1.0, 10.0, 100.0, 1000.0, 10_000.0)

    def _identity(self, n_classes: int) -> Tensor:
        return torch.ones(n_classes)

    def _inputs(self, logits: Tensor, temperature: Tensor) -> Tensor:
        return floored(centred(logits, temperature))

    def _penalty(self, n_classes: int, n: float, strength: float) -> Tensor:
        return torch.full((2 * n_classes,), strength / n, dtype=torch.float64)
