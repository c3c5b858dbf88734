"""The page: checks its arguments, brings the parts together and writes the file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from simplexcal._arrays import ArrayLike
from simplexcal._validation import (
    check_fraction,
    check_probs,
    check_probs_and_labels,
)
from simplexcal.evaluation import count_changes, evaluate
from simplexcal.metrics._binning import N_BINS
from simplexcal.report._classes import class_table, confused_pairs
from simplexcal.report._format import change_facts, count, method_description, method_title
from simplexcal.report._ood import check_ood, ood_table
from simplexcal.report._provenance import provenance
from simplexcal.report._render import (
    Context,
    check_extra_is_installed,
    check_same_inputs,
    checked_class_names,
    checked_focus,
    render_to,
)
from simplexcal.report.acceptance import Thresholds, acceptance_table, check_thresholds
from simplexcal.report.chart_data import ChartData, collect_chart_data
from simplexcal.report.dense_page import DenseReport
from simplexcal.report.mistakes import Images, mistake_columns, most_confident_mistakes
from simplexcal.report.table import score_table
from simplexcal.report.verdict import TOLERANCE, describe_tolerance, make_verdict
from simplexcal.types import Prediction

Ids = Sequence[str] | Sequence[int] | NDArray[Any] | Tensor


@torch.no_grad()
def write_report(
    path: str | Path,
    predictions: Mapping[str, Prediction],
    labels: ArrayLike,
    *,
    images: Images | None = None,
    class_names: Sequence[str] | None = None,
    thresholds: Thresholds | None = None,
    title: str = "Calibration report",
    focus: str | None = None,
    ids: Ids | None = None,
    ood: Mapping[str, Prediction] | None = None,
    sources: Mapping[str, str] | None = None,
    tolerance: float = TOLERANCE,
    n_bins: int = N_BINS,
    generator: Generator | None = None,
    ignore_index: int | Sequence[int] | None = None,
    attention_mask: ArrayLike | None = None,
    words: Sequence[Sequence[str]] | None = None,
) -> Path:
    """Write a report on the calibration of several methods, and return its path.

    Predictions for tokens or pixels are evaluated at all positions that count; intervals, floors
    and tests take inputs for independent, not positions, and some inputs are shown. ``DenseReport``
    does the same batch by batch, for more than fits into memory.

    The report is one HTML file that loads nothing from the internet. It needs the extra
    ``simplexcal[report]``.

    Args:
        path: The file to write. The report is written whole or not at all.
        predictions: Predictions of each method for the same N inputs, by the name of the method.
            "none" is the uncalibrated network; the other keys of ``CALIBRATORS`` are shown with
            their titles, other names as they are.
        labels: The class of each input, (N,); or of each token or pixel, (N, T) or (N, H, W).
        images: Pictures of the inputs, bytes or floats in 0..1, of shape (N, H, W), (N, H, W, C) or
            (N, C, H, W). The page shows those of the most confident mistakes.
        class_names: The names of the K classes; by default "class 0", "class 1" and so on.
        thresholds: Thresholds of each method that has some, by its name. The page shows how many
            of the inputs they accept, and with which accuracy.
        title: The title of the page.
        focus: The method that the verdict is about, compared with "none" where there is one. By
            default the last.
        ids: A key for each input, numbers or text, shown instead of the row.
        ood: Predictions of some of the methods for out-of-distribution inputs, by the name of the
            method. The page shows how well each uncertainty detects them.
        sources: What the page says about the origin of the data, by name, such as
            ``{"Data": "test.npz"}``. Versions and a fingerprint are added.
        tolerance: An ECE up to this hardly matters in practice. The verdict tolerates it, also
            where it is more than chance explains. By default 0.01.
        n_bins: Number of bins of the calibration errors and the reliability diagrams.
        generator: Source of the random numbers for the noise floors, the intervals and the sample
            of inputs shown. None is one with a fixed seed: the same input gives the same report.
        ignore_index: Labels of tokens or pixels that do not count, one or several. None is -100,
            and 255 where that is no class.
        attention_mask: Tokens with 0 do not count, (N, T). None: all count.
        words: The tokens of each input as text, which the page shows.

    Raises:
        ModuleNotFoundError: If the extra is not installed.
        TypeError: If an argument has the wrong type.
        ValueError: If the arguments do not fit together.
    """
    if _are_dense(predictions):
        _check_dense(thresholds, ood)
        dense = DenseReport(
            class_names=class_names, focus=focus, ignore_index=ignore_index, n_bins=n_bins
        )
        n = len(next(iter(predictions.values())))
        keys = _checked_ids(ids, n)
        _check_images(images, n)
        dense.add(
            predictions,
            labels,
            images=images,
            words=words,
            attention_mask=attention_mask,
            ids=keys,
        )
        return dense.write(
            path, title=title, sources=sources, tolerance=tolerance, generator=generator
        )
    predictions = _checked_predictions(predictions)
    first = next(iter(predictions.values()))
    probs, labels = check_probs_and_labels(first.probs, labels)
    labels = labels.cpu()
    n, k = probs.shape
    focus = checked_focus(focus, predictions)
    names = checked_class_names(class_names, k)
    _check_images(images, n)
    check_fraction("tolerance", tolerance)
    check_thresholds(thresholds, predictions)
    check_ood(ood, predictions)
    check_extra_is_installed()
    from simplexcal.report.chart_specs import all_specs  # needs the extra

    data = ReportData(predictions, labels, names, focus, n_bins, _checked_ids(ids, n))
    charts = collect_chart_data(
        predictions,
        labels,
        data.titles,
        names,
        focus,
        n_bins,
        generator or Generator().manual_seed(0),
        data.ids,
    )
    context = {
        "title": title,
        "facts": [f"{count(n)} inputs", f"{count(k)} classes", date.today().isoformat()],
        "acceptance": acceptance_table(thresholds or {}, predictions, labels),
        "ood": ood_table(predictions, ood or {}),
        "n_ood": max(map(len, (ood or {}).values()), default=0),
        "provenance": provenance(predictions, labels, sources),
        "scatter": charts.scatter,
        "data": {"specs": all_specs(charts, focus), **_page_data(data, charts)},
        **_scores(data, tolerance, generator),
        **_details(data, images),
    }
    return render_to(path, context)


@dataclass(frozen=True, eq=False)
class ReportData:
    """What a report is about, checked.

    Args:
        predictions: Predictions by the name of their method, on the CPU.
        labels: The class of each input, (N,).
        class_names: The names of the classes.
        focus: The method that the verdict is about.
        n_bins: Number of bins.
        ids: A key for each input; None counts them from 0.
    """

    predictions: dict[str, Prediction]
    labels: Tensor
    class_names: list[str]
    focus: str
    n_bins: int
    ids: list[str] | None

    @property
    def titles(self) -> dict[str, str]:
        """The names of the methods on the page."""
        return {name: method_title(name) for name in self.predictions}


def _scores(data: ReportData, tolerance: float, generator: Generator | None) -> Context:
    """Return the verdict and the table of the methods."""
    predictions = data.predictions
    focus = data.focus
    evaluations = {
        name: evaluate(p, data.labels, data.n_bins, generator) for name, p in predictions.items()
    }
    title = data.titles[focus]
    verdict = make_verdict(
        predictions, data.labels, evaluations, focus, title, data.n_bins, tolerance
    )
    return {
        "noun": "inputs",
        "examples": None,
        "focus": focus,
        "titles": data.titles,
        "descriptions": {name: method_description(name) for name in predictions},
        "verdict": verdict,
        "table": score_table(evaluations, tolerance),
        **change_facts(_change_counts(predictions)),
        "tolerance": describe_tolerance(tolerance),
    }


def _change_counts(predictions: Mapping[str, Prediction]) -> dict[str, int]:
    """Return how many predictions each method changes; 0 where the network's are not known."""
    before = predictions.get("none")
    if before is None:
        return dict.fromkeys(predictions, 0)
    return {name: count_changes(before, after) for name, after in predictions.items()}


def _details(data: ReportData, images: Images | None) -> Context:
    """Return the classes and the mistakes of the method in focus."""
    prediction = data.predictions[data.focus]
    labels = data.labels
    names = data.class_names
    before = data.predictions.get("none")
    return {
        "classes": class_table(prediction, labels, names, data.n_bins),
        "pairs": confused_pairs(prediction, labels, names),
        "mistakes": most_confident_mistakes(prediction, labels, before, names, images, data.ids),
        "n_wrong": int((prediction.label != labels).sum()),
        "has_ids": data.ids is not None,
    }


def _page_data(data: ReportData, charts: ChartData) -> Context:
    """Return what the scripts of the page need beside the specifications of the charts."""
    before = data.predictions.get("none")
    if data.focus == "none":
        before = None
    prediction = data.predictions[data.focus]
    return {
        "tables": charts.tables,
        "methods": charts.methods,
        "n": len(data.labels),
        "noun": "inputs",
        "classes": data.class_names,
        "mistakes": mistake_columns(prediction, data.labels, before, data.ids),
    }


def _are_dense(predictions: Mapping[str, Prediction]) -> bool:
    """Return whether the first prediction is one for tokens or pixels."""
    return any(prediction.probs.dim() > 2 for prediction in list(predictions.values())[:1])


def _check_dense(thresholds: object, ood: object) -> None:
    """Raise ValueError for what a report on tokens or pixels cannot show."""
    for name, value in (("thresholds", thresholds), ("ood", ood)):
        if value:
            raise ValueError(
                f"`{name}` must be None for predictions of tokens or pixels, which are not "
                "independent inputs. Report on predictions for whole inputs."
            )


def _checked_predictions(predictions: Mapping[str, Prediction]) -> dict[str, Prediction]:
    """Return the predictions on the CPU if there are any, all about the same inputs."""
    check_same_inputs(predictions)
    return {name: _on_cpu(prediction) for name, prediction in predictions.items()}


def _on_cpu(prediction: Prediction) -> Prediction:
    prediction = prediction.to("cpu")
    return replace(prediction, probs=check_probs(prediction.probs))


def _checked_ids(ids: Ids | None, n: int) -> list[str] | None:
    if ids is None:
        return None
    if len(ids) != n:
        raise ValueError(f"`ids` must be a key for each of the {n} inputs; got {len(ids)}.")
    if isinstance(ids, Tensor | np.ndarray):
        return [str(key) for key in ids.tolist()]
    return [str(key) for key in ids]


def _check_images(images: Images | None, n: int) -> None:
    """Raise unless ``images`` is None or holds ``n`` pictures."""
    if images is None:
        return
    if not isinstance(images, Tensor | np.ndarray):
        raise TypeError(
            f"`images` must be a tensor or an array; got {type(images).__name__}. Stack them first."
        )
    shape = tuple(images.shape)
    is_image = len(shape) == 3
    if len(shape) == 4:
        is_image = shape[1] in (1, 3) or shape[3] in (1, 3)
    if shape[:1] != (n,) or not is_image:
        raise ValueError(
            "`images` must have shape (N, H, W), (N, H, W, C) or (N, C, H, W), "
            f"with N = {n} and C = 1 or 3; got {shape}."
        )
