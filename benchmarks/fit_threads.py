"""With more threads than free cores, a fit takes 2 to 35 times as long as with one thread.

usage: python benchmarks/fit_threads.py

STS's likelihood head with 100 classes and 100 random inputs: thousands of small steps, after each
of which threads wait for each other. PyTorch's OpenMP on Linux lets them spin while they wait,
which keeps other processes from the core that the last thread needs. With GOMP_SPINCOUNT=1000 they
soon sleep instead: 0.9 to 1.5 times. The variable is read when torch is imported, so the second
measurement runs in a process of its own. On two cores with one or two other busy processes, five
runs; with none, the second thread saved 5 to 30 % of the time, with the shorter wait up to 17 %.
"""

import os
import subprocess
import sys
import time
from multiprocessing import Process

import torch
from torch import Generator, Tensor

import simplexcal as sc

SPIN = "GOMP_SPINCOUNT"
N_CORES = os.cpu_count() or 1


def _keep_busy() -> None:
    while True:
        pass


def _data() -> tuple[sc.Outputs, Tensor]:
    generator = Generator().manual_seed(0)
    logits = 3 * torch.randn(100, 100, generator=generator)
    probs = (logits / 1.5).softmax(-1)
    labels = probs.multinomial(1, generator=generator).squeeze(1)
    return sc.Outputs(logits), labels


def _fit_seconds(outputs: sc.Outputs, labels: Tensor, n_threads: int) -> float:
    torch.set_num_threads(n_threads)
    start = time.perf_counter()
    sc.SimplexTemperatureScaling().fit(outputs, labels, generator=Generator().manual_seed(0))
    return time.perf_counter() - start


def _compare(outputs: sc.Outputs, labels: Tensor, n_busy: int) -> None:
    """Print the time with one thread and with more, while other processes are busy."""
    others = [Process(target=_keep_busy, daemon=True) for _ in range(n_busy)]
    for other in others:
        other.start()
    one = _fit_seconds(outputs, labels, 1)
    for n_threads in sorted({max(2, N_CORES // 2), N_CORES}):
        many = _fit_seconds(outputs, labels, n_threads)
        print(
            f"{N_CORES} cores, {n_busy} busy: {n_threads} threads / 1 thread: "
            f"{many:.1f} s / {one:.1f} s = {many / one:.2f}",
            flush=True,
        )
    for other in others:
        other.terminate()


def main() -> None:
    """Compare with none, one, half of the cores and all cores busy."""
    outputs, labels = _data()
    _fit_seconds(outputs, labels, 1)  # Makes the tables that are made once.
    print(f"{SPIN}={os.environ.get(SPIN, '(not set)')}")
    for n_busy in sorted({0, 1, N_CORES // 2, N_CORES}):
        _compare(outputs, labels, n_busy)


if __name__ == "__main__":
    main()
    if SPIN not in os.environ:
        environment = {**os.environ, SPIN: "1000"}
        subprocess.run([sys.executable, __file__], env=environment, check=True)
