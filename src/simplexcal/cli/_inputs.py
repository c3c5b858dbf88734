"""Reads what a command works on: saved outputs, or raw inputs that a network is run on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from simplexcal._validation import check_labels, warn_caller
from simplexcal.backbone import Backbone
from simplexcal.calibrators import CALIBRATORS, Calibrator, Uncalibrated
from simplexcal.io import load_calibrator
from simplexcal.io._columns import Array, Names
from simplexcal.io._kinds import KINDS, OUTPUTS, PREDICTIONS
from simplexcal.io.native import check_fingerprint
from simplexcal.io.tables import (
    Inputs,
    Table,
    find_kind,
    read_inputs,
    read_named_inputs,
    read_outputs,
    read_predictions,
)
from simplexcal.mixup import (
    MAX_HEAD_ERROR,
    FeatureMixup,
    InputMixup,
    LogitMixup,
    Mixup,
    head_error,
)
from simplexcal.network_spec import NetworkSpec, load_backbone, reraise_as_input_error
from simplexcal.onnx import OnnxNetwork
from simplexcal.onnx.network import extract_outputs
from simplexcal.thresholds import Threshold
from simplexcal.types import Prediction

Stored = dict[str, list[Threshold]]  # thresholds by the name of their method
SAVED = {"logits", "probs", "features"}  # arrays of saved outputs alone


@dataclass(frozen=True, eq=False)
class Source:
    """A network's outputs, with the network and its inputs where they were given.

    Args:
        path: The file that was read.
        table: The outputs, and what the file holds beside them.
        backbone: The network of --model, or None for saved outputs.
        inputs: The inputs that the network was run on, a tensor or, where there are several, a
            dict of them; None for saved outputs.
    """

    path: Path
    table: Table
    backbone: Backbone | OnnxNetwork | None = None
    inputs: Any = None

    @property
    def labels(self) -> Tensor:
        """The true classes, checked.

        Raises:
            ValueError: The file holds none, or wrong ones.
        """
        n, n_classes = self.table.outputs.logits.shape
        return check_labels(_required(self.path, self.table.labels), n, n_classes)

    @property
    def fingerprint(self) -> str | None:
        """The network's fingerprint, or None where only its outputs are known."""
        if self.backbone is None:
            return None
        return self.backbone.fingerprint()

    def mixup(self, kind: str) -> Mixup | None:
        """Return the source of mixup samples, or None where there is none.

        Args:
            kind: "inputs", "logits", or "features", which needs the last layer and its inputs.

        Raises:
            ValueError: Inputs are to be mixed without the network, or the last layer in a file
                does not give the logits.
        """
        if kind == "inputs":
            return self._input_mixup()
        head = self.table.head
        outputs = self.table.outputs
        if kind == "logits":
            return LogitMixup(outputs, self.labels)
        if head is None or outputs.features is None:
            return None
        error = head_error(head, outputs)
        if error > MAX_HEAD_ERROR:
            raise ValueError(
                f"'{self.path}': `head_weight` and `head_bias` must turn `features` into `logits`; "
                f"they are off by {error:.0%}. Save the last layer with its bias, or leave it out."
            )
        return FeatureMixup(head, outputs, self.labels)

    def load(self, path: Path) -> tuple[str, Calibrator]:
        """Return the method and the calibrator in a file.

        Args:
            path: A file that `calibrate` wrote.

        Raises:
            ValueError: The calibrator is for another network or another number of classes.
        """
        calibrator, header = load_calibrator(path)
        if self.backbone is not None:
            check_fingerprint(header, self.backbone, path)
        n_classes = self.table.outputs.n_classes
        if calibrator.n_classes != n_classes:
            raise ValueError(
                f"'{path}' is for {calibrator.n_classes} classes; '{self.path}' has {n_classes}."
            )
        return str(header["method"]), calibrator

    def predictions(
        self, calibrators: Sequence[Path], thresholds: Stored, *, must_be_new: bool = False
    ) -> dict[str, Prediction]:
        """Return the network's own predictions and those of each calibrator, by method.

        Args:
            calibrators: Files that `calibrate` wrote.
            thresholds: Filled with the thresholds of each that has some, by the same names.
            must_be_new: Whether the data of a fit are an error instead of a warning.

        Raises:
            ValueError: These must be other data than those of the fits, and are not.
        """
        outputs = self.table.outputs
        uncalibrated = Prediction(outputs.logits.softmax(-1), outputs.label)
        found = {Uncalibrated.key: uncalibrated}
        for path in calibrators:
            method, calibrator = self.load(path)
            if calibrator.was_fitted_to(outputs):
                flattering = (
                    f"'{path}' was fitted to the data in '{self.path}', so it looks better on "
                    "them than on new data. Evaluate other held-out data."
                )
                if must_be_new:
                    raise ValueError(flattering)
                warn_caller(flattering)
            name = _unused_name(method, path, found)
            found[name] = calibrator(outputs)
            if calibrator.thresholds:
                thresholds[name] = list(calibrator.thresholds.values())
        return found

    def _input_mixup(self) -> Mixup:
        if self.backbone is None or self.inputs is None:
            raise ValueError(
                "--mixup inputs needs the network itself: give --model, or mix features."
            )
        return InputMixup(self.backbone, self.inputs, self.labels)


class EvaluationInputs(NamedTuple):
    """Predictions with the true classes, and what a report can show beside them.

    Attributes:
        predictions: By the methods' names.
        labels: The true classes (N,).
        images: One image for each input, if there are images.
        class_names: One name for each class, if there are names.
        thresholds: Of the calibrators that have some, by the methods' names.
        ids: A key for each input, if there are keys.
        fingerprint: The network's fingerprint, where the network is known.
    """

    predictions: dict[str, Prediction]
    labels: Tensor
    images: Tensor | None = None
    class_names: tuple[str, ...] | None = None
    thresholds: Stored | None = None
    ids: Array | None = None
    fingerprint: str | None = None


def read_source(
    path: Path,
    kind: str | None,
    network: NetworkSpec | None,
    names: Names,
    *,
    images: bool = False,
    progress: bool = False,
) -> Source:
    """Read saved outputs; or read inputs and run a network on them.

    Args:
        path: The file to read.
        kind: "logits" or "probs"; None takes what the file holds, or an .onnx file gives.
        network: The network for inputs, None for saved outputs.
        names: What the file calls an array, where it has another name.
        images: Also read images.
        progress: Show the progress of the network.

    Raises:
        ValueError: Options for saved outputs are given with ``network``, or the file is wrong.
    """
    if network is not None:
        if network.onnx_file is not None and not names.keys() & SAVED:
            return _run_network(path, network._replace(kind=kind), names, images, progress)
        if kind is not None or names.keys() & SAVED:
            raise ValueError(
                "--model takes raw inputs; --kind, --logits, --probs and --features are about "
                "saved outputs. Leave out one or the other."
            )
        return _run_network(path, network, names, images, progress)
    if kind is None:
        kind = find_kind(path, kinds=OUTPUTS, names=names)
    return Source(path, read_outputs(path, kind, names=names, images=images))


def read_evaluation_inputs(
    path: Path,
    kind: str | None,
    calibrators: Sequence[Path],
    network: NetworkSpec | None,
    names: Names,
    *,
    images: bool = False,
    must_be_new: bool = False,
) -> EvaluationInputs:
    """Read predictions; or read outputs as ``read_source`` does and calibrate them.

    Args:
        path: The file to read.
        kind: "predictions", or what ``read_source`` takes; None takes what the file holds.
        calibrators: Calibrators to evaluate beside the network itself.
        network: The network for raw inputs.
        names: What the file calls an array, where it has another name.
        images: Also read images.
        must_be_new: Whether the data of a calibrator's fit are an error instead of a warning.

    Raises:
        ValueError: The options do not fit together, or the file is wrong.
    """
    if kind is None and network is None:
        kind = find_kind(path, kinds=KINDS, names=names)
    if kind != PREDICTIONS:
        source = read_source(path, kind, network, names, images=images)
        thresholds: Stored = {}
        predictions = source.predictions(calibrators, thresholds, must_be_new=must_be_new)
        labels = _required(path, source.table.labels)
        table = source.table
        return EvaluationInputs(
            predictions,
            labels,
            table.images,
            table.class_names or _stored_names(calibrators),
            thresholds,
            table.ids,
            source.fingerprint,
        )
    _check_alone(path, calibrators, network)
    prediction, known_labels = read_predictions(path, names=names)
    return EvaluationInputs({_file_name(path): prediction}, _required(path, known_labels))


def _stored_names(calibrators: Sequence[Path]) -> tuple[str, ...] | None:
    """Return the names of the classes that the files of the calibrators hold, or None."""
    for path in calibrators:
        calibrator, _ = load_calibrator(path)
        if calibrator.facts.class_names is not None:
            return calibrator.facts.class_names
    return None


def read_unlabelled(
    path: Path,
    kind: str | None,
    calibrators: Sequence[Path],
    network: NetworkSpec | None,
    names: Names,
) -> dict[str, Prediction]:
    """Return predictions as ``read_evaluation_inputs`` does, without labels and keys.

    Args:
        path: The file to read.
        kind: "predictions", or what ``read_source`` takes; None takes what the file holds.
        calibrators: Calibrators to use beside the network itself.
        network: The network for raw inputs.
        names: What the file calls an array, where it has another name.

    Raises:
        ValueError: The options do not fit together, or the file is wrong.
    """
    names = {array: name for array, name in names.items() if array in SAVED}
    if kind is None and network is None:
        kind = find_kind(path, kinds=KINDS, names=names)
    if kind != PREDICTIONS:
        return read_source(path, kind, network, names).predictions(calibrators, {})
    _check_alone(path, calibrators, network)
    prediction, _ = read_predictions(path, names=names)
    return {_file_name(path): prediction}


def pair_methods(
    path: Path, predictions: dict[str, Prediction], others: dict[str, Prediction]
) -> dict[str, Prediction]:
    """Return predictions for other inputs under the names of the same methods.

    Args:
        path: The file of the other inputs.
        predictions: By the methods' names.
        others: As many, in the same order; predictions from a file are called after it.

    Raises:
        ValueError: One are outputs and the other predictions.
    """
    saved = others.keys() != predictions.keys()
    if saved and (Uncalibrated.key in predictions or Uncalibrated.key in others):
        raise ValueError(
            f"'{path}' must hold the same as DATA: outputs or inputs of the network for both, or "
            "predictions for both."
        )
    return dict(zip(predictions, others.values(), strict=True))


def _check_alone(path: Path, calibrators: Sequence[Path], network: NetworkSpec | None) -> None:
    """Raise ValueError if predictions come with what would predict."""
    if calibrators or network is not None:
        raise ValueError(
            f"'{path}': predictions are evaluated as they are. Leave out --calibrator and --model."
        )


def _file_name(path: Path) -> str:
    """Return what predictions of an unknown method are called: the name of their file."""
    if path.stem in CALIBRATORS:
        # The key of a method would be shown as that method, which the file need not hold.
        return path.name
    return path.stem


def _run_network(
    path: Path, network: NetworkSpec, names: Names, images: bool, progress: bool
) -> Source:
    inputs: Any
    if network.onnx_file is None:
        given = read_inputs(path, names=names, images=images)
        backbone = load_backbone(network)
        inputs = as_network_input(backbone, given.inputs)
    else:
        backbone = load_backbone(network)
        inputs, given = _onnx_inputs(path, backbone, names, images)
    data = (inputs, _labels_or_zeros(given))
    with reraise_as_input_error(f"the `inputs` of '{path}'"):
        outputs, _ = extract_outputs(backbone, data, progress=progress)
    head = None
    if outputs.features is not None:
        head = backbone.head
    table = Table(outputs, given.labels, head, given.images, given.class_names, given.ids)
    return Source(path, table, backbone, inputs)


def _onnx_inputs(path: Path, network: Any, names: Names, images: bool) -> tuple[Any, Inputs]:
    """Return the inputs of an OnnxNetwork, by name where it takes several."""
    parts = network.input_names
    if len(parts) > 1:
        return read_named_inputs(path, parts, names=names, images=images)
    given = read_inputs(path, names=names, images=images)
    return given.inputs, given


def _labels_or_zeros(given: Inputs) -> Tensor:
    """Return labels for ``extract``, which needs some; zeros are not used further."""
    if given.labels is None:
        return torch.zeros(len(given.inputs), dtype=torch.long)
    return given.labels


def as_network_input(backbone: Backbone | OnnxNetwork, inputs: Tensor) -> Tensor:
    """Return the inputs in the network's dtype where they are float64, which numpy makes.

    Args:
        backbone: The network.
        inputs: Its inputs, in their own dtype.
    """
    if inputs.dtype == torch.float64:
        return backbone.as_input(inputs.numpy())
    return inputs


def _unused_name(method: str, path: Path, used: Iterable[str]) -> str:
    """Return the method's name, with as much of the path as makes it unique."""
    for name in (method, f"{method} ({path.stem})"):
        if name not in used:
            return name
    return f"{method} ({path})"


def _required(path: Path, labels: Tensor | None) -> Tensor:
    """Return the true classes of a file, which must hold them."""
    if labels is None:
        raise ValueError(
            f"'{path}' holds no true classes, which are needed here. Add an array `labels`, "
            "in .csv and .parquet a column `label`; or name them with --labels."
        )
    return labels
