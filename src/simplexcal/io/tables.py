"""Users' own files: outputs or inputs of a network, and predictions.

The formats are .npz, .safetensors, .parquet and .csv; .npy and .pt are read only.

Arrays (.npz, .safetensors, .pt): `logits` or `probs` (N, K); optional `features` (N, D), `labels`
(N,), `id` (N,), the last linear layer's `head_weight` (K, D) and `head_bias` (K,), `images`
(N, H, W) or (N, H, W, 3) in uint8, and in .npz `class_names` (K,); `inputs` (N, …) for a network.
Rows (.parquet, .csv): columns `logit_0`, `logit_1`, … or `prob_0`, …; optional `feature_0`, …,
`label`, `id`; in .parquet also one column `logits`, `probs` or `features` of lists. One array
(.npy, or a .pt file of one tensor) has no name: it is that which is asked for, `logits`, `probs` or
`inputs`. Of a network that classifies each token or pixel, `logits` and `probs` are (N, T, K) or
(N, K, H, W), `labels` (N, T) or (N, H, W), and `attention_mask` (N, T) is optional. Where a file
has another name for an array, ``names`` says so: {"labels": "y"}; in rows
also {"logits": "z_"} for columns `z_0`, `z_1`, ….

Predictions have `probs`, `predicted` (the network's class), `confidence`, where there are any
`aleatoric`, `epistemic` and `mutual_information`, and the true classes under the same name as
everywhere: `labels`, in rows `label`. Where the calibrator has thresholds there is `accepted`, true
or false.

A file that cannot be read raises ValueError, TypeError or OSError with a message of one line, or
ImportError without pyarrow.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from simplexcal._validation import check_probs, warn_caller
from simplexcal.dense import is_dense, label_shape, to_rows
from simplexcal.io._atomic import atomic_write
from simplexcal.io._columns import (
    STEMS,
    UNCERTAINTIES,
    Array,
    Columns,
    Names,
    check_pyarrow,
    find_columns,
    name_is_missing,
    quote,
    quote_names,
)
from simplexcal.io._kinds import KINDS, OUTPUTS, check_kind, choose_kind, kind_is_needed
from simplexcal.io._npz import (
    npz_bytes,
    read_npy,
    read_npz,
    read_pt,
    read_safetensors,
    safetensors_bytes,
)
from simplexcal.types import Outputs, Prediction, class_dim

Reader = Callable[[Path, Sequence[str], Names], Columns]
Writer = Callable[[Mapping[str, Array]], bytes]

READERS: dict[str, Reader] = {
    ".npz": read_npz,
    ".safetensors": read_safetensors,
    ".parquet": lambda path, wanted, names: _row_formats().read_parquet(path, wanted, names),
    ".csv": lambda path, wanted, names: _row_formats().read_csv(path, wanted, names),
    ".npy": read_npy,
    ".pt": read_pt,
}
WRITERS: dict[str, Writer] = {
    ".npz": npz_bytes,
    ".safetensors": safetensors_bytes,
    ".parquet": lambda columns: _row_formats().parquet_bytes(columns),
    ".csv": lambda columns: _row_formats().csv_bytes(columns),
}
ROW_FORMATS = (".parquet", ".csv")
IMAGE_CHANNELS = ((), (3,))
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # of a cell, in a spreadsheet


@dataclass(frozen=True, eq=False)
class Table:
    """Outputs of a network for N inputs, with what a file holds beside them.

    Args:
        outputs: Logits and, where the file has them, features.
        labels: The true classes, (N,).
        head: The last linear layer, frozen.
        images: Pictures of the inputs, in uint8; read only if they were asked for.
        class_names: A name for each class.
        ids: A key for each row, integers or text.
    """

    outputs: Outputs
    labels: Tensor | None = None
    head: nn.Linear | None = None
    images: Tensor | None = None
    class_names: tuple[str, ...] | None = None
    ids: Array | None = None


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs of a network, with what a file holds beside them.

    Args:
        inputs: The inputs, (N, …), in their own dtype.
        labels: The true classes, (N,); or one for each token or pixel, (N, T) or (N, H, W).
        images: Pictures of the inputs, in uint8; read only if they were asked for.
        class_names: A name for each class.
        ids: A key for each row, integers or text.
        attention_mask: Tokens with 0 do not count, (N, T).
    """

    inputs: Tensor
    labels: Tensor | None = None
    images: Tensor | None = None
    class_names: tuple[str, ...] | None = None
    ids: Array | None = None
    attention_mask: Tensor | None = None


def check_suffix(path: str | Path, formats: Iterable[str] = READERS) -> str:
    """Return the suffix of a file, in lower case, if its format is one of these.

    Args:
        path: The file.
        formats: Suffixes; those that can be read by default.

    Raises:
        ValueError: If the suffix is another.
    """
    known = list(formats)
    suffix = Path(path).suffix.lower()
    if suffix not in known:
        raise ValueError(
            f"'{path}' must end in {', '.join(known)}, which tells its format; got {suffix!r}."
        )
    return suffix


def find_kind(path: str | Path, *, kinds: Sequence[str] = KINDS, names: Names | None = None) -> str:
    """Return what a file holds: "logits", "probs" or "predictions". Only names are looked at.

    Args:
        path: The file.
        kinds: What is possible.
        names: What the file calls an array, where it has another name.

    Raises:
        ValueError: If the names leave a choice, or none of ``kinds``.
        OSError: If the file cannot be opened.
    """
    columns = check_named(path, kinds, names=names)
    found = columns.column_names
    return choose_kind(columns.path, columns.array_names, names or {}, kinds, found)


def check_named(path: str | Path, kinds: Sequence[str], *, names: Names | None = None) -> Columns:
    """Return the names in a file; raise ValueError if it is one array without a name.

    Args:
        path: The file.
        kinds: What the array could be.
        names: What the file calls an array, where it has another name.
    """
    columns = _read(path, [], names)
    if columns.is_unnamed:
        raise kind_is_needed(columns.path, kinds)
    return columns


def array_names(path: str | Path) -> Sequence[str]:
    """Return the names of the arrays in a file.

    Args:
        path: The file.

    Raises:
        ValueError: If the file cannot be read.
        OSError: If the file cannot be opened.
    """
    return _read(path, [], None).array_names


def read_columns(path: str | Path, wanted: Sequence[str]) -> Columns:
    """Return the arrays of a file that are wanted and present, and the names of all.

    Args:
        path: The file.
        wanted: The arrays.

    Raises:
        ValueError: If the file cannot be read.
        OSError: If the file cannot be opened.
    """
    return _read(path, list(wanted), None)


def read_outputs(
    path: str | Path,
    kind: str,
    *,
    names: Names | None = None,
    images: bool = False,
) -> Table:
    """Read a network's outputs. Whether they are logits or probabilities is never guessed.

    Args:
        path: The file.
        kind: "logits" or "probs": the array to take.
        names: What the file calls an array, where it has another name.
        images: Whether to read the pictures too.

    Raises:
        ValueError: If the file is malformed or lacks the array.
        TypeError: If an array is of another type.
        OSError: If the file cannot be opened.
    """
    return _table(_read_outputs(path, kind, names, images), kind)


def read_outputs_or_maps(
    path: str | Path,
    kind: str,
    *,
    names: Names | None = None,
    images: bool = False,
) -> Table | Inputs:
    """Read a network's outputs, as maps where it classifies each token or pixel.

    Maps are inputs too: those of a function that returns them as they are.

    Args:
        path: The file.
        kind: "logits" or "probs": the array to take.
        names: What the file calls an array, where it has another name.
        images: Whether to read the pictures too.

    Raises:
        ValueError: If the file is malformed or lacks the array.
        TypeError: If an array is of another type.
        OSError: If the file cannot be opened.
    """
    columns = _read_outputs(path, kind, names, images)
    if columns.arrays[kind].ndim > 2:
        return _maps(columns, kind)
    return _table(columns, kind)


def _read_outputs(path: str | Path, kind: str, names: Names | None, images: bool) -> Columns:
    check_kind(kind, OUTPUTS)
    other = "probs"
    if kind == "probs":
        other = "logits"
    wanted = [kind, "features", "head_weight", "head_bias", *_optional(images)]
    columns = _read(path, wanted, names)
    remedy = f'Pass `kind="{other}"` if they are what you mean.'
    _check_present(columns, kind, other, remedy)
    return columns


def _maps(columns: Columns, kind: str) -> Inputs:
    """Return logits or probabilities of positions, with what their file holds beside them."""
    maps = columns.floats(kind)
    shape = label_shape(maps)
    found = _beside(maps, columns)
    if found.labels is not None and found.labels.shape not in (shape, (shape[0], 1, *shape[1:])):
        raise ValueError(
            f"'{columns.path}': `labels` must have shape {shape}, for `{kind}` {tuple(maps.shape)} "
            "with the classes in dimension 1 of maps (N, K, H, W) and last of tokens (N, T, K); "
            f"got {tuple(found.labels.shape)}. Save both of one size."
        )
    if "features" in columns:
        warn_caller(
            f"'{columns.path}': `features` of tokens or pixels are not read, so λ(x) is learned "
            "from mixed logits. To use them, pass `network` and its inputs."
        )
    return found


def _table(columns: Columns, kind: str) -> Table:
    """Return outputs for N inputs, with what their file holds beside them."""
    outputs = _outputs(columns, kind)
    n = len(outputs)
    return Table(
        outputs,
        labels=_labels(columns, n),
        head=_head(columns, outputs),
        images=_images(columns, n),
        class_names=_class_names(columns, outputs.n_classes),
        ids=_ids(columns, n),
    )


def read_inputs(path: str | Path, *, names: Names | None = None, images: bool = False) -> Inputs:
    """Read inputs of a network, (N, …), in their own dtype.

    Args:
        path: A .npz, .safetensors, .npy or .pt file.
        names: What the file calls an array, where it has another name.
        images: Whether to read the pictures too.

    Raises:
        ValueError: If the file is malformed or holds no `inputs`.
        TypeError: If an array is of another type.
        OSError: If the file cannot be opened.
    """
    columns = _read(path, ["inputs", *_optional(images)], names)
    remedy = "Saved outputs need no network: leave out `network`."
    _check_present(columns, "inputs", "logits", remedy)
    return _beside(torch.from_numpy(columns.numbers("inputs")), columns)


def read_named_inputs(
    path: str | Path, parts: Sequence[str], *, names: Names | None = None, images: bool = False
) -> tuple[dict[str, Tensor], Inputs]:
    """Read the inputs of a network that takes several, each by its name.

    Args:
        path: A .npz, .safetensors or .pt file.
        parts: The names of the inputs.
        names: What the file calls an array, where it has another name.
        images: Whether to read the pictures too.

    Returns:
        The inputs by name; and the first of them, with what the file holds beside them.

    Raises:
        ValueError: If the file is malformed or lacks one of the inputs.
        TypeError: If an array is of another type.
        OSError: If the file cannot be opened.
    """
    columns = _read(path, [*parts, *_optional(images)], names)
    missing = [part for part in parts if part not in columns]
    if missing or columns.is_unnamed:
        raise ValueError(
            f"'{path}' must hold the network's inputs {quote_names(parts)}; "
            f"it holds {quote_names(columns.array_names)}. Name them alike."
        )
    inputs = {part: torch.from_numpy(columns.numbers(part)) for part in parts}
    sizes = {len(x) for x in inputs.values()}
    if len(sizes) != 1:
        raise ValueError(
            f"'{path}': the inputs {quote_names(parts)} must have the same number of rows; "
            f"got {sorted(sizes)}."
        )
    return inputs, _beside(inputs[parts[0]], columns)


def _beside(inputs: Tensor, columns: Columns) -> Inputs:
    """Return inputs with what their file holds beside them."""
    n = len(inputs)
    labels = _labels_of_any_shape(columns, n)
    return Inputs(
        inputs,
        labels=labels,
        images=_images(columns, n),
        class_names=_class_names(columns),
        ids=_ids(columns, n),
        attention_mask=_attention_mask(columns, n, labels),
    )


def read_predictions(
    path: str | Path, *, names: Names | None = None
) -> tuple[Prediction, Tensor | None]:
    """Read predictions that ``write_predictions`` wrote, and the labels, or None.

    Those for tokens or pixels are maps, as they were written. Without an array `predicted`, the
    predicted class is the likeliest.

    Args:
        path: The file.
        names: What the file calls an array, where it has another name.

    Raises:
        ValueError: If the file is malformed or holds no `probs`.
        TypeError: If an array is of another type.
        OSError: If the file cannot be opened.
    """
    columns = _read(path, ["probs", "predicted", *UNCERTAINTIES, "accepted", "labels"], names)
    _check_present(columns, "probs", "logits", "Calibrate them first: simplexcal predict.")
    probs = columns.floats("probs")
    rows = probs
    if is_dense(probs):
        rows = to_rows(probs)
    with _naming(columns.path):
        check_probs(rows)
    shape = label_shape(probs)
    label = probs.argmax(class_dim(len(shape)))
    if "predicted" in columns:
        label = columns.class_numbers("predicted", shape)
        _check_predicted(columns.path, label, rows.shape[1])
    uncertainties = {name: columns.floats(name, shape) for name in UNCERTAINTIES if name in columns}
    prediction = Prediction(probs, label, **uncertainties, accepted=_accepted(columns, len(probs)))
    labels = None
    if "labels" in columns:
        labels = columns.class_numbers("labels", shape)
    return prediction, labels


def write_predictions(
    path: str | Path,
    prediction: Prediction,
    ids: Array | Sequence[int] | Sequence[str] | None = None,
    labels: Tensor | None = None,
) -> None:
    """Write predictions, whole or not at all.

    Those for tokens or pixels are written as maps, in the formats that hold arrays.

    Args:
        path: The file; its suffix tells the format.
        prediction: The predictions.
        ids: A key for each row, integers or text.
        labels: The true classes.

    Raises:
        ValueError: If the suffix is unknown or that of rows where there are maps, an argument has
            another number of rows, or a confidence is not finite.
        TypeError: If the keys are of another type, or of one that the format cannot hold.
        OSError: If the file cannot be written.
    """
    path = Path(path)
    suffix = check_suffix(path, WRITERS)
    if is_dense(prediction.probs):
        check_holds_maps(path)
    _check_confidence(prediction)
    tensors = {"labels": labels, "predicted": prediction.label, "confidence": prediction.confidence}
    tensors |= {name: getattr(prediction, name) for name in UNCERTAINTIES}
    tensors["accepted"] = prediction.accepted
    tensors["probs"] = prediction.probs
    arrays: dict[str, Array] = {}
    if ids is not None:
        arrays["id"] = np.asarray(ids)
    arrays |= {name: x.detach().cpu().numpy() for name, x in tensors.items() if x is not None}
    columns = Columns(path, arrays, [], [])
    shape = tuple(prediction.label.shape)
    for name in arrays:
        if name not in ("probs", "id"):
            columns.check_shape(name, shape)
    known_ids = _ids(columns, len(prediction))
    if suffix == ".csv" and known_ids is not None:
        _warn_of_formulas(path, known_ids)
    atomic_write(path, WRITERS[suffix](arrays))


def check_holds_maps(path: Path) -> None:
    """Raise ValueError if a format holds rows, and so no maps of tokens or pixels.

    Args:
        path: The file.
    """
    if path.suffix.lower() in ROW_FORMATS:
        raise ValueError(
            f"'{path}' must end in .npz or .safetensors for predictions of tokens or pixels; "
            f"{path.suffix} holds one row for each input."
        )


def _check_confidence(prediction: Prediction) -> None:
    """Raise ValueError if a confidence is not finite, which it is where logits overflow."""
    finite = prediction.confidence.isfinite()
    if not bool(finite.all()):
        i = int(finite.logical_not().nonzero()[0, 0])
        raise ValueError(
            f"The confidence of the prediction in row {i} counted from 0 is not finite: logits or "
            "features are too large. Mend or drop such rows."
        )


def _warn_of_formulas(path: Path, ids: Array) -> None:
    """Warn of texts that a spreadsheet takes for a formula; as keys they stay as they are."""
    texts = [key for key in ids.tolist() if isinstance(key, str)]
    n_formulas = sum(text.startswith(FORMULA_STARTS) for text in texts)
    if n_formulas:
        warn_caller(
            f"'{path}': {n_formulas} of the ids begin with =, +, -, @ or a tab, which a "
            "spreadsheet takes for a formula and runs. Write .parquet, or import the column as "
            "text."
        )


def _row_formats() -> Any:
    """Import the formats of rows where they are needed: pyarrow is optional."""
    check_pyarrow()
    from simplexcal.io import _rows

    return _rows


def _optional(images: bool) -> list[str]:
    """Return the names of what outputs and inputs may come with."""
    names = ["labels", "class_names", "id", "attention_mask"]
    if images:
        names.append("images")
    return names


def _read(path: str | Path, wanted: list[str], names: Names | None) -> Columns:
    """Read the arrays that are wanted and present; those that the user names must be."""
    path = Path(path)
    names = names or {}
    reader = READERS[check_suffix(path)]
    if path.is_fifo():
        raise ValueError(
            f"'{path}' is a pipe, and tables are read more than once. Write it to a file first."
        )
    # A path that cannot be opened is the system's error, in the system's words.
    with path.open("rb"):
        columns = reader(path, wanted, names)
    _check_names(columns, names)
    return columns


def _check_names(columns: Columns, names: Names) -> None:
    """Raise ValueError if a file has no names, or lacks one that the user gave."""
    if names and columns.is_unnamed:
        given = " and ".join(f'`names["{name}"]`' for name in names)
        raise ValueError(
            f"'{columns.path}' holds one array without a name. Leave out {given}; "
            "`kind` says what it is."
        )
    found = columns.column_names
    for name, own in names.items():
        present = own in found
        if columns.path.suffix.lower() in ROW_FORMATS:
            present = bool(find_columns(found, name, own))
        if not present:
            raise name_is_missing(columns.path, name, own, found)


@contextmanager
def _naming(path: Path, remedy: str = "") -> Iterator[None]:
    """Name the file in errors about its content."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise type(error)(f"'{path}': {error}{remedy}") from error


def _check_present(columns: Columns, name: str, other: str, remedy: str) -> None:
    """Raise ValueError if an array is missing, with the remedy if another is there instead."""
    if name in columns:
        return
    if other in columns.array_names:
        raise ValueError(f"'{columns.path}' holds `{other}` and no `{name}`. {remedy}")
    expected = _describe(name, columns.path.suffix.lower())
    found = quote_names(columns.column_names)
    raise ValueError(f"'{columns.path}' must hold {expected}; found {found}.")


def _describe(name: str, suffix: str) -> str:
    """Say how a format holds an array."""
    if suffix not in (".parquet", ".csv"):
        return f"an array `{name}`"
    if name not in STEMS:
        return f"an array `{name}`, which only .npz and .safetensors can"
    columns = f"columns {STEMS[name]}_0, {STEMS[name]}_1, …"
    if suffix == ".csv":
        return f"{columns}, named in its first line and separated by commas"
    return columns


def _check_predicted(path: Path, label: Tensor, n_classes: int) -> None:
    outside = (label < 0) | (label >= n_classes)
    if bool(outside.any()):
        i = int(outside.nonzero()[0, 0])
        raise ValueError(
            f"'{path}': `predicted` must lie in 0..{n_classes - 1} for {n_classes} columns of "
            f"probs; found {int(label[outside][0])} in row {i}."
        )


def _labels(columns: Columns, n: int) -> Tensor | None:
    if "labels" not in columns:
        return None
    return columns.class_numbers("labels", (n,))


def _labels_of_any_shape(columns: Columns, n: int) -> Tensor | None:
    """Return one label for each input, or for each of its positions."""
    if "labels" not in columns:
        return None
    return columns.class_numbers("labels", (n, *columns.arrays["labels"].shape[1:]))


def _attention_mask(columns: Columns, n: int, labels: Tensor | None) -> Tensor | None:
    """Return the attention mask, which has the shape of labels of tokens."""
    if "attention_mask" not in columns:
        return None
    shape = (n, *columns.arrays["attention_mask"].shape[1:])
    if labels is not None and labels.dim() == 2:
        shape = tuple(labels.shape)
    mask = columns.arrays["attention_mask"]
    if mask.dtype.kind == "b":
        columns.check_shape("attention_mask", shape)
        return torch.tensor(mask).long()
    return torch.from_numpy(columns.numbers("attention_mask", shape))


def _accepted(columns: Columns, n: int) -> Tensor | None:
    if "accepted" not in columns:
        return None
    columns.check_shape("accepted", (n,))
    x = columns.arrays["accepted"]
    if x.dtype.kind != "b":
        raise TypeError(
            f"'{columns.path}': `accepted` must be true or false; got {quote(x.dtype)}. "
            "Rename or drop it."
        )
    return torch.tensor(x)


def _outputs(columns: Columns, kind: str) -> Outputs:
    values = columns.floats(kind)
    features = None
    if "features" in columns:
        features = columns.floats("features")
    if kind == "logits":
        with _naming(columns.path):
            return Outputs(values, features)
    with _naming(columns.path, ' Or pass their name as `names["logits"]`.'):
        return Outputs.from_probs(values, features)


def _head(columns: Columns, outputs: Outputs) -> nn.Linear | None:
    """Return the last linear layer, frozen."""
    has_bias = "head_bias" in columns
    if "head_weight" not in columns:
        if has_bias:
            raise ValueError(
                f"'{columns.path}' holds `head_bias` and no `head_weight`. "
                "Add it, or leave out both."
            )
        return None
    k = outputs.n_classes
    shape = None
    if outputs.n_features is not None:
        shape = (k, outputs.n_features)
    weight = columns.floats("head_weight", shape)
    n_features = weight.shape[-1]
    columns.check_shape("head_weight", (k, n_features))
    # Initial values would be drawn from the global generator, which stays untouched.
    head: nn.Linear = nn.utils.skip_init(
        nn.Linear, n_features, k, bias=has_bias, dtype=weight.dtype
    )
    head.weight.data = weight
    if has_bias:
        head.bias.data = columns.floats("head_bias", (k,)).to(weight)
    return head.requires_grad_(False)


def _images(columns: Columns, n: int) -> Tensor | None:
    if "images" not in columns:
        return None
    x = columns.arrays["images"]
    has_shape = x.ndim in (3, 4) and len(x) == n and x.shape[3:] in IMAGE_CHANNELS
    if x.dtype != np.uint8 or not has_shape:
        raise ValueError(
            f"'{columns.path}': `images` must be uint8 with shape ({n}, H, W) or ({n}, H, W, 3); "
            f"got {quote(x.dtype)} {x.shape}."
        )
    return torch.from_numpy(columns.numbers("images"))


def _class_names(columns: Columns, n_classes: int | None = None) -> tuple[str, ...] | None:
    if "class_names" not in columns:
        return None
    x = columns.arrays["class_names"]
    if n_classes is None:
        n_classes = x.size
    columns.check_shape("class_names", (n_classes,))
    if x.dtype.kind != "U":
        raise TypeError(f"'{columns.path}': `class_names` must be text; got {quote(x.dtype)}.")
    return tuple(x.tolist())


def _ids(columns: Columns, n: int) -> Array | None:
    if "id" not in columns:
        return None
    columns.check_shape("id", (n,))
    x = columns.arrays["id"]
    if x.dtype == object:
        is_key = all(isinstance(key, str) for key in x)
    else:
        is_key = x.dtype.kind in "iuU"
    if not is_key:
        raise TypeError(f"'{columns.path}': `id` must be integers or text; got {quote(x.dtype)}.")
    return x
