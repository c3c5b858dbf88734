"""Data of networks that classify each token or pixel: what a command reads and evaluates."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from simplexcal.backbone import Backbone, extract
from simplexcal.calibrators import Calibrator, Uncalibrated
from simplexcal.cli._matching import file_name, load_matching, required_labels, unused_name
from simplexcal.dense import IGNORED, MAX_POSITIONS
from simplexcal.dense_evaluation import (
    DenseScores,
    class_table,
    describe_positions,
    score_positions,
    score_prediction,
    tabulate_dense,
)
from simplexcal.evaluation import describe_changes, wrap
from simplexcal.io.tables import Inputs
from simplexcal.model import CalibratedModel
from simplexcal.network_spec import reraise_as_input_error
from simplexcal.report import DenseReport
from simplexcal.report._format import SPACE, method_title
from simplexcal.report.dense_page import dense_verdict
from simplexcal.types import Outputs, Prediction

BATCH_SIZE = 8  # Images and texts have many positions.
LEGEND = (
    "ECE: expected calibration error; the interval is for the true error, by resampling inputs. "
    "NLL: negative log-likelihood. Lower is better for all; acc. is the accuracy."
)


@dataclass(frozen=True, eq=False)
class DenseOptions:
    """What the options say about tokens and pixels.

    Args:
        ignore_index: Labels of positions that do not count; None for the library's default.
        batch_size: Number of inputs that the network takes at a time; None for the default.
        max_positions: Most positions that a fit learns from; None for the library's default.
    """

    ignore_index: tuple[int, ...] | None = None
    batch_size: int | None = None
    max_positions: int | None = None

    def check_unused(self, path: Path) -> None:
        """Raise ValueError if there are options about positions, and data have none.

        Args:
            path: The file of the data.
        """
        for flag, value in (
            ("--ignore-index", self.ignore_index),
            ("--max-positions", self.max_positions),
        ):
            if value is not None:
                raise ValueError(
                    f"{flag} is about tokens or pixels; '{path}' has one class for each input. "
                    "Leave it out, and drop rows that are not to count."
                )


def maps_as_they_are(maps: Tensor) -> Tensor:
    """Return saved logits or probabilities: the network of a file that holds them.

    Args:
        maps: What the file holds.
    """
    return maps


@dataclass(frozen=True, eq=False)
class DenseSource:
    """A network of tokens or pixels, or its saved maps, and inputs.

    Args:
        path: The file that was read.
        backbone: The network; of saved maps, a function that returns them.
        inputs: What it takes.
        given: What the file holds beside the inputs.
        options: What the options say.
        n_classes: Number of classes.
    """

    path: Path
    backbone: Backbone
    inputs: Any
    given: Inputs
    options: DenseOptions
    n_classes: int

    @property
    def network(self) -> Backbone | None:
        """The network, or None for saved maps."""
        if self.backbone.is_function:
            return None
        return self.backbone

    @property
    def fingerprint(self) -> str | None:
        """The network's fingerprint, or None where only its outputs are known."""
        if self.network is None:
            return None
        return self.network.fingerprint()

    @property
    def batch_size(self) -> int:
        """Number of inputs at a time."""
        return self.options.batch_size or BATCH_SIZE

    @property
    def labels(self) -> Tensor | None:
        """The true classes; those of masked tokens have a label that does not count."""
        labels = self.given.labels
        mask = self.given.attention_mask
        if labels is None or mask is None or mask.shape != labels.shape:
            return labels
        ignored = (self.options.ignore_index or (IGNORED,))[0]
        return labels.masked_fill(mask == 0, ignored)

    @property
    def data(self) -> tuple[Any, Tensor]:
        """Inputs and labels.

        Raises:
            ValueError: The file holds no labels.
        """
        return self.inputs, required_labels(self.path, self.labels)

    def sample(self, progress: bool) -> tuple[Outputs, Tensor]:
        """Return the outputs and labels of the positions that a fit learns from.

        Args:
            progress: Show the progress of the network.
        """
        with self.blaming_the_inputs():
            return extract(
                self.backbone,
                self.data,
                batch_size=self.batch_size,
                progress=progress,
                ignore_index=self.options.ignore_index,
                max_positions=self.options.max_positions or MAX_POSITIONS,
            )

    def predict(self, calibrator: Calibrator) -> Prediction:
        """Return maps of predictions.

        Args:
            calibrator: A calibrator for the network.
        """
        model = CalibratedModel(self.backbone, calibrator)
        starts = range(0, len(self.given.inputs), self.batch_size)
        with self.blaming_the_inputs():
            parts = [
                model.predict(rows_of(self.inputs, slice(start, start + self.batch_size)))
                for start in starts
            ]
        return Prediction.cat(parts)

    def load(self, path: Path) -> tuple[str, Calibrator]:
        """Return the method and the calibrator in a file.

        Args:
            path: A file that `calibrate` wrote.
        """
        return load_matching(path, self.path, self.n_classes, self.network)

    def calibrators(self, paths: Sequence[Path]) -> dict[str, Calibrator]:
        """Return the network as it is and each calibrator, by method.

        Args:
            paths: Files that `calibrate` wrote.
        """
        found: dict[str, Calibrator] = {Uncalibrated.key: Uncalibrated()}
        for path in paths:
            method, calibrator = self.load(path)
            found[unused_name(method, path, found)] = calibrator
        return found

    def blaming_the_inputs(self) -> AbstractContextManager[None]:
        """Return a context in which what the network raises is about the file of its inputs."""
        return reraise_as_input_error(f"the `inputs` of '{self.path}'")


@dataclass(frozen=True, eq=False)
class DenseMethods:
    """A network of tokens or pixels, before and after each calibrator, to be evaluated.

    Args:
        source: The network and the data.
        calibrators: By the methods' names; the first is the network as it is.
        class_names: The names of the classes, where they are known.
    """

    source: DenseSource
    calibrators: Mapping[str, Calibrator]
    class_names: tuple[str, ...] | None

    @property
    def fingerprint(self) -> str | None:
        """The network's fingerprint, or None where only its outputs are known."""
        return self.source.fingerprint

    @property
    def ignore_index(self) -> tuple[int, ...] | None:
        """Labels of positions that do not count."""
        return self.source.options.ignore_index

    def scores(self) -> dict[str, DenseScores]:
        """Return the scores of each method at all positions that count."""
        source = self.source
        with source.blaming_the_inputs():
            return score_positions(
                source.backbone,
                self.calibrators,
                source.data,
                batch_size=source.batch_size,
                ignore_index=self.ignore_index,
            )

    def add_to(self, report: DenseReport) -> None:
        """Add the predictions of each method to a report.

        Args:
            report: The report.
        """
        source = self.source
        ids = None
        if source.given.ids is not None:
            ids = source.given.ids.tolist()
        with source.blaming_the_inputs():
            report.add_data(
                source.backbone,
                self.calibrators,
                source.data,
                images=source.given.images,
                ids=ids,
                batch_size=source.batch_size,
            )


@dataclass(frozen=True, eq=False)
class DensePredictions:
    """Saved predictions for tokens or pixels, to be evaluated.

    Args:
        path: The file.
        prediction: The predictions.
        labels: The true classes.
        options: What the options say.
    """

    path: Path
    prediction: Prediction
    labels: Tensor
    options: DenseOptions
    class_names: None = None
    fingerprint: None = None

    @property
    def ignore_index(self) -> tuple[int, ...] | None:
        """Labels of positions that do not count."""
        return self.options.ignore_index

    def scores(self) -> dict[str, DenseScores]:
        """Return the scores at all positions that count, by the name of the file."""
        ignored = self.ignore_index
        found = score_prediction(self.prediction, self.labels, ignore_index=ignored)
        return {file_name(self.path): found}

    def add_to(self, report: DenseReport) -> None:
        """Add the predictions to a report.

        Args:
            report: The report.
        """
        report.add({file_name(self.path): self.prediction}, self.labels)


DenseEvaluationInputs = DenseMethods | DensePredictions


def describe_dense(
    inputs: DenseEvaluationInputs, scores: Mapping[str, DenseScores], tolerance: float
) -> tuple[str, dict[str, Any]]:
    """Return the evaluation of tokens or pixels with a verdict, for people and for programs.

    Args:
        inputs: What is evaluated.
        scores: Its scores.
        tolerance: An ECE up to this does not matter in practice.
    """
    evaluations = {name: found.evaluation() for name, found in scores.items()}
    focus = list(evaluations)[-1]
    found = dense_verdict(scores, evaluations, focus, method_title(focus), tolerance)
    headline = found.headline.replace(SPACE, " ")
    last = evaluations[focus]
    parts = [
        tabulate_dense(evaluations),
        wrap(f"{LEGEND} {describe_positions(last)}"),
        f"The classes by {method_title(focus)}:",
        class_table(last.classes, inputs.class_names),
        wrap(f"Verdict: {headline}"),
    ]
    changed = {name: found.n_changed for name, found in scores.items() if found.n_changed > 0}
    for name, n in changed.items():
        parts[-1] += f"\n{wrap(describe_changes(method_title(name), n))}"
    methods = {name: e.as_dict() for name, e in evaluations.items()}
    record = {"methods": methods, "changed_predictions": changed, "verdict": headline}
    return "\n\n".join(parts), record


def write_dense_report(
    inputs: DenseEvaluationInputs,
    path: Path,
    title: str,
    sources: Mapping[str, str],
    tolerance: float,
) -> DenseReport:
    """Write a report on tokens or pixels, and return it.

    Args:
        inputs: What it is about.
        path: The file to write.
        title: The title of the page.
        sources: The origin of the data, by name.
        tolerance: An ECE up to this does not matter in practice.
    """
    ignored = inputs.ignore_index
    report = DenseReport(class_names=inputs.class_names, ignore_index=ignored)
    inputs.add_to(report)
    report.write(path, title=title, sources=sources, tolerance=tolerance)
    return report


def rows_of(x: Any, rows: slice) -> Any:
    """Return some rows of a tensor, or of each tensor of a dict.

    Args:
        x: The tensor or the dict.
        rows: Which rows.
    """
    if isinstance(x, Mapping):
        return {name: part[rows] for name, part in x.items()}
    return x[rows]
