"""The numbers behind the report's charts, as rows for JSON, and what they show in words for those who cannot see it."""

from statistics import median
from typing import Any

import torch
from torch import Generator, Tensor

from simplexcal.metrics.calibration_error import reliability
from simplexcal.metrics.ece_inference import accuracy_band
from simplexcal.metrics.ranking import risk_coverage
from simplexcal.report.verdict import count, percent
from simplexcal.types import Prediction

Row = dict[str, Any]
Rows = list[Row]

N_CURVE = 200  # points of a risk-coverage curve, about one for two pixels
N_POINTS = 1500  # of the scatter; more would hide each other
N_STEPS = 200  # of the threshold between 0 and 1
STATES = ("says too much", "as right as it says", "says too little")


def bin_rows(name: str, prediction: Prediction, correct: Tensor, n_bins: int) -> Rows:
    """Return a row for each bin that holds inputs: what is said there, how often it is right, and how sure that is."""
    bins = reliability(prediction.confidence, correct, n_bins)
    low, high = accuracy_band(bins)
    columns = (
        bins.edges[:-1],
        bins.edges[1:],
        bins.count,
        bins.confidence,
        bins.accuracy,
        low,
        high,
    )
    return [_bin_row(name, *row) for row in _transposed(*columns) if row[2] > 0]


def _bin_row(
    name: str,
    start: float,
    end: float,
    n: float,
    says: float,
    right: float,
    low: float,
    high: float,
) -> Row:
    state = STATES[0] if says > high else STATES[2] if says < low else STATES[1]
    numbers = {"start": start, "end": end, "says": says, "right": right, "low": low, "high": high}
    return {
        "method": name,
        **{key: round(x, 4) for key, x in numbers.items()},
        "count": int(n),
        "state": state,
    }


def curve_rows(name: str, prediction: Prediction, correct: Tensor) -> Rows:
    """Return at most ``N_CURVE`` points of the risk-coverage curve; the last is for all inputs."""
    curve = risk_coverage(prediction.confidence, correct)
    n = len(correct)
    at = torch.linspace(max(n / N_CURVE, 1) - 1, n - 1, min(n, N_CURVE)).round().long()
    pairs = _transposed(curve.coverage[at], curve.risk[at])
    return [{"method": name, "coverage": round(c, 4), "risk": round(r, 4)} for c, r in pairs]


def levels(prediction: Prediction, correct: Tensor) -> dict[str, list[Any]]:
    """Return, for each step of the threshold: how many inputs reach it, what is said of them and what is right.

    Where none does, both are None.
    """
    confidence, order = prediction.confidence.double().sort()
    steps = torch.arange(N_STEPS + 1, dtype=torch.float64) / N_STEPS
    kept = (len(confidence) - torch.searchsorted(confidence, steps)).tolist()
    return {
        "kept": kept,
        "says": _means(confidence, kept),
        "right": _means(correct[order].double(), kept),
    }


def _means(values: Tensor, kept: list[int]) -> list[float | None]:
    """Return the means of the last values, as many as ``kept`` says."""
    total = [0.0, *values.flip(0).cumsum(0).tolist()]
    return [round(total[n] / n, 6) if n else None for n in kept]


def point_rows(
    prediction: Prediction, labels: Tensor, names: list[str], generator: Generator
) -> Rows:
    """Return both uncertainties of at most ``N_POINTS`` random inputs; wrong ones come last, so they lie on top."""
    if prediction.aleatoric is None or prediction.epistemic is None:
        return []
    finite = (
        (prediction.aleatoric.isfinite() & prediction.epistemic.isfinite()).nonzero().squeeze(1)
    )
    at = finite[torch.randperm(len(finite), generator=generator)[:N_POINTS]]
    at = at[(prediction.label[at] != labels[at]).int().argsort(stable=True)]
    columns = (
        prediction.aleatoric,
        prediction.epistemic,
        prediction.confidence,
        prediction.label,
        labels,
    )
    return [_point_row(names, *row) for row in _transposed(at, *(x[at] for x in columns))]


def _point_row(
    names: list[str], i: int, aleatoric: float, epistemic: float, says: float, said: int, true: int
) -> Row:
    numbers = {
        "aleatoric": round(aleatoric, 4),
        "epistemic": round(epistemic, 3),
        "says": round(says, 4),
    }
    return {
        "input": i,
        **numbers,
        "said": names[said],
        "true": names[true],
        "is": "right" if said == true else "wrong",
    }


def describe_bins(rows: Rows, title: str) -> str:
    """Say what the reliability diagram of one method shows."""
    n = {state: sum(row["state"] == state for row in rows) for state in STATES}
    return (
        f"Reliability diagram of {title}: confidence in {len(rows)} bins against accuracy. "
        f"In {n[STATES[1]]} the two agree within chance, {n[STATES[0]]} say too much, {n[STATES[2]]} say too little."
    )


def describe_counts(rows: Rows, title: str) -> str:
    """Say what the histogram of one method shows."""
    top, total = rows[-1], sum(row["count"] for row in rows)
    return (
        f"Histogram of the confidence of {title}: {count(top['count'])} of {count(total)} inputs lie between "
        f"{percent(top['start'], 0)} and {percent(top['end'], 0)}."
    )


def describe_curve(rows: Rows, title: str) -> str:
    """Say what the risk-coverage curve of one method shows."""
    half = min(rows, key=lambda row: abs(row["coverage"] - 0.5))
    return (
        f"Risk-coverage curve of {title}: {percent(rows[-1]['risk'])} are wrong when all inputs are answered, "
        f"{percent(half['risk'])} of the surest {percent(half['coverage'], 0)}."
    )


def describe_points(rows: Rows, title: str) -> str:
    """Say what the scatter shows."""
    medians = []
    for is_ in ("right", "wrong"):
        inside = [row for row in rows if row["is"] == is_]
        if inside:
            aleatoric, epistemic = (
                median(row[key] for row in inside) for key in ("aleatoric", "epistemic")
            )
            medians.append(
                f"{count(len(inside))} {is_} ones at {aleatoric:.2f} and {epistemic:.1f} nats"
            )
    return f"Aleatoric against epistemic uncertainty by {title}, one dot an input; medians: {', '.join(medians)}."


def _transposed(*columns: Tensor) -> list[tuple[Any, ...]]:
    return list(zip(*(column.tolist() for column in columns), strict=True))
