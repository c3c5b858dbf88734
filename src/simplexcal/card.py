"""The calibration card: what a calibrator is, how it was fitted and measured, and its limits."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from simplexcal._validation import NotFittedError
from simplexcal.calibrators import Calibrator
from simplexcal.evaluation import SCORES, WIDTH, markdown_table, wrap
from simplexcal.facts import CHANGES, EvaluationFacts, FitFacts, own_versions
from simplexcal.io.native import load_calibrator
from simplexcal.thresholds import Threshold

UNKNOWN = "not known"
N_NAMES = 20  # class names that are listed
HEADER = ("", "before", "after", "change", "95 % interval")
HOW_TO_EVALUATE = (
    "`model.evaluate(data)` followed by `model.save(path)`, or `simplexcal evaluate DATA "
    "--calibrator FILE --save`, stores the figures here."
)
OTHER_INPUTS = (
    "The probabilities are calibrated for inputs like the held-out ones. Where inputs or the "
    "shares of the classes change, they need not be: compare with new labels, or estimate the "
    "accuracy with `simplexcal.estimate_accuracy`."
)
NOT_PER_GROUP = (
    "Calibration holds on average over inputs. Single classes or groups of inputs can be off."
)
SAME_ERRORS = (
    "The predicted class is the network's own. Calibration corrects no mistake; it says how likely "
    "one is."
)
OTHER_CLASSES = (
    "The method may change predictions: the predicted class is not always the network's own."
)


@dataclass(frozen=True)
class CalibrationCard:
    """What a fitted calibrator is, how it was fitted and measured, and what it is not for.

    Printed, it is Markdown, for the model card of the network. It holds nothing of the data but
    sizes and metrics. `CalibratedModel.card` and the classmethods make one.

    Args:
        method: Key of the method.
        title: Name of the method.
        settings: All settings of the method.
        changed_settings: Names of the settings that differ from the defaults.
        n_classes: Number of classes, K.
        n_features: Number of features that predictions read; None: they read logits alone.
        has_uncertainties: Whether predictions have aleatoric and epistemic uncertainties.
        is_dense: Whether each token or pixel is classified.
        class_names: The names of the classes; None: not known.
        fingerprint: Digest of the network; None: not known.
        versions: Versions of simplexcal and torch that wrote the file, or that run now.
        fit: What is known of the fit: `n`, `date`, `versions`, …; None: not known.
        evaluation: Figures before and after calibration on other data than those of the fit; None
            without an evaluation.
        thresholds: The thresholds that decide which predictions are accepted.
        keeps_predictions: Whether the predicted class is always the network's own.
    """

    method: str
    title: str
    settings: dict[str, Any]
    changed_settings: tuple[str, ...]
    n_classes: int
    n_features: int | None
    has_uncertainties: bool
    is_dense: bool
    class_names: tuple[str, ...] | None
    fingerprint: str | None
    versions: dict[str, str]
    fit: FitFacts | None
    evaluation: EvaluationFacts | None
    thresholds: tuple[Threshold, ...]
    keeps_predictions: bool = True

    @classmethod
    def of(
        cls, calibrator: Calibrator, *, fingerprint: str | None = None, is_dense: bool = False
    ) -> Self:
        """Return the card of a calibrator.

        Args:
            calibrator: A fitted calibrator.
            fingerprint: Digest of its network, where that is known.
            is_dense: Whether the network classifies each token or pixel.

        Raises:
            NotFittedError: If the calibrator is not fitted.
        """
        if calibrator.n_classes is None:
            raise NotFittedError(
                f"This {type(calibrator).__name__} is not fitted yet, so there is no card. "
                "Call fit(outputs, labels) first."
            )
        return cls(
            method=calibrator.key,
            title=calibrator.title,
            settings=calibrator.settings,
            changed_settings=tuple(calibrator.changed_settings()),
            n_classes=calibrator.n_classes,
            n_features=calibrator.n_features,
            has_uncertainties=calibrator.has_uncertainties,
            is_dense=is_dense,
            class_names=calibrator.facts.class_names,
            fingerprint=fingerprint,
            versions=own_versions(),
            fit=calibrator.facts.fit,
            evaluation=calibrator.facts.evaluation,
            thresholds=tuple(calibrator.thresholds.values()),
            keeps_predictions=calibrator.keeps_predictions,
        )

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Return the card of the calibrator in a file; the network is not needed.

        Args:
            path: A file that `save` or `simplexcal calibrate` wrote.

        Raises:
            ValueError: If the file is damaged, of another kind, or of another version.
            OSError: If the file cannot be read.
        """
        calibrator, header = load_calibrator(path)
        card = cls.of(
            calibrator,
            fingerprint=header["fingerprint"],
            is_dense=bool(header.get("is_dense")),
        )
        return cls(**vars(card) | {"versions": dict(header["versions"])})

    def as_dict(self) -> dict[str, Any]:
        """Return names and values, in the order of the arguments; thresholds by their promise."""
        values = asdict(self)
        values["thresholds"] = {t.promise: t.as_dict() for t in self.thresholds}
        return values

    def __str__(self) -> str:
        parts = [
            "# Calibration card",
            _list([f"**{name}:** {_plain(text)}" for name, text in self._rows().items()]),
            "## Before and after",
            *self._figures(),
            "## Thresholds",
            self._thresholds(),
            "## Limits of use",
            _list(self._limits()),
        ]
        return "\n\n".join(parts)

    def _rows(self) -> dict[str, str]:
        """Return the facts of the first list."""
        reads = "logits alone"
        if self.n_features is not None:
            reads = f"logits and {self.n_features} features"
        rows = {
            "Method": f"{self.title} (`{self.method}`)",
            "Settings": self._settings(),
            "Classes": self._classes(),
            "Reads": reads,
            "Network": self._network(),
        }
        if self.fit is None:
            rows["Fitted to"] = f"data whose size and date are {UNKNOWN}"
        else:
            rows["Fitted to"] = _fit_in_words(self.fit)
        rows["Versions"] = ", ".join(f"{name} {v}" for name, v in self.versions.items())
        return rows

    def _settings(self) -> str:
        changed = [f"{name} = {self.settings[name]}" for name in self.changed_settings]
        if not changed:
            return "the defaults"
        return f"{', '.join(changed)}; otherwise the defaults"

    def _classes(self) -> str:
        count = f"{self.n_classes}"
        if self.is_dense:
            count += ", of each token or pixel"
        if self.class_names is None:
            return f"{count}; names {UNKNOWN}"
        listed = ", ".join(self.class_names[:N_NAMES])
        n_more = len(self.class_names) - N_NAMES
        if n_more > 0:
            listed += f", … and {n_more} more"
        return f"{count}: {listed}"

    def _network(self) -> str:
        if self.fingerprint is None:
            return UNKNOWN
        return f"the one with fingerprint `{self.fingerprint[:16]}`; others are refused"

    def _figures(self) -> list[str]:
        """Return the paragraphs about what calibration has changed."""
        if self.evaluation is None:
            return _no_evaluation(self.fit)
        e = self.evaluation
        data = f"{e.n} inputs"
        if e.n_positions is not None:
            data = f"{e.n_positions} positions of {e.n} inputs"
        rows = [row for score in SCORES for row in _score_rows(score, e)]
        floor = 100 * e.after["ece_floor_95"]
        origin = (
            f"Measured on {data}, {e.date}; they were passed as data that neither network nor "
            "calibrator had seen."
        )
        legend = (
            f"{e.verdict} ECE: expected calibration error in {e.n_bins} bins, with a 95 % interval "
            f"for the true error. On so many inputs, the ECE of a perfectly calibrated model is up "
            f"to {floor:.2f} % by chance. NLL: negative log-likelihood, in nats. Lower is better."
        )
        return [wrap(origin), markdown_table([HEADER, *rows]), wrap(legend)]

    def _thresholds(self) -> str:
        if not self.thresholds:
            return "None: every prediction is accepted."
        return _list([str(threshold) for threshold in self.thresholds])

    def _limits(self) -> list[str]:
        limits = [OTHER_INPUTS, NOT_PER_GROUP]
        if self.keeps_predictions:
            limits.append(SAME_ERRORS)
        else:
            limits.append(OTHER_CLASSES)
        if self.fingerprint is None:
            limits.append(
                "The network is not known to the file. Every network with "
                f"{self.n_classes} classes is accepted; only the outputs of the network of the fit "
                "are calibrated."
            )
        if self.thresholds:
            limits.append(
                "What a threshold promises holds for new inputs drawn like its held-out ones."
            )
        if self.has_uncertainties:
            limits.append(
                "Epistemic uncertainties are differential entropies: only their order means "
                "something, among inputs of this model."
            )
        if self.is_dense:
            limits.append("Positions of one input are not independent.")
        return limits


def _fit_in_words(fit: FitFacts) -> str:
    noun = fit.noun
    if fit.weighted:
        noun = f"weighted {noun}"
    versions = " and ".join(f"{name} {version}" for name, version in fit.versions.items())
    return f"{fit.n} {noun}, {fit.date}, with {versions}"


def _no_evaluation(fit: FitFacts | None) -> list[str]:
    paragraphs = [wrap(f"Not measured on held-out data. {HOW_TO_EVALUATE}")]
    if fit is not None and fit.nll_before is not None and fit.nll_after is not None:
        flattering = (
            f"On the {fit.n} {fit.noun} of the fit itself, which flatter every calibrator, the "
            f"negative log-likelihood is {fit.nll_before:.4f} before and {fit.nll_after:.4f} after."
        )
        paragraphs.append(wrap(flattering))
    return paragraphs


def _score_rows(score: str, evaluation: EvaluationFacts) -> list[tuple[str, ...]]:
    """Return the row of a score, and that of its interval where it has one."""
    title, factor, digits = SCORES[score]
    before = evaluation.before
    after = evaluation.after

    def cell(value: float, sign: str = "") -> str:
        return f"{factor * value:{sign}.{digits}f}"

    change = after[score] - before[score]
    interval = ""
    if score in CHANGES:
        found = evaluation.changes[score]
        change = found["mean"]
        interval = f"{cell(found['low'], '+')} to {cell(found['high'], '+')}"
    rows: list[tuple[str, ...]]
    rows = [(title, cell(before[score]), cell(after[score]), cell(change, "+"), interval)]
    if score == "ece":
        ends = [f"{cell(x['ece_low'])} to {cell(x['ece_high'])}" for x in (before, after)]
        rows.append(("ECE interval", *ends, "", ""))
    return rows


def _plain(text: str) -> str:
    """Return text that is no markup: names may come from anywhere."""
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")


def _list(items: Sequence[str]) -> str:
    lines = [
        textwrap.fill(
            item,
            WIDTH,
            initial_indent="- ",
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for item in items
    ]
    return "\n".join(lines)
