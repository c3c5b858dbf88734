"""Fits each method to identical data, and compares its scores with those of STS."""

import platform
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot

import simplexcal as sc
from experiments.rivals.cases import Case, Split
from experiments.rivals.methods import OURS, PACKAGES, Fit, Rival
from experiments.rivals.records import Difference, RivalRecord
from simplexcal import metrics

SMALLEST = 2.0**-52  # A smaller probability counts as this, as in sklearn.metrics.log_loss.
N_BINS = 15
N_DRAWS = 1000
TOLERANCE = 1e-3  # of the sum of probabilities
SEED = 0  # of the bootstrap
VALUES = (
    "accuracy",
    "nll",
    "brier",
    "ece",
    "smooth_ece",
    "changed",
    "fit_seconds",
    "predict_seconds",
    "nll_difference",
    "brier_difference",
)
TIMES = ("fit_seconds", "predict_seconds")  # of the first split, in which alone fits are whole


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of one fit.

    Args:
        nll: -ln p of the label, (N,).
        brier: Σ_k (p_k - [k = y])², (N,).
        ids: Number of each input, (N,).
        numbers: Further numbers by name.
    """

    nll: Tensor
    brier: Tensor
    ids: Tensor
    numbers: dict[str, float]


def compare(
    case: Case, rivals: Sequence[Rival], n_splits: int, n: int, versions: dict[str, str]
) -> Iterator[RivalRecord]:
    """Return a record for each method.

    Args:
        case: The classifier.
        rivals: The methods; the first is STS.
        n_splits: Number of splits.
        n: Number of inputs to calibrate with.
        versions: Versions of what is compared, for the records.
    """
    splits = [case.split(seed) for seed in range(min(n_splits, case.max_splits))]
    k = splits[0].test.n_classes
    reference: list[Scores] = []
    for rival in [rival for rival in rivals if rival.max_classes >= k]:
        scores: list[Scores] = []
        failures = []
        for split in splits:
            fit = rival.fit
            if scores and rival.untimed_fit is not None:
                fit = rival.untimed_fit
            try:
                scores.append(score(fit, split, n))
            except Exception as error:  # The errors of other packages have no common base.
                failures.append(_shortened(error))
        reference = reference or scores
        values = _values(scores, reference)
        if failures:
            values = dict.fromkeys(VALUES)
        yield RivalRecord(
            case=case.name,
            group=case.group,
            n_classes=k,
            package=rival.package,
            method=rival.name,
            n=n,
            n_splits=len(splits),
            n_test=len(splits[0].test_labels),
            failures=sorted(set(failures)),
            versions=versions,
            **values,
        )


def warm_up(rivals: Sequence[Rival]) -> None:
    """Fit each method once, so that no time is that of an import or a compiler.

    Args:
        rivals: The methods.
    """
    g = Generator().manual_seed(0)
    logits = 3 * torch.randn(200, 3, generator=g, dtype=torch.float64)
    labels = (logits / 2).softmax(-1).multinomial(1, generator=g).squeeze(1)
    outputs = sc.Outputs(logits)
    split = Split(outputs, labels, outputs, labels, torch.arange(200))
    for rival in rivals:
        score(rival.fit, split, 100)


def score(fit: Fit, split: Split, n: int) -> Scores:
    """Return the scores of a method that is fitted to the first n inputs of a split.

    Args:
        fit: Fits the method.
        split: The data.
        n: Number of inputs to calibrate with.
    """
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        start = time.process_time()
        predict = fit(split.pool[slice(n)], split.pool_labels[:n])
        fitted = time.process_time()
        probs = predict(split.test)
        end = time.process_time()
    probs = _checked(probs, split.test)
    labels = split.test_labels
    label = probs.argmax(-1)
    confidence = probs.amax(-1)
    correct = label == labels
    log_p = probs.clamp_min(SMALLEST).log().gather(1, labels.unsqueeze(1)).squeeze(1)
    squares = (probs - one_hot(labels, probs.shape[1])).square().sum(-1)
    numbers = {
        "accuracy": correct.double().mean().item(),
        "ece": metrics.ece(confidence, correct, N_BINS).item(),
        "smooth_ece": metrics.smooth_ece(confidence, correct).item(),
        "changed": (label != split.test.label).double().mean().item(),
        "fit_seconds": fitted - start,
        "predict_seconds": end - fitted,
    }
    return Scores(-log_p, squares, split.test_ids, numbers)


def bootstrap(differences: Sequence[Tensor], ids: Sequence[Tensor]) -> Difference:
    """Return the mean of paired differences with its interval; inputs are drawn, not rows.

    An input that evaluates in several splits is drawn with all its differences.

    Args:
        differences: Of each split, (N,).
        ids: Number of each input, (N,).
    """
    _, place = torch.cat(list(ids)).unique(return_inverse=True)
    values = torch.cat(list(differences)).double()
    size = int(place.max()) + 1
    total = torch.zeros(size, dtype=torch.float64).index_add_(0, place, values)
    count = torch.zeros(size, dtype=torch.float64).index_add_(0, place, torch.ones_like(values))
    drawn = _times_drawn(size)
    means = (drawn @ total) / (drawn @ count)
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    return Difference(values.mean().item(), low.item(), high.item())


@lru_cache(maxsize=1)
def _times_drawn(size: int) -> Tensor:
    """Return how often each input is drawn in each draw, (N_DRAWS, size)."""
    generator = Generator().manual_seed(SEED)
    counts = [
        torch.randint(size, (size,), generator=generator).bincount(minlength=size)
        for _ in range(N_DRAWS)
    ]
    return torch.stack(counts).double()


def versions() -> dict[str, str]:
    """Return the versions of what is compared."""
    names = [name for name in (*PACKAGES, "torch", "numpy") if name != OURS]
    own = {"python": platform.python_version(), OURS: sc.__version__}
    return own | {name: metadata.version(name) for name in names}


def _checked(probs: Tensor, outputs: sc.Outputs) -> Tensor:
    """Return probabilities in float64, normalised; raise ValueError if they are none."""
    probs = probs.detach().cpu().double()
    if probs.shape != outputs.logits.shape:
        raise ValueError(f"probabilities have the shape {tuple(probs.shape)}")
    total = probs.sum(-1, keepdim=True)
    if not bool(((total - 1).abs() < TOLERANCE).all()):
        raise ValueError("probabilities do not add up to 1")
    return probs / total


def _shortened(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


def _values(scores: Sequence[Scores], reference: Sequence[Scores]) -> dict[str, Any]:
    """Return what a record holds of the scores of a method that did not fail."""
    if not scores:
        return dict.fromkeys(VALUES)
    values: dict[str, Any] = {
        name: sum(found.numbers[name] for found in scores) / len(scores)
        for name in scores[0].numbers
    }
    values.update({name: scores[0].numbers[name] for name in TIMES})
    ids = [found.ids for found in scores]
    for name in ("nll", "brier"):
        own = [getattr(found, name) for found in scores]
        pairs = zip(own, reference, strict=False)
        values[name] = torch.cat(own).mean().item()
        changes = [value - getattr(other, name) for value, other in pairs]
        values[f"{name}_difference"] = bootstrap(changes, ids)
    return values
