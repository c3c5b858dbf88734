"""Where a run reads and writes: data, cache and results; and how it says what it does."""

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True)
class Place:
    """Folders and device of a run, and whether networks are compiled before they train.

    ``trial`` is a run that only shows that everything works, in seconds.
    """

    data: Path
    cache: Path
    results: Path = RESULTS
    device: str = "cpu"
    trial: bool = False
    compiled: bool = False

    def cached(self, kind: str, row: str, seed: int, stranger: str | None = None) -> Path:
        """Return the file of a pre-trained network, or of its outputs, also for a set of strangers, in the cache."""
        name = str(seed) if stranger is None else f"{seed}-{stranger}"
        return self.cache / kind / row / f"{name}.safetensors"

    def calibrator(self, row: str, seed: int, method: str) -> Path:
        """Return the file of a fitted calibrator in the cache."""
        return self.cache / "calibrators" / row / str(seed) / f"{method}.safetensors"


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write the file whole or not at all, whenever the process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(
        path.name + ".part"
    )  # always the same name: what a kill leaves, the next run replaces
    lines = [
        f" {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in record.items()
    ]
    with part.open("w") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def say(text: str) -> None:
    """Write one line to stderr."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def device_name(device: str) -> str:
    """Return the name of a GPU, or "cpu"."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else "cpu"
