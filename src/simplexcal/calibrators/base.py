"""What every calibrator is: settings, a fit, and a function from Outputs to a Prediction."""

import inspect
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Generator, Tensor, nn

from simplexcal._chunking import in_chunks
from simplexcal._validation import NotFittedError, check_finite, check_generator, check_labels
from simplexcal.mixup import Mixup
from simplexcal.types import Outputs, Prediction


class Task(NamedTuple):
    """What a method is given to learn from, checked."""

    outputs: Outputs
    labels: Tensor
    mixup: Mixup | None
    generator: Generator | None
    progress: bool


class Calibrator(nn.Module, ABC):
    """Settings in ``__init__``, data in ``fit``; called with Outputs, it returns a Prediction.

    A method implements ``_build``, ``_fit`` and ``_predict``. Its tensors are parameters or buffers made in ``_build``,
    so that saving and loading need nothing more than the settings, the two sizes and the state dict.
    """

    key: ClassVar[str]  # names the method in CALIBRATORS, in files and on the command line
    abbreviation: ClassVar[str]
    title: ClassVar[str]
    needs_features: bool = False  # `fit` and predictions cannot do without features
    needs_mixup: bool = False  # `fit` cannot do without mixup samples
    uses_mixup: bool = False  # `fit` learns from mixup samples where it is given some

    def __init__(self) -> None:
        super().__init__()
        self.n_classes: int | None = None
        self.n_features: int | None = None

    @property
    def settings(self) -> dict[str, object]:
        """The arguments of ``__init__``, from which an equal calibrator can be made."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def fit(
        self,
        outputs: Outputs,
        labels: Tensor,
        *,
        mixup: Mixup | None = None,
        generator: Generator | None = None,
        progress: bool = False,
    ) -> Self:
        """Learn from held-out outputs and labels, forgetting earlier fits; return the calibrator.

        ``mixup`` is the source of mixed samples for the methods that learn from them, ``generator`` of all randomness.
        Methods that need neither ignore them.
        """
        _check_outputs(outputs)
        labels = check_labels(labels, len(outputs), outputs.n_classes).to(outputs.logits.device)
        _check_finite(outputs)
        check_generator(generator)
        if mixup is None and self.needs_mixup:
            raise ValueError(
                f"`mixup` must be given: this {type(self).__name__} learns from mixed samples alone; got None. "
                "Pass InputMixup or FeatureMixup."
            )
        if mixup is not None and self.uses_mixup and len(mixup.members) != outputs.n_classes:
            raise ValueError(
                f"`mixup` must mix the {outputs.n_classes} classes of `outputs`; it mixes {len(mixup.members)}. "
                "Make it from the same network's outputs."
            )
        task = Task(outputs, labels, mixup, generator, progress)
        try:
            with torch.inference_mode(False), torch.enable_grad(), _full_precision(outputs):
                self.build(outputs.n_classes, outputs.n_features)
                self.to(outputs.logits.device)._fit(task)
        except BaseException:
            self.n_classes = None  # half a fit is none
            raise
        return self.requires_grad_(False).eval()

    @property
    def reads_features(self) -> bool:
        """Whether predictions of this calibrator, as it is fitted, depend on features."""
        return self.needs_features

    def build(self, n_classes: int, n_features: int | None) -> None:
        """Make the tensors of a calibrator for this many classes and features, with no data yet."""
        self.n_classes, self.n_features = n_classes, n_features
        self._build(n_classes, n_features)

    def forward(self, outputs: Outputs) -> Prediction:
        """Calibrate, some rows at a time; the label is the network's own."""
        _check_outputs(outputs)
        if self.n_classes is None:
            raise NotFittedError(
                f"This {type(self).__name__} is not fitted yet. Call fit(outputs, labels) first."
            )
        if outputs.n_classes != self.n_classes:
            raise ValueError(
                f"`logits` must have the {self.n_classes} classes of the fit; got {outputs.n_classes}. "
                "Fit a calibrator for this network."
            )
        tensors = (
            [outputs.logits] if outputs.features is None else [outputs.logits, outputs.features]
        )
        fields: dict[str, None] = {}

        def predict(*rows: Tensor) -> tuple[Tensor, ...]:
            found = {
                name: x for name, x in vars(self._predict(Outputs(*rows))).items() if x is not None
            }
            found["probs"] = restore_argmax(found["label"], found["probs"])
            fields.update(dict.fromkeys(found))
            return tuple(found.values())

        with _full_precision(outputs):
            values = in_chunks(predict, *tensors, width=sum(x.shape[1] for x in tensors))
        return Prediction(**dict(zip(fields, values, strict=True)))

    @abstractmethod
    def _build(self, n_classes: int, n_features: int | None) -> None: ...

    @abstractmethod
    def _fit(self, task: Task) -> None: ...

    @abstractmethod
    def _predict(self, outputs: Outputs) -> Prediction: ...


def restore_argmax(label: Tensor, probs: Tensor) -> Tensor:
    """Return the probabilities with the largest at ``label``, where rounding made another equal or larger."""
    own, other = label.unsqueeze(-1), probs.argmax(-1, keepdim=True)
    if bool((own == other).all()):
        return probs
    largest = probs.gather(-1, other)
    exchanged = probs.scatter(-1, other, probs.gather(-1, own))
    exchanged = exchanged.scatter(-1, own, torch.nextafter(largest, torch.ones_like(largest)))
    return torch.where(own == other, probs, exchanged)


def _full_precision(outputs: Outputs) -> AbstractContextManager[object]:
    """Return a context without autocast, which is for networks: here it would cost digits and keep old weights."""
    device = outputs.logits.device.type
    return (
        torch.autocast(device, enabled=False)
        if torch.amp.is_autocast_available(device)
        else nullcontext()
    )


def _check_outputs(outputs: object) -> None:
    if not isinstance(outputs, Outputs):
        raise TypeError(
            f"`outputs` must be of type Outputs; got {type(outputs).__name__}. Wrap logits (N, K) by Outputs(logits)."
        )


def _check_finite(outputs: Outputs) -> None:
    remedy = "Look for an overflow in the network, or drop these inputs."
    check_finite("logits", outputs.logits, remedy)
    if outputs.features is not None:
        check_finite("features", outputs.features, remedy)
