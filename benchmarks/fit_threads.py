"""More threads than free cores: a fit with two threads takes 2 to 35 times as long as with one; how to mend it.

usage: python benchmarks/fit_threads.py

STS's head with 100 classes and 100 inputs, random ones: thousands of small steps, after each of which threads wait for
each other. PyTorch's OpenMP on Linux lets them spin while they wait, which keeps other processes from the core that the
last thread needs. With GOMP_SPINCOUNT=1000 they soon sleep instead: 0.9 to 1.5 times. It is read when torch is
imported, so the second half runs in a process of its own. On two cores with one or two other busy processes, five runs;
with none, the second thread saved 5 to 30 % of the time, with the shorter wait up to 17 %.
"""

import os
import subprocess
import sys
import time
from multiprocessing import Process

import torch

import simplexcal as sc

SPIN = "GOMP_SPINCOUNT"


def keep_busy() -> None:
    while True:
        pass


def seconds(outputs: sc.Outputs, labels: torch.Tensor, n_threads: int) -> float:
    torch.set_num_threads(n_threads)
    start = time.perf_counter()
    sc.SimplexTemperatureScaling().fit(outputs, labels, generator=torch.Generator().manual_seed(0))
    return time.perf_counter() - start


def main() -> None:
    generator, cores = torch.Generator().manual_seed(0), os.cpu_count() or 1
    logits = 3 * torch.randn(100, 100, generator=generator)
    outputs, labels = (
        sc.Outputs(logits),
        (logits / 1.5).softmax(-1).multinomial(1, generator=generator).squeeze(1),
    )
    seconds(outputs, labels, 1)  # tables are made once
    print(f"{SPIN}={os.environ.get(SPIN, '(not set)')}")
    for n_busy in sorted({0, 1, cores // 2, cores}):
        others = [Process(target=keep_busy, daemon=True) for _ in range(n_busy)]
        for other in others:
            other.start()
        one = seconds(outputs, labels, 1)
        for n in sorted({max(2, cores // 2), cores}):
            many = seconds(outputs, labels, n)
            print(
                f"{cores} cores, {n_busy} busy: {n} threads / 1 thread: {many:.1f} s / {one:.1f} s = {many / one:.2f}",
                flush=True,
            )
        for other in others:
            other.terminate()


if __name__ == "__main__":
    main()
    if SPIN not in os.environ:
        subprocess.run([sys.executable, __file__], env={**os.environ, SPIN: "1000"}, check=True)
