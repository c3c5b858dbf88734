"""Calibration errors: functions of (confidence, correct)."""

import torch
from torch import Tensor


def ece(confidence: Tensor, correct: Tensor, n_bins: int = 10) -> Tensor:
    """Return the expected calibration error Σ_b |Σ_(i in b) (correct_i - confidence_i)| / n.

    Guo et al. (2017), Eq. (3). Bins have equal width and are closed on the right, ((b-1)/n_bins, b/n_bins]:
    a confidence of exactly 1 lies in the last bin, one of exactly 0 in the first.
    """
    inner = torch.arange(1, n_bins, device=confidence.device, dtype=confidence.dtype) / n_bins
    excess = confidence.new_zeros(n_bins, dtype=torch.float64)
    excess.index_add_(0, torch.bucketize(confidence, inner), correct.double() - confidence.double())
    return (excess.abs().sum() / len(confidence)).to(confidence.dtype)
