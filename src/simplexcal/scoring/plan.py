"""What a run does, settled and checked before work starts.

Faults of a file as a whole, such as a missing column, are errors here. Faults of single rows are
reasons to reject them, which the worker finds.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import torch

import simplexcal
from simplexcal._validation import check_count
from simplexcal.backbone import Backbone
from simplexcal.calibrators import Calibrator
from simplexcal.io import load_calibrator
from simplexcal.io._arrow import (
    StoredArray,
    array_name,
    as_lists,
    columns_of,
    decode,
    find_array,
    have_shape,
)
from simplexcal.io._columns import (
    STEMS,
    UNCERTAINTIES,
    Array,
    Names,
    name_is_missing,
    quote,
    quote_names,
)
from simplexcal.io._kinds import OUTPUTS, check_kind, choose_kind
from simplexcal.io.native import check_fingerprint
from simplexcal.network_spec import (
    NETWORK_ERRORS,
    NetworkSpec,
    load_backbone,
    reraise_as_input_error,
)
from simplexcal.onnx import OnnxNetwork
from simplexcal.scoring.dataset import Dataset
from simplexcal.scoring.worker import (
    ROW_NUMBER,
    Job,
    Worker,
    format_shape,
    list_shape,
)
from simplexcal.types import Prediction

MAX_BATCH_ROWS = 8192
MAX_NETWORK_BATCH_ROWS = 256
MAX_BATCH_VALUES = 2**21
BATCHES_PER_SHARD = 4
SAMPLE_ROWS = 256  # that are read beforehand
EXAMPLE_ROWS = 10  # that a network is tried on
OUTPUT_COLUMNS = ("predicted", "confidence", *UNCERTAINTIES, "accepted", ROW_NUMBER, "reason")
LABEL = "label"  # the column of true classes
FORMAT = 2  # goes up when shards of earlier versions cannot be used


def plan(
    calibrator: Path,
    data: Dataset,
    kind: str | None,
    network: NetworkSpec | None,
    names: Names,
    batch_size: int | None,
    with_probs: bool,
) -> Worker:
    """Return a worker for the run, if the calibrator, the network and the columns fit together.

    Args:
        calibrator: The file of the calibrator.
        data: The rows.
        kind: "logits" or "probs", or None for those that the columns hold.
        network: The network that takes the rows as inputs, or None.
        names: The columns of arrays that have other names; `id` names a row.
        batch_size: The number of rows that are scored at a time, or None to choose one.
        with_probs: Whether to write the probabilities of all classes.

    Raises:
        ValueError: If an argument is invalid, a column is missing, or something does not fit.
        TypeError: If a column is of another type.
        OSError: If a file cannot be read.
    """
    calibrator = calibrator.resolve()
    fitted, header = load_calibrator(calibrator)
    _check_names(data, names)
    key = _find_key(data, names.get("id"))
    if network is None:
        kind = _find_kind(data, kind, names)
        arrays = _find_outputs(data, kind, names, calibrator, fitted)
    elif kind is None:
        arrays = (_find_inputs(data),)
        network = _with_absolute_path(network)
    else:
        raise ValueError(
            "`kind` says what saved outputs are, and `network` takes raw inputs. "
            "Pass one of the two."
        )
    size = _choose_batch_size(batch_size, arrays, network)
    labels = _find_labels(data, names.get("labels"), key)
    job = Job(calibrator, header["checksum"], network, arrays, key, size, with_probs, labels=labels)
    backbone = None
    if network is not None:
        backbone = load_backbone(network)
        check_fingerprint(header, backbone, calibrator)
    job = job._replace(schema=_output_schema(data, job, fitted, backbone))
    return Worker(job, fitted, backbone)


def manifest(job: Job, data: Dataset) -> dict[str, Any]:
    """Return what a run depends on: shards of an earlier one can be used if it is the same.

    Args:
        job: The job.
        data: The rows.
    """
    return {
        "format": FORMAT,
        "versions": {
            "simplexcal": simplexcal.__version__,
            "torch": str(torch.__version__),
            "pyarrow": pa.__version__,
        },
        "input": {file.name: f"{file.rows} {file.fingerprint}" for file in data.files},
        "calibrator": job.checksum,
        "network": _describe_network(job.network),
        "settings": {
            "key": job.key,
            "labels": job.labels,
            "batch_size": job.batch_size,
            "probs": job.with_probs,
            "arrays": {stored.name: stored.columns[0] for stored in job.arrays},
        },
    }


def _describe_network(network: NetworkSpec | None) -> list[str | None] | None:
    """Return the names of a network, and the digest of its weights."""
    if network is None:
        return None
    digest = None
    if network.weights is not None:
        digest = hashlib.sha256(network.weights.read_bytes()).hexdigest()
    if network.onnx_file is not None:
        digest = hashlib.sha256(network.onnx_file.read_bytes()).hexdigest()
    return [network.model, network.head, digest]


def _with_absolute_path(network: NetworkSpec) -> NetworkSpec:
    """Return the network with a path that other processes understand.

    Links stay, since the file that they lead to may have no suffix.
    """
    if network.onnx_file is not None:
        return network._replace(model=str(network.onnx_file.absolute()))
    if network.weights is None:
        return network
    return network._replace(weights=network.weights.absolute())


def _check_names(data: Dataset, names: Names) -> None:
    """Raise ValueError if the rows lack a column that the user names."""
    for name, own in names.items():
        if not columns_of(data.schema.names, name, names):
            raise name_is_missing(data.path, name, own, data.schema.names)


def _find_kind(data: Dataset, kind: str | None, names: Names) -> str:
    """Return "logits" or "probs", as the columns are named; they must leave no choice."""
    columns = data.schema.names
    if kind is None:
        found = list(dict.fromkeys(map(array_name, columns)))
        return choose_kind(data.path, found, names, OUTPUTS, columns)
    check_kind(kind, OUTPUTS)
    if columns_of(columns, kind, names):
        return kind
    for other in OUTPUTS:
        if columns_of(columns, other, names):
            raise ValueError(
                f"'{data.path}' holds `{other}` and no `{kind}`. Leave out `kind` to take them."
            )
    stem = STEMS[kind]
    raise _missing(data, f"columns {stem}_0, {stem}_1, … or a column `{kind}` of lists")


def _missing(data: Dataset, expected: str) -> ValueError:
    """Return the error that a file lacks a column."""
    found = quote_names(data.schema.names)
    return ValueError(f"'{data.path}' must hold {expected}; found {found}.")


def _find_key(data: Dataset, key: str | None) -> str | None:
    """Return the column that names a row, or None if there is none and none was asked for."""
    if key is None:
        if "id" not in data.schema.names:
            return None
        key = "id"
    if key in OUTPUT_COLUMNS or key.startswith("prob_"):
        raise ValueError(
            f'`names["id"]` must not be {quote(key)}, which is a column of the output. '
            "Rename it in the input."
        )
    kind = data.schema.field(key).type
    if not _is_key_type(kind):
        raise TypeError(
            f"'{data.path}': column {quote(key)} must hold integers, text or times; "
            f"it holds {quote(kind)}."
        )
    return key


def _find_labels(data: Dataset, labels: str | None, key: str | None) -> str | None:
    """Return the column of true classes, which are written again if the user names them."""
    if labels is None:
        return None
    if key == LABEL:
        raise ValueError(
            f"`names[\"labels\"]` is written as '{LABEL}', which is the column of keys too. "
            "Rename that in the input."
        )
    kind = data.schema.field(labels).type
    if not pt.is_integer(kind):
        raise TypeError(
            f"'{data.path}': column {quote(labels)} must hold whole numbers; "
            f"it holds {quote(kind)}."
        )
    return labels


def _is_key_type(kind: Any) -> bool:
    tests = (
        pt.is_integer,
        pt.is_string,
        pt.is_large_string,
        pt.is_binary,
        pt.is_fixed_size_binary,
        pt.is_temporal,
    )
    return any(test(kind) for test in tests)


def _find_outputs(
    data: Dataset, kind: str, names: Names, path: Path, fitted: Calibrator
) -> tuple[StoredArray, ...]:
    """Return where the rows hold what the calibrator reads; all arrays have one type."""
    n_classes = fitted.n_classes or 0
    widths = {kind: n_classes}
    remedies = {kind: f"'{path}' is for {n_classes} classes."}
    if fitted.reads_features:
        n_features = fitted.n_features or 0
        widths["features"] = n_features
        remedies["features"] = f"'{path}' needs {n_features}, of the layer that it was fitted on."
    arrays = []
    for name, width in widths.items():
        stored = find_array(data.path, data.schema, name, names=names)
        if stored is None:
            columns = f"columns {STEMS[name]}_0, … or a column `{name}` of lists"
            raise _missing(data, f"{columns}, {width} in a row, as '{path}' needs them")
        arrays.append(_with_width(data, stored.as_floats(), width, remedies[name]))
    widest = pa.float32()
    if any(stored.type == pa.float64() for stored in arrays):
        widest = pa.float64()
    return tuple(stored._replace(type=widest) for stored in arrays)


def _find_inputs(data: Dataset) -> StoredArray:
    """Return where the rows hold inputs; their shape is that of most rows of a sample."""
    stored = find_array(data.path, data.schema, "inputs", names={}, nested=True)
    if stored is None:
        raise _missing(data, "a column `inputs` of lists, for the network")
    if None not in stored.shape:
        return stored
    shape = _most_common_shape(_sample_lists(data, stored)) or ()
    if len(shape) != len(stored.shape):
        raise ValueError(
            f"'{data.path}': column {quote(stored.name)} must hold lists; "
            "those of its first rows are empty."
        )
    return stored._replace(shape=shape)


def _with_width(data: Dataset, stored: StoredArray, width: int, remedy: str) -> StoredArray:
    """Return the array with so many numbers in a row.

    Its columns, or at least one list of a sample, must have as many.
    """
    found = stored.shape
    if None in found:
        lists = _sample_lists(data, stored)
        if not len(lists) or have_shape(lists, (width,)).any():
            return stored._replace(shape=(width,))
        found = _most_common_shape(lists) or found
    if found != (width,):
        raise ValueError(
            f"'{data.path}' has {format_shape(found)} {stored.name} in a row; {remedy}"
        )
    return stored


def _sample_lists(data: Dataset, stored: StoredArray) -> Any:
    """Return the lists of the first rows."""
    return as_lists(data.sample(stored.columns, SAMPLE_ROWS)[stored.columns[0]])


def _most_common_shape(lists: Any) -> tuple[int, ...] | None:
    """Return the shape of most lists, or None where all are null."""
    shapes = Counter(list_shape(row) for row in lists.to_pylist() if row is not None)
    if not shapes:
        return None
    return shapes.most_common(1)[0][0]


def _choose_batch_size(
    batch_size: int | None, arrays: Sequence[StoredArray], network: NetworkSpec | None
) -> int:
    """Return the number of rows in a batch: as given, or as many as memory allows."""
    if batch_size is not None:
        return check_count("batch_size", batch_size)
    most = MAX_BATCH_ROWS
    if network is not None:
        most = MAX_NETWORK_BATCH_ROWS
    width = sum(prod(_row_shape(stored)) for stored in arrays)
    return max(1, min(most, MAX_BATCH_VALUES // max(1, width)))


def _row_shape(stored: StoredArray) -> tuple[int, ...]:
    """Return the shape of a row, which is settled."""
    return tuple(length or 0 for length in stored.shape)


def _output_schema(
    data: Dataset, job: Job, fitted: Calibrator, backbone: Backbone | OnnxNetwork | None
) -> Any:
    """Return the schema of the scored rows, by scoring one row."""
    worker = Worker(job, fitted, backbone)
    examples = [_example_rows(data, stored) for stored in job.arrays]
    with reraise_as_input_error(f"the `inputs` of '{data.path}'"), torch.no_grad():
        columns = worker.columns(_predict_one(worker, examples))
    types = {ROW_NUMBER: pa.int64()}
    if job.key is not None:
        types = {job.key: data.schema.field(job.key).type}
    if job.labels is not None:
        types[LABEL] = data.schema.field(job.labels).type
    types |= {name: pa.from_numpy_dtype(x.dtype) for name, x in columns.items()}
    return pa.schema(list(types.items()))


def _predict_one(worker: Worker, examples: list[Array]) -> Prediction:
    """Predict the first row that the network can take; raise the last row's error if none is."""
    last = len(examples[0]) - 1
    for i in range(last):
        with suppress(*NETWORK_ERRORS):
            return worker.predict([x[i : i + 1] for x in examples])
    return worker.predict([x[last:] for x in examples])


def _example_rows(data: Dataset, stored: StoredArray) -> Array:
    """Return rows: a made-up one for a calibrator, the first good ones for a network."""
    shape = _row_shape(stored)
    made_up = np.full((1, *shape), 1 / shape[0], stored.type.to_pandas_dtype())
    if stored.name != "inputs":
        return made_up
    decoded = decode(data.sample(stored.columns, SAMPLE_ROWS), stored)
    usable = np.isfinite(decoded.values)
    if decoded.null is not None:
        usable &= ~decoded.null
    good = decoded.fits & usable.reshape(len(usable), -1).all(1)
    if not good.any():
        return made_up
    return decoded.values[good][:EXAMPLE_ROWS]
