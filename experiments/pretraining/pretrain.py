"""Pre-trains the networks that the cache lacks, several at once; what was interrupted goes on where it stopped."""

import json
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save
from torch import nn

from experiments.config.run_config import Place, device_name, say
from experiments.config.settings import ROWS
from experiments.datasets.loading import NORMALISATION, load
from experiments.pretraining.augmentation import Augmentation
from experiments.pretraining.outputs import untrained
from experiments.pretraining.training import seconds_of, train
from simplexcal.io._atomic import atomic_write

EPOCHS, BATCH = 200, 128
TRIAL_EPOCHS, TRIAL_BATCH = 2, 16
EVERY = 10.0  # seconds between two lines about a training


class Which(NamedTuple):
    """One network: its row and its seed."""

    row: str
    seed: int


def pretrain(
    networks: Iterable[Which], place: Place, at_once: int, deadline: float = math.inf
) -> bool:
    """Train the networks that are not in the cache; return whether all of them are there now.

    Those of one data set and augmentation train ``at_once``, also of different rows: the kernels of one fill the gaps
    of another.
    """
    wanted = [which for which in networks if not place.cached("networks", *which).exists()]
    return all(_train(group, place, deadline) for group in _groups(wanted, place, at_once))


def _groups(wanted: Sequence[Which], place: Place, at_once: int) -> list[list[Which]]:
    """Return what trains together: first what was interrupted, in the company it had."""
    checkpoints = sorted((place.cache / "training").glob("*.safetensors"))
    groups = [group for group in map(_group_of, checkpoints) if set(group) & set(wanted)]
    together: dict[tuple[str, Augmentation, torch.dtype], list[Which]] = {}
    for which in wanted:
        if not any(which in group for group in groups):
            row = ROWS[which.row]
            together.setdefault((row.data, row.augment, row.dtype(place.device)), []).append(which)
    return groups + [
        new[i : i + at_once] for new in together.values() for i in range(0, len(new), at_once)
    ]


def _checkpoint(group: Sequence[Which], place: Place) -> Path:
    """Return the file of an unfinished training; its name says whose: "ROW-SEED-SEED+ROW-SEED"."""
    name = "+".join(f"{row}-{'-'.join(seeds)}" for row, seeds in _by_row(group).items())
    return place.cache / "training" / f"{name}.safetensors"


def _group_of(checkpoint: Path) -> list[Which]:
    """Return the networks that the name of a checkpoint says."""
    found = []
    for part in checkpoint.stem.split("+"):
        row = max((row for row in ROWS if part.startswith(f"{row}-")), key=len)
        found += [Which(row, int(seed)) for seed in part.removeprefix(f"{row}-").split("-")]
    return found


def _by_row(group: Sequence[Which]) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {}
    for row, seed in group:
        rows.setdefault(row, []).append(str(seed))
    return rows


def _train(group: Sequence[Which], place: Place, deadline: float) -> bool:
    row = ROWS[group[0].row]
    images = load(row.data, place.data)
    norm, epochs = NORMALISATION[row.data], TRIAL_EPOCHS if place.trial else EPOCHS
    networks = [untrained(*which).to(place.device) for which in group]
    names = " and ".join(
        f"{name}, seeds {', '.join(seeds)}" for name, seeds in _by_row(group).items()
    )
    checkpoint = _checkpoint(group, place)
    said = [time.monotonic()]

    def on_epoch(epoch: int, losses: list[float]) -> None:
        if epoch == epochs or time.monotonic() - said[0] >= EVERY:
            said[0] = time.monotonic()
            say(
                f"{names}: epoch {epoch} of {epochs}, losses {' '.join(f'{loss:.4f}' for loss in losses)}"
            )

    say(f"{names}: pre-training on {place.device}")
    done = train(
        networks,
        images.train_images,
        images.train_labels,
        mean=norm.mean,
        std=norm.std,
        augment=row.augment,
        seeds=[which.seed for which in group],
        epochs=epochs,
        batch_size=TRIAL_BATCH if place.trial else BATCH,
        dtype=row.dtype(place.device),
        compiled=place.compiled,
        checkpoint=checkpoint,
        seconds=deadline - time.monotonic(),
        every=0.0 if place.trial else 60.0,
        on_epoch=on_epoch,
    )
    if done:
        _keep(group, networks, place, seconds_of(checkpoint))
        checkpoint.unlink()
    else:
        say(f"{names}: time is up; the same command goes on with the pre-training")
    return done


def _keep(
    group: Sequence[Which], networks: Sequence[nn.Module], place: Place, seconds: float
) -> None:
    settings = {
        "epochs": TRIAL_EPOCHS if place.trial else EPOCHS,
        "augment": ROWS[group[0].row].augment._asdict(),
        "at_once": len(group),
        "rows": [*_by_row(group)],
        "compiled": place.compiled,
        "seconds": seconds,
        "device": device_name(place.device),
    }
    for which, net in zip(group, networks, strict=True):
        path = place.cached("networks", *which)
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {key: value.cpu().contiguous() for key, value in net.state_dict().items()}
        atomic_write(path, save(state, {"training": json.dumps(settings)}))
