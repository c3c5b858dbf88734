"""Of 1000 unshifted batches, `monitor` says "recalibrate" for at most 5 %.

usage: python benchmarks/monitor_false_alarms.py [--draws 1000]

The network is the demo's, calibrated by STS on one half of the test images of Fashion-MNIST. Two
references: the calibration half, with batches drawn with replacement from the other half; and half
of the other half at random, with batches drawn from its rest without replacement. The second
reference is new for each batch, so that nothing but chance sets them apart. Tolerance 0 is the
strictest rule that can be asked for; 0.1 is the default. The record goes to benchmarks/records,
`python benchmarks/render_shift.py` writes the tables of docs/results/shift.md.
"""

import argparse
from collections import Counter
from pathlib import Path

import torch
from _measured import versions, write_record
from torch import Generator, Tensor

import simplexcal as sc
from simplexcal.demo import load_example
from simplexcal.io.scored_rows import ScoredRows
from simplexcal.monitoring import TOLERANCE, decide, find_drifts

SIZES = (200, 500, 1000, 2000)
LEVEL = 0.95
NO_TOLERANCE = 1e-12

Counts = dict[str, float]


def count_verdicts(reference: sc.Prediction, pool: sc.Prediction, n: int, draws: int) -> Counts:
    """Return how often batches of a pool give each verdict beside a fixed reference."""
    generator = Generator().manual_seed(n)
    known = ScoredRows.of(reference)
    found: Counter[str] = Counter()
    for _ in range(draws):
        rows = torch.randint(len(pool), (n,), generator=generator)
        _add(found, known, ScoredRows.of(pool[rows]))
    return {key: value / draws for key, value in sorted(found.items())}


def count_verdicts_of_splits(pool: sc.Prediction, n: int, draws: int) -> Counts:
    """Return how often random splits of one pool give each verdict."""
    generator = Generator().manual_seed(n)
    found: Counter[str] = Counter()
    half = len(pool) // 2
    for _ in range(draws):
        order: Tensor = torch.randperm(len(pool), generator=generator)
        known = ScoredRows.of(pool[order[:half]])
        _add(found, known, ScoredRows.of(pool[order[half : half + n]]))
    return {key: value / draws for key, value in sorted(found.items())}


def _add(found: Counter[str], known: ScoredRows, new: ScoredRows) -> None:
    drifts = find_drifts(known, new, LEVEL)
    found[decide(drifts, TOLERANCE)] += 1
    found["zero"] += decide(drifts, NO_TOLERANCE) == "recalibrate"


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    options = parser.parse_args()
    example = load_example()
    model = sc.calibrate(example.net, example.held_out)
    reference = model.predict(example.held_out[0])
    pool = model.predict(example.test[0])
    rows = []
    for n in SIZES:
        fixed = count_verdicts(reference, pool, n, options.draws)
        split = count_verdicts_of_splits(pool, n, options.draws)
        rows.append({"n": n, "fixed": fixed, "split": split})
        print(rows[-1], flush=True)
    record = {
        "draws": options.draws,
        "level": LEVEL,
        "tolerance": TOLERANCE,
        "n_reference": len(reference),
        "n_pool": len(pool),
        "rows": rows,
        "versions": versions(),
    }
    write_record(Path(__file__).stem, record)


if __name__ == "__main__":
    main()
