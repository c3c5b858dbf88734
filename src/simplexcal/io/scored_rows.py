"""Files of predictions as `predict` and `score` write them, with or without probabilities."""

from pathlib import Path
from typing import NamedTuple, Self

from torch import Tensor

from simplexcal.dense import is_dense
from simplexcal.io._columns import UNCERTAINTIES, quote_names
from simplexcal.io.tables import read_columns, read_predictions
from simplexcal.types import Prediction


class ScoredRows(NamedTuple):
    """What a file of predictions holds of each input.

    Attributes:
        confidence: Confidence of each prediction, (N,).
        probs: Probabilities (N, K), or None.
        label: Predicted classes, (N,), or None.
        uncertainties: Those that are there, (N,) each, by name.
    """

    confidence: Tensor
    probs: Tensor | None
    label: Tensor | None
    uncertainties: dict[str, Tensor]

    @classmethod
    def of(cls, prediction: Prediction) -> Self:
        """Return the rows of a prediction.

        Args:
            prediction: The prediction, one class for each input.
        """
        found = {name: getattr(prediction, name) for name in UNCERTAINTIES}
        present = {name: x for name, x in found.items() if x is not None}
        return cls(prediction.confidence, prediction.probs, prediction.label, present)


def read_scored_rows(path: str | Path) -> tuple[ScoredRows, Tensor | None]:
    """Read predictions that ``predict`` or ``score`` wrote, and the true classes, or None.

    Args:
        path: The file.

    Raises:
        ValueError: If the file is malformed, or holds neither probabilities nor confidences.
        TypeError: If an array is of another type.
        OSError: If the file cannot be opened.
    """
    columns = read_columns(path, ["predicted", "confidence", *UNCERTAINTIES, "labels"])
    if "probs" in columns.array_names or columns.is_unnamed:
        prediction, labels = read_predictions(path)
        if is_dense(prediction.probs):
            raise ValueError(
                f"'{path}' is about tokens or pixels, and one class for each input is needed. "
                "Pass predictions for whole inputs."
            )
        return ScoredRows.of(prediction), labels
    if "confidence" not in columns:
        raise ValueError(
            f"'{path}' must hold predictions, with `confidence` or `probs`; found "
            f"{quote_names(columns.column_names)}. Calibrate them first: simplexcal predict."
        )
    confidence = columns.floats("confidence")
    shape = (len(confidence),)
    columns.check_shape("confidence", shape)
    label = None
    if "predicted" in columns:
        label = columns.class_numbers("predicted", shape)
    labels = None
    if "labels" in columns:
        labels = columns.class_numbers("labels", shape)
    found = {name: columns.floats(name, shape) for name in UNCERTAINTIES if name in columns}
    return ScoredRows(confidence, None, label, found), labels
