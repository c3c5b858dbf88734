"""A small task with fitted calibrators, and its rows as Parquet files, written as a user would."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Generator, nn

from helpers.methods import METHODS
from simplexcal.calibrators import Calibrator
from simplexcal.io import save_calibrator
from simplexcal.mixup import FeatureMixup
from simplexcal.types import Outputs

K, D = 4, 6
Array = npt.NDArray[Any]


@cache
def head() -> nn.Linear:
    layer = nn.Linear(D, K)
    with torch.no_grad():
        layer.weight.normal_(generator=Generator().manual_seed(1))
        layer.bias.zero_()
    return layer.requires_grad_(False)


def outputs(n: int, seed: int = 0) -> Outputs:
    features = torch.randn(n, D, generator=Generator().manual_seed(seed))
    return Outputs(2 * head()(features), features)


@cache
def fitted(method: str) -> Calibrator:
    data = outputs(400, seed=2)
    labels = torch.multinomial(
        (data.logits / 2).softmax(-1), 1, generator=Generator().manual_seed(3)
    ).squeeze(1)
    mixup = FeatureMixup(head(), Outputs(data.logits / 2, data.features), labels)
    return METHODS[method]().fit(data, labels, mixup=mixup, generator=Generator().manual_seed(4))


def save(folder: Path, method: str, fingerprint: str | None = None) -> Path:
    path = folder / f"{method}.safetensors"
    save_calibrator(fitted(method), path, fingerprint=fingerprint)
    return path


def numbered(stem: str, x: Array) -> dict[str, Any]:
    return {f"{stem}_{i}": x[:, i] for i in range(x.shape[1])}


def columns(n: int, seed: int = 0) -> dict[str, Any]:
    """Return the columns of ``n`` rows, with a key that is not the row's number."""
    data = outputs(n, seed)
    assert data.features is not None
    keys = [f"row {7 * i}" for i in range(n)]
    return {
        "id": keys,
        **numbered("logit", data.logits.numpy()),
        **numbered("feature", data.features.numpy()),
    }


def write(path: Path, content: dict[str, Any], group: int = 1000) -> Path:
    pq.write_table(pa.table(content), path, row_group_size=group)
    return path


def read(path: Path) -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = pq.read_table(path).to_pydict()
    return rows
