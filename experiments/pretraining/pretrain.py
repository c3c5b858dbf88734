"""Trains the networks that the cache lacks, several concurrently; resumes what was interrupted."""

import json
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

from experiments.config.run_config import RunConfig, device_name, log
from experiments.config.settings import SETTINGS, Augmentation
from experiments.datasets.loading import load
from experiments.datasets.normalisation import NORMALISATION
from experiments.pretraining.network_id import NetworkId
from experiments.pretraining.outputs import untrained_network
from experiments.pretraining.training import OnEpoch, train, training_seconds
from simplexcal.io._atomic import atomic_write

BATCH_SIZE = 128
DRY_RUN_EPOCHS = 2
DRY_RUN_BATCH_SIZE = 16
LOG_INTERVAL = 10.0  # seconds between two lines about a training
SAVE_INTERVAL = 60.0

Compatibility = tuple[str, Augmentation, torch.dtype, int]


def pretrain(
    networks: Iterable[NetworkId], config: RunConfig, concurrent: int, deadline: float = math.inf
) -> bool:
    """Train the networks that are not in the cache; return whether all of them are there now.

    Networks of one data set, augmentation and number of epochs train concurrently, also those of
    different settings: the kernels of one fill the gaps of another.

    Args:
        networks: The networks.
        config: Folders and device of the run.
        concurrent: How many networks train concurrently.
        deadline: When to stop, on the clock of ``time.monotonic``.
    """
    missing = [network for network in networks if not config.network_path(*network).exists()]
    groups = _groups(missing, config, concurrent)
    return all(_train_group(group, config, deadline) for group in groups)


def _groups(
    missing: Sequence[NetworkId], config: RunConfig, concurrent: int
) -> list[list[NetworkId]]:
    """Return what trains concurrently: first the groups that were interrupted, unchanged."""
    groups = []
    for checkpoint in sorted((config.cache / "training").glob("*.safetensors")):
        group = _group_of_checkpoint(checkpoint)
        if set(group) & set(missing):
            groups.append(group)
    resumed = {network for group in groups for network in group}
    compatible: dict[Compatibility, list[NetworkId]] = {}
    for network in missing:
        if network not in resumed:
            setting = SETTINGS[network.setting]
            dtype = setting.dtype(config.device)
            key = (setting.dataset, setting.augmentation, dtype, setting.epochs)
            compatible.setdefault(key, []).append(network)
    for new in compatible.values():
        groups += [new[i : i + concurrent] for i in range(0, len(new), concurrent)]
    return groups


def _checkpoint_path(group: Sequence[NetworkId], config: RunConfig) -> Path:
    """Return the file of an unfinished training, "SETTING-SEED-SEED+SETTING-SEED"."""
    parts = [f"{name}-{'-'.join(seeds)}" for name, seeds in _seeds_by_setting(group).items()]
    return config.cache / "training" / f"{'+'.join(parts)}.safetensors"


def _group_of_checkpoint(checkpoint: Path) -> list[NetworkId]:
    """Return the networks that the name of a checkpoint lists."""
    group = []
    for part in checkpoint.stem.split("+"):
        matching = [name for name in SETTINGS if part.startswith(f"{name}-")]
        setting = max(matching, key=len)
        seeds = part.removeprefix(f"{setting}-").split("-")
        group += [NetworkId(setting, int(seed)) for seed in seeds]
    return group


def _seeds_by_setting(group: Sequence[NetworkId]) -> dict[str, list[str]]:
    seeds: dict[str, list[str]] = {}
    for network in group:
        seeds.setdefault(network.setting, []).append(str(network.seed))
    return seeds


def _train_group(group: Sequence[NetworkId], config: RunConfig, deadline: float) -> bool:
    """Train a group; return whether it is finished, and in the cache."""
    setting = SETTINGS[group[0].setting]
    images = load(setting.dataset, config.data)
    normalisation = NORMALISATION[setting.dataset]
    networks = [untrained_network(*network).to(config.device) for network in group]
    title = _title(group)
    checkpoint = _checkpoint_path(group, config)
    log(f"{title}: pre-training on {config.device}")
    finished = train(
        networks,
        images.train_images,
        images.train_labels,
        mean=normalisation.mean,
        std=normalisation.std,
        augmentation=setting.augmentation,
        seeds=[network.seed for network in group],
        epochs=_epochs(group, config),
        batch_size=DRY_RUN_BATCH_SIZE if config.dry_run else BATCH_SIZE,
        dtype=setting.dtype(config.device),
        compiled=config.compiled,
        checkpoint=checkpoint,
        seconds=deadline - time.monotonic(),
        save_interval=0.0 if config.dry_run else SAVE_INTERVAL,
        on_epoch=_epoch_logger(title, _epochs(group, config)),
    )
    if finished:
        _write_networks(group, networks, config, training_seconds(checkpoint))
        checkpoint.unlink()
    else:
        log(f"{title}: time is up; the same command resumes the pre-training")
    return finished


def _epochs(group: Sequence[NetworkId], config: RunConfig) -> int:
    if config.dry_run:
        return DRY_RUN_EPOCHS
    return SETTINGS[group[0].setting].epochs


def _title(group: Sequence[NetworkId]) -> str:
    parts = [
        f"{name}, seeds {', '.join(seeds)}" for name, seeds in _seeds_by_setting(group).items()
    ]
    return " and ".join(parts)


def _epoch_logger(title: str, epochs: int) -> OnEpoch:
    """Return a function that logs losses, at most once in so many seconds."""
    last = time.monotonic()

    def on_epoch(epoch: int, losses: list[float]) -> None:
        nonlocal last
        if epoch == epochs or time.monotonic() - last >= LOG_INTERVAL:
            last = time.monotonic()
            shown = " ".join(f"{loss:.4f}" for loss in losses)
            log(f"{title}: epoch {epoch} of {epochs}, losses {shown}")

    return on_epoch


def _write_networks(
    group: Sequence[NetworkId], networks: Sequence[nn.Module], config: RunConfig, seconds: float
) -> None:
    """Write the trained networks to the cache, with how they were trained."""
    training = {
        "epochs": _epochs(group, config),
        "augmentation": SETTINGS[group[0].setting].augmentation._asdict(),
        "concurrent": len(group),
        "settings": list(_seeds_by_setting(group)),
        "compiled": config.compiled,
        "seconds": seconds,
        "device": device_name(config.device),
    }
    metadata = {"training": json.dumps(training)}
    for network, net in zip(group, networks, strict=True):
        path = config.network_path(*network)
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {key: value.cpu().contiguous() for key, value in net.state_dict().items()}
        atomic_write(path, save(state, metadata))
