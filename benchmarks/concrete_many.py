"""With 21841 classes the exact mean costs about 10 softmaxes; memory does not grow with N.

usage: python benchmarks/concrete_many.py [moments] [methods] [mixup]
    (without an argument all of them; on Linux)

moments: N = 10000, K = 21841, float32, where a result is 0.81 GiB. Time of the mean and of all
moments over that of a softmax of the same array, one thread, the best of three rounds in which
they take turns; and the peak of the resident memory beyond what was there before, result included.
Most of the time of a softmax of this size goes to memory that is new to the process, so it is also
measured into an existing array. Two runs: mean 9.7 and 10.1, all moments 11.4 and 12.2; over a
softmax into an existing array, 31 (mean) and 37; peak 0.83 GiB.

methods: seconds, and peak memory in MiB beyond the inputs and the results, of fit and of
prediction, for two N a factor of four apart. It should not grow by more than a few numbers a row,
whatever K is. Of STS with its likelihood head, without mixup, the memory is that of its training
steps, 1200 rows each; with 21841 classes a fit takes minutes. Measured once, seconds of a fit and
MiB, for the smaller and the larger N. K = 1000: ts 3.2 and 2.8 s, 7 and 3 MiB; ets 2.8 and 10.8 s,
14 and 11 MiB; sts 30 and 45 s, 184 and 100 MiB. K = 21841: ts 1.6 and 6.7 s, 7 and 9 MiB; ets 6.0
and 23 s, 9 and 9 MiB; sts, N = 1000, 472 s, 1568 MiB. Predictions: at most 1.9 s and 56 MiB.

mixup: the same for the branch of STS, which learns from 10000 mixup samples by FeatureMixup; 100 of
its 1000 steps. These samples, logits and weights, are 2·10000·K numbers, 1.6 GiB for K = 21841,
whatever N is. Classes without samples are left out, with a warning.
"""

import ctypes
import gc
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

import simplexcal as sc

N_FEATURES = 64
# Numbers of inputs by the number of classes.
SIZES = {
    1_000: (10_000, 40_000),
    21_841: (1_000, 4_000),
}
MIXUP_SIZES = {
    1_000: (10_000, 40_000),
    21_841: (1_000, 22_000, 44_000),
}
METHODS: dict[str, Callable[[], sc.Calibrator]] = {
    "ts": sc.TemperatureScaling,
    "ets": sc.EnsembleTemperatureScaling,
    "sts": sc.SimplexTemperatureScaling,
}
N_ROUNDS = 3


class _Measured(NamedTuple):
    """A result, the CPU seconds it took, and the peak of memory beyond what was there, in MiB."""

    result: Any
    seconds: float
    peak: float


def _resident_memory(name: str) -> float:
    """Return VmRSS, the resident memory, or VmHWM, its peak, in MiB."""
    status = Path("/proc/self/status").read_text().splitlines()
    lines = dict(line.split(":") for line in status)
    return int(lines[name].split()[0]) / 1024


def _measure(function: Callable[[], Any], returned: float = 0.0) -> _Measured:
    """Call a function; the MiB that it returns do not count."""
    gc.collect()
    # Freed memory goes back to the system, so that it does not count as memory that was there.
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # The peak starts again from here.
    before = _resident_memory("VmRSS")
    start = time.process_time()
    result = function()
    seconds = time.process_time() - start
    return _Measured(result, seconds, _resident_memory("VmHWM") - before - returned)


def _data(n: int, k: int) -> tuple[sc.Outputs, Tensor]:
    """Return outputs with an accuracy of about one half; labels hold every class where N ≥ K."""
    labels = torch.arange(n) % k
    logits = torch.randn(n, k).mul_(2)
    # The true class gets about the largest logit of the others.
    logits[torch.arange(n), labels] += 2 * math.sqrt(2 * math.log(k))
    return sc.Outputs(logits, torch.randn(n, N_FEATURES)), labels


def _size(n: int, k: int) -> float:
    """Return the MiB of an array (N, K) in float32."""
    return 4 * n * k / 2**20


@torch.no_grad()
def _moments(n: int = 10_000, k: int = 21_841) -> None:
    logits = torch.randn(n, k).mul_(3)
    temperature = 0.05 + 3 * torch.rand(n)
    sc.Concrete(logits[:10], temperature[:10]).moments()  # Loads what is loaded once.
    existing = torch.zeros_like(logits)
    softmaxes: dict[str, Callable[[], Any]] = {
        "softmax into an existing array": lambda: torch.softmax(logits, -1, out=existing),
        "softmax": lambda: logits.softmax(-1),
    }
    exact: dict[str, Callable[[], Any]] = {
        "mean": lambda: sc.Concrete(logits, temperature).mean,
        "all moments": lambda: sc.Concrete(logits, temperature).moments(),
    }
    seconds = _best_times(softmaxes | exact)
    for softmax in softmaxes:
        ratios = ", ".join(f"{name} {seconds[name] / seconds[softmax]:.1f}" for name in exact)
        print(f"N = {n}, K = {k}: time over that of a {softmax}, best of {N_ROUNDS}: {ratios}")


def _best_times(functions: dict[str, Callable[[], Any]]) -> dict[str, float]:
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(N_ROUNDS):
        for name, function in functions.items():
            _, seconds, peak = _measure(function)
            best[name] = min(best[name], seconds)
            print(f"  {name}: {seconds:.2f} s, {peak / 1024:.2f} GiB")
    return best


def _methods() -> None:
    for k, sizes in SIZES.items():
        for name, method in METHODS.items():
            for n in sizes:
                _method(name, method(), n, k)


def _method(name: str, calibrator: sc.Calibrator, n: int, k: int) -> None:
    outputs, labels = _data(n, k)
    generator = Generator().manual_seed(0)
    fitted = _measure(lambda: calibrator.fit(outputs, labels, generator=generator))
    predicted = _measure(lambda: calibrator(outputs), returned=_size(n, k))
    _print_line(name, n, k, fitted, predicted)


def _mixup() -> None:
    for k, sizes in MIXUP_SIZES.items():
        head = nn.Linear(N_FEATURES, k).requires_grad_(False)
        for n in sizes:
            _branch(head, n, k)


def _branch(head: nn.Linear, n: int, k: int) -> None:
    features = torch.randn(n, N_FEATURES)
    outputs = sc.Outputs(head(features), features)
    labels = torch.arange(n) % k
    mixup = sc.FeatureMixup(head, outputs, labels)
    method = sc.SimplexTemperatureScaling(n_steps=100, likelihood_head=False)
    fitted = _measure(lambda: method.fit(outputs, labels, mixup=mixup))
    predicted = _measure(lambda: method(outputs), returned=_size(n, k))
    _print_line("branch", n, k, fitted, predicted)


def _print_line(name: str, n: int, k: int, fitted: _Measured, predicted: _Measured) -> None:
    print(
        f"{name}, N = {n}, K = {k} (logits {_size(n, k):.0f} MiB): "
        f"fit {fitted.seconds:.1f} s, {fitted.peak:.0f} MiB; "
        f"predict {predicted.seconds:.1f} s, {predicted.peak:.0f} MiB",
        flush=True,
    )


PARTS: dict[str, Callable[[], None]] = {
    "moments": _moments,
    "methods": _methods,
    "mixup": _mixup,
}


def main(parts: list[str]) -> None:
    """Measure.

    Args:
        parts: Keys of ``PARTS``.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} CPU threads")
    for part in parts:
        PARTS[part]()


if __name__ == "__main__":
    main(sys.argv[1:] or list(PARTS))
