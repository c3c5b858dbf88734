"""The exact moments agree with the reference up to rounding; 30 samples err in the second digit.

usage: python benchmarks/concrete_accuracy.py

Largest error over the 45 cases of tests/concrete/golden.json (K = 2 to 100, λ = 0.001 to 631).
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Generator

from simplexcal import Concrete, Moments

GOLDEN = Path(__file__).parents[1] / "tests" / "concrete" / "golden.json"
N_SAMPLES = 30


class _Errors(NamedTuple):
    mean: float
    expected_entropy: float
    entropy: float


def _sampled_moments(distribution: Concrete, generator: Generator) -> Moments:
    """Estimate the moments as the paper does."""
    log_pi = distribution.log_rsample((N_SAMPLES,), generator)
    pi = log_pi.exp()
    mean = pi.mean(0)
    expected_entropy = -(pi * log_pi).sum(-1).mean()
    return Moments(
        mean,
        -distribution.log_prob_from_log(log_pi).mean(),
        expected_entropy,
        torch.special.entr(mean).sum() - expected_entropy,
    )


def _errors(moments: Moments, case: dict[str, Any]) -> _Errors:
    """Return the errors of the moments; that of the entropy is relative."""
    mean = torch.tensor(case["mean"], dtype=torch.float64)
    difference = moments.mean.double() - mean
    return _Errors(
        difference.abs().max().item(),
        abs(moments.expected_entropy.item() - case["expected_entropy"]),
        abs(moments.entropy.item() / case["entropy"] - 1),
    )


def main() -> None:
    """Print the largest errors in float64, in float32 and with samples."""
    generator = Generator().manual_seed(0)
    errors: dict[str, list[_Errors]] = {
        "float64": [],
        "float32": [],
        "30 samples": [],
    }
    for case in json.loads(GOLDEN.read_text()):
        logits = torch.tensor(case["logits"], dtype=torch.float64)
        double = Concrete(logits, case["temperature"])
        single = Concrete(logits.float(), case["temperature"])
        errors["float64"].append(_errors(double.moments(), case))
        errors["float32"].append(_errors(single.moments(), case))
        sampled = _sampled_moments(double, generator)
        errors["30 samples"].append(_errors(sampled, case))
    for name, found in errors.items():
        largest = _Errors(*(max(column) for column in zip(*found, strict=True)))
        print(
            f"{name:>10}: mean {largest.mean:.1e}, "
            f"expected entropy {largest.expected_entropy:.1e}, "
            f"entropy {largest.entropy:.1e} (relative)"
        )


if __name__ == "__main__":
    main()
