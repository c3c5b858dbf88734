"""A network's outputs for a whole data set."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from simplexcal._arrays import frame_to_array, list_to_array
from simplexcal._progress import track
from simplexcal._validation import binary_labels, check_batch_labels, check_count
from simplexcal.backbone._forward import map_tensors
from simplexcal.backbone.backbone import Backbone
from simplexcal.dense import MAX_POSITIONS, DenseOutputs, PositionSample, position_labels
from simplexcal.types import Outputs

COLUMNS = ("logits", "features", "labels")
COLUMNS_ALONE = ("logits", "labels")  # of a network without features
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
LABELS = ("labels", "label")  # names of the labels in a batch that is a mapping
MASK = "attention_mask"  # name of what says which tokens of a batch are padding
Rows = tuple[Tensor, ...]  # of each column


class LabelForms(NamedTuple):
    """Which forms of labels a network has, besides one integer for each input.

    Args:
        binary: Zeros and ones of any type.
        dense: Integers for each position.
    """

    binary: bool = False
    dense: bool = False


class DenseBatch(NamedTuple):
    """A batch of a network that classifies each token or pixel.

    Args:
        inputs: The inputs, as they are in the data.
        outputs: The network's outputs for them.
        labels: The label of each position, (R,).
        counts: Which positions count, (R,).
    """

    inputs: Any
    outputs: DenseOutputs
    labels: Tensor
    counts: Tensor


def extract(
    backbone: nn.Module | Callable[..., Any],
    data: Any,
    *,
    batch_size: int = 256,
    storage: str | Path | None = None,
    progress: bool = False,
    ignore_index: int | Sequence[int] | None = None,
    max_positions: int = MAX_POSITIONS,
) -> tuple[Outputs, Tensor]:
    """Return a network's outputs for labelled data, and the labels (N,), on the CPU.

    Of a network that classifies each token or pixel, these are the rows of a stratified sample of
    positions: each class of each input gives its share, and no more is held at a time than the
    sample and one batch. Its labels are (N, T) or (N, H, W). Tokens that the "attention_mask" of a
    dict masks do not count.

    Args:
        backbone: A Backbone, or a network or another callable to make one of.
        data: A DataLoader or another iterable of batches; or a Dataset, or a pair (inputs, labels)
            of tensors, arrays or lists of numbers. A batch is such a pair, or a dict with "labels"
            whose other tensors are the inputs. A list of (input, class) is a Dataset. The labels of
            a network with one logit may be floats or bools, and of shape (N, 1).
        batch_size: Size of the batches that a Dataset or a pair is divided into.
        storage: Folder for the results, which are then memory-mapped. None keeps them in memory.
        progress: Show a progress bar on stderr.
        ignore_index: Labels of tokens or pixels that do not count, one or several. None is -100,
            and 255 where that is no class.
        max_positions: Most positions of tokens or pixels that are kept.

    Raises:
        TypeError: If `data` is nothing of this, or labels are not integers.
        ValueError: If `data` is empty or has no labels, the numbers of inputs and labels differ,
            or `batch_size` is less than 1.
    """
    check_count("batch_size", batch_size)
    sample = PositionSample(max_positions)
    if not isinstance(backbone, Backbone):
        backbone = Backbone(backbone)
    batches = _batches(data, batch_size)
    if progress:
        batches = track(batches, "Extracting")
    parts = _run(backbone, batches, sample, ignore_index)
    if storage is None:
        columns = [torch.cat(column) for column in zip(*parts, strict=True)]
    else:
        columns = _memory_mapped(parts, Path(storage))
    if not columns:
        raise ValueError(
            "`data` is empty. Pass at least one batch; "
            "an iterator that was read before gives no more."
        )
    *outputs, labels = columns
    return Outputs(*outputs), labels


def input_batches(
    net: nn.Module, data: Any, batch_size: int, *, binary: bool = False, dense: bool = False
) -> Iterable[Any]:
    """Return batches of the inputs in data with or without labels; labels are ignored.

    Args:
        net: The network that takes the inputs.
        data: What ``extract`` takes, or inputs alone.
        batch_size: Size of the batches that data are divided into, where they can be.
        binary: Whether zeros and ones of any type may be labels.
        dense: Whether integers of any shape may be labels.

    Raises:
        TypeError: If `data` is nothing of this; the message calls it `x`.
    """
    check_count("batch_size", batch_size)
    data = list_to_array(data)
    if isinstance(data, Tensor | np.ndarray):
        starts = range(0, max(len(data), 1), batch_size)
        return [data[start : start + batch_size] for start in starts]
    forms = LabelForms(binary, dense)
    is_pair = _is_labelled(net, data, forms)
    has_labels = is_pair or _are_labelled(net, data, forms) or _are_samples(data)
    if isinstance(data, Mapping | tuple | list) and not has_labels:
        return [data]
    if not isinstance(data, Iterable | Dataset) and not hasattr(data, "__getitem__"):
        raise TypeError(
            "`x` must be a tensor, an array, a DataLoader, a Dataset or a pair (inputs, labels); "
            f"got {type(data).__name__}."
        )
    batches = _batches(data, batch_size)
    return (_inputs_of(net, batch, forms) for batch in batches)


def _inputs_of(net: nn.Module, batch: Any, forms: LabelForms) -> Any:
    """Return the inputs in a batch with or without labels."""
    if _is_labelled(net, batch, forms):
        return _split(batch)[0]
    return batch


def _are_labelled(net: nn.Module, data: Any, forms: LabelForms) -> bool:
    """Return whether data are a list of batches with labels."""
    if not isinstance(data, tuple | list):
        return False
    return all(_is_labelled(net, part, forms) for part in data)


def _is_labelled(net: nn.Module, batch: Any, forms: LabelForms) -> bool:
    """Return whether a batch is (inputs, labels), or a mapping with labels.

    Two tensors are both inputs if the network needs two.
    """
    if isinstance(batch, Mapping):
        return any(name in batch for name in LABELS)
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        return False
    if not _have_form_of_labels(batch[1], forms):
        return False
    is_one_input = isinstance(list_to_array(batch[0]), Tensor | np.ndarray)
    return not is_one_input or _n_required(net) < 2


def _have_form_of_labels(part: Any, forms: LabelForms) -> bool:
    if _are_labels(part, forms.dense):
        return True
    return forms.binary and _are_zeros_and_ones(part, forms.dense)


def _are_labels(part: Any, dense: bool) -> bool:
    """Return whether a part of a batch is one integer for each input, or each of its positions."""
    if isinstance(part, list):
        return all(isinstance(number, int) for number in part)
    part = frame_to_array(part)
    if not isinstance(part, Tensor | np.ndarray) or part.ndim == 0:
        return False
    if part.ndim > 1 and not dense:
        return False
    return "int" in str(part.dtype) or getattr(part.dtype, "kind", "") in ("i", "u")


def _are_zeros_and_ones(part: Any, dense: bool) -> bool:
    """Return whether a part of a batch is 0 or 1 for each input, or each of its positions."""
    part = frame_to_array(part)
    if dense and isinstance(part, Tensor | np.ndarray):
        return bool(((part == 0) | (part == 1)).all())
    if not isinstance(part, Tensor | np.ndarray) or part.ndim not in (1, 2):
        return False
    return binary_labels(part, len(part)) is not None


def _n_required(net: nn.Module) -> int:
    """Return how many inputs a network cannot do without."""
    function = getattr(net, "function", net.forward)
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # A function that is not written in Python.
        return 1
    required = [p for p in parameters if p.default is p.empty and p.kind in POSITIONAL]
    return len(required)


def dense_batches(
    backbone: Backbone, data: Any, batch_size: int, ignore_index: int | Sequence[int] | None
) -> Iterator[DenseBatch]:
    """Yield each batch with its outputs, the label of each position, and which positions count.

    Args:
        backbone: A network that classifies each token or pixel.
        data: Labelled data, see ``extract``.
        batch_size: Size of the batches that a Dataset or a pair is divided into.
        ignore_index: Labels of positions that do not count.
    """
    for batch in _batches(data, batch_size):
        inputs, labels = _split(batch)
        outputs = backbone(inputs)
        if isinstance(outputs, DenseOutputs):
            found = _position_labels(backbone, outputs, inputs, labels, ignore_index)
            yield DenseBatch(inputs, outputs, *found)


def _run(
    backbone: Backbone,
    batches: Iterable[Any],
    sample: PositionSample,
    ignore_index: int | Sequence[int] | None,
) -> Iterator[Rows]:
    """Yield the logits, the features and the labels of each batch, on the CPU.

    Positions of tokens or pixels are added to the sample, which comes last.
    """
    for batch in batches:
        inputs, labels = _split(batch)
        outputs = backbone(inputs)
        if isinstance(outputs, DenseOutputs):
            found = _position_labels(backbone, outputs, inputs, labels, ignore_index)
            sample.add(outputs, *found)
            continue
        checked = None
        if backbone.one_logit:
            checked = binary_labels(labels, len(outputs))
        if checked is None:
            checked = check_batch_labels(labels, len(outputs))
        columns = [outputs.logits.cpu(), checked.to("cpu", torch.int64)]
        if outputs.features is not None:
            columns.insert(1, outputs.features.cpu())
        yield tuple(columns)
    if sample.n_inputs > 0:
        yield sample.columns()


def _position_labels(
    backbone: Backbone,
    outputs: DenseOutputs,
    inputs: Any,
    labels: Any,
    ignore_index: int | Sequence[int] | None,
) -> tuple[Tensor, Tensor]:
    """Return the label of each position of a batch, and which positions count."""
    mask = None
    if isinstance(inputs, Mapping):
        mask = inputs.get(MASK)
    if mask is not None and tuple(mask.shape) != outputs.shape:
        mask = None  # of something else, such as the patches of an image
    binary = bool(backbone.one_logit)
    return position_labels(labels, outputs, ignore_index, mask, binary=binary)


def _batches(data: Any, size: int) -> Iterable[Any]:
    """Return batches of the data."""
    if isinstance(data, Mapping):
        data = _split(data)
    if _is_pair_of_tensors(data):
        return _slices(list_to_array(data[0]), frame_to_array(data[1]), size)
    if _is_dataset(data):
        # With a generator of its own, the loader leaves torch's global random state alone.
        return DataLoader(data, size, generator=torch.Generator())
    if not isinstance(data, Iterable):
        raise TypeError(
            "`data` must be a DataLoader, Dataset or pair (inputs, labels); "
            f"got {type(data).__name__}."
        )
    return data


def _is_pair_of_tensors(data: Any) -> bool:
    """Return whether data are (inputs, labels), and no list of two batches."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    return any(isinstance(list_to_array(part), Tensor | np.ndarray) for part in data)


def _are_samples(data: Any) -> bool:
    """Return whether data are a list of several single inputs, each with its class."""
    if not isinstance(data, list) or len(data) < 2:
        return False
    first = data[0]
    if not isinstance(first, tuple | list) or len(first) != 2:
        return False
    label = first[1]
    return isinstance(label, int) or getattr(label, "ndim", None) == 0


def _is_dataset(data: Any) -> bool:
    """Return whether data are a Dataset, or have the interface of one."""
    if isinstance(data, Dataset) or _are_samples(data):
        return True
    if frame_to_array(data) is not data:
        raise _no_labels(type(data).__name__)
    return hasattr(data, "__getitem__") and not isinstance(data, tuple | list)


def _slices(inputs: Any, labels: Any, size: int) -> list[Any]:
    """Divide inputs and labels into batches."""

    def check(part: Tensor | np.ndarray) -> None:
        # Whether the network is binary, or one of tokens or pixels, is known later.
        if getattr(labels, "ndim", 1) > 1:
            _check_number(labels, len(part))
        elif binary_labels(labels, len(part)) is None:
            check_batch_labels(labels, len(part))

    map_tensors(check, inputs)
    batches = []
    for start in range(0, len(labels), size):
        rows = itemgetter(slice(start, start + size))
        batches.append((map_tensors(rows, inputs), rows(labels)))
    return batches


def _check_number(labels: Any, n: int) -> None:
    if len(labels) != n:
        raise ValueError(
            f"`labels` must be as many as the inputs, {n}; got {len(labels)}. "
            "The first dimension of both counts the inputs."
        )


def _split(batch: Any) -> tuple[Any, Any]:
    """Return the inputs and the labels of a batch."""
    kind = type(batch).__name__
    if isinstance(batch, Mapping):
        for name in LABELS:
            if name in batch:
                return _tensors_but_labels(batch), batch[name]
    elif isinstance(batch, tuple | list):
        if len(batch) == 2:
            return batch[0], batch[1]
        kind += f" of {len(batch)}"
    raise _no_labels(kind)


def _no_labels(kind: str) -> ValueError:
    return ValueError(
        f"`data` must come with labels, as (inputs, labels) or a dict with 'labels'; got a {kind}."
    )


def _tensors_but_labels(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs in a batch that is a mapping."""
    return {
        name: part
        for name, part in batch.items()
        if isinstance(part, Tensor | np.ndarray) and name not in LABELS
    }


def _memory_mapped(parts: Iterable[Rows], folder: Path) -> list[Tensor]:
    """Append the rows of each column to a file, and map the files.

    Changes to the tensors do not reach the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.bin" for name in COLUMNS}
    for path in paths.values():
        path.unlink(missing_ok=True)  # not overwritten: an earlier result may still be mapped to it
    last: Rows = ()
    names: tuple[str, ...] = COLUMNS
    for last in parts:
        if len(last) == len(COLUMNS_ALONE):
            names = COLUMNS_ALONE
        for name, rows in zip(names, last, strict=True):
            _append(paths[name], rows)
    # There is no last part, and no file, where the data are empty.
    return [_map_file(paths[name], rows) for name, rows in zip(names, last, strict=False)]


def _append(path: Path, rows: Tensor) -> None:
    """Append rows to a file."""
    try:
        with path.open("ab") as file:
            # numpy's tofile may lose what it buffered without an error.
            file.write(np.ascontiguousarray(rows.numpy()).data)
    except OSError as error:
        raise OSError(
            f"'{path}' could not be written ({error}). Free some space, or pass another `storage`."
        ) from error


def _map_file(path: Path, rows: Tensor) -> Tensor:
    """Return the file as a tensor with the dtype and the width of the rows."""
    content = np.memmap(path, rows.numpy().dtype, "c")
    return torch.from_numpy(content).reshape(-1, *rows.shape[1:])
