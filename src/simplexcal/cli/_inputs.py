"""Reads what a command works on: saved outputs, or raw inputs that a network is run on."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from simplexcal._validation import check_labels, warn_caller
from simplexcal.backbone import Backbone
from simplexcal.calibrators import Calibrator, Uncalibrated
from simplexcal.cli._dense import (
    DenseEvaluationInputs,
    DenseMethods,
    DenseOptions,
    DensePredictions,
    DenseSource,
    maps_as_they_are,
    rows_of,
)
from simplexcal.cli._matching import file_name, load_matching, required_labels, unused_name
from simplexcal.dense import is_dense
from simplexcal.io import load_calibrator
from simplexcal.io._columns import Array, Names
from simplexcal.io._kinds import KINDS, OUTPUTS, PREDICTIONS
from simplexcal.io.tables import (
    Inputs,
    Table,
    array_names,
    find_kind,
    read_inputs,
    read_named_inputs,
    read_outputs_or_maps,
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
from simplexcal.types import Prediction, class_dim

BATCH_SIZE = 256
N_PROBED = 8  # inputs that tell what a network returns
BESIDE = {"labels", "label", "images", "class_names", "id"}  # arrays that no network takes
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
        is_dense: Whether the outputs are those of a sample of tokens or pixels.
    """

    path: Path
    table: Table
    backbone: Backbone | OnnxNetwork | None = None
    inputs: Any = None
    is_dense: bool = False

    @property
    def labels(self) -> Tensor:
        """The true classes, checked.

        Raises:
            ValueError: The file holds none, or wrong ones.
        """
        n, n_classes = self.table.outputs.logits.shape
        return check_labels(required_labels(self.path, self.table.labels), n, n_classes)

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
        return load_matching(path, self.path, self.table.outputs.n_classes, self.backbone)

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
            name = unused_name(method, path, found)
            found[name] = calibrator(outputs)
            if calibrator.thresholds:
                thresholds[name] = list(calibrator.thresholds.values())
        return found

    def _input_mixup(self) -> Mixup:
        if self.is_dense:
            raise ValueError(
                "--mixup must be features or logits for a network that classifies each token or "
                "pixel: a mixed input has no single pair of classes at each position."
            )
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
    progress: bool = False,
) -> Source:
    """Read saved outputs; or read inputs and run a network on them. One class for each input.

    Args:
        path: The file to read.
        kind: "logits" or "probs"; None takes what the file holds, or an .onnx file gives.
        network: The network for inputs, None for saved outputs.
        names: What the file calls an array, where it has another name.
        progress: Show the progress of the network.

    Raises:
        ValueError: Options for saved outputs are given with ``network``, the file is wrong, or the
            network classifies each token or pixel.
    """
    source = read_data(path, kind, network, names, DenseOptions(), progress=progress)
    if isinstance(source, DenseSource):
        raise _not_for_positions(path)
    return source


def read_data(
    path: Path,
    kind: str | None,
    network: NetworkSpec | None,
    names: Names,
    options: DenseOptions,
    *,
    images: bool = False,
    progress: bool = False,
) -> Source | DenseSource:
    """Read what ``read_source`` does, or data of a network that classifies each token or pixel.

    Args:
        path: The file to read.
        kind: "logits" or "probs"; None takes what the file holds, or an .onnx file gives.
        network: The network for inputs, None for saved outputs.
        names: What the file calls an array, where it has another name.
        options: Options about tokens and pixels.
        images: Also read images.
        progress: Show the progress of the network.

    Raises:
        ValueError: Options for saved outputs are given with ``network``, or the file is wrong.
    """
    is_onnx = network is not None and network.onnx_file is not None
    if network is not None and is_onnx and not names.keys() & SAVED:
        network = network._replace(kind=kind)
    elif network is not None and (kind is not None or names.keys() & SAVED):
        raise ValueError(
            "--model takes raw inputs; --kind, --logits, --probs and --features are about "
            "saved outputs. Leave out one or the other."
        )
    if network is not None:
        source = _run_network(path, network, names, options, images=images, progress=progress)
    else:
        source = _read_saved(path, kind, names, options, images)
    if isinstance(source, Source):
        options.check_unused(path)
    return source


def _read_saved(
    path: Path, kind: str | None, names: Names, options: DenseOptions, images: bool
) -> Source | DenseSource:
    if kind is None:
        kind = find_kind(path, kinds=OUTPUTS, names=names)
    found = read_outputs_or_maps(path, kind, names=names, images=images)
    if isinstance(found, Table):
        return Source(path, found)
    backbone = Backbone(maps_as_they_are, probs=kind == "probs")
    n_classes = found.inputs.shape[class_dim(found.inputs.dim() - 1)]
    return DenseSource(path, backbone, {"maps": found.inputs}, found, options, n_classes)


def read_evaluation_inputs(
    path: Path,
    kind: str | None,
    calibrators: Sequence[Path],
    network: NetworkSpec | None,
    names: Names,
    options: DenseOptions,
    *,
    images: bool = False,
    must_be_new: bool = False,
) -> EvaluationInputs | DenseEvaluationInputs:
    """Read predictions; or read outputs as ``read_data`` does and calibrate them.

    Args:
        path: The file to read.
        kind: "predictions", or what ``read_data`` takes; None takes what the file holds.
        calibrators: Calibrators to evaluate beside the network itself.
        network: The network for raw inputs.
        names: What the file calls an array, where it has another name.
        options: Options about tokens and pixels.
        images: Also read images.
        must_be_new: Whether the data of a calibrator's fit are an error instead of a warning.

    Raises:
        ValueError: The options do not fit together, or the file is wrong.
    """
    if kind is None and network is None:
        kind = find_kind(path, kinds=KINDS, names=names)
    if kind == PREDICTIONS:
        _check_alone(path, calibrators, network)
        return _evaluation_of_predictions(path, names, options)
    source = read_data(path, kind, network, names, options, images=images)
    if isinstance(source, DenseSource):
        class_names = source.given.class_names or _stored_names(calibrators)
        return DenseMethods(source, source.calibrators(calibrators), class_names)
    thresholds: Stored = {}
    predictions = source.predictions(calibrators, thresholds, must_be_new=must_be_new)
    labels = required_labels(path, source.table.labels)
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


def _evaluation_of_predictions(
    path: Path, names: Names, options: DenseOptions
) -> EvaluationInputs | DensePredictions:
    prediction, known_labels = read_predictions(path, names=names)
    labels = required_labels(path, known_labels)
    if is_dense(prediction.probs):
        return DensePredictions(path, prediction, labels, options)
    options.check_unused(path)
    return EvaluationInputs({file_name(path): prediction}, labels)


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
    check_is_of_inputs(path, prediction)
    return {file_name(path): prediction}


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


def check_is_of_inputs(path: Path, prediction: Prediction) -> None:
    """Raise ValueError if predictions are for tokens or pixels.

    Args:
        path: Their file.
        prediction: The predictions.
    """
    if is_dense(prediction.probs):
        raise _not_for_positions(path)


def _not_for_positions(path: Path) -> ValueError:
    return ValueError(
        f"'{path}' is about tokens or pixels, and this command takes one class for each input. "
        "calibrate, predict, evaluate and report take both."
    )


def _run_network(
    path: Path,
    network: NetworkSpec,
    names: Names,
    options: DenseOptions,
    *,
    images: bool,
    progress: bool,
) -> Source | DenseSource:
    backbone, inputs, given = _network_inputs(path, network, names, images)
    n_classes = _classes_of_positions(path, backbone, inputs, given)
    if n_classes is not None and isinstance(backbone, Backbone):
        return DenseSource(path, backbone, inputs, given, options, n_classes)
    data = (inputs, _labels_or_zeros(given))
    size = options.batch_size or BATCH_SIZE
    with reraise_as_input_error(f"the `inputs` of '{path}'"):
        outputs, _ = extract_outputs(backbone, data, batch_size=size, progress=progress)
    head = None
    if outputs.features is not None:
        head = backbone.head
    table = Table(outputs, given.labels, head, given.images, given.class_names, given.ids)
    return Source(path, table, backbone, inputs)


def _classes_of_positions(
    path: Path, backbone: Backbone | OnnxNetwork, inputs: Any, given: Inputs
) -> int | None:
    """Return the number of classes of each token or pixel; None of a network of whole inputs.

    Raises:
        ValueError: Such a network, and labels that are not one for each input.
    """
    labels = given.labels
    if labels is not None and labels.dim() == 1:
        return None
    with reraise_as_input_error(f"the `inputs` of '{path}'"):
        outputs = backbone(rows_of(inputs, slice(N_PROBED)))
    if backbone.is_dense:
        return int(outputs.n_classes)
    if labels is not None:
        raise ValueError(
            f"'{path}': `labels` must have shape ({len(labels)},), one class for each input, as "
            f"the network returns; got {tuple(labels.shape)}."
        )
    return None


def _network_inputs(
    path: Path, network: NetworkSpec, names: Names, images: bool
) -> tuple[Backbone | OnnxNetwork, Any, Inputs]:
    """Return a network and its inputs, by name where there are several."""
    if network.onnx_file is not None:
        onnx_network = load_backbone(network)
        return onnx_network, *_onnx_inputs(path, onnx_network, names, images)
    held = set(array_names(path))
    if "inputs" not in names and not held & {"inputs", *SAVED}:
        backbone = load_backbone(network)
        parts = [name for name in _parameters(backbone) if name in held - BESIDE]
        if parts:
            by_name, given = read_named_inputs(path, parts, names=names, images=images)
            inputs = {name: as_network_input(backbone, x) for name, x in by_name.items()}
            return backbone, inputs, given
    given = read_inputs(path, names=names, images=images)
    backbone = load_backbone(network)
    own = as_network_input(backbone, given.inputs)
    first, *others = _parameters(backbone) or ["inputs"]
    if given.attention_mask is None or "attention_mask" not in others:
        return backbone, own, given
    return backbone, {first: own, "attention_mask": given.attention_mask}, given


def _parameters(backbone: Backbone | OnnxNetwork) -> list[str]:
    """Return the names of what a PyTorch network takes."""
    return list(inspect.signature(backbone.net.forward).parameters)


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
