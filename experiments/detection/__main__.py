"""Compares `epistemic` with detectors, and writes experiments/results/detection/detection.jsonl.

usage: python -m experiments.detection FOLDER [--output FILE]

FOLDER holds the outputs of networks, as ``python -m experiments.detection.training`` writes them.
`python -m experiments render` then writes docs/results/ood.md.
"""

import argparse
from pathlib import Path

import torch

from experiments.detection.networks import read_networks
from experiments.detection.records import PATH, DetectionRecord
from experiments.detection.study import measure
from experiments.running.records import write_lines


def main() -> None:
    """Run the study; the file is written after each network."""
    parser = argparse.ArgumentParser(prog="python -m experiments.detection")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--output", type=Path, default=PATH)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    records: list[DetectionRecord] = []
    for network in read_networks(arguments.folder):
        records += measure(network)
        write_lines(records, arguments.output)
        print(f"{network.setting}, seed {network.seed}: {len(records)} records", flush=True)


if __name__ == "__main__":
    main()
