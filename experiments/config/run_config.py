"""Where a run reads and writes, on which device it computes, and how it logs."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True)
class RunConfig:
    """Folders and device of a run.

    Args:
        data: The folder of the data sets.
        cache: The folder of trained networks, their outputs and fitted calibrators.
        results: The folder of the records.
        device: Where networks are trained and GPU methods are fitted.
        dry_run: Take few steps, only to see that everything works.
        compiled: Compile the networks before they train.
    """

    data: Path
    cache: Path
    results: Path = RESULTS
    device: str = "cpu"
    dry_run: bool = False
    compiled: bool = False

    def network_path(self, setting: str, seed: int) -> Path:
        """Return the file of a trained network.

        Args:
            setting: The network's setting.
            seed: The network's seed.
        """
        return self.cache / "networks" / setting / f"{seed}.safetensors"

    def outputs_path(self, setting: str, seed: int, ood_set: str | None = None) -> Path:
        """Return the file of a network's outputs.

        Args:
            setting: The network's setting.
            seed: The network's seed.
            ood_set: The out-of-distribution data set; None means the setting's test images.
        """
        name = str(seed)
        if ood_set is not None:
            name = f"{seed}-{ood_set}"
        return self.cache / "outputs" / setting / f"{name}.safetensors"

    def calibrator_path(self, setting: str, seed: int, method: str) -> Path:
        """Return the file of a fitted calibrator.

        Args:
            setting: The network's setting.
            seed: The network's seed.
            method: The method that was fitted.
        """
        return self.cache / "calibrators" / setting / str(seed) / f"{method}.safetensors"


def log(text: str) -> None:
    """Write one line to stderr, with the time of day.

    Args:
        text: The line.
    """
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def device_name(device: str) -> str:
    """Return the name of a GPU, or "cpu".

    Args:
        device: A device as torch names it.
    """
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return "cpu"
