"""Pre-training against torch's own optimiser and autocast, concurrent, resumed and whole."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.config.settings import CROPS_AND_FLIPS, NO_AUGMENTATION, Augmentation
from experiments.pretraining.augmentation import AugmentedImages
from experiments.pretraining.learner import MOMENTUM, WEIGHT_DECAY, Learner, cosine_schedule
from experiments.pretraining.training import Training, train, training_seconds
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

N, BATCH = 50, 8
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def net_of(seed: int) -> nn.Sequential:
    """Return a network with every kind of layer that the paper's have."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 6, 1, stride=2, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(96, 3),
        )


def images_and_labels() -> tuple[Tensor, Tensor]:
    """Return images whose class is their brightest channel."""
    g = torch.Generator().manual_seed(1)
    labels = torch.randint(3, (N,), generator=g)
    images = torch.randint(100, (N, 3, 8, 8), generator=g)
    images[torch.arange(N), labels] += 100
    return images.to(torch.uint8), labels


def training_images(
    augmentation: Augmentation = CROPS_AND_FLIPS, device: str = "cpu"
) -> AugmentedImages:
    return AugmentedImages(
        *images_and_labels(), mean=MEAN, std=STD, augmentation=augmentation, device=device
    )


def trained(seeds: Sequence[int], device: str = "cpu", **settings: Any) -> list[dict[str, Tensor]]:
    """Return the state of networks that were trained together."""
    networks = [net_of(seed).to(device) for seed in seeds]
    arguments = {
        "mean": MEAN,
        "std": STD,
        "augmentation": CROPS_AND_FLIPS,
        "epochs": 3,
        "batch_size": BATCH,
        **settings,
    }
    train(networks, *images_and_labels(), seeds=seeds, **arguments)
    return [{name: value.cpu() for name, value in net.state_dict().items()} for net in networks]


def reference(seed: int, n_steps: int, epochs: int, autocast: bool = False) -> dict[str, Tensor]:
    """Return the state of a network that torch's optimiser and schedule trained."""
    net, data, steps = net_of(seed), training_images(), N // BATCH
    optimiser = torch.optim.SGD(
        net.parameters(), 0.1, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, foreach=False
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * steps)
    for i in range(n_steps):
        images, labels = data.cut(data.plan(BATCH, seed, i // steps)[:, i % steps])
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = net(images)
        cross_entropy(logits.float(), labels).backward()
        optimiser.step()
        schedule.step()
    return net.state_dict()


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> None:
    torch.testing.assert_close(
        ours, {name: value.cpu() for name, value in theirs.items()}, rtol=0, atol=tolerance
    )


@pytest.mark.parametrize(("n_steps", "tolerance"), [(1, 1e-6), (2, 1e-6), (9, 1e-5)])
def test_steps_are_those_of_torchs_optimiser(n_steps: int, tolerance: float) -> None:
    net = net_of(3)
    pupils = Training([net], training_images(), [3], epochs=2, batch_size=BATCH)
    for i in range(n_steps):
        if i % pupils.steps == 0:
            pupils.epoch = i // pupils.steps
            pupils.begin_epoch()
        pupils.advance()
    assert_close(net.state_dict(), reference(3, n_steps, epochs=2), tolerance)


def test_bfloat16_is_autocasts() -> None:
    net = net_of(3)
    pupils = Training(
        [net], training_images(), [3], epochs=2, batch_size=BATCH, dtype=torch.bfloat16
    )
    pupils.begin_epoch()
    pupils.advance()
    ours, theirs, exact = net.state_dict(), reference(3, 1, 2, autocast=True), reference(3, 1, 2)
    for name, value in net_of(3).named_parameters():
        moved, apart = (theirs[name] - value).norm(), (ours[name] - theirs[name]).norm()
        assert apart < 1e-2 * moved, name  # two roundings of bfloat16 are up to 2^-8 = 4e-3 apart
        assert apart <= (exact[name] - theirs[name]).norm() + 1e-3 * moved, name
    assert all(value.dtype == torch.float32 for name, value in ours.items() if "num" not in name)


def test_the_copies_that_compute_follow_the_weights_that_learn() -> None:
    learner = Learner(net_of(0), torch.bfloat16)
    dtypes = [copy.dtype for copy in learner.copies.values()]
    assert (
        dtypes
        == [torch.bfloat16] * 2
        + [torch.float32] * 2
        + [torch.bfloat16]
        + [torch.float32] * 2
        + [torch.bfloat16] * 2
    )
    images, labels = training_images().cut(training_images().plan(BATCH, 0, 0)[:, 0])
    learner.step(images, labels, torch.tensor(0.1))
    for name, weight in learner.net.named_parameters():
        assert torch.equal(
            learner.copies[name].detach(), weight.detach().to(learner.copies[name].dtype)
        ), name


def test_the_rate_falls_from_a_tenth_to_zero_by_a_cosine() -> None:
    rates = cosine_schedule(8)
    assert rates[:5:4] == [0.1, pytest.approx(0.05)]
    assert rates[2] == pytest.approx(0.05 * (1 + math.sqrt(0.5)))
    assert rates[7] == pytest.approx(0.05 * (1 - math.cos(math.pi / 8)))


def test_a_network_learns() -> None:
    images, labels = images_and_labels()
    net = net_of(0).eval()
    losses: list[float] = []
    done = train(
        [net],
        images,
        labels,
        mean=MEAN,
        std=STD,
        augmentation=NO_AUGMENTATION,
        seeds=[0],
        epochs=12,
        batch_size=BATCH,
        on_epoch=lambda _, loss: losses.extend(loss),
    )
    data = training_images(augmentation=NO_AUGMENTATION)
    inputs, _ = data.cut(torch.stack([torch.arange(N), *torch.zeros(3, N, dtype=torch.int64)]))
    assert done
    assert len(losses) == 12
    assert losses[-1] < 0.1 < losses[0]
    assert (net(inputs).argmax(-1) == labels).float().mean() > 0.95


def test_a_seed_decides_the_weights() -> None:
    first, again, other = trained([0])[0], trained([0])[0], trained([1])[0]
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])


def test_networks_trained_concurrently_are_those_trained_sequentially() -> None:
    for seed, ours in zip((0, 1, 5), trained([0, 1, 5]), strict=True):
        (alone,) = trained([seed])
        assert all(torch.equal(ours[name], alone[name]) for name in alone)


def test_a_training_in_two_parts_is_one_training(tmp_path: Path) -> None:
    whole, seeds, path = trained([0, 1]), [0, 1], tmp_path / "new" / "state.safetensors"
    arguments: dict[str, Any] = {
        "mean": MEAN,
        "std": STD,
        "augmentation": CROPS_AND_FLIPS,
        "epochs": 3,
        "batch_size": BATCH,
    }
    arguments |= {"seeds": seeds, "checkpoint": path}
    interrupted = [net_of(seed) for seed in seeds]
    told: list[int] = []
    assert not train(interrupted, *images_and_labels(), **arguments, seconds=0.0)
    half = Training(interrupted, training_images(), seeds, epochs=3, batch_size=BATCH)
    half.restore(path)
    half.run_epoch()
    half.save(path)
    resumed = [net_of(9), net_of(9)]  # what they were before is forgotten
    assert train(
        resumed, *images_and_labels(), **arguments, on_epoch=lambda epoch, _: told.append(epoch)
    )
    assert told == [2, 3]
    for net, expected in zip(resumed, whole, strict=True):
        assert all(torch.equal(value, expected[name]) for name, value in net.state_dict().items())
    assert [p.name for p in path.parent.iterdir()] == ["state.safetensors"]


def test_what_a_kill_leaves_is_what_was_saved_on_the_way(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"

    def stop(epoch: int, _: list[float]) -> None:
        if epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained([0, 1], checkpoint=path, save_interval=0.0, on_epoch=stop)
    told: list[int] = []
    first = training_seconds(path)
    resumed = trained([0, 1], checkpoint=path, on_epoch=lambda epoch, _: told.append(epoch))
    assert told == [2, 3]
    assert 0 < first < training_seconds(path)
    for ours, expected in zip(resumed, trained([0, 1]), strict=True):
        assert all(torch.equal(ours[name], expected[name]) for name in expected)


def test_the_state_of_another_training_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    Training([net_of(0)], training_images(), [0], epochs=3, batch_size=BATCH).save(path)
    other = Training([net_of(0)], training_images(), [1], epochs=3, batch_size=BATCH)
    with pytest.raises(
        ValueError,
        match=r"is of another training: .*'seeds': \[0\].*not .*'seeds': \[1\].*Remove it",
    ):
        other.restore(path)


def test_warming_up_leaves_everything_as_it_was() -> None:
    net, before = net_of(0), net_of(0).state_dict()
    pupils = Training([net], training_images(), [0], epochs=1, batch_size=BATCH)
    pupils._warm_up()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(not m.any() for m in pupils.learners[0].momenta)
    assert (int(pupils.position), float(pupils.learners[0].loss)) == (0, 0.0)
    copies = pupils.learners[0].copies
    assert all(torch.equal(copies[name], before[name]) for name in copies)


def test_the_networks_get_mode_and_order_back() -> None:
    net = net_of(0)
    net[1].eval()
    train(
        [net],
        *images_and_labels(),
        mean=MEAN,
        std=STD,
        augmentation=CROPS_AND_FLIPS,
        seeds=[0],
        epochs=1,
        batch_size=BATCH,
    )
    assert [module.training for module in net] == [True, False, *[True] * 6]
    assert all(p.is_contiguous() and p.grad is None for p in net.parameters())


def test_a_training_that_diverges_says_so() -> None:
    images, labels = images_and_labels()
    net = net_of(0)
    nn.init.constant_(net.get_parameter("7.bias"), math.inf)
    with pytest.raises(
        FloatingPointError, match=r"The losses of epoch 1 are \[nan\]: the training diverged"
    ):
        train(
            [net],
            images,
            labels,
            mean=MEAN,
            std=STD,
            augmentation=CROPS_AND_FLIPS,
            seeds=[0],
            epochs=1,
            batch_size=BATCH,
        )


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="one seed for each of the 1 networks; got 2"):
        Training([net_of(0)], training_images(), [0, 1])
    with pytest.raises(
        ValueError, match=r"`batch_size` must be in 1\.\.50, the number of images; got 128"
    ):
        Training([net_of(0)], training_images(), [0])
    apart = [net_of(0), net_of(1).to("meta")]
    with pytest.raises(
        ValueError, match=r"`networks` must be on one device; found \['cpu', 'meta'\]"
    ):
        train(
            apart,
            *images_and_labels(),
            mean=MEAN,
            std=STD,
            augmentation=CROPS_AND_FLIPS,
            seeds=[0, 1],
        )


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@needs_cuda
def test_replayed_steps_on_streams_are_those_of_the_cpu() -> None:
    tf32, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    try:
        for ours, expected in zip(
            trained([0, 1, 2], "cuda", dtype=torch.float32), trained([0, 1, 2]), strict=True
        ):
            assert_close(ours, expected, 1e-3)
    finally:
        torch.backends.cudnn.allow_tf32 = tf32


@needs_cuda
def test_the_gpu_learns_in_bfloat16() -> None:
    net = net_of(0).cuda()
    pupil = Training(
        [net], training_images(NO_AUGMENTATION, "cuda"), [0], epochs=12, batch_size=BATCH
    )
    assert [pupil.run_epoch() for _ in range(12)][-1][0] < 0.1
