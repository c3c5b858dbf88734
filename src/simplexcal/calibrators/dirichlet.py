"""Dirichlet calibration."""

import torch
from torch import Tensor

from simplexcal.calibrators._centred import floored
from simplexcal.calibrators._linear_calibrator import LinearCalibrator

DIAGONAL = 1.0  # penalty of the diagonal of V, which ODIR leaves free, as half an input


class DirichletCalibration(LinearCalibrator):
    """softmax(V (ln p) / T + b), p the network's probabilities, with ODIR (Kull et al. 2019).

    It changes predictions. If p follows a Dirichlet distribution in each class, the calibrated
    probabilities have this form. T is that of temperature scaling, which V = 1 is. ODIR penalises
    what lies off the diagonal, and the biases:

      mean -ln p_y + λ/(K(K-1)) · Σ_{j≠k} V_jk² + λ/K · Σ_k b_k² + 1/2n · Σ_k (V_kk - 1)².

    The last term is ours: it decides where the labels do not determine the diagonal. The loss is
    convex, and nothing is random. The fit needs memory and time in proportion to K².

    Args:
        strength: λ, positive. None chooses it by cross-validation on the data of the fit.
    """

    key = "dirichlet"
    abbreviation = "Dirichlet"
    title = "Dirichlet calibration with ODIR, which changes predictions"
    strengths = (1e-1, 1.0, 10.0, 100.0, 1e3, 1e4)

    def _identity(self, n_classes: int) -> Tensor:
        return torch.eye(n_classes)

    def _inputs(self, logits: Tensor, temperature: Tensor) -> Tensor:
        return floored(logits.log_softmax(-1) / temperature)

    def _penalty(self, n_classes: int, n: float, strength: float) -> Tensor:
        k = n_classes
        weight = torch.full((k, k), 2 * strength / (k * (k - 1)), dtype=torch.float64)
        weight.fill_diagonal_(DIAGONAL / n)
        bias = torch.full((k,), 2 * strength / k, dtype=torch.float64)
        return torch.cat([weight.flatten(), bias])
