"""The classifiers whose outputs are calibrated, and how their data are split.

All outputs are in float64: with float32 the fit of one package ends where it begins.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from torch import Generator, Tensor

import simplexcal as sc

SIZES = (100, 250, 500, 1000, 5000)
SMALLEST = 1e-12  # of a probability, where half of the smallest one that is not 0 is below
EXAMPLES = Path(__file__).parents[2] / "examples"
LOGITS = "calibrator/tests/test_logits/resnet50_cifar10_{}_test_0.9_vanilla.pt"
RECORDS = "calibration-framework/examples/classification/records/{}.npz"
TEN = "10 classes"
HUNDRED = "100 classes"
SMALL = "scikit-learn"
MANY = "876 classes"


@dataclass(frozen=True, eq=False)
class Split:
    """Outputs of a classifier to calibrate with, in random order, and to evaluate on.

    Args:
        pool: Outputs, of which the first n calibrate.
        pool_labels: Their classes.
        test: Outputs that evaluate.
        test_labels: Their classes.
        test_ids: Number of each of these inputs, the same in all splits.
    """

    pool: sc.Outputs
    pool_labels: Tensor
    test: sc.Outputs
    test_labels: Tensor
    test_ids: Tensor


@dataclass(frozen=True)
class Case:
    """A classifier.

    Args:
        name: Its name on the page.
        group: Table in which it is.
        split: Returns the split with a number.
        max_splits: Splits at most.
        sizes: Numbers of inputs to calibrate with.
    """

    name: str
    group: str
    split: Callable[[int], Split]
    max_splits: int = 1000
    sizes: tuple[int, ...] = SIZES


def all_cases(folder: Path) -> list[Case]:
    """Return every classifier.

    Args:
        folder: Holds clones of the repositories that the page names.
    """
    cases = []
    for loss in ("cross_entropy", "focal_loss"):
        name = f"CIFAR-10, ResNet-50, {loss.replace('_', ' ').removesuffix(' loss')}"
        split = partial(_split_in_halves, folder / LOGITS.format(loss))
        cases.append(Case(name, TEN, split))
    for name, group, path in (
        ("CIFAR-10, LeNet-5", TEN, "cifar10/lenet-5-cifar-10"),
        ("CIFAR-10, WRN-16-4", TEN, "cifar10/wideresnet-16-4-cifar-10"),
        ("CIFAR-100, DenseNet-BC-100", HUNDRED, "cifar100/densenet-bc-100-cifar-100"),
        ("CIFAR-100, LeNet-5", HUNDRED, "cifar100/lenet-5-cifar-100"),
        ("CIFAR-100, WRN-16-4", HUNDRED, "cifar100/wideresnet-16-4-cifar-100"),
    ):
        split = partial(_split_in_halves, folder / RECORDS.format(path))
        cases.append(Case(name, group, split))
    cases += _scikit_learn_cases()
    split = partial(_split_g2pm, folder / "g2pM" / "data")
    cases.append(Case("g2pM", MANY, split, max_splits=1, sizes=(1000, 5000)))
    return cases


@cache
def _read(path: Path) -> tuple[sc.Outputs, Tensor]:
    """Return outputs and labels of a file of logits, or of probabilities."""
    if path.suffix == ".pt":
        logits, labels = torch.load(path, map_location="cpu", weights_only=True)
        return sc.Outputs(logits.double()), labels
    with np.load(path) as stored:
        probs = torch.from_numpy(stored["predictions"]).double()
        return sc.Outputs.from_probs(probs), torch.from_numpy(stored["ground_truth"])


def _split_in_halves(path: Path, seed: int) -> Split:
    """Split the rows of a file in two at random."""
    outputs, labels = _read(path)
    order = torch.randperm(len(labels), generator=Generator().manual_seed(seed))
    pool, test = order.chunk(2)
    return Split(outputs[pool], labels[pool], outputs[test], labels[test], test)


def _scikit_learn_cases() -> Iterator[Case]:
    estimators = {
        "linear SVM": make_pipeline(StandardScaler(), LinearSVC(random_state=0)),
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "random forest": RandomForestClassifier(random_state=0),
        "naive Bayes": make_pipeline(StandardScaler(), GaussianNB()),
        "gradient boosting": HistGradientBoostingClassifier(random_state=0),
    }
    for title, load, n_pool, n_test, sizes in (
        ("digits", load_digits, 500, 897, (100, 250, 500)),
        ("breast cancer", load_breast_cancer, 250, 200, (100, 250)),
    ):
        for name, estimator in estimators.items():
            split = partial(_split_with_estimator, load, estimator, n_pool, n_test)
            yield Case(f"{title}, {name}", SMALL, split, sizes=sizes)


def _split_with_estimator(
    load: Callable[..., Any], estimator: Any, n_pool: int, n_test: int, seed: int
) -> Split:
    """Fit an estimator to the samples that neither calibrate nor evaluate."""
    x, y = load(return_X_y=True)
    rows = np.arange(len(y))
    rest, test = train_test_split(rows, test_size=n_test, stratify=y, random_state=seed)
    train, pool = train_test_split(rest, test_size=n_pool, stratify=y[rest], random_state=seed)
    estimator.fit(x[train], y[train])
    outputs = [_estimator_outputs(estimator, x[part]) for part in (pool, test)]
    labels = [torch.from_numpy(y[part]).long() for part in (pool, test)]
    return Split(outputs[0], labels[0], outputs[1], labels[1], torch.from_numpy(test))


def _estimator_outputs(estimator: Any, x: Any) -> sc.Outputs:
    """Return decision values as logits, otherwise the logarithms of the probabilities.

    A probability of 0 counts as half of the smallest one that is not 0.
    """
    if hasattr(estimator, "decision_function"):
        scores = np.asarray(estimator.decision_function(x), dtype=np.float64)
        if scores.ndim == 1:
            scores = np.stack([np.zeros_like(scores), scores], 1)
        return sc.Outputs(torch.from_numpy(scores))
    probs = np.asarray(estimator.predict_proba(x), dtype=np.float64)
    floor = max(probs[probs > 0].min() / 2, SMALLEST)
    return sc.Outputs(torch.from_numpy(np.log(np.maximum(probs, floor))))


@cache
@torch.no_grad()
def _read_g2pm(folder: Path) -> list[tuple[sc.Outputs, Tensor]]:
    """Return outputs and labels of the development and the test sentences."""
    sys.path.insert(0, str(EXAMPLES))
    example = importlib.import_module("g2pm")
    package = example.g2pM.G2pM()
    weights = Path(example.g2pM.__file__).with_name("np_ckpt.pkl")
    with weights.open("rb") as file:
        net = example.Network(example.pickle.load(file)).eval()
    found = []
    for part in ("dev", "test"):
        inputs, labels = example.read(folder, part, package)
        chunks = zip(*(x.split(500) for x in inputs.values()), strict=True)
        logits = torch.cat([net(*chunk) for chunk in chunks])
        found.append((sc.Outputs(logits.double()), labels))
    return found


def _split_g2pm(folder: Path, seed: int) -> Split:
    """Take calibration sentences from the development set at random, and the whole test set."""
    (dev, dev_labels), (test, test_labels) = _read_g2pm(folder)
    order = torch.randperm(len(dev_labels), generator=Generator().manual_seed(seed))
    pool = order[: max(SIZES)]
    return Split(dev[pool], dev_labels[pool], test, test_labels, torch.arange(len(test_labels)))
