"""MLflow: the calibrated model as an ONNX model, its figures, its report and its card."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlflow

from simplexcal.comparison import Comparison
from simplexcal.model import CalibratedModel

SCORES = ("accuracy", "ece", "ece_low", "ece_high", "ece_floor_95", "nll", "brier")


def log_calibration(
    model: CalibratedModel,
    data: Any = None,
    *,
    artifact_path: str = "calibration",
    report: bool = True,
    title: str = "Calibration report",
) -> Comparison | None:
    """Log the calibrator, its card, and what it does to test data, in the active run.

    Artifacts: `calibrator.safetensors`, which `simplexcal.load` reads, `card.md` and `report.html`.
    Parameters: `calibration_method` and `calibration_inputs`. Metrics: `before_ece`, `after_ece`
    and so on. MLflow starts a run where none is active.

    Args:
        model: The calibrated model.
        data: Labelled test data; see `CalibratedModel.evaluate`. None logs neither metrics nor a
            report.
        artifact_path: Folder of the artifacts.
        report: Whether to log the report, which needs the extra ``simplexcal[report]``.
        title: Title of the report.

    Returns:
        The comparison on the test data, or None without data.
    """
    found = None
    with TemporaryDirectory() as name:
        folder = Path(name)
        if data is not None:
            found = model.evaluate(data)
            if report:
                model.write_report(folder / "report.html", data, title=title)
        model.save(folder / "calibrator.safetensors")
        (folder / "card.md").write_text(f"{model.card()}\n", encoding="utf-8")
        mlflow.log_params(_parameters(model))
        if found is not None:
            mlflow.log_metrics(_metrics(found))
        mlflow.log_artifacts(str(folder), artifact_path)
    return found


def log_model(
    model: CalibratedModel,
    example_inputs: Any,
    *,
    name: str = "model",
    dynamic: Sequence[int] = (0,),
    **settings: Any,
) -> Any:
    """Log network and calibrator as an ONNX model, which MLflow serves without torch or pickle.

    It needs the extra ``simplexcal[onnx]``.

    Args:
        model: The calibrated model.
        example_inputs: Inputs of the network; only shapes and dtypes matter.
        name: Name of the model.
        dynamic: Dimensions of the inputs that may have any size; 0 is the batch.
        **settings: Other arguments of ``mlflow.onnx.log_model``.

    Returns:
        What ``mlflow.onnx.log_model`` returns: `model_uri` and more.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        model.to_onnx(path, example_inputs, dynamic=dynamic)
        import mlflow.onnx  # needs the extra, which to_onnx asks for
        import onnx

        # Nothing else runs the graph; otherwise MLflow would look for imports in another process.
        settings.setdefault("pip_requirements", mlflow.onnx.get_default_pip_requirements())
        return mlflow.onnx.log_model(onnx.load(path), name=name, **settings)


def _parameters(model: CalibratedModel) -> dict[str, Any]:
    """Return what was fitted to how much."""
    found: dict[str, Any] = {"calibration_method": model.calibrator.key}
    fit = model.calibrator.facts.fit
    if fit is not None:
        found[f"calibration_{fit.noun}"] = fit.n
    return found


def _metrics(found: Comparison) -> dict[str, float]:
    """Return the main figures before and after calibration."""
    numbers = {}
    for when, evaluation in (("before", found.before), ("after", found.after)):
        for score in SCORES:
            numbers[f"{when}_{score}"] = float(getattr(evaluation, score))
    return numbers
