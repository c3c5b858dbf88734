"""Users' own files: a network's outputs or inputs, and predictions, as .npz, .safetensors, .parquet or .csv.

Arrays (.npz, .safetensors): `logits` or `probs` (N, K); optional `features` (N, D), `labels` (N,), `id` (N,), the last
linear layer's `head_weight` (K, D) and `head_bias` (K,), `images` (N, H, W) or (N, H, W, 3) in uint8, and in .npz
`class_names` (K,); `inputs` (N, …) for a model. Rows (.parquet, .csv): columns `logit_0`, `logit_1`, … or `prob_0`, …;
optional `feature_0`, …, `label`, `id`; in .parquet also one column `logits`, `probs` or `features` of lists.

Predictions have `probs`, `predicted` (the network's class), `confidence`, where there are any `aleatoric`, `epistemic`
and `mutual_information`, and the true classes under the same name as everywhere: `labels`, in rows `label`.

What cannot be read is a ValueError, TypeError or OSError of one line (ImportError without pyarrow).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from simplexcal._validation import check_probs
from simplexcal.io._arrow import STEMS, csv_bytes, parquet_bytes, read_csv, read_parquet
from simplexcal.io._atomic import atomic_write
from simplexcal.io._columns import Array, Columns, shown
from simplexcal.io._npz import npz_bytes, read_npz, read_safetensors, safetensors_bytes
from simplexcal.types import Outputs, Prediction

READERS = {
    ".npz": read_npz,
    ".safetensors": read_safetensors,
    ".parquet": read_parquet,
    ".csv": read_csv,
}
WRITERS = {
    ".npz": npz_bytes,
    ".safetensors": safetensors_bytes,
    ".parquet": parquet_bytes,
    ".csv": csv_bytes,
}
UNCERTAINTIES = ("aleatoric", "epistemic", "mutual_information")


@dataclass(frozen=True, eq=False)
class Table:
    """A network's outputs for N inputs, with what a file says of them; ``images`` only if they were asked for."""

    outputs: Outputs
    labels: Tensor | None = None
    head: nn.Linear | None = None
    images: Tensor | None = None
    class_names: tuple[str, ...] | None = None
    ids: Array | None = None


@dataclass(frozen=True, eq=False)
class Inputs:
    """A model's N inputs, with what a file says of them; ``images`` only if they were asked for."""

    inputs: Tensor
    labels: Tensor | None = None
    images: Tensor | None = None
    class_names: tuple[str, ...] | None = None
    ids: Array | None = None


def check_suffix(path: str | Path) -> str:
    """Return the file's suffix if it is one of those that can be read and written."""
    suffix = Path(path).suffix.lower()
    if suffix not in READERS:
        raise ValueError(
            f"'{path}' must end in {', '.join(READERS)}, which tells its format; got {suffix!r}."
        )
    return suffix


def read_outputs(path: str | Path, input: str, *, images: bool = False) -> Table:
    """Read outputs, taken from the file's "logits" or "probs" as ``input`` says; nothing is guessed."""
    if input not in ("logits", "probs"):
        raise ValueError(
            f'`input` must be "logits" or "probs", as the file holds them; got {input!r}.'
        )
    other = "probs" if input == "logits" else "logits"
    columns = _read(path, [input, "features", "head_weight", "head_bias", *_optional(images)])
    _check_there(columns, input, other, f"Pass --input {other} if they are what you mean.")
    outputs = _outputs(columns, input)
    n, k = outputs.logits.shape
    return Table(
        outputs,
        _labels(columns, n),
        _head(columns, outputs),
        _images(columns, n),
        _class_names(columns, k),
        _ids(columns, n),
    )


def read_inputs(path: str | Path, *, images: bool = False) -> Inputs:
    """Read a model's inputs (N, …), in their own dtype; from .npz or .safetensors."""
    columns = _read(path, ["inputs", *_optional(images)])
    _check_there(columns, "inputs", "logits", "Saved outputs need no model: pass --input logits.")
    inputs = torch.from_numpy(columns.numbers("inputs"))
    n = len(inputs)
    return Inputs(
        inputs, _labels(columns, n), _images(columns, n), _class_names(columns), _ids(columns, n)
    )


def read_predictions(path: str | Path) -> tuple[Prediction, Tensor | None]:
    """Read what ``write_predictions`` wrote, and the labels or None; without `predicted` the likeliest class is."""
    columns = _read(path, ["probs", "predicted", *UNCERTAINTIES, "labels"])
    _check_there(columns, "probs", "logits", "Calibrate them first: simplexcal predict.")
    probs = columns.floats("probs")
    with _about(columns.path):
        check_probs(probs)
    n, k = probs.shape
    label = columns.class_numbers("predicted", n) if "predicted" in columns else probs.argmax(-1)
    if bool((outside := (label < 0) | (label >= k)).any()):
        i = int(outside.int().argmax())
        found = f"found {int(label[i])} in row {i}"
        raise ValueError(
            f"'{path}': `predicted` must lie in 0..{k - 1} for {k} columns of probs; {found}."
        )
    uncertainties = {name: columns.floats(name, (n,)) for name in UNCERTAINTIES if name in columns}
    return Prediction(probs, label, **uncertainties), _labels(columns, n)


def write_predictions(
    path: str | Path,
    prediction: Prediction,
    ids: Array | Sequence[int] | Sequence[str] | None = None,
    labels: Tensor | None = None,
) -> None:
    """Write predictions, whole or not at all, with the inputs' keys and true classes where they are given."""
    path, suffix = Path(path), check_suffix(path)
    tensors = {
        "labels": labels,
        "predicted": prediction.label,
        "confidence": prediction.confidence,
        **{name: getattr(prediction, name) for name in UNCERTAINTIES},
        "probs": prediction.probs,
    }
    arrays = {name: x.detach().cpu().numpy() for name, x in tensors.items() if x is not None}
    columns = Columns(path, arrays if ids is None else {"id": np.asarray(ids), **arrays}, [], [])
    n, k = prediction.probs.shape
    for name in columns.arrays:
        columns.check_shape(name, (n, k) if name == "probs" else (n,))
    _ids(columns, n)
    atomic_write(path, WRITERS[suffix](columns.arrays))


def _optional(images: bool) -> list[str]:
    return ["labels", "class_names", "id", *(["images"] if images else [])]


def _read(path: str | Path, wanted: list[str]) -> Columns:
    reader, path = READERS[check_suffix(path)], Path(path)
    if path.is_fifo():
        raise ValueError(
            f"'{path}' is a pipe, and tables are read more than once. Write it to a file first."
        )
    with path.open("rb"):  # what the system has to say about a path, it says itself
        return reader(path, wanted)


@contextmanager
def _about(path: Path, remedy: str = "") -> Iterator[None]:
    """Name the file in what the library says of its content."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise type(error)(f"'{path}': {error}{remedy}") from error


def _check_there(columns: Columns, name: str, other: str, remedy: str) -> None:
    path, spelt = columns.path, columns.spelt
    if name in columns:
        return
    if other in columns.names:
        raise ValueError(f"'{path}' holds `{other}` and no `{name}`. {remedy}")
    found = ", ".join(map(shown, spelt[:5])) + (", …" if len(spelt) > 5 else "") or "nothing"
    raise ValueError(f"'{path}' must hold {_spelt(name, path.suffix.lower())}; found {found}.")


def _spelt(name: str, suffix: str) -> str:
    """Say how a format holds a column."""
    if suffix not in (".parquet", ".csv"):
        return f"an array `{name}`"
    if name not in STEMS:
        return f"an array `{name}`, which only .npz and .safetensors can"
    first = ", named in its first line and separated by commas" if suffix == ".csv" else ""
    return f"columns {STEMS[name]}_0, {STEMS[name]}_1, …{first}"


def _labels(columns: Columns, n: int) -> Tensor | None:
    return columns.class_numbers("labels", n) if "labels" in columns else None


def _outputs(columns: Columns, input: str) -> Outputs:
    values = columns.floats(input)
    features = columns.floats("features") if "features" in columns else None
    if input == "logits":
        with _about(columns.path):
            return Outputs(values, features)
    with _about(columns.path, " Or take them as they are: --input logits."):
        return Outputs.from_probs(values, features)


def _head(columns: Columns, outputs: Outputs) -> nn.Linear | None:
    """Return the last linear layer, frozen."""
    if "head_weight" not in columns:
        if "head_bias" in columns:
            raise ValueError(
                f"'{columns.path}' holds `head_bias` and no `head_weight`. Add it, or leave out both."
            )
        return None
    k, d, biased = outputs.n_classes, outputs.n_features, "head_bias" in columns
    weight = columns.floats("head_weight", None if d is None else (k, d))
    columns.check_shape("head_weight", (k, weight.shape[-1]))
    head: nn.Linear = nn.utils.skip_init(
        nn.Linear, weight.shape[1], k, bias=biased, dtype=weight.dtype
    )
    head.weight.data = weight
    if biased:
        head.bias.data = columns.floats("head_bias", (k,)).to(weight)
    return head.requires_grad_(False)


def _images(columns: Columns, n: int) -> Tensor | None:
    if "images" not in columns:
        return None
    x = columns.arrays["images"]
    if x.dtype != np.uint8 or x.ndim not in (3, 4) or len(x) != n or x.shape[3:] not in ((), (3,)):
        expected = f"uint8 with shape ({n}, H, W) or ({n}, H, W, 3)"
        raise ValueError(
            f"'{columns.path}': `images` must be {expected}; got {shown(x.dtype)} {x.shape}."
        )
    return torch.from_numpy(columns.numbers("images"))


def _class_names(columns: Columns, k: int | None = None) -> tuple[str, ...] | None:
    if "class_names" not in columns:
        return None
    x = columns.arrays["class_names"]
    columns.check_shape("class_names", (x.size if k is None else k,))
    if x.dtype.kind != "U":
        raise TypeError(f"'{columns.path}': `class_names` must be text; got {shown(x.dtype)}.")
    return tuple(x.tolist())


def _ids(columns: Columns, n: int) -> Array | None:
    if "id" not in columns:
        return None
    columns.check_shape("id", (n,))
    x = columns.arrays["id"]
    if x.dtype.kind not in "iuUO" or (
        x.dtype == object and not all(isinstance(key, str) for key in x)
    ):
        raise TypeError(f"'{columns.path}': `id` must be integers or text; got {shown(x.dtype)}.")
    return x
