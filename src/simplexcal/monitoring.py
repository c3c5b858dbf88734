"""Whether new predictions have drifted, what accuracy to expect, and whether to calibrate again.

Labels of the new inputs are not needed. docs/guide/deployment.md states the rule.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from simplexcal._arrays import ArrayLike
from simplexcal._validation import (
    check_classes,
    check_confidence,
    check_finite,
    check_fraction,
    check_label_shape,
    check_probs,
)
from simplexcal.accuracy_estimation import (
    AccuracyEstimate,
    Method,
    Reference,
    estimate_from_scores,
    make_reference,
)
from simplexcal.dense import is_dense
from simplexcal.drift import Drift, measure_drift, n_for_half_width
from simplexcal.evaluation import markdown_table, wrap
from simplexcal.io.scored_rows import ScoredRows, read_scored_rows
from simplexcal.report._format import SPACE
from simplexcal.report.monitor_page import MonitorPage, write_monitor_page
from simplexcal.report.verdict import Tone
from simplexcal.types import Prediction

Verdict = Literal["steady", "undecided", "recalibrate"]

# A normal score that moves by a quarter of its standard deviation has this distance.
TOLERANCE = 0.1
TONES: dict[str, Tone] = {"steady": "good", "undecided": "unsure", "recalibrate": "bad"}
RULE = (
    "The rule: recalibrate where the {sure} interval of some distance lies wholly above "
    "{tolerance:g}; steady where all lie within; undecided otherwise. The intervals hold together."
)

Predictions = Prediction | ArrayLike | str | Path


@dataclass(frozen=True)
class MonitorResult:
    """What new predictions say beside those of a reference.

    Printed, it is a table with the verdict.

    Args:
        verdict: "recalibrate" where the interval of some distance lies wholly above the tolerance;
            "steady" where the intervals of all lie within it; "undecided" otherwise.
        drifts: How far each score has moved; their intervals hold together.
        accuracy: The accuracy to expect on the batch.
        reference_accuracy: The accuracy on the reference; None without labels.
        tolerance: The distance that does not matter.
        level: Confidence level of all intervals of the distances together.
        n_reference: Number of inputs of the reference.
        n: Number of inputs of the batch.
    """

    verdict: Verdict
    drifts: tuple[Drift, ...]
    accuracy: AccuracyEstimate
    reference_accuracy: float | None
    tolerance: float
    level: float
    n_reference: int
    n: int

    @property
    def largest(self) -> Drift:
        """The drift with the largest distance."""
        return max(self.drifts, key=lambda drift: drift.distance)

    @property
    def finding(self) -> str:
        """What the verdict means, as a sentence."""
        drift = self.largest
        by = f"{drift.distance:.2f} ({drift.low:.2f} to {drift.high:.2f})"
        if self.verdict == "recalibrate":
            return (
                f"Recalibrate: {drift.title} has drifted by {by}, more than the tolerance of "
                f"{self.tolerance:g}."
            )
        if self.verdict == "steady":
            return f"Steady: no score has drifted by more than the tolerance of {self.tolerance:g}."
        return (
            f"Undecided: {drift.title} has drifted by {by}, which may be more or less than the "
            f"tolerance of {self.tolerance:g}."
        )

    @property
    def remedy(self) -> str:
        """What to do, as a sentence."""
        if self.verdict == "recalibrate":
            return (
                "Label some of these inputs, evaluate on them, and calibrate again where the "
                "calibration has suffered."
            )
        if self.verdict == "steady":
            return "Label a few inputs now and then: changed labels cannot be seen without labels."
        needed = n_for_half_width(self.tolerance / 2, self.largest.level)
        if min(self.n, self.n_reference) < needed:
            return f"Use about {needed} inputs, in reference and batch each."
        return "The drift is near the tolerance: watch the next batches."

    def as_dict(self) -> dict[str, Any]:
        """Return names and values, in the order of the arguments, and the words."""
        found = {**vars(self), "drifts": [drift.as_dict() for drift in self.drifts]}
        found["accuracy"] = self.accuracy.as_dict()
        return {**found, "finding": self.finding, "remedy": self.remedy}

    def write_report(
        self,
        path: str | Path,
        *,
        title: str = "Monitoring report",
        sources: Mapping[str, str] | None = None,
    ) -> Path:
        """Write an HTML page that works offline, and return its path.

        It needs the extra ``simplexcal[report]``.

        Args:
            path: The file to write, whole or not at all.
            title: The title of the page.
            sources: What the page says about the origin of the data, by name.
        """
        sure = f"{100 * self.level:g}{SPACE}%"
        page = MonitorPage(
            title=title,
            tone=TONES[self.verdict],
            badge=self.verdict.capitalize(),
            headline=self.finding,
            sentences=(
                self.remedy,
                self.expectation,
                RULE.format(tolerance=self.tolerance, sure=sure),
            ),
            accuracy=(self.accuracy.low, self.accuracy.estimate, self.accuracy.high),
            reference_accuracy=self.reference_accuracy,
            sizes=(self.n_reference, self.n),
            drifts=self.drifts,
            rows=tuple(map(self._row, self.drifts)),
            tolerance=self.tolerance,
            sources=sources or {},
        )
        return write_monitor_page(path, page)

    def __str__(self) -> str:
        header = ("score", "reference", "batch", f"distance ({100 * self.level:g} %)", "drifted")
        rows = [header, *map(self._row, self.drifts)]
        notes = wrap(
            "The distance is the largest change of the share of inputs at or below any value. "
            f"Reference and batch are means. The intervals of {self.n_reference} and {self.n} "
            "inputs hold together."
        )
        parts = [
            markdown_table(rows),
            notes,
            wrap(self.expectation),
            wrap(f"{self.finding} {self.remedy}"),
        ]
        return "\n\n".join(parts)

    @property
    def expectation(self) -> str:
        """The accuracy to expect, as a sentence."""
        text = f"Expect {self.accuracy}"
        if self.reference_accuracy is not None:
            text += f"; the reference has {100 * self.reference_accuracy:.1f} %"
        return f"{text}."

    def _row(self, drift: Drift) -> tuple[str, ...]:
        drifted = "maybe"
        if drift.low > self.tolerance:
            drifted = "yes"
        elif drift.high <= self.tolerance:
            drifted = "no"
        return (
            drift.score,
            f"{drift.reference_mean:.3f}",
            f"{drift.batch_mean:.3f}",
            f"{drift.distance:.3f} ({drift.low:.3f} to {drift.high:.3f})",
            drifted,
        )


@torch.no_grad()
def monitor(
    reference: Predictions | tuple[Predictions, ArrayLike],
    batch: Predictions,
    *,
    tolerance: float = TOLERANCE,
    level: float = 0.95,
    method: Method | None = None,
) -> MonitorResult:
    """Compare new predictions, which need no labels, with those of a reference.

    For confidence and each uncertainty the result has an effect size with an interval (`Drift`),
    and for the batch the accuracy to expect (`estimate_accuracy`). The verdict follows one rule:

    - "recalibrate" where for some score the interval lies wholly above the tolerance;
    - "steady" where for every score the interval lies within the tolerance;
    - "undecided" otherwise.

    The intervals hold together, so that a batch like the reference is to be recalibrated with a
    probability of at most 1 - `level`, at any tolerance and with many inputs. Inputs must be
    independent of each other. What looks like the reference and has other labels (concept drift) is
    not seen.

    Args:
        reference: Predictions for inputs that the network was not trained on: a `Prediction`,
            probabilities (N, K), or a file that `simplexcal predict` or `score` wrote; or a pair
            of one of these and the labels, as `CalibratedModel.predict_labelled` returns. A file
            may hold the labels.
        batch: Predictions for the new inputs, of the same calibrator.
        tolerance: A distance up to this does not matter.
        level: Confidence level of all intervals of the distances together, and of the accuracy.
        method: How the accuracy is estimated; see `estimate_accuracy`.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument has no meaning, or does not fit the others.
    """
    check_fraction("level", level)
    check_fraction("tolerance", tolerance)
    known, labels = _as_labelled_rows("reference", reference)
    if isinstance(batch, tuple):
        raise TypeError("`batch` must be predictions alone; got a tuple. Leave out its labels.")
    new, _ = _as_labelled_rows("batch", batch)
    _check_alike(known, new)
    labelled = None
    if labels is not None:
        labelled = _labelled_reference(known, labels)
    elif method not in (None, "confidence"):
        raise ValueError(
            f"`method` must be 'confidence' for a reference without labels; got {method!r}. "
            "Add the labels, or leave it out."
        )
    drifts = find_drifts(known, new, level)
    reference_accuracy = None
    if labelled is not None:
        reference_accuracy = float(labelled.correct.double().mean())
    return MonitorResult(
        verdict=decide(drifts, tolerance),
        drifts=drifts,
        accuracy=estimate_from_scores(new.confidence, new.probs, labelled, method, level),
        reference_accuracy=reference_accuracy,
        tolerance=tolerance,
        level=level,
        n_reference=len(known.confidence),
        n=len(new.confidence),
    )


def find_drifts(reference: ScoredRows, batch: ScoredRows, level: float) -> tuple[Drift, ...]:
    """Return the drift of each score, with intervals that hold together (Bonferroni).

    Args:
        reference: Scores of the reference.
        batch: The same scores of the batch.
        level: Confidence level of all intervals together.
    """
    known = {"confidence": reference.confidence, **reference.uncertainties}
    new = {"confidence": batch.confidence, **batch.uncertainties}
    own_level = 1 - (1 - level) / len(known)
    return tuple(measure_drift(name, known[name], new[name], own_level) for name in known)


def decide(drifts: tuple[Drift, ...], tolerance: float) -> Verdict:
    """Return what the rule says.

    Args:
        drifts: The drift of each score.
        tolerance: A distance up to this does not matter.
    """
    if any(drift.low > tolerance for drift in drifts):
        return "recalibrate"
    if all(drift.high <= tolerance for drift in drifts):
        return "steady"
    return "undecided"


# --- the checks of arguments ---


def _as_labelled_rows(name: str, value: Any) -> tuple[ScoredRows, Tensor | None]:
    """Return the scores in an argument, checked, and the labels that come with them."""
    if isinstance(value, str | Path):
        rows, labels = read_scored_rows(value)
    elif isinstance(value, tuple) and len(value) == 2:
        rows, labels = _as_labelled_rows(name, value[0])[0], value[1]
    else:
        rows, labels = ScoredRows.of(_as_prediction(name, value)), None
    confidence = check_confidence(rows.confidence).cpu()
    for own, x in rows.uncertainties.items():
        check_finite(own, x, f"Mend or drop such rows of `{name}`.")
    return rows._replace(confidence=confidence), labels


def _as_prediction(name: str, value: Any) -> Prediction:
    if not isinstance(value, Prediction):
        probs = check_probs(value)
        return Prediction(probs, probs.argmax(-1))
    if is_dense(value.probs):
        raise ValueError(
            f"`{name}` must be predictions of one class for each input; got probabilities of shape "
            f"{tuple(value.probs.shape)}. Tokens or pixels of one input are not independent."
        )
    return value


def _check_alike(reference: ScoredRows, batch: ScoredRows) -> None:
    """Raise ValueError unless both have the same scores, and as many classes."""
    known = ["confidence", *reference.uncertainties]
    new = ["confidence", *batch.uncertainties]
    if known != new:
        raise ValueError(
            f"`batch` must have the scores of `reference`, {', '.join(known)}; it has "
            f"{', '.join(new)}. Predict both with the same calibrator."
        )
    if reference.probs is None or batch.probs is None:
        return
    k = reference.probs.shape[1]
    if batch.probs.shape[1] != k:
        raise ValueError(
            f"`batch` must have the {k} classes of `reference`; got {batch.probs.shape[1]}. "
            "Predict both with the same calibrator."
        )


def _labelled_reference(rows: ScoredRows, labels: Any) -> Reference:
    """Return what the reference says about confidence and accuracy."""
    if rows.label is None:
        raise ValueError(
            "`reference` has labels and no predicted classes. Write `predicted`, as `score` does."
        )
    if rows.probs is not None:
        return make_reference(Prediction(rows.probs, rows.label), labels)
    labels = check_label_shape(labels, len(rows.label)).cpu()
    n_classes = 1 + max(int(rows.label.max()), int(labels.max()))
    labels = check_classes(labels, n_classes)
    return Reference(rows.confidence, rows.label.cpu() == labels)
