"""The numbers behind the charts of the report, as rows for JSON, and descriptions of the charts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Generator, Tensor

from simplexcal.metrics import accuracy_band, aurc, reliability, risk_coverage
from simplexcal.report._format import count, percent
from simplexcal.types import Prediction

Row = dict[str, Any]
Rows = list[Row]

N_CURVE = 200  # points of a risk-coverage curve, about one for two pixels
N_POINTS = 1500  # of the scatter; more would hide each other
ADDS_UP = 1e-3  # nats, well above rounding
N_STEPS = 200  # of the threshold between 0 and 1
STATES = ("over-confident", "calibrated", "under-confident")
OUTCOMES = ("correct", "wrong")


@dataclass(frozen=True)
class Scatter:
    """The scatter of the two uncertainties.

    Args:
        title: Name of the method on the page.
        n: Number of inputs shown.
        description: What the chart shows, in words.
        adds_up: Whether aleatoric uncertainty and mutual information add up to the entropy.
    """

    title: str
    n: int
    description: str
    adds_up: bool


@dataclass(frozen=True)
class ChartData:
    """What the charts show.

    Args:
        tables: The rows by the name that the specifications give them: ``bins`` of the reliability
            diagrams, ``curves`` of risk and coverage, ``points`` of the scatter.
        methods: For each method, its numbers at each threshold and a description of each chart.
        scatter: The scatter, where a method has uncertainties.
    """

    tables: dict[str, Rows]
    methods: dict[str, Row]
    scatter: Scatter | None


def collect_chart_data(
    predictions: Mapping[str, Prediction],
    labels: Tensor,
    titles: Mapping[str, str],
    class_names: list[str],
    focus: str,
    n_bins: int,
    generator: Generator,
    ids: Sequence[str] | None = None,
) -> ChartData:
    """Return the data of all charts.

    Args:
        predictions: Predictions by the name of their method.
        labels: The class of each input, (N,).
        titles: Names of the methods on the page.
        class_names: The names of the classes.
        focus: The method whose uncertainties are shown, if it has some.
        n_bins: Number of bins of the reliability diagrams.
        generator: Samples the inputs that the scatter shows.
        ids: A key for each input; None counts them from 0.
    """
    tables: dict[str, Rows] = {"bins": [], "curves": [], "points": []}
    methods: dict[str, Row] = {}
    for name, prediction in predictions.items():
        correct = prediction.label == labels
        bins = bin_rows(name, prediction, correct, n_bins)
        curve = curve_rows(name, prediction, correct)
        tables["bins"] += bins
        tables["curves"] += curve
        methods[name] = {
            "levels": threshold_levels(prediction, correct),
            "reliability": describe_bins(bins, titles[name]),
            "histogram": describe_counts(bins, titles[name]),
            "curve": describe_curve(curve, titles[name]),
            "aurc": aurc(prediction.confidence, correct).item(),
        }
    scatter = None
    source = _method_with_uncertainties(predictions, focus)
    if source is not None:
        points = point_rows(predictions[source], labels, class_names, generator, ids)
        tables["points"] = points
        title = titles[source]
        adds_up = uncertainties_add_up(predictions[source])
        scatter = Scatter(title, len(points), describe_points(points, title), adds_up)
    return ChartData(tables, methods, scatter)


def bin_rows(name: str, prediction: Prediction, correct: Tensor, n_bins: int) -> Rows:
    """Return a row for each bin that is not empty: confidence, accuracy and its 95 % interval.

    Args:
        name: Name of the method.
        prediction: Its predictions.
        correct: Whether each prediction is correct, (N,).
        n_bins: Number of bins.
    """
    bins = reliability(prediction.confidence, correct, n_bins)
    low, high = accuracy_band(bins)
    columns = {
        "start": bins.edges[:-1],
        "end": bins.edges[1:],
        "confidence": bins.confidence,
        "accuracy": bins.accuracy,
        "low": low,
        "high": high,
        "count": bins.count,
    }
    rows: Rows = []
    for b in bins.count.nonzero().squeeze(1).tolist():
        numbers = {key: values[b].item() for key, values in columns.items()}
        state = bin_state(numbers["confidence"], numbers["low"], numbers["high"])
        rounded = {key: round(value, 4) for key, value in numbers.items()}
        rows.append({"method": name, **rounded, "state": state})
    return rows


def curve_rows(name: str, prediction: Prediction, correct: Tensor) -> Rows:
    """Return at most ``N_CURVE`` points of the risk-coverage curve; the last is for all inputs.

    Args:
        name: Name of the method.
        prediction: Its predictions.
        correct: Whether each prediction is correct, (N,).
    """
    curve = risk_coverage(prediction.confidence, correct)
    n = len(correct)
    first = max(n / N_CURVE, 1) - 1
    shown = torch.linspace(first, n - 1, min(n, N_CURVE)).round().long()
    rows: Rows = []
    for i in shown.tolist():
        coverage = round(curve.coverage[i].item(), 4)
        risk = round(curve.risk[i].item(), 4)
        rows.append({"method": name, "coverage": coverage, "risk": risk})
    return rows


def threshold_levels(prediction: Prediction, correct: Tensor) -> dict[str, list[Any]]:
    """Return, for each threshold, how many inputs reach it, their mean confidence and accuracy.

    Where no input reaches it, both means are None.

    Args:
        prediction: Predictions of a method.
        correct: Whether each prediction is correct, (N,).
    """
    confidence, order = prediction.confidence.double().sort()
    thresholds = torch.arange(N_STEPS + 1, dtype=torch.float64) / N_STEPS
    below = torch.searchsorted(confidence, thresholds)
    kept = (len(confidence) - below).tolist()
    return {
        "kept": kept,
        "confidence": _means_of_last(confidence, kept),
        "accuracy": _means_of_last(correct[order].double(), kept),
    }


def point_rows(
    prediction: Prediction,
    labels: Tensor,
    class_names: list[str],
    generator: Generator,
    ids: Sequence[str] | None = None,
) -> Rows:
    """Return both uncertainties of at most ``N_POINTS`` random inputs.

    The wrong ones come last, so that they lie on top.

    Args:
        prediction: Predictions of a method with uncertainties.
        labels: The class of each input, (N,).
        class_names: The names of the classes.
        generator: Samples the inputs.
        ids: A key for each input; None counts them from 0.
    """
    uncertainties = _uncertainties(prediction)
    confidence = prediction.confidence
    is_wrong = prediction.label != labels
    finite = uncertainties.isfinite().all(-1)
    rows: Rows = []
    for i in _sample_rows(finite, is_wrong, generator):
        aleatoric, epistemic = uncertainties[i].tolist()
        row = {
            "input": i,
            "aleatoric": round(aleatoric, 4),
            "epistemic": round(epistemic, 3),
            "confidence": round(confidence[i].item(), 4),
            "prediction": class_names[int(prediction.label[i])],
            "label": class_names[int(labels[i])],
            "outcome": OUTCOMES[int(is_wrong[i])],
        }
        row["id"] = str(i)
        if ids is not None:
            row["id"] = ids[i]
        rows.append(row)
    return rows


def uncertainties_add_up(prediction: Prediction) -> bool:
    """Return whether aleatoric uncertainty + mutual information = entropy of the probabilities.

    They do where all come from one distribution over the probabilities.

    Args:
        prediction: Predictions of a method.
    """
    if prediction.aleatoric is None or prediction.mutual_information is None:
        return False
    entropy = torch.special.entr(prediction.probs.double()).sum(-1)
    total = (prediction.aleatoric + prediction.mutual_information).double()
    return bool(((total - entropy).abs() <= ADDS_UP).all())


def describe_bins(rows: Rows, title: str) -> str:
    """Return what the reliability diagram of one method shows, in words.

    Args:
        rows: Its bins.
        title: Name of the method on the page.
    """
    states = [row["state"] for row in rows]
    over, calibrated, under = (states.count(state) for state in STATES)
    return (
        f"Reliability diagram of {title}: accuracy against confidence in {len(rows)} bins. "
        f"In {calibrated} the two agree within chance, "
        f"{over} are over-confident, {under} are under-confident."
    )


def describe_counts(rows: Rows, title: str, noun: str = "inputs") -> str:
    """Return what the histogram of one method shows, in words.

    Args:
        rows: Its bins.
        title: Name of the method on the page.
        noun: What is counted.
    """
    total = sum(row["count"] for row in rows)
    top = rows[-1]
    return (
        f"Histogram of the confidence of {title}: {count(top['count'])} of {count(total)} {noun} "
        f"lie between {percent(top['start'], 0)} and {percent(top['end'], 0)}."
    )


def describe_curve(rows: Rows, title: str, noun: str = "inputs") -> str:
    """Return what the risk-coverage curve of one method shows, in words.

    Args:
        rows: Its points.
        title: Name of the method on the page.
        noun: What is counted.
    """
    middle = min(rows, key=lambda row: abs(row["coverage"] - 0.5))
    return (
        f"Risk-coverage curve of {title}: the error rate is {percent(rows[-1]['risk'])} for all "
        f"{noun} and {percent(middle['risk'])} for the most confident "
        f"{percent(middle['coverage'], 0)}."
    )


def describe_points(rows: Rows, title: str) -> str:
    """Return what the scatter shows, in words.

    Args:
        rows: Its points.
        title: Name of the method on the page.
    """
    medians = []
    for outcome in OUTCOMES:
        members = [row for row in rows if row["outcome"] == outcome]
        if not members:
            continue
        aleatoric = median(row["aleatoric"] for row in members)
        epistemic = median(row["epistemic"] for row in members)
        medians.append(
            f"{count(len(members))} {outcome} ones at {aleatoric:.2f} and {epistemic:.1f} nats"
        )
    return (
        f"Epistemic against aleatoric uncertainty by {title}, one dot an input; "
        f"medians: {', '.join(medians)}."
    )


def _method_with_uncertainties(predictions: Mapping[str, Prediction], focus: str) -> str | None:
    """Return the method in focus, or else the last, that has finite uncertainties."""
    for name in (focus, *reversed(list(predictions))):
        finite = _uncertainties(predictions[name]).isfinite().all(-1)
        if bool(finite.any()):
            return name
    return None


def _uncertainties(prediction: Prediction) -> Tensor:
    """Return the aleatoric and the epistemic uncertainty, (N, 2); NaN where there are none."""
    if prediction.aleatoric is None or prediction.epistemic is None:
        return torch.full((len(prediction.label), 2), math.nan)
    return torch.stack([prediction.aleatoric, prediction.epistemic], -1)


def _sample_rows(shown: Tensor, is_wrong: Tensor, generator: Generator) -> list[int]:
    """Return random rows of those that can be shown, wrong ones last."""
    rows = shown.nonzero().squeeze(1)
    order = torch.randperm(len(rows), generator=generator)
    sample = rows[order[:N_POINTS]]
    correct_first = is_wrong[sample].int().argsort(stable=True)
    return sample[correct_first].tolist()


def bin_state(confidence: float, low: float, high: float) -> str:
    """Return whether the confidence lies above, inside or below the interval of the accuracy.

    Args:
        confidence: Mean confidence of a bin.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """
    if confidence > high:
        return STATES[0]
    if confidence < low:
        return STATES[2]
    return STATES[1]


def _means_of_last(values: Tensor, counts: list[int]) -> list[float | None]:
    """Return the mean of the last n values for each n, and None for n = 0."""
    totals = [0.0, *values.flip(0).cumsum(0).tolist()]
    means: list[float | None] = []
    for n in counts:
        if n == 0:
            means.append(None)
        else:
            means.append(round(totals[n] / n, 6))
    return means
