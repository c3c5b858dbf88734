"""The paper's pre-training, fast on one GPU: one step of several networks at once is one CUDA graph.

SGD from 0.1 to 0 by a cosine, momentum 0.9, weight decay 5e-4, batches of 128, 200 epochs; random crops and flips where
they are wanted (Esaki et al. 2024, Sec. 5.2). Each network has its own weights, order, crops and flips, and its own
stream inside the graph, so that the small kernels of one fill the gaps of another. On a CPU the same steps are taken
one after the other, in float32.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from experiments.pretraining.augmentation import Augmentation, Pictures
from experiments.pretraining.learner import Learner, arrange, cosine

WARM_UP = (
    3  # steps before the capture, in which torch and its libraries set up what a capture forbids
)


def train(
    networks: Sequence[nn.Module],
    images: Tensor,
    labels: Tensor,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    augment: Augmentation,
    seeds: Sequence[int],
    epochs: int = 200,
    batch_size: int = 128,
    dtype: torch.dtype | None = None,
    compiled: bool = False,
    checkpoint: Path | None = None,
    seconds: float = math.inf,
    every: float = 120.0,
    on_epoch: Callable[[int, list[float]], None] | None = None,
) -> bool:
    """Train the networks in place, on the device where they are, and return whether all epochs are done.

    ``images`` are bytes (N, C, H, W). It stops after ``seconds``; with a ``checkpoint`` it saves itself there ``every``
    so many seconds and when it stops, and goes on from there when called again. ``on_epoch`` is told the epochs done
    and each network's mean loss.
    """
    start = saved = time.monotonic()
    pictures = Pictures(
        images, labels, mean=mean, std=std, augment=augment, device=_device(networks)
    )
    with _given_back(networks):
        training = Training(networks, pictures, seeds, epochs, batch_size, dtype, compiled)
        if checkpoint is not None and checkpoint.exists():
            training.restore(checkpoint)
        while training.epoch < epochs and time.monotonic() - start < seconds:
            losses = training.run_epoch()
            if on_epoch is not None:
                on_epoch(training.epoch, losses)
            if not all(map(math.isfinite, losses)):
                raise FloatingPointError(
                    f"The losses of epoch {training.epoch} are {losses}: the training diverged."
                )
            if checkpoint is not None and time.monotonic() - saved >= every:
                training.save(checkpoint)
                saved = time.monotonic()
        if checkpoint is not None:
            training.save(checkpoint)
    return training.epoch == epochs


def seconds_of(checkpoint: Path) -> float:
    """Return how long the epochs in a checkpoint took, all of its networks together and all interruptions left out."""
    with safe_open(checkpoint, "pt") as file:
        return float(file.metadata()["seconds"])


class Training:
    """Networks on their way through the epochs; they are in training mode and lie channels last from now on."""

    def __init__(
        self,
        networks: Sequence[nn.Module],
        pictures: Pictures,
        seeds: Sequence[int],
        epochs: int = 200,
        batch_size: int = 128,
        dtype: torch.dtype | None = None,
        compiled: bool = False,
    ) -> None:
        _check(networks, pictures, seeds, batch_size)
        device = pictures.labels.device
        gpu = device.type == "cuda"
        self.pictures, self.seeds, self.epochs, self.batch_size = (
            pictures,
            [*seeds],
            epochs,
            batch_size,
        )
        self.epoch, self.steps, self.seconds = 0, len(pictures) // batch_size, 0.0
        self.rates = torch.tensor(cosine(epochs * self.steps) + [0.0] * WARM_UP, device=device)
        self.at = torch.zeros(
            1, dtype=torch.int64, device=device
        )  # steps done, counted where the graph can read it
        self.plans = torch.zeros(
            len(networks), 4, self.steps, batch_size, dtype=torch.int64, device=device
        )
        self.learners = [
            Learner(net, dtype or (torch.bfloat16 if gpu else torch.float32), compiled)
            for net in networks
        ]
        self.streams = [torch.cuda.Stream(device) for _ in networks] if gpu else []
        self.advance: Callable[[], None] = self._captured() if gpu else self._step

    def run_epoch(self) -> list[float]:
        """Take each network once through the images; return the mean losses."""
        start = time.monotonic()
        self.begin_epoch()
        for _ in range(self.steps):
            self.advance()
        self.epoch += 1
        losses = [learner.loss.item() / self.steps for learner in self.learners]
        for learner in self.learners:
            learner.loss.zero_()
        self.seconds += time.monotonic() - start
        return losses

    def begin_epoch(self) -> None:
        """Draw the epoch's order, crops and flips, for each network its own."""
        for plan, seed in zip(self.plans, self.seeds, strict=True):
            plan.copy_(self.pictures.plan(self.batch_size, seed, self.epoch))

    def save(self, path: Path) -> None:
        """Write all that the steps have changed; the file is there whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        values = {name: value.contiguous().cpu() for name, value in self._changing().items()}
        save_file(
            values, part, {"settings": json.dumps(self._settings()), "seconds": str(self.seconds)}
        )
        part.replace(path)

    def restore(self, path: Path) -> None:
        """Go on from where the file was saved."""
        with safe_open(path, "pt") as file:
            saved = json.loads(file.metadata()["settings"])
            if saved != self._settings():
                raise ValueError(
                    f"'{path}' is of another training: {saved}, not {self._settings()}. Remove it."
                )
            self._set({name: file.get_tensor(name) for name in self._changing()})
            self.seconds = float(file.metadata()["seconds"])
        self.epoch = int(self.at) // self.steps

    def _settings(self) -> dict[str, Any]:
        data = {"n": len(self.pictures), "augment": self.pictures.augment._asdict()}
        return {**data, "seeds": self.seeds, "epochs": self.epochs, "batch_size": self.batch_size}

    def _step(self) -> None:
        """Take one step with each network: side by side on a GPU, one after the other elsewhere."""
        for i, learner in enumerate(self.learners):
            with self._beside(i):
                plan = self.plans[i].index_select(1, self.at % self.steps).squeeze(1)
                learner.step(
                    *self.pictures.cut(plan), self.rates.index_select(0, self.at).squeeze(0)
                )
        for stream in self.streams:
            torch.cuda.current_stream().wait_stream(stream)
        self.at += 1

    @contextmanager
    def _beside(self, i: int) -> Iterator[None]:
        """Work on the i-th stream, after what the current one was given so far."""
        if not self.streams:
            yield
            return
        self.streams[i].wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.streams[i]):
            yield

    def _captured(self) -> Callable[[], None]:
        """Return a step that is replayed; making it leaves everything as it was."""
        benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
        try:
            with torch.cuda.device(self.at.device):
                self._warm_up()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    self._step()
        finally:
            torch.backends.cudnn.benchmark = benchmark
        return graph.replay

    def _warm_up(self) -> None:
        self.begin_epoch()
        before = {name: value.clone() for name, value in self._changing().items()}
        for _ in range(WARM_UP):
            self._step()
        self._set(
            before
        )  # a rate of 0 would not do: batch-norm statistics change with every forward pass

    def _changing(self) -> dict[str, Tensor]:
        """Return all tensors that a step changes, by name."""
        named = {
            f"{i}.{name}": v
            for i, learner in enumerate(self.learners)
            for name, v in learner.changing().items()
        }
        return {"at": self.at, **named}

    def _set(self, values: dict[str, Tensor]) -> None:
        for name, value in self._changing().items():
            value.copy_(values[name])
        for learner in self.learners:
            learner.refresh()


@contextmanager
def _given_back(networks: Sequence[nn.Module]) -> Iterator[None]:
    """Give each module its own mode back, and each network the usual order in memory."""
    modes = [(module, module.training) for net in networks for module in net.modules()]
    try:
        yield
    finally:
        for net in networks:
            arrange(net, torch.contiguous_format)
        for module, mode in modes:
            module.training = mode


def _device(networks: Sequence[nn.Module]) -> torch.device:
    devices = {p.device for net in networks for p in net.parameters()}
    if len(devices) != 1:
        raise ValueError(
            f"`networks` must be on one device; found {sorted(map(str, devices))}. Move them with .to()."
        )
    return devices.pop()


def _check(
    networks: Sequence[nn.Module], pictures: Pictures, seeds: Sequence[int], batch_size: int
) -> None:
    if len(seeds) != len(networks):
        raise ValueError(
            f"`seeds` must have one seed for each of the {len(networks)} networks; got {len(seeds)}."
        )
    if not 0 < batch_size <= len(pictures):
        raise ValueError(
            f"`batch_size` must be in 1..{len(pictures)}, the number of images; got {batch_size}."
        )
