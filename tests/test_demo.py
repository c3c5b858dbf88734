"""The embedded network and data are as documented, and small."""

from pathlib import Path

import torch

from simplexcal.demo import fashion_mnist, run
from simplexcal.demo.fashion_mnist import CLASSES, calibration_test_split, images_and_labels

FOLDER = Path(fashion_mnist.__file__).parent


def test_the_embedded_files_are_small() -> None:
    sizes = [path.stat().st_size for path in FOLDER.rglob("*") if path.suffix != ".pyc"]
    assert sum(sizes) <= 6_000_000


def test_the_images_are_ten_thousand_of_ten_classes() -> None:
    images, labels = images_and_labels()
    assert images.shape == (10_000, 28, 28)
    assert images.dtype == torch.uint8
    assert labels.bincount().tolist() == [1000] * len(CLASSES)


def test_the_split_has_each_row_once() -> None:
    fit, test = calibration_test_split(10_000)
    assert len(fit) == len(test) == 5_000
    assert torch.equal(torch.cat([fit, test]).sort().values, torch.arange(10_000))


def test_the_network_has_learned() -> None:
    data = run.prepare()
    accuracy = (data.test.label == data.test_labels).double().mean()
    assert accuracy > 0.89


def test_no_method_changes_a_prediction() -> None:
    quick = ("none", "TS", "ETS", "STS")
    data = run.prepare()
    predictions = dict(run.predictions(data, quick))
    assert tuple(predictions) == quick
    assert all(torch.equal(p.label, data.test.label) for p in predictions.values())
