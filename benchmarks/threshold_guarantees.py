"""In 1000 data sets from real outputs, a promised accuracy is missed in no more than delta of them.

usage: python benchmarks/threshold_guarantees.py demo|FILE ... [--method sts] [--draws 1000]

A FILE holds logits and labels, such as `simplexcal.io.save_outputs` writes; "demo" is the LeNet-5
of the demo. 1000 random inputs fit the calibrator. The others are the population, whose accuracy
and coverage are known exactly. From it n held-out inputs are drawn with replacement, and a
threshold is found.

missed: how often the population misses the promise; for coverage and false alarms, which are
promised on average, what the average is. split: the same where n inputs are drawn without
replacement and all others are the test; here the test varies too, so the share may exceed delta.
none: how often there is no threshold. accepted: the share of the population that is accepted, 0
where there is no threshold; by the threshold that is best for the population; and by the selection
of Geifman and El-Yaniv (2017), a bisection with a correction for its steps. All in %.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from scipy.stats import binom
from torch import Generator, Tensor

import simplexcal as sc
from simplexcal.demo.run import prepare
from simplexcal.io.tables import read_outputs
from simplexcal.mixup import FeatureMixup
from simplexcal.thresholds import Threshold, find_threshold, score_values

N_FIT = 1000
SIZES = (500, 2000)
TARGETS = (0.9, 0.95, 0.99)
DELTAS = (0.05, 0.1)
HEADER = "    n  promise            delta  missed   split    none  accepted    best     SGR"


class Population(NamedTuple):
    """Inputs that the calibrator has not seen.

    Args:
        confidence: Confidence of each, (N,).
        alarm: The score for false alarms, low where an input is accepted, (N,).
        correct: Whether each is classified correctly, (N,).
    """

    confidence: Tensor
    alarm: Tensor
    correct: Tensor


class Rates(NamedTuple):
    """What came of one draw.

    Args:
        found: Whether there is a threshold.
        accepted: Share of the population that is accepted.
        accuracy: Accuracy of these; 1 where none is.
    """

    found: bool
    accepted: float
    accuracy: float


Finder = Callable[[Tensor], Threshold]


def read_population(name: str, method: str) -> Population:
    """Fit a calibrator to some of the outputs and return its predictions for the others."""
    generator = Generator().manual_seed(0)
    outputs, labels, head = _read(name)
    rows = torch.randperm(len(outputs), generator=generator)
    outputs = outputs[rows]
    labels = labels[rows]
    calibrator = sc.CALIBRATORS[method]()
    mixup = None
    if head is not None and outputs.features is not None and calibrator.uses_mixup:
        mixup = FeatureMixup(head, outputs[:N_FIT], labels[:N_FIT])
    calibrator.fit(outputs[:N_FIT], labels[:N_FIT], mixup=mixup, generator=generator)
    prediction = calibrator(outputs[N_FIT:])
    alarm = prediction.epistemic
    if alarm is None:
        alarm = score_values(prediction, "entropy")
    return Population(prediction.confidence, alarm, prediction.label == labels[N_FIT:])


def _read(name: str) -> tuple[sc.Outputs, Tensor, torch.nn.Linear | None]:
    if name == "demo":
        data = prepare()
        outputs = sc.Outputs.cat([data.fit, data.test])
        return outputs, torch.cat([data.fit_labels, data.test_labels]), data.backbone.head
    table = read_outputs(Path(name), "logits")
    if table.labels is None:
        raise SystemExit(f"{name} has no labels.")
    return table.outputs, table.labels, table.head


def accuracy_line(pool: Population, n: int, target: float, delta: float, draws: int) -> str:
    """Return the line of the table for a target accuracy."""

    def find(rows: Tensor) -> Threshold:
        return find_threshold(
            pool.confidence[rows], pool.correct[rows], target_accuracy=target, delta=delta
        )

    def bisect(rows: Tensor) -> Threshold:
        return _geifman(pool.confidence[rows], pool.correct[rows], target, delta)

    population = _draw(pool, find, n, draws, split=False)
    missed = _percent([rates.accuracy < target for rates in population])
    split = _percent([r.accuracy < target for r in _draw(pool, find, n, draws, split=True)])
    none = _percent([not rates.found for rates in population])
    accepted = _percent([rates.accepted for rates in population])
    sgr = _percent([r.accepted for r in _draw(pool, bisect, n, draws, split=False)])
    best = 100 * _best_share(pool, target)
    return (
        f"{n:5}  accuracy {target:<8} {delta:6} {missed:7.1f} {split:7.1f} {none:7.1f} "
        f"{accepted:9.1f} {best:7.1f} {sgr:7.1f}"
    )


def share_line(pool: Population, n: int, promise: str, level: float, draws: int) -> str:
    """Return the line of the table for coverage or false alarms."""

    def find(rows: Tensor) -> Threshold:
        if promise == "coverage":
            return find_threshold(pool.confidence[rows], coverage=level)
        return find_threshold(pool.alarm[rows], false_alarm=level, score="epistemic")

    accepted = _percent([r.accepted for r in _draw(pool, find, n, draws, split=False)])
    split = _percent([r.accepted for r in _draw(pool, find, n, draws, split=True)])
    if promise == "false_alarm":
        rates = f"{100 - accepted:7.2f} {100 - split:7.2f}"
    else:
        rates = f"{accepted:7.2f} {split:7.2f}"
    return f"{n:5}  {promise + ' ' + str(level):<17} {'':6} {rates} {0:7.1f} {accepted:9.1f}"


def _draw(pool: Population, find: Finder, n: int, draws: int, split: bool) -> list[Rates]:
    """Find a threshold for many held-out sets, and apply each to the population or to the rest."""
    generator = Generator().manual_seed(1)
    size = len(pool.correct)
    results = []
    for _ in range(draws):
        if split:
            order = torch.randperm(size, generator=generator)
            rows = order[:n]
            rest = order[n:]
        else:
            rows = torch.randint(size, (n,), generator=generator)
            rest = torch.arange(size)
        results.append(_rates(pool, find, rows, rest))
    return results


def _rates(pool: Population, find: Finder, rows: Tensor, rest: Tensor) -> Rates:
    try:
        threshold = find(rows)
    except ValueError:
        return Rates(False, 0.0, 1.0)
    scores = pool.confidence
    if threshold.score == "epistemic":
        scores = pool.alarm
    accepted = threshold.accepts(scores[rest])
    if not bool(accepted.any()):
        return Rates(True, 0.0, 1.0)
    accuracy = pool.correct[rest][accepted].double().mean().item()
    return Rates(True, accepted.double().mean().item(), accuracy)


def _best_share(pool: Population, target: float) -> float:
    """Return the largest share of the population that can be accepted at a target accuracy."""
    correct = pool.correct[pool.confidence.argsort(descending=True)].double()
    accuracy = correct.cumsum(0) / torch.arange(1, len(correct) + 1)
    enough = torch.nonzero(accuracy >= target)
    if len(enough) == 0:
        return 0.0
    return (int(enough[-1]) + 1) / len(correct)


def _geifman(confidence: Tensor, correct: Tensor, target: float, delta: float) -> Threshold:
    """Return the threshold of the bisection, with delta divided by the number of its steps."""
    n = len(confidence)
    order = confidence.argsort(descending=True)
    errors = (~correct[order]).long().cumsum(0)
    steps = math.ceil(math.log2(n))
    low = 0
    high = n
    best = 0
    for _ in range(steps):
        middle = (low + high + 1) // 2
        if binom.cdf(int(errors[middle - 1]), middle, 1 - target) <= delta / steps:
            low = middle
            best = middle
        else:
            high = middle - 1
        if low >= high:
            break
    if best == 0:
        raise ValueError("No count passes.")
    value = confidence[order[best - 1]].item()
    return Threshold(
        "confidence", value, "high", "target_accuracy", target, delta, n, best / n, None, target
    )


def _percent(values: list[bool] | list[float]) -> float:
    return 100 * sum(values) / len(values)


def main() -> None:
    """Print a table for each population."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--method", default="sts", choices=sc.CALIBRATORS)
    parser.add_argument("--draws", type=int, default=1000)
    options = parser.parse_args()
    for name in options.files:
        pool = read_population(name, options.method)
        accuracy = 100 * pool.correct.double().mean().item()
        print(f"{name}: {len(pool.correct)} inputs, accuracy {accuracy:.1f} %, {options.method}")
        print(HEADER, flush=True)
        for n in SIZES:
            for target in TARGETS:
                for delta in DELTAS:
                    print(accuracy_line(pool, n, target, delta, options.draws), flush=True)
            for promise, level in (("coverage", 0.9), ("false_alarm", 0.05)):
                print(share_line(pool, n, promise, level, options.draws), flush=True)


if __name__ == "__main__":
    main()
