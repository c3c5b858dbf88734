"""The exact moments differ from the reference values by rounding only, while 30 samples are off in the second digit.

usage: python benchmarks/concrete_accuracy.py

Largest error over the 45 cases of tests/concrete/golden.json (K = 2 to 100, λ = 0.001 to 631).
"""

import json
from pathlib import Path

import torch

from simplexcal import Concrete, Moments

GOLDEN = Path(__file__).parents[1] / "tests" / "concrete" / "golden.json"


def sampled(d: Concrete, generator: torch.Generator, n_samples: int = 30) -> Moments:
    """Estimate the moments as the paper does."""
    log_pi = d.log_rsample((n_samples,), generator)
    pi = log_pi.exp()
    mean, expected = pi.mean(0), -(pi * log_pi).sum(-1).mean()
    return Moments(
        mean,
        -d.log_prob_from_log(log_pi).mean(),
        expected,
        torch.special.entr(mean).sum() - expected,
    )


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    errors: dict[str, list[tuple[float, float, float]]] = {
        "float64": [],
        "float32": [],
        "30 samples": [],
    }
    for case in json.loads(GOLDEN.read_text()):
        double = Concrete(torch.tensor(case["logits"], dtype=torch.float64), case["temperature"])
        single = Concrete(torch.tensor(case["logits"]), case["temperature"])
        results = (double.moments(), single.moments(), sampled(double, generator))
        for rows, m in zip(errors.values(), results, strict=True):
            mean = (
                (m.mean.double() - torch.tensor(case["mean"], dtype=torch.float64))
                .abs()
                .max()
                .item()
            )
            expected = abs(m.expected_entropy.item() - case["expected_entropy"])
            rows.append((mean, expected, abs(m.entropy.item() / case["entropy"] - 1)))
    for name, rows in errors.items():
        mean, expected, entropy = (max(column) for column in zip(*rows, strict=True))
        print(
            f"{name:>10}: mean {mean:.1e}, expected entropy {expected:.1e}, entropy {entropy:.1e} (relative)"
        )


if __name__ == "__main__":
    main()
