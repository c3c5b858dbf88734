"""Crops and flips, drawn and cut, against loops that do the same one pixel at a time."""

import math

import pytest
import torch
from experiments.config.settings import CROPS_AND_FLIPS, NO_AUGMENTATION, Augmentation
from experiments.datasets.normalisation import Normalisation, normalise
from experiments.pretraining.augmentation import AugmentedImages, draw_plan
from torch import Tensor

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def images_of(n: int, side: int = 6, channels: int = 3) -> Tensor:
    g = torch.Generator().manual_seed(7)
    return torch.randint(256, (n, channels, side, side + 1), generator=g, dtype=torch.uint8)


def slow_cut(images: Tensor, plan: Tensor, augmentation: Augmentation) -> Tensor:
    """Return what ``AugmentedImages.cut`` must: crop first, then flip.

    What lies outside is black before normalisation.
    """
    whole = images.shape[2:]
    height, width = (augmentation.side, augmentation.side) if augmentation.side else whole
    made = torch.zeros(plan.shape[1], images.shape[1], height, width, dtype=torch.uint8)
    for b, (row, top, left, flip) in enumerate(plan.T.tolist()):
        for y in range(height):
            for x in range(width):
                from_y, from_x = y + top - augmentation.padding, x + left - augmentation.padding
                if 0 <= from_y < whole[0] and 0 <= from_x < whole[1]:
                    made[b, :, y, width - 1 - x if flip else x] = images[row, :, from_y, from_x]
    return normalise(made, Normalisation(MEAN, STD))


@pytest.mark.parametrize(
    "augmentation",
    [
        CROPS_AND_FLIPS,
        NO_AUGMENTATION,
        Augmentation(padding=0),
        Augmentation(flip=False),
        Augmentation(padding=1, side=4),
    ],
    ids=["both", "nothing", "flips", "crops", "small"],
)
def test_a_batch_is_what_slow_loops_make(augmentation: Augmentation) -> None:
    images, labels = images_of(40), torch.arange(40)
    data = AugmentedImages(
        images, labels, mean=MEAN, std=STD, augmentation=augmentation, device="cpu"
    )
    plan = data.plan(20, seed=3, epoch=5)[:, 1]
    made, chosen = data.cut(plan)
    torch.testing.assert_close(made, slow_cut(images, plan, augmentation), rtol=0, atol=2e-6)
    assert torch.equal(chosen, labels[plan[0]])
    assert made.is_contiguous(memory_format=torch.channels_last)


def test_a_crop_and_a_flip_by_hand() -> None:
    image = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3)  # rows 1 2 3, 4 5 6, 7 8 9
    data = AugmentedImages(
        image, torch.zeros(1), mean=[0.0], std=[1 / 255], augmentation=CROPS_AND_FLIPS, device="cpu"
    )
    cases = {(4, 4, 0): [1, 2, 3, 4, 5, 6, 7, 8, 9], (4, 4, 1): [3, 2, 1, 6, 5, 4, 9, 8, 7]}
    cases |= {
        (3, 5, 0): [0, 0, 0, 2, 3, 0, 5, 6, 0],
        (3, 5, 1): [0, 0, 0, 0, 3, 2, 0, 6, 5],
        (0, 0, 0): [0] * 9,
    }
    for (top, left, flip), expected in cases.items():
        made, _ = data.cut(torch.tensor([[0], [top], [left], [flip]]))
        torch.testing.assert_close(
            made.ravel(), torch.tensor(expected, dtype=torch.float32), rtol=0, atol=1e-5
        )


def test_without_augmentation_images_are_only_normalised() -> None:
    images = images_of(10)
    data = AugmentedImages(
        images, torch.arange(10), mean=MEAN, std=STD, augmentation=NO_AUGMENTATION, device="cpu"
    )
    plan = data.plan(10, seed=0, epoch=0)[:, 0]
    expected = normalise(images, Normalisation(MEAN, STD))[plan[0]]
    torch.testing.assert_close(data.cut(plan)[0], expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("augmentation", "most"),
    [
        (CROPS_AND_FLIPS, (8, 8, 1)),
        (Augmentation(padding=0), (0, 0, 1)),
        (Augmentation(flip=False), (8, 8, 0)),
    ],
    ids=["both", "flips", "crops"],
)
def test_what_is_drawn(augmentation: Augmentation, most: tuple[int, ...]) -> None:
    data = AugmentedImages(
        images_of(500),
        torch.arange(500),
        mean=MEAN,
        std=STD,
        augmentation=augmentation,
        device="cpu",
    )
    assert data.plan(1, seed=0, epoch=0)[1:].amax((1, 2)).tolist() == [*most]


def test_a_small_crop_may_lie_at_every_edge() -> None:
    g = torch.Generator().manual_seed(7)
    images = torch.randint(256, (500, 3, 6, 6), generator=g, dtype=torch.uint8)
    augmentation = Augmentation(padding=1, side=4, flip=False)
    data = AugmentedImages(
        images, torch.arange(500), mean=MEAN, std=STD, augmentation=augmentation, device="cpu"
    )
    _, top, left, _ = data.plan(1, seed=0, epoch=0).view(4, -1)
    assert (
        sorted(set(top.tolist())) == sorted(set(left.tolist())) == [0, 1, 2, 3, 4]
    )  # the last ends at the padding


def test_a_crop_that_does_not_fit_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"A crop of 16 × 16 does not fit into images of \(6, 7\)\."
    ):
        AugmentedImages(
            images_of(2),
            torch.arange(2),
            mean=MEAN,
            std=STD,
            augmentation=Augmentation(side=16),
            device="cpu",
        )


def test_an_epoch_takes_each_row_once_and_leaves_the_rest_out() -> None:
    plan = draw_plan(50, 8, 9, True, 0, 0)
    assert plan.shape == (4, 6, 8)
    rows = plan[0].ravel().tolist()
    assert len(set(rows)) == 48
    assert set(rows) <= set(range(50))


def test_offsets_and_flips_are_uniform() -> None:
    n = 90_000
    _, top, left, flip = draw_plan(n, 1, 9, True, 0, 0).view(4, -1)
    for counts in (
        top.bincount(minlength=9),
        left.bincount(minlength=9),
        flip.bincount(minlength=2),
    ):
        p = 1 / len(counts)
        error = 5 * math.sqrt(n * p * (1 - p))
        assert (counts - n * p).abs().max() < error
    assert top.max() == left.max() == 8


def test_each_seed_and_epoch_has_a_plan_of_its_own() -> None:
    plans = {
        (seed, epoch): draw_plan(64, 8, 9, True, seed, epoch)
        for seed in range(3)
        for epoch in range(3)
    }
    assert len({tuple(plan.ravel().tolist()) for plan in plans.values()}) == 9
    assert torch.equal(plans[1, 2], draw_plan(64, 8, 9, True, 1, 2))
    assert not draw_plan(64, 8, 1, False, 1, 2)[1:].any()


@pytest.mark.parametrize(
    ("images", "n_labels", "sentence"),
    [
        (torch.zeros(2, 3, 4, 4), 2, r"bytes \(N, 3, H, W\).*got torch\.float32 \(2, 3, 4, 4\)"),
        (
            torch.zeros(2, 1, 4, 4, dtype=torch.uint8),
            2,
            r"a channel for each mean; got torch\.uint8 \(2, 1, 4, 4\)",
        ),
        (
            torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
            3,
            r"`labels` must have shape \(2,\), one for each image; got \(3,\)",
        ),
    ],
    ids=["floats", "grey", "labels"],
)
def test_wrong_images_are_refused(images: Tensor, n_labels: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        AugmentedImages(
            images,
            torch.zeros(n_labels),
            mean=MEAN,
            std=STD,
            augmentation=CROPS_AND_FLIPS,
            device="cpu",
        )
