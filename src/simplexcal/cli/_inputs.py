"""What the command line works on: a file of saved outputs, or a file of inputs with the network that takes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from simplexcal._validation import check_labels
from simplexcal.backbone import Backbone, extract
from simplexcal.calibrators import Calibrator
from simplexcal.io import load_calibrator
from simplexcal.io.tables import Table, read_inputs, read_outputs, read_predictions
from simplexcal.mixup import FeatureMixup, InputMixup, Mixup
from simplexcal.network_spec import Network, blaming_the_inputs, load_network
from simplexcal.types import Prediction


@dataclass(frozen=True, eq=False)
class Source:
    """A network's outputs with what belongs to them; and the network and its inputs, where they were given."""

    path: Path
    table: Table
    backbone: Backbone | None = None
    inputs: Tensor | None = None

    @property
    def labels(self) -> Tensor:
        """The true classes, which must be there."""
        return check_labels(_given(self.path, self.table.labels), *self.table.outputs.logits.shape)

    @property
    def fingerprint(self) -> str | None:
        """The network's, or None where only its outputs are known."""
        return None if self.backbone is None else self.backbone.fingerprint()

    def mixup(self, kind: str) -> Mixup | None:
        """Return the source of mixed samples: of "features" where the last layer is known, of "inputs", or "none"."""
        if kind == "inputs":
            if self.backbone is None or self.inputs is None:
                raise ValueError(
                    "--mixup inputs needs the network itself: give --model, or mix features."
                )
            return InputMixup(self.backbone, self.inputs, self.labels)
        if kind == "none" or self.table.head is None or self.table.outputs.features is None:
            return None
        return FeatureMixup(self.table.head, self.table.outputs, self.labels)

    def load(self, path: Path) -> tuple[str, Calibrator]:
        """Return the method and the calibrator in a file, if it was fitted for these outputs' network."""
        calibrator, header = load_calibrator(path)
        if self.backbone is not None and header["fingerprint"] not in (None, self.fingerprint):
            raise ValueError(
                f"'{path}' was calibrated for another network than that of --model and --weights."
            )
        if calibrator.n_classes != self.table.outputs.n_classes:
            raise ValueError(
                f"'{path}' is for {calibrator.n_classes} classes; '{self.path}' has {self.table.outputs.n_classes}."
            )
        return str(header["method"]), calibrator

    def predictions(self, calibrators: Sequence[Path]) -> dict[str, Prediction]:
        """Return what the network says itself, and what it says after each calibrator, by the methods' names."""
        outputs = self.table.outputs
        found = {"none": Prediction(outputs.logits.softmax(-1), outputs.label)}
        for path in calibrators:
            method, calibrator = self.load(path)
            names = (method, f"{method} ({path.stem})", f"{method} ({path})")
            found[next((name for name in names if name not in found), names[-1])] = calibrator(
                outputs
            )
        return found


class Judged(NamedTuple):
    """Predictions by the methods' names, with the true classes, and what a report can show beside them."""

    predictions: dict[str, Prediction]
    labels: Tensor
    images: Tensor | None = None
    class_names: tuple[str, ...] | None = None


def read_source(
    path: Path,
    kind: str | None,
    network: Network | None,
    *,
    images: bool = False,
    progress: bool = False,
) -> Source:
    """Read saved outputs, "logits" or "probs" as ``kind`` says, or inputs, and run the network on them."""
    if network is None:
        if kind is None:
            raise ValueError(
                f"Say what '{path}' holds: --input logits or --input probs; or --model for raw inputs."
            )
        return Source(path, read_outputs(path, kind, images=images))
    if kind is not None:
        raise ValueError(
            "--input tells what saved outputs hold, and --model takes raw inputs. Give one of the two."
        )
    given = read_inputs(path, images=images)
    backbone = Backbone(load_network(network.model, network.weights), network.head)
    labels = (
        torch.zeros(len(given.inputs), dtype=torch.long) if given.labels is None else given.labels
    )
    double = (
        given.inputs.dtype == torch.float64
    )  # as numpy makes numbers, whatever the network takes
    inputs = backbone.as_input(given.inputs.numpy()) if double else given.inputs
    with blaming_the_inputs(path):
        outputs, _ = extract(backbone, (inputs, labels), progress=progress)
    table = Table(outputs, given.labels, backbone.head, given.images, given.class_names, given.ids)
    return Source(path, table, backbone, inputs)


def read_judged(
    path: Path,
    kind: str | None,
    calibrators: Sequence[Path],
    network: Network | None,
    *,
    images: bool = False,
) -> Judged:
    """Read "predictions", or outputs as ``read_source`` does, to be judged before and after each calibrator."""
    if kind != "predictions":
        source = read_source(path, kind, network, images=images)
        table, predictions = source.table, source.predictions(calibrators)
        return Judged(predictions, _given(path, table.labels), table.images, table.class_names)
    if calibrators or network is not None:
        raise ValueError(
            "--input predictions are judged as they are: leave out --calibrator and --model."
        )
    prediction, labels = read_predictions(path)
    return Judged({path.stem: prediction}, _given(path, labels))


def _given(path: Path, labels: Tensor | None) -> Tensor:
    """Return the true classes of a file, which must hold them."""
    if labels is None:
        raise ValueError(
            f"'{path}' holds no true classes, which are needed here. Add an array `labels`, in .csv and .parquet a "
            "column `label`."
        )
    return labels
