"""Compares STS with other packages, and writes experiments/results/rivals/rivals.jsonl.

usage: python -m experiments.rivals DATA

DATA holds clones of github.com/Linwei94/calibrator, EFS-OpenSource/calibration-framework and
kakaobrain/g2pM. It needs the extras [rivals] and [examples]. `python -m experiments render` then
writes docs/results/rivals.md.
"""

import argparse
from pathlib import Path

import torch

from experiments.rivals.benchmark import compare, versions, warm_up
from experiments.rivals.cases import SIZES, all_cases
from experiments.rivals.methods import all_rivals
from experiments.rivals.records import PATH, RivalRecord, write_records


def main() -> None:
    """Run the comparison; the file is written after each classifier."""
    parser = argparse.ArgumentParser(prog="python -m experiments.rivals")
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("--splits", type=int, default=2, help="random splits of each data set")
    parser.add_argument("--only", default="", help="classifiers whose name contains this")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--output", type=Path, default=PATH)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    records: list[RivalRecord] = []
    rivals = all_rivals()
    warm_up(rivals)
    for case in all_cases(arguments.data):
        if arguments.only not in case.name:
            continue
        for n in [size for size in case.sizes if size in arguments.sizes]:
            found = list(compare(case, rivals, arguments.splits, n, versions()))
            records += found
            seconds = sum(x.fit_seconds or 0 for x in found) * found[0].n_splits
            print(f"{case.name}, {n}: {len(found)} methods, {seconds:.0f} s of fits", flush=True)
        write_records(records, arguments.output)


if __name__ == "__main__":
    main()
