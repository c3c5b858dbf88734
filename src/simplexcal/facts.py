"""What is known of a fitted calibrator beside its tensors: the fit, an evaluation, class names.

It is stored in the header of the calibrator's file. Of the data it holds sizes and metrics alone.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Self

import torch

from simplexcal._version import __version__

SCORES = ("accuracy", "confidence", "ece", "ece_low", "ece_high", "ece_floor_95", "nll", "brier")
CHANGES = ("ece", "nll", "brier")

Numbers = dict[str, float]


def today() -> str:
    """Return the day in UTC, as in 2026-01-31."""
    return datetime.now(UTC).date().isoformat()


def own_versions() -> dict[str, str]:
    """Return the versions of this library and of torch."""
    return {"simplexcal": __version__, "torch": str(torch.__version__)}


@dataclass(frozen=True)
class FitFacts:
    """What is known of a fit.

    Args:
        n: Number of inputs, or of positions, that it has learned from.
        noun: What is counted: inputs, or positions of a network of tokens or pixels.
        weighted: Whether the inputs had weights.
        date: The day, in UTC.
        versions: Versions of simplexcal and torch.
        nll_before: Negative log-likelihood of these data before calibration; None: not known.
        nll_after: Negative log-likelihood of these data after calibration; None: not known.
    """

    n: int
    noun: str = "inputs"
    weighted: bool = False
    date: str = field(default_factory=today)
    versions: dict[str, str] = field(default_factory=own_versions)
    nll_before: float | None = None
    nll_after: float | None = None


@dataclass(frozen=True)
class EvaluationFacts:
    """The main figures of an evaluation before and after calibration.

    Args:
        n: Number of inputs.
        n_positions: Number of tokens or pixels; None: inputs are classified as a whole.
        n_bins: Number of bins of the ECE.
        before: The SCORES before calibration.
        after: The SCORES after calibration.
        changes: For each of CHANGES the `mean`, the ends `low` and `high` of a 95 % interval, and
            the `p_value` of after minus before.
        verdict: What this means, in one sentence.
        date: The day, in UTC.
    """

    n: int
    n_positions: int | None
    n_bins: int
    before: Numbers
    after: Numbers
    changes: dict[str, Numbers]
    verdict: str
    date: str = field(default_factory=today)


@dataclass(frozen=True)
class Facts:
    """All that is known of a calibrator beside its tensors; None is what is not known.

    Args:
        fit: About the fit.
        evaluation: The last evaluation on other data than those of the fit.
        class_names: The names of the classes.
    """

    fit: FitFacts | None = None
    evaluation: EvaluationFacts | None = None
    class_names: tuple[str, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return names and values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: object) -> Self:
        """Return facts from what `as_dict` gave; an older file has none, a newer one maybe more.

        Args:
            record: The record, or None.
        """
        if not isinstance(record, Mapping):
            return cls()
        names = record.get("class_names")
        if names is not None:
            names = tuple(names)
        return cls(
            _known(FitFacts, record.get("fit")),
            _known(EvaluationFacts, record.get("evaluation")),
            names,
        )


def _known(kind: Any, record: Mapping[str, Any] | None) -> Any:
    """Return the record as one of this kind, without what this version does not know."""
    if record is None:
        return None
    names = [x.name for x in fields(kind)]
    return kind(**{name: record[name] for name in names if name in record})
