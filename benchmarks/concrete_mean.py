"""On a CPU the exact mean of the Concrete distribution takes less time than 30 samples of it.

usage: python benchmarks/concrete_mean.py [--device cpu|cuda]

Eager float32; medians of one run, in which all take turns, with one thread and with all. Limits of
the ratio: 0.5 at N = 10000, K = 10; 0.25 at N = 10000, K = 100; 0.12 at N = 2000, K = 1000. Also
the time over that of torch's softmax of the same logits, into new memory and into existing memory.
On a GPU also the throughput, and its share of the device's copy bandwidth.
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
N_SAMPLES = 30
N_WARMUPS = 2
N_REPEATS = 11


def _sampled_mean(logits: Tensor, temperature: Tensor) -> Tensor:
    """Estimate the mean as the paper does (its Section 4.4), vectorised."""
    uniform = torch.rand(N_SAMPLES, *logits.shape, device=logits.device)
    gumbel = -torch.log(-torch.log(uniform))
    scaled = (logits + gumbel) / temperature.unsqueeze(-1)
    return scaled.softmax(-1).mean(0)


def _exact_mean(logits: Tensor, temperature: Tensor) -> Tensor:
    return sc.Concrete(logits, temperature, validate_args=False).mean


def _median_times(device: str, *functions: Callable[[], object]) -> list[float]:
    """Return the median time of each function in seconds; they take turns, after a warm-up."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(N_WARMUPS + N_REPEATS):
        for function, own_times in zip(functions, times, strict=True):
            own_times.append(_time(device, function))
    return [statistics.median(own_times[N_WARMUPS:]) for own_times in times]


def _time(device: str, function: Callable[[], object]) -> float:
    _synchronise(device)
    start = time.perf_counter()
    function()
    _synchronise(device)
    return time.perf_counter() - start


def _synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _copy_bandwidth(device: str) -> float:
    """Return the bytes that a copy reads and writes in a second."""
    source = torch.rand(2**30 // 4, device=device)
    target = torch.empty_like(source)
    (seconds,) = _median_times(device, lambda: target.copy_(source))
    return 2 * 2**30 / seconds


def _line(device: str, bandwidth: float, n: int, k: int) -> str:
    logits = 3 * torch.randn(n, k, device=device)
    temperature = 0.05 + 3 * torch.rand(n, device=device)
    existing = torch.empty_like(logits)
    exact, sampled = _median_times(
        device,
        lambda: _exact_mean(logits, temperature),
        lambda: _sampled_mean(logits, temperature),
    )
    alone, softmax, in_place = _median_times(
        device,
        lambda: _exact_mean(logits, temperature),
        lambda: logits.softmax(-1),
        lambda: torch.softmax(logits, -1, out=existing),
    )
    # Logits and temperature are read once, the mean is written once.
    n_bytes = 4 * n * (2 * k + 1)
    return (
        f"N = {n}, K = {k}: exact {1e3 * exact:.2f} ms, "
        f"{N_SAMPLES} samples {1e3 * sampled:.2f} ms, ratio {exact / sampled:.3f}; "
        f"over softmax {alone / softmax:.1f}, into existing memory {alone / in_place:.1f}; "
        f"{n / exact:.3g} samples/s, {n_bytes / exact / bandwidth:.2%} of copy bandwidth"
    )


@torch.no_grad()
def main(device: str) -> None:
    """Compare both for each size.

    Args:
        device: "cpu" or "cuda".
    """
    torch.manual_seed(0)
    if device == "cuda":
        _print_lines(device, torch.cuda.get_device_name())
        return
    for n_threads in dict.fromkeys((1, torch.get_num_threads())):
        torch.set_num_threads(n_threads)
        _print_lines(device, f"{n_threads} CPU threads")


def _print_lines(device: str, name: str) -> None:
    bandwidth = _copy_bandwidth(device)
    print(f"{name}, torch {torch.__version__}, copy bandwidth {bandwidth / 1e9:.0f} GB/s")
    for n, k in SIZES[device]:
        print(_line(device, bandwidth, n, k))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=SIZES, default="cpu")
    main(parser.parse_args().device)
