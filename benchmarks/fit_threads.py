"""More threads than free cores: a fit with two threads took 3 times as long as with one, in some runs 35.

usage: python benchmarks/fit_threads.py

STS's head with 100 classes and 100 inputs, random ones: thousands of small steps, after each of which threads wait for
each other. That is on two cores with one or two other busy processes; with none, the second thread saved a sixth of the
time or nothing.
"""

import os
import time
from multiprocessing import Process

import torch

import simplexcal as sc


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
    outputs, labels = sc.Outputs(logits), (logits / 1.5).softmax(-1).multinomial(1, generator=generator).squeeze(1)
    seconds(outputs, labels, 1)  # tables are made once
    for n_busy in (0, cores - 1, cores):
        others = [Process(target=keep_busy, daemon=True) for _ in range(n_busy)]
        for other in others:
            other.start()
        one, many = (seconds(outputs, labels, n) for n in (1, cores))
        print(
            f"{cores} cores, {n_busy} busy: {cores} threads / 1 thread: {many:.1f} s / {one:.1f} s = {many / one:.2f}"
        )
        for other in others:
            other.terminate()


if __name__ == "__main__":
    main()
