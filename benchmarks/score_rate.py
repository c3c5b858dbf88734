"""Rows/s of `score` by STS over those by TS, and what it adds to the prediction (K = 10, D = 84).

usage: python benchmarks/score_rate.py [--rows 400000] [--repeats 5] [--workers 1]

Both calibrators score the file of float32 columns that score_rows.py makes, in one process and in
turns; the order changes each time. Rows/s are medians of the time of whole runs, with reading,
encoding and writing. The processor time of a row hardly depends on other work of the machine. Its
prediction alone is measured in the same batches.
"""

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import score_rows
import torch

import simplexcal as sc
from simplexcal.scoring import score
from simplexcal.scoring.plan import MAX_BATCH_ROWS

METHODS = ("ts", "sts")


class Run(NamedTuple):
    """Seconds of a run.

    Args:
        wall: Of the clock.
        cpu: Of all processors together.
    """

    wall: float
    cpu: float


def run(folder: Path, method: str, data: Path, workers: int | None) -> Run:
    """Score all rows once.

    Args:
        folder: Where the calibrators are.
        method: Which one.
        data: The rows.
        workers: Threads of the engine; None is one for each core.
    """
    wall = time.perf_counter()
    cpu = time.process_time()
    score(folder / f"{method}.safetensors", data, folder / f"{method}.parquet", workers=workers)
    return Run(time.perf_counter() - wall, time.process_time() - cpu)


@torch.no_grad()
def prediction(folder: Path, method: str, n_repeats: int) -> float:
    """Return the processor time of a row in the prediction alone, in one thread.

    Args:
        folder: Where the calibrators are.
        method: Which one.
        n_repeats: How many batches are predicted.
    """
    calibrator = sc.load_calibrator(folder / f"{method}.safetensors")
    _, outputs, _ = score_rows.task()
    batch = outputs[torch.arange(MAX_BATCH_ROWS) % len(outputs)]
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times = []
    for _ in range(n_repeats):
        start = time.process_time()
        calibrator(batch)
        times.append(time.process_time() - start)
    torch.set_num_threads(n_threads)
    return statistics.median(times) / len(batch)


def main() -> None:
    """Print rows/s and processor time of both methods, and the ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int)
    options = parser.parse_args()
    runs: dict[str, list[Run]] = {method: [] for method in METHODS}
    order = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        score_rows.fit(folder)
        alone = {method: prediction(folder, method, 20) for method in METHODS}
        data = score_rows.write(folder / "rows.parquet", options.rows, with_features=True)
        for i in range(1 + options.repeats):
            for method in order.sample(METHODS, len(METHODS)):
                found = run(folder, method, data, options.workers)
                if i > 0:  # The first runs warm up.
                    runs[method].append(found)
    print(f"workers: {options.workers or torch.get_num_threads()}")
    rates = {}
    for method, found_runs in runs.items():
        wall = statistics.median(x.wall for x in found_runs)
        cpu = statistics.median(x.cpu for x in found_runs)
        rates[method] = options.rows / wall
        microseconds = 1e6 * cpu / options.rows
        print(
            f"{method}: {rates[method]:>8.0f} rows/s, {microseconds:.2f} µs of processor a row, "
            f"{1e6 * alone[method]:.2f} of them for the prediction"
        )
    print(f"sts / ts: {rates['sts'] / rates['ts']:.3f}")


if __name__ == "__main__":
    main()
