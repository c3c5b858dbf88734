"""Write the .onnx files of this folder, and what their models say, with the converters themselves.

usage: python tests/onnx/exported/export.py

It needs scikit-learn, lightgbm, skl2onnx and onnxmltools, which the tests do not. `data.npz` has
the inputs, the labels and, by the name of the file, the probabilities that the model itself gives.
The files are of scikit-learn 1.9.1, lightgbm 4.7.0, skl2onnx 1.20.0 and onnxmltools 1.16.0.
"""

from pathlib import Path
from typing import Any

import numpy as np
from lightgbm import LGBMClassifier
from onnxmltools import convert_lightgbm
from onnxmltools.convert.common.data_types import FloatTensorType
from skl2onnx import to_onnx
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

FOLDER = Path(__file__).parent
D, K, N, N_FIT = 4, 3, 300, 150


def main() -> None:
    """Fit each model and write it."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(N, D)).astype(np.float32)
    weight = rng.normal(size=(D, K))
    labels = (inputs @ weight + rng.gumbel(size=(N, K))).argmax(1)
    binary = (labels > 0).astype(int)
    models: dict[str, Any] = {
        "logistic_regression": LogisticRegression(),
        "logistic_regression_binary": LogisticRegression(),
        "random_forest": RandomForestClassifier(5, max_depth=3, random_state=0),
        "mlp": make_pipeline(StandardScaler(), MLPClassifier((8,), max_iter=500, random_state=0)),
        "naive_bayes": GaussianNB(),
        "lightgbm": LGBMClassifier(n_estimators=3, num_leaves=4, verbose=-1, n_jobs=1),
    }
    expected = {}
    for name, model in models.items():
        targets = labels
        if name.endswith("binary"):
            targets = binary
        model.fit(inputs[:N_FIT], targets[:N_FIT])
        expected[name] = model.predict_proba(inputs).astype(np.float32)
        if name == "lightgbm":
            types = [("x", FloatTensorType([None, D]))]
            graph = convert_lightgbm(model, initial_types=types)
        else:
            graph = to_onnx(model, inputs[:1])
        (FOLDER / f"{name}.onnx").write_bytes(graph.SerializeToString())
    np.savez_compressed(FOLDER / "data.npz", inputs=inputs, labels=labels, **expected)


if __name__ == "__main__":
    main()
