"""Small files in each format, written as a user would, with each format's own library."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from torch import Generator, Tensor

from simplexcal.io.tables import Table, read_outputs
from simplexcal.types import Prediction

N, K, D = 6, 3, 2
STEMS = {"logits": "logit", "probs": "prob", "features": "feature"}
Array = npt.NDArray[Any]
each_suffix = pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet", ".csv"])
array_suffix = pytest.mark.parametrize("suffix", [".npz", ".safetensors"])


def content(seed: int = 0) -> dict[str, Array]:
    """Return a linear head's float64 outputs with their labels."""
    rng = np.random.default_rng(seed)
    features, weight = rng.standard_normal((N, D)), rng.standard_normal((K, D))
    logits = features @ weight.T
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return {"logits": logits, "probs": probs, "features": features, "labels": np.arange(N) % K}


def rows(arrays: dict[str, Array]) -> dict[str, Any]:
    """Return the columns of a row format, spelt out independently of the library."""
    columns: dict[str, Any] = {}
    for name, x in arrays.items():
        if x.ndim == 2:
            columns |= {f"{STEMS[name]}_{i}": x[:, i] for i in range(x.shape[1])}
        else:
            columns["label" if name == "labels" else name] = x
    return columns


def write(path: Path, arrays: dict[str, Array]) -> Path:
    """Write a file as a user would, with each format's own library."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)  # type: ignore[arg-type]
    elif path.suffix == ".safetensors":
        safetensors.torch.save_file({name: torch.from_numpy(x) for name, x in arrays.items()}, path)
    elif path.suffix == ".parquet":
        pq.write_table(pa.table(rows(arrays)), path)
    else:
        columns = rows(arrays)
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(
                [columns, *zip(*(x.tolist() for x in columns.values()), strict=True)]
            )
    return path


def select(*names: str) -> dict[str, Array]:
    return {name: content()[name] for name in names}


def equal(a: Tensor | None, b: Array) -> bool:
    return a is not None and torch.equal(a, torch.from_numpy(b))


def predict(dtype: torch.dtype = torch.float32, seed: int = 0) -> Prediction:
    g = Generator().manual_seed(seed)
    probs = torch.randn(N, K, generator=g, dtype=dtype).softmax(-1)
    aleatoric, epistemic, information = torch.randn(3, N, generator=g, dtype=dtype)
    accepted = torch.arange(N) % 2 == 0
    return Prediction(probs, torch.arange(N) % K, aleatoric, epistemic, information, accepted)


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def read_outputs_of_logits(path: Path) -> Table:
    return read_outputs(path, "logits", images=True)


def read_outputs_of_probs(path: Path) -> Table:
    return read_outputs(path, "probs")
