"""A network's outputs for a whole data set."""

from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from simplexcal._progress import track
from simplexcal.backbone.backbone import Backbone, as_tensor, map_tensors
from simplexcal.types import Outputs


def extract(
    backbone: nn.Module,
    data: Any,
    *,
    batch_size: int = 256,
    storage: str | Path | None = None,
    progress: bool = False,
) -> tuple[Outputs, Tensor]:
    """Return a network's outputs for labelled data, and the labels (N,), on the CPU.

    ``data`` is a DataLoader or another iterable of batches, or, to be cut into batches of ``batch_size``, a Dataset or
    a pair (inputs, labels) of tensors or arrays. A batch is such a pair, or a dict with "labels" whose other tensors
    are the inputs. With a folder ``storage`` the results are written there and memory-mapped.
    """
    backbone = backbone if isinstance(backbone, Backbone) else Backbone(backbone)
    batches = _batches(data, batch_size)
    parts = _run(backbone, track(batches, "Extracting", progress))
    columns = (
        [torch.cat(c) for c in zip(*parts, strict=True)]
        if storage is None
        else _mapped(parts, Path(storage))
    )
    if not columns:
        raise ValueError(
            "`data` is empty. Pass at least one batch; an iterator that was read before gives no more."
        )
    return Outputs(columns[0], columns[1]), columns[2]


def _class_numbers(labels: Any, n: int) -> Tensor:
    """Return the labels as int64; unlike in a fit, one class alone will do."""
    remedy = "Number the classes from 0; one-hot labels need .argmax(-1)."
    if "int" not in str(getattr(labels, "dtype", "")):
        kind = getattr(labels, "dtype", type(labels).__name__)
        raise TypeError(f"`labels` must be a tensor or an array of integers; got {kind}. {remedy}")
    if labels.shape != (n,):
        raise ValueError(
            f"`labels` must have shape ({n},), one for each input; got {tuple(labels.shape)}. {remedy}"
        )
    return as_tensor(labels).to("cpu", torch.int64)


def _batches(data: Any, size: int) -> Iterable[Any]:
    data = _split(data) if isinstance(data, Mapping) else data
    if (
        isinstance(data, tuple | list)
        and len(data) == 2
        and any(isinstance(x, Tensor | np.ndarray) for x in data)
    ):
        map_tensors(lambda x: _class_numbers(data[1], len(x)), data[0])
        return [
            map_tensors(itemgetter(slice(i, i + size)), data) for i in range(0, len(data[1]), size)
        ]
    if isinstance(data, Dataset) or (
        hasattr(data, "__getitem__") and not isinstance(data, tuple | list)
    ):
        return DataLoader(
            data, size, generator=torch.Generator()
        )  # or it would draw from the global one
    if not isinstance(data, Iterable):
        raise TypeError(
            f"`data` must be a DataLoader, Dataset or pair (inputs, labels); got {type(data).__name__}."
        )
    return data


def _split(batch: Any) -> tuple[Any, Any]:
    """Return the inputs and the labels of a batch."""
    if isinstance(batch, Mapping) and (names := {"labels", "label"}.intersection(batch)):
        x = {
            name: x
            for name, x in batch.items()
            if name not in names and isinstance(x, Tensor | np.ndarray)
        }
        return x, batch[max(names)]  # "labels", if both are there
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    kind = (
        f"{type(batch).__name__} of {len(batch)}"
        if isinstance(batch, tuple | list)
        else type(batch).__name__
    )
    raise ValueError(
        f"`data` must come with labels, as (inputs, labels) or a dict with 'labels'; got a {kind}."
    )


def _run(backbone: Backbone, batches: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    for x, y in map(_split, batches):
        outputs = backbone(x)
        yield outputs.logits.cpu(), outputs.features.cpu(), _class_numbers(y, len(outputs))


def _mapped(parts: Iterable[tuple[Tensor, ...]], folder: Path) -> list[Tensor]:
    """Append the rows of each column to a file, and map the files; changes to the tensors do not reach them."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.bin" for name in ("logits", "features", "labels")]
    last: tuple[Tensor, ...] = ()
    for path in paths:
        path.unlink(missing_ok=True)  # not overwritten: an earlier result may still be mapped to it
    for last in parts:
        for path, rows in zip(paths, last, strict=True):
            with path.open("ab") as file:
                rows.numpy().tofile(file)
    files = [
        np.memmap(path, rows.numpy().dtype, "c") for path, rows in zip(paths, last, strict=False)
    ]
    return [
        torch.from_numpy(file).reshape(-1, *rows.shape[1:])
        for file, rows in zip(files, last, strict=True)
    ]
