"""With 21841 classes the exact mean costs about 10 softmaxes; fits and predictions need no memory that grows with N.

usage: python benchmarks/concrete_many.py [moments] [methods] [mixup]    (without an argument all of them; on Linux)

moments: N = 10000, K = 21841, float32, where a result is 0.81 GiB. Time of the mean and of all moments over that of a
softmax of the same array, one thread, the best of three rounds in which they take turns; and the peak of the resident
memory beyond what was there before, result included. Most of the time of a softmax of this size goes to memory that is
new to the process, so it is also measured without. Two runs: mean 9.7 and 10.1, all moments 11.4 and 12.2; over a
softmax into an array that is there, 31 (mean) and 37; peak 0.83 GiB.

methods: seconds, and peak memory in MiB beyond the inputs and the results, of fit and of prediction, for two N a factor
of four apart. It should not grow by more than a few numbers a row, whatever K is. Of the simplex method with its head,
without mixup, the memory is that of its training steps, 1200 rows each; with 21841 classes a fit takes minutes.
Measured once, seconds of a fit and MiB, for the smaller and the larger N. K = 1000: ts 3.2 and 2.8 s, 7 and 3 MiB; ets
2.8 and 10.8 s, 14 and 11 MiB; sts 30 and 45 s, 184 and 100 MiB. K = 21841: ts 1.6 and 6.7 s, 7 and 9 MiB; ets 6.0 and
23 s, 9 and 9 MiB; sts, N = 1000, 472 s, 1568 MiB. Predictions: at most 1.9 s and 56 MiB.

mixup: the same for the branch of the simplex method, which learns from 10000 mixes by FeatureMixup; 100 of its 1000
steps. These mixes, logits and weights, are 2·10000·K numbers, 1.6 GiB for K = 21841, whatever N is. Multi-Mixup needs
a sample of every class: where one is missing, its error is printed.
"""

import ctypes
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import simplexcal as sc

N_FEATURES = 64
SIZES = {1_000: (10_000, 40_000), 21_841: (1_000, 4_000)}
MIXED = {1_000: (10_000, 40_000), 21_841: (1_000, 22_000, 44_000)}
METHODS: dict[str, Callable[[], sc.Calibrator]] = {
    "ts": sc.TemperatureScaling,
    "ets": sc.EnsembleTemperatureScaling,
    "sts": sc.SimplexTemperatureScaling,
}


def memory(name: str) -> float:
    """Return VmRSS, the resident memory, or VmHWM, its peak, in MiB."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) / 1024


def measured(function: Callable[[], Any], returned: float = 0.0) -> tuple[Any, float, float]:
    """Return a result, the CPU seconds and the peak memory beyond what was there and ``returned``, in MiB."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(
        0
    )  # freed memory goes back, so that it is not taken for what was there
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before, start = memory("VmRSS"), time.process_time()
    result = function()
    return result, time.process_time() - start, memory("VmHWM") - before - returned


def data(n: int, k: int) -> tuple[sc.Outputs, Tensor]:
    """Return outputs of which about half are right, and labels that hold every class where N ≥ K."""
    labels = torch.arange(n) % k
    logits = torch.randn(n, k).mul_(2)
    logits[torch.arange(n), labels] += (
        2 * (2 * torch.tensor(float(k)).log()).sqrt()
    )  # about the largest of the others
    return sc.Outputs(logits, torch.randn(n, N_FEATURES)), labels


@torch.no_grad()
def moments(n: int = 10_000, k: int = 21_841, rounds: int = 3) -> None:
    logits, temperature = torch.randn(n, k).mul_(3), 0.05 + 3 * torch.rand(n)
    sc.Concrete(logits[:10], temperature[:10]).moments()  # what is loaded once
    there = torch.zeros_like(logits)
    functions: dict[str, Callable[[], Any]] = {
        "softmax into an array that is there": lambda: torch.softmax(logits, -1, out=there),
        "softmax": lambda: logits.softmax(-1),
        "mean": lambda: sc.Concrete(logits, temperature).mean,
        "all moments": lambda: sc.Concrete(logits, temperature).moments(),
    }
    seconds = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            _, time_taken, peak = measured(function)
            seconds[name] = min(seconds[name], time_taken)
            print(f"  {name}: {time_taken:.2f} s, {peak / 1024:.2f} GiB")
    for softmax in list(functions)[:2]:
        ratios = ", ".join(
            f"{name} {seconds[name] / seconds[softmax]:.1f}" for name in ("mean", "all moments")
        )
        print(f"N = {n}, K = {k}: time over that of a {softmax}, best of {rounds}: {ratios}")


def methods() -> None:
    for k, sizes in SIZES.items():
        for name, make in METHODS.items():
            for n in sizes:
                outputs, labels = data(n, k)
                fitted = measured(
                    lambda: make().fit(outputs, labels, generator=torch.Generator().manual_seed(0))
                )
                predicted = measured(lambda: fitted[0](outputs), returned=4 * n * k / 2**20)
                _line(name, n, k, fitted, predicted)


def mixup() -> None:
    for k, sizes in MIXED.items():
        head = torch.nn.Linear(N_FEATURES, k).requires_grad_(False)
        for n in sizes:
            outputs, labels = data(n, k)
            try:
                mixes = sc.FeatureMixup(head, outputs, labels)
            except ValueError as error:
                print(f"mixup, N = {n}, K = {k}: {error}")
                continue
            method = sc.SimplexTemperatureScaling(n_steps=100, likelihood_head=False)
            fitted = measured(lambda: method.fit(outputs, labels, mixup=mixes))
            predicted = measured(lambda: method(outputs), returned=4 * n * k / 2**20)
            _line("branch", n, k, fitted, predicted)


def _line(
    name: str, n: int, k: int, fitted: tuple[Any, float, float], predicted: tuple[Any, float, float]
) -> None:
    size = 4 * n * k / 2**20
    print(
        f"{name}, N = {n}, K = {k} (logits {size:.0f} MiB): fit {fitted[1]:.1f} s, {fitted[2]:.0f} MiB; "
        f"predict {predicted[1]:.1f} s, {predicted[2]:.0f} MiB",
        flush=True,
    )


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    parts = {"moments": moments, "methods": methods, "mixup": mixup}
    print(f"torch {torch.__version__}, {torch.get_num_threads()} CPU threads")
    for part in sys.argv[1:] or parts:
        parts[part]()
