"""The 95 % interval of the ECE holds the true error in 93 to 99 % of data sets, the percentile bootstrap in 0 to 97 %.

usage: python benchmarks/ece_coverage.py [trials, 2000 unless told]

Confidences are drawn once. In each trial the correct answers are drawn from a known truth, and the interval is to hold
the true error Σ_b |Σ_(i in b) (P(correct_i) - confidence_i)| / n. Truths: overconfident everywhere, over- and
underconfident in turn from bin to bin, overconfident in the last bin alone. Last, how often the 95 % noise floor is
exceeded by perfectly calibrated predictions.
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from simplexcal.metrics import ece, ece_interval, noise_floor

SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "everywhere": lambda p: -(p * (1 - p) + 0.02),
    "alternating": lambda p: (
        torch.where((p * 10).long() % 2 == 0, 1.0, -1.0) * (p * (1 - p) + 0.02)
    ),
    "last bin": lambda p: torch.where(p > 0.9, -1.0, 0.0),
}


def true_ece(confidence: Tensor, chance: Tensor) -> float:
    bins = torch.bucketize(confidence, torch.arange(1, 10) / 10)
    return float(
        torch.zeros(10).index_add_(0, bins, chance - confidence).abs().sum() / len(confidence)
    )


def truth(confidence: Tensor, shape: str, error: float) -> Tensor:
    """Return P(correct) for each confidence, such that the true binned error is ``error``."""
    direction, low, high = SHAPES[shape](confidence), 0.0, 50.0
    for _ in range(50):
        middle = (low + high) / 2
        enough = true_ece(confidence, (confidence + middle * direction).clamp(0, 1)) >= error
        low, high = (low, middle) if enough else (middle, high)
    return (confidence + low * direction).clamp(0, 1)


def percentile(
    confidence: Tensor, correct: Tensor, generator: torch.Generator, n_trials: int = 200
) -> Tensor:
    """Return the interval that is commonly used: quantiles of the ECE of resampled data."""
    rows = torch.randint(len(confidence), (n_trials, len(confidence)), generator=generator)
    return torch.stack([ece(confidence[r], correct[r]) for r in rows]).quantile(
        torch.tensor([0.025, 0.975])
    )


def coverage(confidence: Tensor, chance: Tensor, trials: int, generator: torch.Generator) -> str:
    error = true_ece(confidence, chance)
    above = below = width = bootstrap = 0.0
    for trial in range(trials):
        correct = torch.rand(len(chance), generator=generator) < chance
        low, high = ece_interval(confidence, correct, generator=generator)
        above, below, width = (
            above + float(low > error),
            below + float(high < error),
            width + float(high - low),
        )
        if trial % 10 == 0:
            ends = percentile(confidence, correct, generator)
            bootstrap += float(ends[0] <= error <= ends[1])
    rates = f"{100 - 100 * (above + below) / trials:6.1f} {100 * above / trials:7.1f} {100 * below / trials:7.1f}"
    return (
        f"{rates} {100 * width / trials:7.2f} {100 * bootstrap / len(range(0, trials, 10)):12.1f}"
    )


def exceedance(confidence: Tensor, trials: int, generator: torch.Generator) -> float:
    upper = noise_floor(confidence, n_trials=20_000, generator=generator).upper
    correct = torch.rand(trials, len(confidence), generator=generator) < confidence
    return sum(float(ece(confidence, row) > upper) for row in correct) / trials


def main(trials: int) -> None:
    generator = torch.Generator().manual_seed(0)
    print(
        f"{trials} trials; standard error of a rate near 95 %: {100 * (0.05 * 0.95 / trials) ** 0.5:.2f} points"
    )
    print(
        f"{'n':>5} {'true ECE':>8} {'shape':<12} covered   above   below   width   bootstrap  (all in %)"
    )
    for n in (500, 5000):
        confidence = (2.5 + 2 * torch.randn(n, generator=generator)).sigmoid().clamp_min(0.1)
        cells = [
            ("everywhere", 0.0),
            *((shape, error) for shape in SHAPES for error in (0.01, 0.03, 0.07)),
        ]
        for shape, error in cells:
            rates = coverage(confidence, truth(confidence, shape, error), trials, generator)
            print(f"{n:5} {100 * error:8.1f} {shape if error else 'none':<12} {rates}", flush=True)
        print(
            f"{n:5} the 95 % floor is exceeded in {100 * exceedance(confidence, trials, generator):.2f} % of {trials}"
        )


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
