"""The 95 % interval of the ECE covers the true error in 93 to 99 % of data sets.

usage: python benchmarks/ece_coverage.py [trials, 2000 by default]

The percentile bootstrap covers it in 0 to 97 %.

Confidences are drawn once. In each trial the correct answers are drawn from known probabilities,
and the interval should hold the true error Σ_b |Σ_(i in b) (P(correct_i) - confidence_i)| / n.
Three shapes of the error: overconfident everywhere, over- and underconfident in turn from bin to
bin, overconfident in the last bin alone. Last, how often the 95 % noise floor is exceeded by
perfectly calibrated predictions.
"""

import sys
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from simplexcal.metrics import ece, ece_interval, noise_floor

N_BINS = 10
N_RESAMPLED = 200
BOOTSTRAP_EVERY = 10  # trials, since the bootstrap is slow
ERRORS = (0.01, 0.03, 0.07)


def _everywhere(confidence: Tensor) -> Tensor:
    return -(confidence * (1 - confidence) + 0.02)


def _alternating(confidence: Tensor) -> Tensor:
    is_even = (confidence * N_BINS).long() % 2 == 0
    sign = torch.where(is_even, 1.0, -1.0)
    return sign * (confidence * (1 - confidence) + 0.02)


def _last_bin(confidence: Tensor) -> Tensor:
    return torch.where(confidence > 0.9, -1.0, 0.0)


SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "everywhere": _everywhere,
    "alternating": _alternating,
    "last bin": _last_bin,
}


def _true_ece(confidence: Tensor, p_correct: Tensor) -> float:
    bins = torch.bucketize(confidence, torch.arange(1, N_BINS) / N_BINS)
    differences = torch.zeros(N_BINS).index_add_(0, bins, p_correct - confidence)
    return float(differences.abs().sum() / len(confidence))


def _p_correct(confidence: Tensor, shape: str, error: float) -> Tensor:
    """Return P(correct) for each confidence such that the true error is ``error``, by bisection."""
    direction = SHAPES[shape](confidence)
    low = 0.0
    high = 50.0
    for _ in range(50):
        middle = (low + high) / 2
        shifted = (confidence + middle * direction).clamp(0, 1)
        if _true_ece(confidence, shifted) >= error:
            high = middle
        else:
            low = middle
    return (confidence + low * direction).clamp(0, 1)


def _bootstrap_interval(confidence: Tensor, correct: Tensor, generator: Generator) -> Tensor:
    """Return the interval that is commonly used: quantiles of the ECE of resampled data."""
    n = len(confidence)
    rows = torch.randint(n, (N_RESAMPLED, n), generator=generator)
    errors = torch.stack([ece(confidence[r], correct[r]) for r in rows])
    return errors.quantile(torch.tensor([0.025, 0.975]))


def _coverage(confidence: Tensor, p_correct: Tensor, trials: int, generator: Generator) -> str:
    """Return the rates as a line of the table, in %."""
    error = _true_ece(confidence, p_correct)
    too_high: list[bool] = []
    too_low: list[bool] = []
    widths: list[float] = []
    bootstrap: list[bool] = []
    for trial in range(trials):
        correct = torch.rand(len(p_correct), generator=generator) < p_correct
        low, high = ece_interval(confidence, correct, generator=generator)
        too_high.append(bool(low > error))
        too_low.append(bool(high < error))
        widths.append(float(high - low))
        if trial % BOOTSTRAP_EVERY == 0:
            low, high = _bootstrap_interval(confidence, correct, generator)
            bootstrap.append(bool(low <= error <= high))
    above = _percent(too_high)
    below = _percent(too_low)
    return (
        f"{100 - above - below:6.1f} {above:7.1f} {below:7.1f} "
        f"{_percent(widths):7.2f} {_percent(bootstrap):12.1f}"
    )


def _percent(values: list[bool] | list[float]) -> float:
    return 100 * sum(values) / len(values)


def _exceedance(confidence: Tensor, trials: int, generator: Generator) -> float:
    """Return how often calibrated predictions exceed the 95 % noise floor, in %."""
    upper = noise_floor(confidence, n_trials=20_000, generator=generator).upper
    correct = torch.rand(trials, len(confidence), generator=generator) < confidence
    exceeded = [bool(ece(confidence, row) > upper) for row in correct]
    return _percent(exceeded)


def _print_rates(n: int, trials: int, generator: Generator) -> None:
    log_odds = 2.5 + 2 * torch.randn(n, generator=generator)
    confidence = log_odds.sigmoid().clamp_min(0.1)
    calibrated = _coverage(confidence, confidence, trials, generator)
    print(f"{n:5} {0:8.1f} {'none':<12} {calibrated}", flush=True)
    for shape in SHAPES:
        for error in ERRORS:
            p_correct = _p_correct(confidence, shape, error)
            rates = _coverage(confidence, p_correct, trials, generator)
            print(f"{n:5} {100 * error:8.1f} {shape:<12} {rates}", flush=True)
    exceeded = _exceedance(confidence, trials, generator)
    print(f"{n:5} the 95 % floor is exceeded in {exceeded:.2f} % of {trials}")


def main(trials: int) -> None:
    """Print a table of the rates.

    Args:
        trials: Data sets for each line of the table.
    """
    generator = Generator().manual_seed(0)
    standard_error = 100 * (0.05 * 0.95 / trials) ** 0.5
    print(f"{trials} trials; standard error of a rate near 95 %: {standard_error:.2f} points")
    columns = "covered   above   below   width   bootstrap  (all in %)"
    print(f"{'n':>5} {'true ECE':>8} {'shape':<12} {columns}")
    for n in (500, 5000):
        _print_rates(n, trials, generator)


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    arguments = sys.argv[1:] or ["2000"]
    main(int(arguments[0]))
