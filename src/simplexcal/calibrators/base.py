"""What every calibrator is: settings, a fit, and a function from Outputs to a Prediction."""

import dataclasses
import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Generator, Tensor, nn

from simplexcal._arrays import ArrayLike
from simplexcal._chunking import in_chunks
from simplexcal._validation import (
    NotFittedError,
    are_probs,
    check_array,
    check_finite,
    check_generator,
    check_label_shape,
    check_labels,
    check_sample_weight,
    warn_caller,
)
from simplexcal.calibrators._cuda_graph import PredictionGraphs, suits_a_graph
from simplexcal.calibrators._weights import normalise
from simplexcal.facts import EvaluationFacts, Facts, FitFacts
from simplexcal.mixup import LogitMixup, Mixup
from simplexcal.thresholds import (
    Threshold,
    accuracy_interval,
    find_prediction_threshold,
    with_accepted,
)
from simplexcal.types import Outputs, Prediction, outputs_of_rows, restore_argmax

DIGEST_VALUES = 2**18  # logits that tell the data of a fit from others
# Confidences range over 1/2 where there are two classes. An interval of the accuracy that is wider
# than this rules hardly any of them out.
WIDEST = 0.5
SEED = 0  # of a fit without a generator
GRAPHS = "_prediction_graphs"  # Not an attribute of the module, which has tensors alone.


class Task(NamedTuple):
    """What a method is given to learn from, checked.

    Args:
        outputs: Held-out outputs of the network.
        labels: Their true classes, (N,).
        mixup: Source of mixup samples, where there is one.
        generator: Source of randomness.
        progress: Show a progress bar.
        weights: Weight of each input, (N,), positive and with the sum 1; None: all count alike.
    """

    outputs: Outputs
    labels: Tensor
    mixup: Mixup | None
    generator: Generator
    progress: bool
    weights: Tensor | None = None


class Calibrator(nn.Module, ABC):
    """A calibration method: settings in ``__init__``, data in ``fit``, Outputs → Prediction.

    A method implements ``_build``, ``_fit`` and ``_predict``. Its tensors are parameters or buffers
    made in ``_build``, so that saving and loading need no more than the settings, the two sizes
    and the state dict. Everything else that the library asks of a method is a class attribute.
    """

    key: ClassVar[str]  # Names the method in CALIBRATORS, in files and on the command line.
    abbreviation: ClassVar[str]
    title: ClassVar[str]
    needs_features: bool = False  # `fit` and predictions cannot do without features.
    needs_mixup: bool = False  # `fit` cannot do without mixup samples.
    uses_mixup: bool = False  # `fit` learns from mixup samples where it is given some.
    uses_sample_weight: bool = False  # `fit` takes weights of the inputs.
    has_prior: bool = False  # A prior limits the confidence where every label is predicted.
    has_uncertainties: bool = False  # Predictions have aleatoric and epistemic uncertainties.
    keeps_predictions: bool = True  # The label of a prediction is the network's own.
    only_for_reproduction: bool = False  # Lists of methods for users leave it out.
    # Settings that files of earlier versions do not hold, with what these versions did.
    settings_of_older_files: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.n_classes: int | None = None
        self.n_features: int | None = None
        self.thresholds: dict[str, Threshold] = {}  # by promise; `fit` forgets them
        self.fit_digest: str | None = None
        self.facts = Facts()  # what the card says; `fit` forgets them
        self._fields: tuple[str, ...] = ()  # of a prediction, known from the first on

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of ``__init__`` as plain values, from which an equal one can be made."""
        names = inspect.signature(type(self)).parameters
        return {name: _plain(getattr(self, name)) for name in names}

    @property
    def reads_features(self) -> bool:
        """Whether predictions of this calibrator, as it is fitted, depend on features."""
        return self.needs_features

    @property
    def global_temperature(self) -> float | None:
        """T, by which a fitted method divides all logits first; None where there is none."""
        return None

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.changed_settings())
        parts = [settings, ", ".join(self.describe_fit())]
        return f"{type(self).__name__}({'; '.join(filter(None, parts))})"

    def describe_fit(self) -> list[str]:
        """Return what a fitted calibrator says of itself, an empty list before the fit."""
        if self.n_classes is None:
            return []
        parts = [f"{self.n_classes} classes"]
        if self.global_temperature is not None:
            parts.append(f"T = {self.global_temperature:.4g}")
        return parts

    def fit(
        self,
        outputs: Outputs | ArrayLike,
        labels: ArrayLike,
        *,
        sample_weight: ArrayLike | None = None,
        mixup: Mixup | None = None,
        generator: Generator | None = None,
        progress: bool = False,
    ) -> Self:
        """Learn from held-out outputs and labels, forgetting earlier fits; return the calibrator.

        Args:
            outputs: Outputs of the network for held-out inputs; or its logits, (N, K), as
                anything that ``torch.as_tensor`` takes.
            labels: Their true classes, (N,).
            sample_weight: How much each input counts, (N,), not negative, for the methods with
                `uses_sample_weight`. Only ratios matter; an input of weight 0 is left out.
            mixup: Source of mixup samples for the methods that learn from them. With LogitMixup,
                or without one, a method that can do without features reads logits alone.
            generator: Source of all randomness. By default it has a fixed seed, so that the same
                data give the same calibrator; torch's global state is never used.
            progress: Show a progress bar.

        Raises:
            TypeError: If an argument is of the wrong type.
            ValueError: If an argument has a wrong shape or value, or mixup samples are missing.
        """
        all_outputs = _as_outputs(outputs)
        outputs, labels, weights = self._weighted_rows(all_outputs, labels, sample_weight)
        self._check_mixup(mixup, outputs)
        if self._reads_logits_alone(mixup):
            outputs = Outputs(outputs.logits)
        _check_finite(outputs)
        if _look_like_softmax(outputs.logits):
            warn_caller(
                "The logits of `outputs` are rows of probabilities, but must be the values before "
                "the softmax. If they are probabilities, pass Outputs.from_probs(probs), or call "
                "them `probs` in a file."
            )
        check_generator(generator)
        self.thresholds = {}
        self.facts = Facts()
        self.fit_digest = _digest(all_outputs)
        if generator is None:
            generator = Generator().manual_seed(SEED)
        device = outputs.logits.device
        task = Task(outputs, labels.to(device), mixup, generator, progress, weights)
        self._warn_of_weak_data(task)
        try:
            with torch.inference_mode(False), torch.enable_grad(), _full_precision(device):
                self.build(outputs.n_classes, outputs.n_features)
                self.to(device)._fit(task)
        except BaseException:
            self.n_classes = None  # Half a fit is none.
            raise
        if not self.reads_features:
            self.n_features = None
        self.facts = Facts(FitFacts(len(labels), weighted=weights is not None))
        return self.requires_grad_(False).eval()

    def build(self, n_classes: int, n_features: int | None) -> None:
        """Make the tensors of a calibrator, with no data yet.

        Args:
            n_classes: K.
            n_features: D, or None where predictions read no features.
        """
        self.n_classes = n_classes
        self.n_features = n_features
        self.__dict__.pop(GRAPHS, None)
        with _no_half_by_default():
            self._build(n_classes, n_features)

    def forward(self, outputs: Outputs | ArrayLike) -> Prediction:
        """Calibrate, some rows at a time.

        The label is the network's own, unless the method has `keeps_predictions` False.

        Args:
            outputs: Outputs of the network of the fit, or its logits, (N, K).
        """
        outputs = _as_outputs(outputs)
        self._check_fitted(outputs)
        tensors = [outputs.logits]
        if outputs.features is not None:
            tensors.append(outputs.features)
        values = self._predict_tensors(tuple(tensors), self._row_width(outputs))
        prediction = Prediction(**dict(zip(self._fields, values, strict=True)))
        return with_accepted(prediction, self.thresholds)

    def on(self, device: torch.device) -> Self:
        """Move the calibrator to a device, unless it is there, and return it.

        Args:
            device: The device.
        """
        first = next(chain(self.buffers(), self.parameters()), None)
        if first is None or first.device == device:
            return self
        return self.to(device)

    def probs_alone(self, outputs: Outputs) -> Tensor:
        """Return the probabilities (N, K) of all rows at once, as a graph needs them.

        Args:
            outputs: Outputs of the network of the fit.
        """
        self._check_fitted(outputs)
        with _full_precision(outputs.logits.device):
            probs = self._probs(outputs)
            if not self.keeps_predictions:
                return probs
            return restore_argmax(outputs.label, probs)

    @torch.no_grad()
    def threshold(
        self,
        outputs: Outputs | ArrayLike,
        labels: ArrayLike | None = None,
        *,
        target_accuracy: float | None = None,
        coverage: float | None = None,
        false_alarm: float | None = None,
        delta: float = 0.05,
        score: str | None = None,
    ) -> Threshold:
        """Find a threshold, keep it, and return it; predictions say from now on what it accepts.

        `find_threshold` states what each promise guarantees. A threshold replaces an earlier one
        of the same promise. An input is accepted if all thresholds in `thresholds` accept it.

        Args:
            outputs: Outputs of the network for held-out inputs that are new to the calibrator.
            labels: Their true classes, (N,). Only `target_accuracy` needs them.
            target_accuracy: Promised accuracy of accepted inputs.
            coverage: Promised share of accepted inputs.
            false_alarm: Promised largest share of rejected inputs.
            delta: Probability with which the accuracy may be missed.
            score: "confidence", "aleatoric", "epistemic", "mutual_information" or "entropy". None
                is "epistemic" for `false_alarm` where the method has it, otherwise "confidence".

        Raises:
            NotFittedError: If the calibrator is not fitted.
            ValueError: If no threshold keeps the promise, or an argument has no meaning.
        """
        outputs = _as_outputs(outputs)
        prediction = self(outputs)
        if self.was_fitted_to(outputs):
            warn_caller(
                "These data are the ones that the calibrator was fitted to, so the threshold "
                "guarantees nothing. Pass other held-out data."
            )
        found = find_prediction_threshold(
            prediction,
            labels,
            target_accuracy=target_accuracy,
            coverage=coverage,
            false_alarm=false_alarm,
            delta=delta,
            score=score,
        )
        self.thresholds[found.promise] = found
        return found

    def was_fitted_to(self, outputs: Outputs) -> bool:
        """Return whether these are the outputs of the last fit, as far as is known.

        Args:
            outputs: Outputs of a network.
        """
        return self.fit_digest == _digest(outputs)

    def keep_evaluation(self, evaluation: EvaluationFacts) -> None:
        """Keep the figures of an evaluation on other data than those of the fit, for the card.

        Args:
            evaluation: The figures.
        """
        self.facts = dataclasses.replace(self.facts, evaluation=evaluation)

    def warn_of_changes(self) -> None:
        """Warn where the method may change predictions."""
        if not self.keeps_predictions:
            warn_caller(
                f"{self.abbreviation} may change predictions, and with them the accuracy. Evaluate "
                "both. Methods that keep every prediction are ts, ets, iop-diag and sts, among "
                "others."
            )

    def check_takes_weight(self, sample_weight: ArrayLike | None) -> None:
        """Raise ValueError where weights are given to a method that counts all inputs alike.

        Args:
            sample_weight: The argument of `fit`.
        """
        if sample_weight is not None and not self.uses_sample_weight:
            raise ValueError(
                f"`sample_weight` must be None: this {type(self).__name__} counts all inputs "
                "alike. Use TemperatureScaling, EnsembleTemperatureScaling or "
                "SimplexTemperatureScaling with its likelihood head (ts, ets, sts)."
            )

    def save(self, path: str | Path) -> None:
        """Write the fitted calibrator; ``simplexcal.load_calibrator`` reads it.

        Args:
            path: The safetensors file to write.

        Raises:
            NotFittedError: If the calibrator is not fitted.
            ValueError: If its type is not in CALIBRATORS.
            OSError: If the file cannot be written.
        """
        # The module of files builds on this one, so that it can only be imported later.
        files = import_module("simplexcal.io")
        files.save_calibrator(self, path)

    def changed_settings(self) -> list[str]:
        """Return the names of the settings that differ from the defaults."""
        parameters = inspect.signature(type(self)).parameters
        if any(parameter.default is parameter.empty for parameter in parameters.values()):
            return list(parameters)
        default = type(self)()
        return [name for name in parameters if getattr(self, name) != getattr(default, name)]

    def _predict_tensors(self, tensors: tuple[Tensor, ...], width: int) -> tuple[Tensor, ...]:
        """Return the tensors of the predictions, whose names ``_fields`` has.

        Args:
            tensors: Logits (N, K), and features (N, D) where there are any.
            width: How many numbers a prediction holds for a row.
        """
        with _full_precision(tensors[0].device):
            if suits_a_graph(tensors, width):
                return self._graphs(tensors, chain(self.buffers(), self.parameters()))
            return in_chunks(self._predict_rows, *tensors, width=width)

    def _predict_rows(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors of the predictions for some rows."""
        found = self._predict(outputs_of_rows(*rows))
        present = {name: x for name, x in vars(found).items() if x is not None}
        present["probs"] = restore_argmax(found.label, found.probs)
        self._fields = tuple(present)
        return tuple(present.values())

    @property
    def _graphs(self) -> PredictionGraphs:
        """The predictions on GPUs; no copy and no file has them."""
        graphs = self.__dict__.get(GRAPHS)
        if graphs is None:
            graphs = PredictionGraphs(self._predict_rows)
            self.__dict__[GRAPHS] = graphs
        found: PredictionGraphs = graphs
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != GRAPHS}

    @abstractmethod
    def _build(
        self,
        n_classes: int,
        n_features: int | None,
    ) -> None: ...

    @abstractmethod
    def _fit(self, task: Task) -> None: ...

    @abstractmethod
    def _predict(self, outputs: Outputs) -> Prediction: ...

    def _probs(self, outputs: Outputs) -> Tensor:
        """Return the probabilities (N, K); a method may know a shorter way to them."""
        return self._predict(outputs).probs

    def _row_width(self, outputs: Outputs) -> int:
        """Return how many numbers a prediction holds for a row."""
        return outputs.logits.shape[1] + (outputs.n_features or 0)

    def _weighted_rows(
        self, outputs: Outputs, labels: ArrayLike, sample_weight: ArrayLike | None
    ) -> tuple[Outputs, Tensor, Tensor | None]:
        """Return the outputs and labels of the inputs with a weight, and the weights, checked."""
        n, k = outputs.logits.shape
        self.check_takes_weight(sample_weight)
        if sample_weight is None:
            return outputs, check_labels(labels, n, k), None
        weights = check_sample_weight(sample_weight, n)
        labels = check_label_shape(labels, n)
        counts = weights > 0
        if not bool(counts.all()):
            outputs = outputs[counts.to(outputs.logits.device)]
            labels = labels[counts.to(labels.device)]
            weights = weights[counts]
        labels = check_labels(labels, len(weights), k)
        return outputs, labels, normalise(weights.to(outputs.logits.device))

    def _warn_of_weak_data(self, task: Task) -> None:
        """Say what so few, or such easy, data leave open."""
        n = len(task.labels)
        right = int((task.outputs.label == task.labels).sum())
        if right == n:
            warn_caller(_separable(n, self.abbreviation, self.has_prior))
            return
        low, high = accuracy_interval(right, n)
        if high - low > WIDEST:
            warn_caller(
                f"Of {n} inputs {right} are classified correctly, so all that is known of the "
                f"accuracy is that it lies between {low:.0%} and {high:.0%} (a 95 % interval). "
                "Whether the network is over-confident or under-confident cannot be told from so "
                f"few. {self._effect_on_classes()} Calibrate on more, held-out inputs: hundreds at "
                "least."
            )

    def _effect_on_classes(self) -> str:
        if self.keeps_predictions:
            return "The predicted classes are not affected."
        return "The predicted classes may get worse."

    def _reads_logits_alone(self, mixup: Mixup | None) -> bool:
        """Return whether features, which only their mixup samples explain, are left out."""
        if self.needs_features or not self.uses_mixup:
            return False
        return mixup is None or isinstance(mixup, LogitMixup)

    def _check_mixup(self, mixup: Mixup | None, outputs: Outputs) -> None:
        if mixup is None:
            if self.needs_mixup:
                raise ValueError(
                    f"`mixup` must be given: this {type(self).__name__} learns from mixup samples "
                    "alone; got None. Pass InputMixup or FeatureMixup."
                )
            return
        if not self.uses_mixup:
            return
        if not isinstance(mixup, LogitMixup):
            check_n_features(outputs.n_features)
        elif self.needs_features:
            raise ValueError(
                f"`mixup` must mix inputs or features: this {type(self).__name__} reads features; "
                "got LogitMixup. Pass InputMixup or FeatureMixup."
            )
        if mixup.n_classes != outputs.n_classes:
            raise ValueError(
                f"`mixup` must mix the {outputs.n_classes} classes of `outputs`; it mixes "
                f"{mixup.n_classes}. Make it from the same network's outputs."
            )

    def _check_fitted(self, outputs: Outputs) -> None:
        if self.n_classes is None:
            raise NotFittedError(
                f"This {type(self).__name__} is not fitted yet. Call fit(outputs, labels) first."
            )
        n_classes = outputs.logits.shape[1]
        if n_classes != self.n_classes:
            raise ValueError(
                f"`logits` must have the {self.n_classes} classes of the fit; got "
                f"{n_classes}. Fit a calibrator for this network."
            )


def check_n_features(n_features: int | None) -> int:
    """Return the number of features, which a method needs.

    Args:
        n_features: D, or None without features.

    Raises:
        ValueError: If there are none.
    """
    if n_features is None:
        raise ValueError(
            "`outputs` must have features, from which this method computes each input's "
            "temperature; got logits alone. Extract them with simplexcal.extract, or use a method "
            "that needs logits only, such as TemperatureScaling."
        )
    return n_features


def features_for(layer: nn.Linear, outputs: Outputs) -> Tensor:
    """Return the features (N, D) in the dtype of the layer that takes them.

    Args:
        layer: The first layer of a fitted network.
        outputs: Outputs with the features of the fit.

    Raises:
        ValueError: If there are no features, or not as many as the layer takes.
    """
    n_features = check_n_features(outputs.n_features)
    if n_features != layer.in_features or outputs.features is None:
        raise ValueError(
            f"`features` must have the {layer.in_features} columns of the fit; got {n_features}. "
            "Take them from the same layer of the same network."
        )
    return outputs.features.detach().to(layer.weight.dtype)


def _separable(n: int, abbreviation: str, has_prior: bool) -> str:
    if has_prior:
        return (
            f"All {n} inputs are classified correctly, so the likelihood grows without bound as T "
            "falls and T is not determined by these data; it was set by the prior. Calibrate on "
            "more, held-out inputs."
        )
    return (
        f"All {n} inputs are classified correctly, so nothing in these data speaks against more "
        f"confidence, and {abbreviation} has no prior that does: an error may come with a "
        "probability near 0. Calibrate on more, held-out inputs, or with ts or sts."
    )


def _plain(value: Any) -> Any:
    """Return a record of settings as a dict, and any other setting as it is."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


def _digest(outputs: Outputs) -> str:
    """Return a digest by which the same outputs, in the same order, are known again."""
    logits = outputs.logits.detach()
    step = 1 + logits.numel() // DIGEST_VALUES
    digest = hashlib.sha256(logits[::step].cpu().numpy().tobytes())
    digest.update(str(tuple(logits.shape)).encode())
    return digest.hexdigest()


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """Go without autocast, which would cost digits here and keep old weights, and without half."""
    autocast: AbstractContextManager[object] = nullcontext()
    if torch.amp.is_autocast_available(device.type):
        autocast = torch.autocast(device.type, enabled=False)
    with autocast, _no_half_by_default():
        yield


@contextmanager
def _no_half_by_default() -> Iterator[None]:
    """Make new tensors float32 where half precision is torch's default dtype."""
    default = torch.get_default_dtype()
    if default not in (torch.float16, torch.bfloat16):
        yield
        return
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(default)


def _as_outputs(outputs: Outputs | ArrayLike) -> Outputs:
    """Return outputs as they are, and logits as outputs."""
    if isinstance(outputs, Outputs):
        return outputs
    made = Outputs(check_array("outputs", outputs))
    if are_probs(made.logits):
        raise ValueError(
            "`outputs` must be logits, the values before the softmax; got rows of probabilities. "
            "Pass Outputs.from_probs(probs)."
        )
    return made


def _look_like_softmax(logits: Tensor) -> bool:
    """Return whether all rows are distributions, and not all of them one-hot."""
    return are_probs(logits) and bool(((logits > 0) & (logits < 1)).any())


def _check_finite(outputs: Outputs) -> None:
    remedy = "Look for an overflow in the network, or drop these inputs."
    check_finite("logits", outputs.logits, remedy)
    if outputs.features is not None:
        check_finite("features", outputs.features, remedy)
