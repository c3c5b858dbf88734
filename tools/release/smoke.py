"""Something of the library and of each extra, run in an environment that has no more than that.

    python -I smoke.py EXTRAS REPOSITORY

It imports nothing of the repository: what is tried is the installed package. Pages of the
repository are read, and their code is run.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Check = Callable[[Path], None]


def library(root: Path) -> None:
    """The README's and the quickstart's Python, without any extra."""
    for page in (root / "README.md", root / "docs" / "quickstart.md"):
        _run_python(page)
    done = subprocess.run(["simplexcal"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert 'pip install "simplexcal[cli,report]"' in done.stderr


def command_line(_: Path) -> None:
    """Saved outputs, from the calibration to the card."""
    _command("simplexcal demo --save-data .")
    _command("simplexcal calibrate val.npz --method ts -o net.safetensors")
    _command("simplexcal evaluate test.npz --calibrator net.safetensors --save")
    _command("simplexcal predict net.safetensors test.npz -o predictions.parquet")
    _command("simplexcal threshold net.safetensors test.npz --coverage 0.9 --save")
    assert "5000 inputs" in _command("simplexcal info net.safetensors")


def report(_: Path) -> None:
    """A report."""
    model, data = _model()
    model.write_report("report.html", data)
    assert "Calibration report" in Path("report.html").read_text(encoding="utf-8")


def demo(_: Path) -> None:
    """The demo, and the README's commands."""
    assert "sts" in _command("simplexcal demo --output demo.html").lower()
    assert Path("demo.html").stat().st_size > 100_000


def onnx(_: Path) -> None:
    """One graph, served by onnxruntime."""
    import numpy as np
    import onnxruntime

    model, (x, _) = _model()
    model.to_onnx("net.onnx", x[:1])
    session = onnxruntime.InferenceSession("net.onnx", providers=["CPUExecutionProvider"])
    (probs,) = session.run(["probs"], {"inputs": x.numpy()})
    np.testing.assert_allclose(probs, model.predict(x).probs.numpy(), atol=1e-5)


def sklearn(_: Path) -> None:
    """A classifier of scikit-learn."""
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    from simplexcal.sklearn import SimplexCalibratedClassifier

    x, y = load_iris(return_X_y=True)
    found = SimplexCalibratedClassifier(LogisticRegression(max_iter=1000)).fit(x, y)
    assert found.score(x, y) > 0.9


def ray(_: Path) -> None:
    """A Parquet file, scored on Ray."""
    _command("simplexcal demo --save-data .")
    _command("simplexcal calibrate val.npz --method ts -o net.safetensors")
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    logits = np.load("test.npz")["logits"]
    pq.write_table(pa.table({"logits": list(logits)}), "rows.parquet")
    _command("simplexcal score net.safetensors rows.parquet -o scored.parquet --engine ray")
    assert Path("scored.parquet").exists()


def huggingface(_: Path) -> None:
    """The module that imports transformers."""
    from simplexcal.integrations.huggingface import pipeline_model

    assert callable(pipeline_model)


def lightning(_: Path) -> None:
    """The module that imports Lightning."""
    from simplexcal.integrations.lightning import CalibrationCallback

    assert CalibrationCallback().model is None


def torchmetrics(_: Path) -> None:
    """The metric."""
    from simplexcal.integrations.torchmetrics import CalibrationErrorWithFloor

    model, (x, labels) = _model()
    metric = CalibrationErrorWithFloor()
    metric.update(model.predict(x).probs, labels)
    assert metric.compute()["ece"] > 0


def mlflow(_: Path) -> None:
    """A run with figures and the card."""
    import os

    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    import mlflow as library

    from simplexcal.integrations.mlflow import log_calibration

    library.set_tracking_uri("mlruns")
    model, data = _model()
    with library.start_run():
        assert log_calibration(model, data, report=False) is not None


def mlflow_onnx(_: Path) -> None:
    """A logged model, as MLflow serves it."""
    import os

    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    import mlflow as library
    import numpy as np

    from simplexcal.integrations.mlflow import log_model

    library.set_tracking_uri("mlruns")
    model, (x, _) = _model()
    info = log_model(model, x[:1])
    served = library.pyfunc.load_model(info.model_uri).predict(x.numpy())
    np.testing.assert_allclose(served["probs"], model.predict(x).probs.numpy(), atol=1e-5)


# By the extras of the environment. Those for developers are tried by the test suite.
CHECKS: dict[str, Check] = {
    "": library,
    "cli": command_line,
    "report": report,
    "cli,report": demo,
    "onnx": onnx,
    "sklearn": sklearn,
    "cli,ray": ray,
    "huggingface": huggingface,
    "lightning": lightning,
    "torchmetrics": torchmetrics,
    "mlflow": mlflow,
    "mlflow,onnx": mlflow_onnx,
}


def _model() -> Any:
    """Return a calibrated network, and data that it has not seen."""
    import simplexcal as sc
    from simplexcal.demo import load_example

    net, (x, labels), (x_test, labels_test) = load_example()
    return sc.calibrate(net, (x[:500], labels[:500]), "ts"), (x_test[:500], labels_test[:500])


def _run_python(page: Path) -> None:
    """Run the blocks of a page one after the other, with their names kept."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, page.name, "exec"), names)


def _command(line: str) -> str:
    """Run a command and return what it prints."""
    done = subprocess.run(line.split(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{line}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    CHECKS[sys.argv[1]](Path(sys.argv[2]))
