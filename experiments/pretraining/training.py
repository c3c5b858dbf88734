"""The paper's pre-training, fast on one GPU: one step of several networks is one CUDA graph.

SGD from 0.1 to 0 along a cosine, momentum 0.9, weight decay 5e-4, batches of 128, 200 epochs;
random crops and flips where a setting has them (Esaki et al. 2024, Sec. 5.2). Each network has its
own weights, order, crops and flips, and its own stream inside the graph, so that the small kernels
of one fill the gaps of another. On a CPU the networks take the same steps one after the other, in
float32.
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
from safetensors.torch import save
from torch import Tensor, nn

from experiments.config.settings import Augmentation
from experiments.pretraining.augmentation import AugmentedImages
from experiments.pretraining.learner import Learner, cosine_schedule, set_memory_format
from simplexcal.io._atomic import atomic_write

# Steps before the capture, in which torch and its libraries set up what a capture forbids.
WARM_UP_STEPS = 3

OnEpoch = Callable[[int, list[float]], None]


def train(
    networks: Sequence[nn.Module],
    images: Tensor,
    labels: Tensor,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    augmentation: Augmentation,
    seeds: Sequence[int],
    epochs: int = 200,
    batch_size: int = 128,
    dtype: torch.dtype | None = None,
    compiled: bool = False,
    checkpoint: Path | None = None,
    seconds: float = math.inf,
    save_interval: float = 120.0,
    on_epoch: OnEpoch | None = None,
) -> bool:
    """Train networks concurrently and in place, and return whether all epochs are done.

    Args:
        networks: The networks, on one device.
        images: Bytes (N, C, H, W).
        labels: Classes (N,).
        mean: Mean of each channel, on the scale from 0 to 1.
        std: Standard deviation of each channel, on that scale.
        augmentation: What is done to each image.
        seeds: A seed for each network; it decides order, crops and flips.
        epochs: Passes through the images.
        batch_size: Images in a step.
        dtype: In what to compute; None means bfloat16 on a GPU and float32 elsewhere.
        compiled: Compile the networks.
        checkpoint: A file from which the training resumes, and where it saves itself.
        seconds: The training stops after so long.
        save_interval: Seconds between two checkpoints. The last is written when it stops.
        on_epoch: Called after each epoch with the epochs done and each network's mean loss.

    Raises:
        FloatingPointError: If the training diverges.
        ValueError: If the arguments do not fit together, or the checkpoint is of other settings.
    """
    start = time.monotonic()
    saved = start
    device = _common_device(networks)
    data = AugmentedImages(
        images, labels, mean=mean, std=std, augmentation=augmentation, device=device
    )
    with _restored_layout(networks):
        training = Training(networks, data, seeds, epochs, batch_size, dtype, compiled)
        if checkpoint is not None and checkpoint.exists():
            training.restore(checkpoint)
        while training.epoch < epochs and time.monotonic() - start < seconds:
            losses = training.run_epoch()
            if on_epoch is not None:
                on_epoch(training.epoch, losses)
            _check_losses(training.epoch, losses)
            if checkpoint is not None and time.monotonic() - saved >= save_interval:
                training.save(checkpoint)
                saved = time.monotonic()
        if checkpoint is not None:
            training.save(checkpoint)
    return training.epoch == epochs


def training_seconds(checkpoint: Path) -> float:
    """Return how long the epochs in a checkpoint took, without interruptions.

    Args:
        checkpoint: The file that ``Training.save`` wrote.
    """
    with safe_open(checkpoint, "pt") as file:
        return float(file.metadata()["seconds"])


class Training:
    """Networks that train concurrently. They are in training mode and lie channels last.

    Args:
        networks: The networks, on the device of the images.
        data: The training images.
        seeds: A seed for each network.
        epochs: Passes through the images.
        batch_size: Images in a step.
        dtype: In what to compute; None means bfloat16 on a GPU and float32 elsewhere.
        compiled: Compile the networks.

    Raises:
        ValueError: If the arguments do not fit together.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        data: AugmentedImages,
        seeds: Sequence[int],
        epochs: int = 200,
        batch_size: int = 128,
        dtype: torch.dtype | None = None,
        compiled: bool = False,
    ) -> None:
        _check_arguments(networks, data, seeds, batch_size)
        device = data.labels.device
        self.data = data
        self.seeds = list(seeds)
        self.epochs = epochs
        self.batch_size = batch_size
        self.epoch = 0
        self.steps = len(data) // batch_size
        self.seconds = 0.0
        rates = cosine_schedule(epochs * self.steps) + [0.0] * WARM_UP_STEPS
        self.rates = torch.tensor(rates, device=device)
        # The steps done are counted where the graph can read them.
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        shape = (len(networks), 4, self.steps, batch_size)
        self.plans = torch.zeros(shape, dtype=torch.int64, device=device)
        if dtype is None:
            dtype = _default_dtype(device)
        self.learners = [Learner(net, dtype, compiled) for net in networks]
        self.streams: list[torch.cuda.Stream] = []
        self.advance: Callable[[], None] = self._step
        if device.type == "cuda":
            self.streams = [torch.cuda.Stream(device) for _ in networks]
            self.advance = self._captured_step()

    def run_epoch(self) -> list[float]:
        """Take each network once through the images, and return the mean losses."""
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
            plan.copy_(self.data.plan(self.batch_size, seed, self.epoch))

    def save(self, path: Path) -> None:
        """Write all that the steps have changed.

        Args:
            path: The file. It is there whole or not at all.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {name: value.contiguous().cpu() for name, value in self._state().items()}
        metadata = {"settings": json.dumps(self._settings()), "seconds": str(self.seconds)}
        atomic_write(path, save(state, metadata))

    def restore(self, path: Path) -> None:
        """Go on from where a file was saved.

        Args:
            path: The file that ``save`` wrote.

        Raises:
            ValueError: If the file is of a training with other settings.
        """
        with safe_open(path, "pt") as file:
            saved = json.loads(file.metadata()["settings"])
            if saved != self._settings():
                raise ValueError(
                    f"'{path}' is of another training: {saved}, not {self._settings()}. Remove it."
                )
            self._set_state({name: file.get_tensor(name) for name in self._state()})
            self.seconds = float(file.metadata()["seconds"])
        self.epoch = int(self.position) // self.steps

    def _settings(self) -> dict[str, Any]:
        return {
            "n": len(self.data),
            "augmentation": self.data.augmentation._asdict(),
            "seeds": self.seeds,
            "epochs": self.epochs,
            "batch_size": self.batch_size,
        }

    def _step(self) -> None:
        """Take one step with each network: concurrently on a GPU, sequentially elsewhere."""
        for i, learner in enumerate(self.learners):
            with self._on_stream(i):
                plan = self.plans[i].index_select(1, self.position % self.steps).squeeze(1)
                rate = self.rates.index_select(0, self.position).squeeze(0)
                images, labels = self.data.cut(plan)
                learner.step(images, labels, rate)
        for stream in self.streams:
            torch.cuda.current_stream().wait_stream(stream)
        self.position += 1

    @contextmanager
    def _on_stream(self, i: int) -> Iterator[None]:
        """Work on the i-th stream, after what the current one was given so far."""
        if not self.streams:
            yield
            return
        self.streams[i].wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.streams[i]):
            yield

    def _captured_step(self) -> Callable[[], None]:
        """Return a step that is replayed; making it leaves everything as it was."""
        benchmark = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True
        try:
            with torch.cuda.device(self.position.device):
                self._warm_up()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    self._step()
        finally:
            torch.backends.cudnn.benchmark = benchmark
        return graph.replay

    def _warm_up(self) -> None:
        """Take some steps and undo them.

        A rate of 0 would not do: batch-norm statistics change with every forward pass.
        """
        self.begin_epoch()
        before = {name: value.clone() for name, value in self._state().items()}
        for _ in range(WARM_UP_STEPS):
            self._step()
        self._set_state(before)

    def _state(self) -> dict[str, Tensor]:
        """Return all tensors that a step changes, by name."""
        state = {"position": self.position}
        for i, learner in enumerate(self.learners):
            for name, value in learner.state().items():
                state[f"{i}.{name}"] = value
        return state

    def _set_state(self, values: dict[str, Tensor]) -> None:
        for name, value in self._state().items():
            value.copy_(values[name])
        for learner in self.learners:
            learner.refresh()


@contextmanager
def _restored_layout(networks: Sequence[nn.Module]) -> Iterator[None]:
    """Restore each module's mode, and each network's usual order in memory, at the end."""
    modules = [module for net in networks for module in net.modules()]
    modes = [module.training for module in modules]
    try:
        yield
    finally:
        for net in networks:
            set_memory_format(net, torch.contiguous_format)
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


def _default_dtype(device: torch.device) -> torch.dtype:
    if device.type == "cuda":
        return torch.bfloat16
    return torch.float32


def _common_device(networks: Sequence[nn.Module]) -> torch.device:
    devices = {parameter.device for net in networks for parameter in net.parameters()}
    if len(devices) != 1:
        found = sorted(str(device) for device in devices)
        raise ValueError(f"`networks` must be on one device; found {found}. Move them with .to().")
    return devices.pop()


def _check_losses(epoch: int, losses: list[float]) -> None:
    if not all(math.isfinite(loss) for loss in losses):
        raise FloatingPointError(
            f"The losses of epoch {epoch} are {losses}: the training diverged."
        )


def _check_arguments(
    networks: Sequence[nn.Module], data: AugmentedImages, seeds: Sequence[int], batch_size: int
) -> None:
    if len(seeds) != len(networks):
        raise ValueError(
            f"`seeds` must have one seed for each of the {len(networks)} networks; "
            f"got {len(seeds)}."
        )
    if not 0 < batch_size <= len(data):
        raise ValueError(
            f"`batch_size` must be in 1..{len(data)}, the number of images; got {batch_size}."
        )
