"""A calibrated network beside the same network before calibration, on the same inputs."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from simplexcal import dense_evaluation
from simplexcal.dense_evaluation import DenseEvaluation, DenseScores, mean_change
from simplexcal.evaluation import (
    SCORES,
    Evaluation,
    count_changes,
    describe_changes,
    describe_sample,
    evaluate,
    markdown_table,
    wrap,
)
from simplexcal.facts import CHANGES, EvaluationFacts, Numbers
from simplexcal.facts import SCORES as STORED_SCORES
from simplexcal.metrics._binning import N_BINS
from simplexcal.report import verdict
from simplexcal.report._format import SPACE
from simplexcal.report._paired import Change, brier_change, ece_change, nll_change
from simplexcal.types import Prediction

HEADER = ("", "before", "after", "change", "95 % interval", "p")


@dataclass(frozen=True)
class Comparison:
    """Scores before and after calibration, paired tests of their changes, and a verdict.

    Printed, it is a table. The tests compare the two predictions for the same inputs. Those of NLL
    and Brier score are z-tests of the mean difference; that of the ECE is a paired bootstrap. Of a
    network of tokens or pixels, the tests are over inputs, and resample inputs.

    Args:
        method: Abbreviation of the method.
        before: Evaluation of the network before calibration.
        after: Evaluation of the calibrated network.
        ece: Change of the ECE, after minus before: `mean`, `low` and `high`, the ends of a 95 %
            interval, and `p_value`.
        nll: Change of the negative log-likelihood.
        brier: Change of the Brier score.
        verdict: What this means, in one sentence.
        n_changed: Number of inputs, tokens or pixels whose predicted class is another one after
            calibration. It is 0 for all methods but those with `keeps_predictions` False.
    """

    method: str
    before: Evaluation | DenseEvaluation
    after: Evaluation | DenseEvaluation
    ece: Change
    nll: Change
    brier: Change
    verdict: str
    n_changed: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return names and numbers, in the order of the arguments."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [HEADER, *map(self._row, SCORES)]
        if isinstance(self.after, DenseEvaluation):
            sample = dense_evaluation.describe_positions(self.after)
        else:
            sample = describe_sample(self.after)
        notes = wrap(f"{self.method} on {sample}")
        if self.n_changed:
            notes += f"\n{wrap(describe_changes(self.method, self.n_changed))}"
        return f"{markdown_table(rows)}\n\n{notes}\n{wrap(self.verdict)}"

    def _row(self, score: str) -> tuple[str, ...]:
        """Return the cells of one score; accuracy and mean confidence are not tested."""
        title, factor, digits = SCORES[score]

        def cell(value: float, sign: str = "") -> str:
            return f"{factor * value:{sign}.{digits}f}"

        before = getattr(self.before, score)
        after = getattr(self.after, score)
        change = getattr(self, score, None)
        if change is None:
            return title, cell(before), cell(after), cell(after - before, "+"), "", ""
        interval = f"{cell(change.low, '+')} to {cell(change.high, '+')}"
        p = _probability(change.p_value)
        return title, cell(before), cell(after), cell(change.mean, "+"), interval, p


@torch.no_grad()
def compare(
    before: Prediction, after: Prediction, labels: Tensor, method: str, n_bins: int = N_BINS
) -> Comparison:
    """Compare two predictions for the same inputs.

    Args:
        before: Predictions before calibration.
        after: Predictions after calibration.
        labels: The class of each input, (N,).
        method: Abbreviation of the method.
        n_bins: Number of bins of the calibration errors.
    """
    first = evaluate(before, labels, n_bins)
    second = evaluate(after, labels, n_bins)
    ece = ece_change(before, after, labels, n_bins)
    nll = nll_change(before, after, labels)
    both = verdict.Comparison(first, second, ece, nll)
    headline = verdict.compare(both, method, verdict.TOLERANCE).headline
    return Comparison(
        method=method,
        before=first,
        after=second,
        ece=ece,
        nll=nll,
        brier=brier_change(before, after, labels),
        verdict=headline.replace(SPACE, " "),
        n_changed=count_changes(before, after),
    )


def compare_dense(before: DenseScores, after: DenseScores, method: str) -> Comparison:
    """Compare the scores of two predictions for the tokens or pixels of the same inputs.

    Args:
        before: Scores before calibration.
        after: Scores after calibration.
        method: Abbreviation of the method.
    """
    first = before.evaluation()
    second = after.evaluation()
    a = before.image_sums()
    b = after.image_sums()
    n_positions = a.n.sum(1)
    ece = Change(*dense_evaluation.ece_change(a, b))
    nll = Change(*mean_change(a.nll, b.nll, n_positions))
    both = verdict.Comparison(first, second, ece, nll)
    return Comparison(
        method=method,
        before=first,
        after=second,
        ece=ece,
        nll=nll,
        brier=Change(*mean_change(a.brier, b.brier, n_positions)),
        verdict=verdict.compare(both, method, verdict.TOLERANCE).headline.replace(SPACE, " "),
        n_changed=after.n_changed,
    )


def evaluation_facts(comparison: Comparison, n_bins: int) -> EvaluationFacts:
    """Return the main figures of a comparison, which a calibrator's file keeps.

    Args:
        comparison: The comparison.
        n_bins: Its number of bins.
    """

    def scores(evaluation: Evaluation | DenseEvaluation) -> Numbers:
        return {score: getattr(evaluation, score) for score in STORED_SCORES}

    def numbers(change: Change) -> Numbers:
        return {name: getattr(change, name) for name in ("mean", "low", "high", "p_value")}

    return EvaluationFacts(
        n=comparison.after.n,
        n_positions=getattr(comparison.after, "n_positions", None),
        n_bins=n_bins,
        before=scores(comparison.before),
        after=scores(comparison.after),
        changes={score: numbers(getattr(comparison, score)) for score in CHANGES},
        verdict=comparison.verdict,
    )


def _probability(p: float) -> str:
    if p < 0.001:
        return "<0.001"
    return f"{p:.3f}"
