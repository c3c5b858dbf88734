"""The report on networks that classify each token or pixel, collected batch by batch."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from simplexcal._validation import check_count, check_fraction
from simplexcal.backbone import Backbone
from simplexcal.backbone.extraction import dense_batches
from simplexcal.calibrators import Calibrator, Uncalibrated
from simplexcal.dense import DenseOutputs, position_labels, prediction_maps
from simplexcal.dense_evaluation import (
    DenseEvaluation,
    DenseScores,
    ece_change,
    mean_change,
    prediction_rows,
)
from simplexcal.evaluation import count_changes
from simplexcal.metrics._binning import N_BINS
from simplexcal.report import verdict
from simplexcal.report._dense_sums import DenseCounts, dense_bin_rows
from simplexcal.report._format import change_facts, count, method_description, method_title
from simplexcal.report._overlays import (
    SCALE,
    Example,
    Maps,
    class_colours,
    css,
    panels,
    value_ranges,
)
from simplexcal.report._paired import Change
from simplexcal.report._provenance import versions
from simplexcal.report._render import (
    Context,
    check_extra_is_installed,
    check_same_inputs,
    checked_class_names,
    checked_focus,
    render_to,
)
from simplexcal.report.chart_data import (
    ChartData,
    Row,
    Rows,
    describe_bins,
    describe_counts,
    describe_curve,
)
from simplexcal.report.mistakes import Images
from simplexcal.report.table import score_table
from simplexcal.report.verdict import TOLERANCE, Verdict
from simplexcal.types import Prediction

N_EXAMPLES = 6  # half of them those with the largest NLL, half a sample
N_LEGEND = 40  # classes
SEED = 0  # of the sample
UNCALIBRATED = Uncalibrated.key


class DenseReport:
    """A report on networks that classify each token or pixel, from one pass over the data.

    Tables and charts come from exact counts over all positions that count. Intervals, noise floors
    and tests take inputs for independent, not their positions. Some inputs are shown: those with
    the largest NLL, and a sample.

    Args:
        class_names: The names of the K classes; by default "class 0", "class 1" and so on.
        focus: The method that the verdict is about, compared with "none" where there is one. By
            default the last.
        ignore_index: Labels of positions that do not count, one or several. None is -100, and 255
            where that is no class.
        n_bins: Number of bins of the calibration errors and the reliability diagrams.

    Example:
        >>> from simplexcal.report import DenseReport
        >>> report = DenseReport()  # then report.add(...) for each batch, and report.write(path)
    """

    def __init__(
        self,
        *,
        class_names: Sequence[str] | None = None,
        focus: str | None = None,
        ignore_index: int | Sequence[int] | None = None,
        n_bins: int = N_BINS,
    ) -> None:
        self.class_names = class_names
        self.focus = focus
        self.ignore_index = ignore_index
        self.n_bins = check_count("n_bins", n_bins)
        self.n_inputs = 0
        self._names: list[str] = []
        self._scores: dict[str, DenseScores] = {}
        self._counts: dict[str, DenseCounts] = {}
        self._n_changed: dict[str, int] = {}
        self._n_label = torch.zeros(0, dtype=torch.int64)
        self._noun = "pixels"
        self._examples = _Examples()
        self._digest = hashlib.sha256()

    @property
    def methods(self) -> list[str]:
        """The names of the methods, known from the first batch on."""
        return list(self._names)

    @torch.no_grad()
    def add(
        self,
        predictions: Mapping[str, Prediction],
        labels: Any,
        *,
        images: Images | None = None,
        words: Sequence[Sequence[str]] | None = None,
        attention_mask: Any = None,
        ids: Sequence[Any] | None = None,
    ) -> None:
        """Add a batch.

        Args:
            predictions: Predictions of each method for the N inputs of the batch, by its name, as
                ``write_report`` takes them.
            labels: The class of each position, (N, T) or (N, H, W).
            images: Pictures of the inputs, (N, H, W), (N, H, W, C) or (N, C, H, W), bytes or floats
                in 0..1.
            words: The tokens of each input as text.
            attention_mask: Tokens with 0 do not count, (N, T). None: all count.
            ids: A key for each input; None counts them from 0.

        Raises:
            ValueError: If the arguments do not fit together.
        """
        self._check(predictions)
        first = next(iter(predictions.values()))
        own = DenseOutputs(prediction_rows(first).probs, None, first.label.shape)  # for its shape
        found, counts = position_labels(labels, own, self.ignore_index, attention_mask)
        self._add(predictions, found, counts, _Beside(images, words, ids, self.n_inputs))

    @torch.no_grad()
    def add_data(
        self,
        backbone: Backbone,
        calibrators: Mapping[str, Calibrator],
        data: Any,
        *,
        images: Images | None = None,
        words: Sequence[Sequence[str]] | None = None,
        ids: Sequence[Any] | None = None,
        batch_size: int = 256,
    ) -> None:
        """Predict data batch by batch, before and after calibration, and add them.

        Args:
            backbone: A network that classifies each token or pixel.
            calibrators: Calibrators for it by the names of their methods.
            data: Labelled data, see ``simplexcal.extract``.
            images: Pictures of all inputs, in the order of the data. None shows inputs that can be
                pictures, each from its smallest to its largest number.
            words: The tokens of each input as text, in the order of the data.
            ids: A key for each input; None counts them from 0.
            batch_size: Size of the batches that a Dataset or a pair is divided into.
        """
        methods = {UNCALIBRATED: Uncalibrated(), **calibrators}
        start = self.n_inputs
        for inputs, outputs, labels, counts in dense_batches(
            backbone, data, batch_size, self.ignore_index
        ):
            predictions = {}
            for name, calibrator in methods.items():
                rows = calibrator.to(outputs.logits.device)(outputs)
                predictions[name] = prediction_maps(rows.to("cpu"), outputs.shape)
            self._check(predictions)
            first = self.n_inputs - start
            part = slice(first, first + outputs.shape[0])
            pictures = _pictures(inputs)
            if images is not None:
                pictures = images[part]
            beside = _Beside(pictures, _part(words, part), _part(ids, part), self.n_inputs)
            self._add(predictions, labels, counts, beside)

    def write(
        self,
        path: str | Path,
        *,
        title: str = "Calibration report",
        sources: Mapping[str, str] | None = None,
        tolerance: float = TOLERANCE,
        generator: Generator | None = None,
    ) -> Path:
        """Write the report, one HTML file, and return its path.

        Args:
            path: The file to write. The report is written whole or not at all.
            title: The title of the page.
            sources: What the page says about the origin of the data, by name.
            tolerance: An ECE up to this hardly matters in practice.
            generator: Source of the random numbers for the noise floors and the intervals. None is
                one with a fixed seed: the same input gives the same report.

        Raises:
            ModuleNotFoundError: If the extra ``simplexcal[report]`` is not installed.
            ValueError: If fewer than two inputs with a position that counts were added.
        """
        check_fraction("tolerance", tolerance)
        check_extra_is_installed()
        if self.n_inputs == 0:
            raise ValueError("The report is empty. Add at least one batch: report.add(...).")
        evaluations = {name: scores.evaluation(generator) for name, scores in self._scores.items()}
        n = next(iter(evaluations.values())).n
        if n < 2:
            raise ValueError(
                "A report on tokens or pixels must have at least two inputs, which its intervals "
                f"take for independent; got {n}. Add more."
            )
        return render_to(path, self._context(evaluations, title, sources, tolerance))

    def _check(self, predictions: Mapping[str, Prediction]) -> None:
        """Raise ValueError unless the methods and shapes are those of the first batch."""
        check_same_inputs(predictions)
        first = next(iter(predictions.values()))
        if first.label.dim() < 2:
            raise ValueError(
                "`predictions` must be for tokens or pixels, with labels (N, T) or (N, H, W); got "
                f"{tuple(first.label.shape)}. Use simplexcal.report.write_report."
            )
        k = first.probs.numel() // max(1, first.label.numel())
        if not self._names:
            self._names = list(predictions)
            self.focus = checked_focus(self.focus, predictions)
            self.class_names = checked_class_names(self.class_names, k)
            self._scores = {name: DenseScores(self.n_bins) for name in predictions}
            self._counts = {name: DenseCounts(k) for name in predictions}
            self._n_changed = dict.fromkeys(predictions, 0)
            self._n_label = torch.zeros(k, dtype=torch.int64)
            if first.label.dim() == 2:
                self._noun = "tokens"
        if list(predictions) != self._names or k != len(self._n_label):
            raise ValueError(
                f"`predictions` must be those of {', '.join(self._names)} for "
                f"{len(self._n_label)} classes in every batch; got {', '.join(predictions)} for "
                f"{k}. Predict every batch by every method."
            )

    def _add(
        self,
        predictions: Mapping[str, Prediction],
        labels: Tensor,
        counts: Tensor,
        beside: "_Beside",
    ) -> None:
        """Add the predictions of a batch with the label of each position, (R,)."""
        shape = tuple(next(iter(predictions.values())).label.shape)
        chosen = counts.nonzero().squeeze(-1)
        image = chosen // max(1, math.prod(shape[1:]))
        known = labels[chosen]
        self._n_label += known.bincount(minlength=len(self._n_label))
        self._digest.update(known.numpy().tobytes())
        before = None
        if UNCALIBRATED in predictions:
            before = prediction_rows(predictions[UNCALIBRATED].to("cpu"))[chosen]
        for name, prediction in predictions.items():
            rows = prediction_rows(prediction.to("cpu"))[chosen]
            self._digest.update(rows.probs.contiguous().numpy().tobytes())
            self._scores[name].add(rows, known, image, shape[0])
            self._counts[name].add(rows, known)
            if before is not None:
                self._n_changed[name] += count_changes(before, rows)
        if len(shape) in (2, 3):
            maps = (labels.view(shape), counts.view(shape))
            self._add_examples(predictions, maps, beside)
        self.n_inputs += shape[0]

    def _add_examples(
        self,
        predictions: Mapping[str, Prediction],
        maps: tuple[Tensor, Tensor],
        beside: "_Beside",
    ) -> None:
        """Keep those inputs of a batch that may be shown."""
        labels, counts = maps
        focus = str(self.focus)
        sums = self._scores[focus].last_sums()
        n_counted = sums.n.sum(1)
        losses = sums.nll / n_counted
        before = predictions.get(UNCALIBRATED)
        if focus == UNCALIBRATED:
            before = None
        for i, reasons in self._examples.wanted(losses, n_counted > 0):
            confidence_before = None
            if before is not None:
                confidence_before = before.confidence[i].cpu()
            example = Example(
                id=beside.key(i),
                labels=labels[i].clone(),
                counts=counts[i].clone(),
                prediction=Maps.of(predictions[focus].to("cpu"), i),
                before=confidence_before,
                nll=float(losses[i]),
                image=beside.image(i),
                words=beside.sentence(i),
            )
            self._examples.keep(example, reasons)

    def _context(
        self,
        evaluations: Mapping[str, DenseEvaluation],
        title: str,
        sources: Mapping[str, str] | None,
        tolerance: float,
    ) -> Context:
        """Return what the page is made of."""
        from simplexcal.report.chart_specs import all_specs  # needs the extra

        focus = str(self.focus)
        names = list(self.class_names or [])
        noun = self._noun
        e = evaluations[focus]
        titles = {name: method_title(name) for name in self._names}
        charts = self._chart_data(titles)
        errors = torch.tensor([scores.ece for scores in e.classes])
        counts = self._counts[focus]
        n = f"{count(e.n)} inputs"
        sizes = [n, f"{count(e.n_positions)} {noun}", f"{count(len(names))} classes"]
        data = {
            "specs": all_specs(charts, focus, noun),
            "tables": charts.tables,
            "methods": charts.methods,
            "n": e.n_positions,
            "noun": noun,
            "classes": names,
        }
        return {
            "title": title,
            "facts": [*sizes, date.today().isoformat()],
            "noun": noun,
            "focus": focus,
            "titles": titles,
            "descriptions": {name: method_description(name) for name in self._names},
            "verdict": dense_verdict(self._scores, evaluations, focus, titles[focus], tolerance),
            "table": score_table(evaluations, tolerance),
            **change_facts(self._n_changed),
            "tolerance": verdict.describe_tolerance(tolerance),
            "data": data,
            "scatter": None,
            "acceptance": [],
            "ood": [],
            "classes": counts.class_rows(self._n_label, errors, names),
            "pairs": counts.confused_pairs(self._n_label, names),
            "examples": self._shown(titles[focus], names),
            "provenance": self._provenance(n, sources),
        }

    def _chart_data(self, titles: Mapping[str, str]) -> ChartData:
        tables: dict[str, Rows] = {"bins": [], "curves": [], "points": []}
        methods: dict[str, Row] = {}
        for name, counts in self._counts.items():
            bins = dense_bin_rows(name, self._scores[name].image_sums(), self.n_bins)
            curve = counts.curve_rows(name)
            tables["bins"] += bins
            tables["curves"] += curve
            methods[name] = {
                "levels": counts.threshold_levels(),
                "reliability": describe_bins(bins, titles[name]),
                "histogram": describe_counts(bins, titles[name], self._noun),
                "curve": describe_curve(curve, titles[name], self._noun),
                "aurc": counts.aurc(),
            }
        return ChartData(tables, methods, None)

    def _shown(self, title: str, names: list[str]) -> Context | None:
        """Return the inputs that are shown, as the page needs them; None without any."""
        shown = self._examples.chosen()
        if not shown:
            return None
        ranges = value_ranges([example for example, _ in shown])
        cards = []
        for example, reason in shown:
            card = {"example": example, "reason": reason, "panels": [], "tokens": []}
            if example.labels.dim() == 2:
                card["panels"] = panels(example, ranges, title)
            else:
                card["tokens"] = _tokens(example, names)
            cards.append(card)
        parts = [example.labels[example.counts] for example, _ in shown]
        parts += [example.prediction.label.flatten() for example, _ in shown]
        classes = torch.cat(parts).unique()
        colours = class_colours(classes.numpy()).tolist()
        legend = [(names[k], css(c)) for k, c in zip(classes.tolist(), colours, strict=True)]
        return {
            "cards": cards,
            "legend": legend[:N_LEGEND],
            "ranges": ranges,
            "scale": ", ".join(css(colour) for colour in SCALE.tolist()),
        }

    def _provenance(self, n: str, sources: Mapping[str, str] | None) -> dict[str, str]:
        found = {str(name): str(value) for name, value in (sources or {}).items()}
        k = count(len(self._n_label))
        found["Inputs"] = f"{n}, {count(int(self._n_label.sum()))} {self._noun} in {k} classes"
        found["Methods"] = ", ".join(self._names)
        digest = self._digest.hexdigest()[:16]
        found["Fingerprint"] = f"{digest} (SHA-256 of predictions and labels, batch by batch)"
        found["Versions"] = versions()
        return found


def dense_verdict(
    scores: Mapping[str, DenseScores],
    evaluations: Mapping[str, DenseEvaluation],
    focus: str,
    title: str,
    tolerance: float,
) -> Verdict:
    """Return the verdict on a method, compared with the uncalibrated network where there is one.

    Args:
        scores: Scores of the same inputs by the name of their method.
        evaluations: Evaluations by the same names.
        focus: Name of the method that the verdict is about.
        title: Its name on the page.
        tolerance: An ECE up to this hardly matters in practice.
    """
    after = evaluations[focus]
    if focus == UNCALIBRATED:
        return verdict.assess(after, title, "This network", tolerance)
    if UNCALIBRATED not in evaluations:
        return verdict.assess(after, title, f"With {title}, this network", tolerance)
    a = scores[UNCALIBRATED].image_sums()
    b = scores[focus].image_sums()
    ece = Change(*ece_change(a, b))
    nll = Change(*mean_change(a.nll, b.nll, a.n.sum(1)))
    both = verdict.Comparison(evaluations[UNCALIBRATED], after, ece, nll)
    return verdict.compare(both, title, tolerance)


class _Beside:
    """What a batch comes with.

    Args:
        images: Pictures of the inputs.
        words: The tokens of each input.
        ids: A key for each input.
        start: Number of inputs before.
    """

    def __init__(
        self,
        images: Images | None,
        words: Sequence[Sequence[str]] | None,
        ids: Sequence[Any] | None,
        start: int,
    ) -> None:
        self.images = images
        self.words = words
        self.ids = ids
        self.start = start

    def key(self, i: int) -> str:
        if self.ids is None:
            return str(self.start + i)
        return str(self.ids[i])

    def image(self, i: int) -> Images | None:
        if self.images is None:
            return None
        return self.images[i]

    def sentence(self, i: int) -> Sequence[str] | None:
        if self.words is None:
            return None
        return [str(word) for word in self.words[i]]


class _Examples:
    """The inputs that are shown: those with the largest NLL, and a sample of all."""

    def __init__(self) -> None:
        self._generator = Generator().manual_seed(SEED)
        self._kept: dict[str, list[tuple[float, Example]]] = {"hard": [], "drawn": []}

    def wanted(self, losses: Tensor, usable: Tensor) -> list[tuple[int, dict[str, float]]]:
        """Return the inputs of a batch that are to be kept, with a rank for each reason."""
        keys = torch.rand(len(losses), generator=self._generator, dtype=torch.float64)
        found: dict[int, dict[str, float]] = {}
        for reason, ranks in (("hard", losses.double()), ("drawn", keys)):
            bound = self._bound(reason)
            ranks = torch.where(usable, ranks, -math.inf)
            for i in ranks.argsort(descending=True, stable=True)[:N_EXAMPLES].tolist():
                if bool(usable[i]) and float(ranks[i]) > bound:
                    found.setdefault(i, {})[reason] = float(ranks[i])
        return list(found.items())

    def keep(self, example: Example, reasons: Mapping[str, float]) -> None:
        """Keep an input, and forget those that it displaces."""
        for reason, rank in reasons.items():
            kept = [*self._kept[reason], (rank, example)]
            kept.sort(key=lambda pair: pair[0], reverse=True)
            self._kept[reason] = kept[:N_EXAMPLES]

    def chosen(self) -> list[tuple[Example, str]]:
        """Return the inputs that are shown, none twice, each with the reason."""
        found = [(example, "hard") for _, example in self._kept["hard"][: N_EXAMPLES // 2]]
        keys = {example.id for example, _ in found}
        others = [example for _, example in self._kept["drawn"] if example.id not in keys]
        room = N_EXAMPLES - len(found)
        return [*found, *((example, "drawn") for example in others[:room])]

    def _bound(self, reason: str) -> float:
        kept = self._kept[reason]
        if len(kept) < N_EXAMPLES:
            return -math.inf
        return kept[-1][0]


def _part(values: Sequence[Any] | None, part: slice) -> Sequence[Any] | None:
    """Return a part of what is there for all inputs."""
    if values is None:
        return None
    return values[part]


def _pictures(inputs: Any) -> Images | None:
    """Return inputs as pictures from 0 to 1, where they are maps of one or three channels."""
    if not isinstance(inputs, Tensor | np.ndarray):
        return None
    x = torch.as_tensor(inputs).detach().cpu()
    if x.dim() != 4 or x.shape[1] not in (1, 3):
        return None
    x = x.float()
    low = x.amin((1, 2, 3), keepdim=True)
    high = x.amax((1, 2, 3), keepdim=True)
    return ((x - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)


def _tokens(example: Example, names: list[str]) -> list[Context]:
    """Return the tokens of one input, as the page shows them."""
    found = []
    for t in example.counts.nonzero().squeeze(-1).tolist():
        confidence = float(example.prediction.confidence[t])
        word = str(t)
        if example.words is not None and t < len(example.words):
            word = example.words[t]
        token = {
            "word": word,
            "predicted": names[int(example.prediction.label[t])],
            "label": names[int(example.labels[t])],
            "is_wrong": bool(example.wrong[t]),
            "confidence": confidence,
            "doubt": round(100 * (1 - confidence)),
            "values": _values(example.prediction, t),
        }
        found.append(token)
    return found


def _values(maps: Maps, t: int) -> str:
    """Return the uncertainties of one token in words, "" where there are none."""
    parts = []
    for name in ("aleatoric", "epistemic"):
        x = getattr(maps, name)
        if x is not None:
            parts.append(f"{name} {float(x[t]):.2f}")
    return ", ".join(parts)
