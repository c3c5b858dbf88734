"""On a CPU the exact mean of the Concrete distribution costs less time than its estimate from 30 samples.

usage: python benchmarks/concrete_mean.py [--device cpu|cuda]

Eager float32; medians of one run, in which both take turns. Limits: 1.0 at N = 10000, K = 10; 0.35 at N = 10000,
K = 100; 0.12 at N = 2000, K = 1000. On a GPU also the throughput, and its share of the device's copy bandwidth.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

import simplexcal as sc

SIZES = {
    "cpu": [(10_000, 10), (10_000, 100), (2_000, 1_000)],
    "cuda": [(2**21, 10), (2**20, 100), (2**17, 1_000)],
}


def sampled_mean(logits: Tensor, temperature: Tensor, n_samples: int = 30) -> Tensor:
    """Estimate the mean as the paper does (its Section 4.4), vectorised."""
    gumbel = -torch.log(-torch.log(torch.rand(n_samples, *logits.shape, device=logits.device)))
    return torch.softmax((logits + gumbel) / temperature.unsqueeze(-1), -1).mean(0)


def exact_mean(logits: Tensor, temperature: Tensor) -> Tensor:
    return sc.Concrete(logits, temperature, validate_args=False).mean


def seconds(device: str, *functions: Callable[[], object], repeats: int = 11) -> list[float]:
    """Return the median time of each function; they take turns, after two warm-up rounds."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats + 2):
        for function, measured in zip(functions, times, strict=True):
            _synchronise(device)
            start = time.perf_counter()
            function()
            _synchronise(device)
            measured.append(time.perf_counter() - start)
    return [statistics.median(measured[2:]) for measured in times]


def _synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _bytes_per_second(device: str) -> float:
    source = torch.rand(2**30 // 4, device=device)
    target = torch.empty_like(source)
    return 2 * 2**30 / seconds(device, lambda: target.copy_(source))[0]


def _line(device: str, bandwidth: float, n: int, k: int) -> str:
    logits = 3 * torch.randn(n, k, device=device)
    temperature = 0.05 + 3 * torch.rand(n, device=device)
    exact, sampled = seconds(
        device, lambda: exact_mean(logits, temperature), lambda: sampled_mean(logits, temperature)
    )
    moved = 4 * n * (2 * k + 1)  # logits and temperature read once, the mean written once
    return (
        f"N = {n}, K = {k}: exact {1e3 * exact:.2f} ms, 30 samples {1e3 * sampled:.2f} ms, "
        f"ratio {exact / sampled:.3f}; {n / exact:.3g} samples/s, {moved / exact / bandwidth:.2%} of copy bandwidth"
    )


@torch.no_grad()
def main(device: str) -> None:
    torch.manual_seed(0)
    name = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"{torch.get_num_threads()} CPU threads"
    )
    bandwidth = _bytes_per_second(device)
    print(f"{name}, torch {torch.__version__}, copy bandwidth {bandwidth / 1e9:.0f} GB/s")
    for n, k in SIZES[device]:
        print(_line(device, bandwidth, n, k))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=SIZES, default="cpu")
    main(parser.parse_args().device)
