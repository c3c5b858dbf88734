"""Where a report comes from: its data, its versions, and a fingerprint of its numbers."""

import hashlib
import platform
from collections.abc import Mapping

import torch
from torch import Tensor

import simplexcal
from simplexcal.report._format import count
from simplexcal.types import Prediction


def provenance(
    predictions: Mapping[str, Prediction], labels: Tensor, sources: Mapping[str, str] | None
) -> dict[str, str]:
    """Return what a reader needs to make the same report again, by name.

    Args:
        predictions: Predictions by the name of their method.
        labels: The class of each input, (N,).
        sources: What the caller says about the origin of the data.
    """
    first = next(iter(predictions.values()))
    n, k = first.probs.shape
    found = {str(name): str(value) for name, value in (sources or {}).items()}
    found["Inputs"] = f"{count(n)}, in {count(k)} classes"
    found["Methods"] = ", ".join(predictions)
    found["Fingerprint"] = f"{fingerprint(predictions, labels)} (SHA-256 of predictions and labels)"
    found["Versions"] = versions()
    return found


def versions() -> str:
    """Return the versions of this package, of torch and of Python."""
    python = platform.python_version()
    return f"simplexcal {simplexcal.__version__}, torch {torch.__version__}, Python {python}"


def fingerprint(predictions: Mapping[str, Prediction], labels: Tensor) -> str:
    """Return the first 16 digits of a digest of all probabilities, predicted classes and labels.

    Args:
        predictions: Predictions by the name of their method.
        labels: The class of each input, (N,).
    """
    digest = hashlib.sha256(labels.long().numpy().tobytes())
    for name, prediction in predictions.items():
        digest.update(name.encode())
        digest.update(prediction.probs.double().contiguous().numpy().tobytes())
        digest.update(prediction.label.long().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
