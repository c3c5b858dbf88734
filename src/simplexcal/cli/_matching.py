"""Checks that data, labels and calibrators belong together, and the names of methods."""

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from simplexcal.backbone import Backbone
from simplexcal.calibrators import CALIBRATORS, Calibrator
from simplexcal.io import load_calibrator
from simplexcal.io.native import check_fingerprint
from simplexcal.onnx import OnnxNetwork


def load_matching(
    path: Path, data: Path, n_classes: int, backbone: Backbone | OnnxNetwork | None
) -> tuple[str, Calibrator]:
    """Return the method and the calibrator in a file.

    Args:
        path: A file that `calibrate` wrote.
        data: The file of the data, for errors.
        n_classes: Number of classes of the data.
        backbone: The network, or None where only its outputs are known.

    Raises:
        ValueError: The calibrator is for another network or another number of classes.
    """
    calibrator, header = load_calibrator(path)
    if backbone is not None:
        check_fingerprint(header, backbone, path)
    if calibrator.n_classes != n_classes:
        raise ValueError(
            f"'{path}' is for {calibrator.n_classes} classes; '{data}' has {n_classes}."
        )
    return str(header["method"]), calibrator


def unused_name(method: str, path: Path, used: Iterable[str]) -> str:
    """Return the method's name, with as much of the path as makes it unique.

    Args:
        method: Key of the method.
        path: The calibrator's file.
        used: Names of others.
    """
    for name in (method, f"{method} ({path.stem})"):
        if name not in used:
            return name
    return f"{method} ({path})"


def file_name(path: Path) -> str:
    """Return what predictions of an unknown method are called: the name of their file.

    Args:
        path: The file.
    """
    if path.stem in CALIBRATORS:
        # The key of a method would be shown as that method, which the file need not hold.
        return path.name
    return path.stem


def required_labels(path: Path, labels: Tensor | None) -> Tensor:
    """Return the true classes of a file, which must hold them.

    Args:
        path: The file.
        labels: What it holds, if anything.

    Raises:
        ValueError: It holds none.
    """
    if labels is None:
        raise ValueError(
            f"'{path}' holds no true classes, which are needed here. Add an array `labels`, "
            "in .csv and .parquet a column `label`; or name them with --labels."
        )
    return labels
