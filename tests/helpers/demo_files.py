"""The files that `simplexcal demo --save-data FOLDER` writes, on which the documented commands run.

They hold the outputs of the demo's network.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from simplexcal import extract
from simplexcal.demo import run as demo_run
from simplexcal.demo.fashion_mnist import CLASSES, calibration_test_split, images_and_labels
from simplexcal.demo.lenet5 import normalise
from simplexcal.types import Outputs

WEIGHTS = Path(demo_run.__file__).with_name("lenet5.safetensors")


def write_demo_files(folder: Path) -> None:
    """Write val.npz, test.npz, ood.npz, inputs.npz, rows.parquet and lenet5.safetensors."""
    data = demo_run.prepare()
    images, labels = images_and_labels()
    splits = calibration_test_split(len(labels))
    head = data.backbone.head
    for name, outputs, rows in zip(("val", "test"), (data.fit, data.test), splits, strict=True):
        save(
            folder / f"{name}.npz",
            **output_arrays(outputs, rows),
            labels=labels[rows],
            images=images[rows],
            class_names=np.array(CLASSES),
            head_weight=head.weight.detach(),
            head_bias=head.bias.detach(),
        )
    rows = splits[1]
    negatives = normalise(255 - images[rows])
    outside, _ = extract(data.backbone, (negatives, labels[rows]))
    save(folder / "ood.npz", **output_arrays(outside, rows))
    save(folder / "inputs.npz", inputs=normalise(images[rows]), labels=labels[rows])
    columns = output_arrays(data.test, rows)
    lists = {name: list(np.asarray(x)) for name, x in columns.items()}
    pq.write_table(pa.table(lists), folder / "rows.parquet")
    shutil.copy(WEIGHTS, folder)


def output_arrays(outputs: Outputs, rows: Tensor) -> dict[str, Any]:
    return {"id": rows, "logits": outputs.logits, "features": outputs.features}


def save(path: Path, **arrays: Any) -> None:
    np.savez(path, **{name: np.asarray(x) for name, x in arrays.items()})  # type: ignore[arg-type]
