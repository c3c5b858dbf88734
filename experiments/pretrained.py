"""The pre-trained networks and their outputs, from the cache; what is not there is made, several networks at once."""

import json
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

import simplexcal as sc
from experiments.architectures import make
from experiments.data import NORMALISATION, Images, halves, load, load_ood, normalise
from experiments.place import Place, say, write_json
from experiments.rows import ROWS
from experiments.training import seconds_of, train
from simplexcal.io import load_outputs, save_outputs, write_whole

EPOCHS, BATCH = 200, 128
TRIAL_EPOCHS, TRIAL_BATCH = 2, 16
EVERY = 10.0  # seconds between two lines about a training


class Halves(NamedTuple):
    """A network's outputs and labels to calibrate with and to judge by, and seconds for the outputs of the latter."""

    fit: sc.Outputs
    fit_labels: Tensor
    test: sc.Outputs
    test_labels: Tensor
    seconds: float


class Which(NamedTuple):
    """One network: its row and its seed."""

    row: str
    seed: int


def pretrain(networks: Iterable[Which], place: Place, at_once: int, deadline: float = math.inf) -> bool:
    """Train the networks that are not in the cache; return whether all of them are there now.

    Those of one data set train ``at_once``, also of different rows: the kernels of one fill the gaps of another.
    """
    together: dict[tuple[str, torch.dtype], list[Which]] = {}
    for which in networks:
        if not place.cached("networks", *which).exists():
            row = ROWS[which.row]
            together.setdefault((row.data, row.dtype(place.device)), []).append(which)
    for (data, dtype), wanted in together.items():
        images = load(data, place.data)
        groups = [wanted[i : i + at_once] for i in range(0, len(wanted), at_once)]
        if not all(_train(group, images, dtype, place, deadline) for group in groups):
            return False
    return True


def _train(group: Sequence[Which], images: Images, dtype: torch.dtype, place: Place, deadline: float) -> bool:
    row = ROWS[group[0].row]
    norm, epochs = NORMALISATION[row.data], TRIAL_EPOCHS if place.trial else EPOCHS
    networks = [_network(*which).to(place.device) for which in group]
    names = " and ".join(f"{name}, seeds {', '.join(seeds)}" for name, seeds in _by_row(group).items())
    file = "+".join(f"{name}-{'-'.join(seeds)}" for name, seeds in _by_row(group).items())
    checkpoint = place.cache / "training" / f"{file}.safetensors"
    said = [time.monotonic()]

    def on_epoch(epoch: int, losses: list[float]) -> None:
        if epoch == epochs or time.monotonic() - said[0] >= EVERY:
            said[0] = time.monotonic()
            say(f"{names}: epoch {epoch} of {epochs}, losses {' '.join(f'{loss:.4f}' for loss in losses)}")

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
        dtype=dtype,
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


def _by_row(group: Sequence[Which]) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {}
    for row, seed in group:
        rows.setdefault(row, []).append(str(seed))
    return rows


def _keep(group: Sequence[Which], networks: Sequence[nn.Module], place: Place, seconds: float) -> None:
    settings = {
        "epochs": TRIAL_EPOCHS if place.trial else EPOCHS,
        "augment": ROWS[group[0].row].augment,
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
        write_whole(path, save(state, {"training": json.dumps(settings)}))


def network(name: str, seed: int, place: Place) -> nn.Module:
    """Return a pre-trained network, on the CPU."""
    net = _network(name, seed)
    net.load_state_dict(load_file(place.cached("networks", name, seed)))
    return net.eval()


def training_of(name: str, seed: int, place: Place) -> dict[str, Any]:
    """Return how a network was trained, and in how many seconds."""
    with safe_open(place.cached("networks", name, seed), "pt") as file:
        settings: dict[str, Any] = json.loads(file.metadata()["training"])
    return settings


def _network(name: str, seed: int) -> nn.Module:
    row = ROWS[name]
    return make(row.network, len(NORMALISATION[row.data].mean), 100 if row.data == "cifar100" else 10, seed)


def write_outputs(name: str, seed: int, place: Place) -> None:
    """Run a network on the test images, unless its outputs are in the cache, and time it on those that judge."""
    path = place.cached("outputs", name, seed)
    if path.exists():
        return
    row = ROWS[name]
    images = load(row.data, place.data)
    inputs, backbone = normalise(images.test_images, NORMALISATION[row.data]), sc.Backbone(network(name, seed, place))
    backbone.to(place.device)
    outputs, labels = sc.extract(backbone, (inputs, images.test_labels))
    test = halves(len(labels))[1]
    start = time.perf_counter()
    sc.extract(backbone, (inputs[test], labels[test]))
    write_json(path.with_suffix(".json"), {"seconds": time.perf_counter() - start})
    save_outputs(outputs, labels, path)


def write_strangers(name: str, seed: int, stranger: str, place: Place) -> None:
    """Run a network on images of another data set, unless the outputs are in the cache."""
    path = place.cached("outputs", name, seed, stranger)
    if path.exists():
        return
    inputs = normalise(load_ood(stranger, place.data), NORMALISATION[ROWS[name].data])
    backbone = sc.Backbone(network(name, seed, place)).to(place.device)
    outputs, _ = sc.extract(backbone, (inputs, torch.zeros(len(inputs), dtype=torch.int64)))
    save_outputs(outputs, None, path)


def read_strangers(name: str, seed: int, stranger: str, place: Place) -> sc.Outputs:
    """Return a network's outputs for another data set from the cache, on the CPU."""
    return load_outputs(place.cached("outputs", name, seed, stranger))[0]


def read_outputs(name: str, seed: int, place: Place) -> Halves:
    """Return a network's outputs from the cache, on the CPU."""
    path = place.cached("outputs", name, seed)
    outputs, stored = load_outputs(path)
    labels = cast(Tensor, stored)
    fit, test = halves(len(labels))
    seconds = float(json.loads(path.with_suffix(".json").read_text())["seconds"])
    return Halves(outputs[fit], labels[fit], outputs[test], labels[test], seconds)


def device_name(device: str) -> str:
    """Return the name of a GPU, or "cpu"."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else "cpu"
