"""From a shard to its scored rows: the one function that every engine calls.

So all engines give the same bytes.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from threading import Event, Lock
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from simplexcal._validation import ROUNDING
from simplexcal.backbone import Backbone
from simplexcal.calibrators import Calibrator
from simplexcal.io import load_calibrator
from simplexcal.io._arrow import Decoded, StoredArray, as_lists, decode
from simplexcal.io._columns import UNCERTAINTIES, Array
from simplexcal.network_spec import NETWORK_ERRORS, NetworkSpec, first_line, load_backbone
from simplexcal.onnx import OnnxNetwork
from simplexcal.scoring.dataset import Shard
from simplexcal.types import Outputs, Prediction

ROW_NUMBER = "row_number"
# How far a sum of probabilities may be from 1. ``check_probs`` allows 1e-3; this is less, whatever
# the rounding, so that no row fails there.
PROBS_TOLERANCE = 0.99e-3
WRITE_OPTIONS: Any = {"use_dictionary": ["predicted", "reason"], "write_page_checksum": True}
OVERFLOW = "the confidence is not finite: logits or features are too large"


class Job(NamedTuple):
    """All that is needed to score a shard, as plain data that engines send to other machines.

    Args:
        calibrator: The file of the calibrator.
        checksum: The checksum in its header.
        network: The network that takes the inputs, or None where the rows hold its outputs.
        arrays: What is read: logits or probs, and features where the calibrator reads them; or
            inputs for the network.
        key: The column that names a row, or None for the number of the row.
        batch_size: The number of rows that are scored at a time.
        with_probs: Whether to write the probabilities of all classes.
        schema: The columns of the scored rows.
        labels: The column of true classes, which is written again as `label`; None has none.
    """

    calibrator: Path
    checksum: str
    network: NetworkSpec | None
    arrays: tuple[StoredArray, ...]
    key: str | None
    batch_size: int
    with_probs: bool
    schema: Any = None
    labels: str | None = None

    @property
    def copied(self) -> list[str]:
        """The columns that are written as they are read: the key, and maybe the true classes."""
        copied = [self.key or ROW_NUMBER]
        if self.labels is not None:
            copied.append(self.labels)
        return copied

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        copied = [column for column in self.copied if column != ROW_NUMBER]
        arrays = [column for stored in self.arrays for column in stored.columns]
        return list(dict.fromkeys([*copied, *arrays]))


class ShardResult(NamedTuple):
    """The scored rows of a shard, as the contents of two Parquet files.

    Args:
        number: The number of the shard.
        rows: The number of its rows.
        scored: The rows that were scored.
        rejected: The rows that could not be scored, with the reasons; empty if there are none.
    """

    number: int
    rows: int
    scored: bytes
    rejected: bytes


class StoppedError(Exception):
    """A shard was given up."""


class Worker:
    """A calibrator, and its network where there is one, ready to score shards.

    Args:
        job: What to do.
        calibrator: The fitted calibrator.
        backbone: The network of the job, or None.
    """

    def __init__(
        self, job: Job, calibrator: Calibrator, backbone: Backbone | OnnxNetwork | None
    ) -> None:
        self.job = job
        self.calibrator = calibrator
        self.backbone = backbone
        self._network_lock = Lock()
        if isinstance(backbone, Backbone):
            # A shard may be a few rows, which cannot tell whether there are features.
            backbone.features = calibrator.n_features is not None

    def __call__(self, shard: Shard, table: Any, stop: Event | None = None) -> ShardResult:
        """Score the rows of a shard; the same rows always come in the same batches.

        Args:
            shard: The shard.
            table: Its rows.
            stop: Once it is set, the shard is given up at its next batch.

        Raises:
            StoppedError: If the shard is given up.
        """
        numbers = pa.array(np.arange(shard.first, shard.first + shard.rows))
        table = table.append_column(ROW_NUMBER, numbers)
        scored = []
        rejected = []
        with one_thread(), torch.no_grad():
            for start in range(0, shard.rows, self.job.batch_size):
                if stop is not None and stop.is_set():
                    raise StoppedError
                batch = table.slice(start, self.job.batch_size)
                scored_batch, rejected_batch = self._score(batch)
                scored.append(scored_batch)
                if rejected_batch is not None:
                    rejected.append(rejected_batch)
        content = _parquet_bytes(scored)
        return ShardResult(shard.number, shard.rows, content, _parquet_bytes_if_any(rejected))

    def predict(self, values: list[Array]) -> Prediction:
        """Return the predictions for rows that can be scored.

        Args:
            values: The values of each array of the job.
        """
        tensors = [torch.from_numpy(x) for x in values]
        if self.backbone is not None:
            # A network is not known to bear two calls at the same time.
            with self._network_lock:
                outputs = self.backbone(values[0])
        elif self.job.arrays[0].name == "probs":
            outputs = Outputs.from_probs(*tensors)
        else:
            outputs = Outputs(*tensors)
        prediction: Prediction = self.calibrator(outputs)
        return prediction

    def columns(self, prediction: Prediction) -> dict[str, Array]:
        """Return the columns that are written beside the key.

        Args:
            prediction: The predictions.
        """
        columns = {"predicted": prediction.label, "confidence": prediction.confidence}
        for name in UNCERTAINTIES:
            uncertainty = getattr(prediction, name)
            if uncertainty is not None:
                columns[name] = uncertainty
        if prediction.accepted is not None:
            columns["accepted"] = prediction.accepted
        if self.job.with_probs:
            for i, x in enumerate(prediction.probs.unbind(-1)):
                columns[f"prob_{i}"] = x
        return {name: x.numpy() for name, x in columns.items()}

    def _score(self, batch: Any) -> tuple[Any, Any | None]:
        """Return a table of the scored rows, and one of the rejected rows, if there are any."""
        values, reasons = self._decode(batch)
        prediction = self._predict_good(values, reasons)
        if prediction is None:
            return self.job.schema.empty_table(), self._rejected(batch, reasons)
        columns = self.columns(prediction)
        finite = np.isfinite(columns["confidence"])
        if len(finite) == len(batch) and finite.all():  # No row has a reason.
            copied = [batch[column] for column in self.job.copied]
            scored = pa.table([*copied, *columns.values()], schema=self.job.schema)
            return scored, None
        reasons[np.flatnonzero(reasons == "")[~finite]] = OVERFLOW
        good = pa.array(reasons == "")
        copied = [batch[column].filter(good) for column in self.job.copied]
        values = [x[finite] for x in columns.values()]
        scored = pa.table([*copied, *values], schema=self.job.schema)
        return scored, self._rejected(batch, reasons)

    def _decode(self, batch: Any) -> tuple[list[Array], Array]:
        """Return the values of each array, and for each row why it cannot be used, or ""."""
        values = []
        reasons = np.full(len(batch), "", dtype=object)
        for stored in self.job.arrays:
            decoded = decode(batch, stored)
            _explain_shapes(batch, stored, decoded, reasons)
            _explain_numbers(stored, decoded, reasons)
            values.append(decoded.values)
        if self.job.key is not None:
            _explain_keys(batch[self.job.key], self.job.key, reasons)
        if self.job.arrays[0].name == "probs":
            _explain_probs(values[0], reasons)
        return values, reasons

    def _predict_good(self, values: list[Array], reasons: Array) -> Prediction | None:
        """Predict the rows without a reason; rows at which the network fails get one."""
        good = np.flatnonzero(reasons == "")
        if not len(good):
            return None
        if self.backbone is None:
            if len(good) < len(reasons):
                values = [x[good] for x in values]
            return self.predict(values)
        with suppress(*NETWORK_ERRORS):
            return self.predict([x[good] for x in values])
        self._explain_failures(values, reasons)
        good = np.flatnonzero(reasons == "")
        if not len(good):
            return None
        return self.predict([x[good] for x in values])

    def _explain_failures(self, values: list[Array], reasons: Array) -> None:
        """Give a reason to each row that the network cannot take alone."""
        for i in np.flatnonzero(reasons == ""):
            try:
                self.predict([x[i : i + 1] for x in values])
            except NETWORK_ERRORS as error:
                reasons[i] = f"the network cannot take it: {first_line(error)}"

    def _rejected(self, batch: Any, reasons: Array) -> Any:
        """Return a table of the rows with a reason: the key, the number and the reason."""
        names = [ROW_NUMBER]
        if self.job.key is not None:
            names.insert(0, self.job.key)
        bad = reasons != ""
        kept = batch.select(names).filter(pa.array(bad))
        columns = [*kept.columns, pa.array(reasons[bad], pa.string())]
        # Columns made anew may hold null, whatever the file says of its key.
        return pa.table(columns, names=[*names, "reason"])


@lru_cache(maxsize=1)
def load_worker(job: Job) -> Worker:
    """Return the worker of a job, loaded once in each process.

    Args:
        job: The job.

    Raises:
        ValueError: If the calibrator is not the one that the run began with.
    """
    calibrator, header = load_calibrator(job.calibrator)
    if header["checksum"] != job.checksum:
        raise ValueError(
            f"'{job.calibrator}' is not the file that this run began with. Start the run again."
        )
    backbone = None
    if job.network is not None:
        backbone = load_backbone(job.network)
    return Worker(job, calibrator, backbone)


def format_shape(shape: tuple[int | None, ...]) -> str:
    """Return the shape of a row as a message gives it: a number, or numbers in parentheses.

    Args:
        shape: The shape.
    """
    if len(shape) == 1:
        return str(shape[0])
    return f"({', '.join(map(str, shape))})"


def list_shape(value: Any) -> tuple[int, ...]:
    """Return the shape of nested lists, by their first elements.

    Args:
        value: A row, as Python lists.
    """
    shape: list[int] = []
    while isinstance(value, list):
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return tuple(shape)


def _explain_shapes(batch: Any, stored: StoredArray, decoded: Decoded, reasons: Array) -> None:
    """Give a reason to each row whose lists have another shape than the array."""
    if decoded.fits.all():
        return
    lists = as_lists(batch[stored.columns[0]])
    expected = format_shape(stored.shape)
    for i in np.flatnonzero(~decoded.fits & (reasons == "")):
        row = lists[int(i)].as_py()
        found = list_shape(row)
        if row is None:
            reasons[i] = f"`{stored.name}` is null"
        elif found == stored.shape or len(found) != len(stored.shape):
            reasons[i] = f"`{stored.name}` has lists that do not make up the shape {expected}"
        elif len(found) == 1:
            reasons[i] = f"`{stored.name}` has {found[0]} values, not {expected}"
        else:
            reasons[i] = f"`{stored.name}` has the shape {format_shape(found)}, not {expected}"


def _explain_numbers(stored: StoredArray, decoded: Decoded, reasons: Array) -> None:
    """Give a reason to each row with a number that is null, NaN or infinite: the first one."""
    finite = np.isfinite(decoded.values)
    if finite.all() and decoded.null is None:
        return
    values = decoded.values.reshape(len(reasons), -1)
    null = np.zeros(values.shape, bool)
    if decoded.null is not None:
        null = decoded.null.reshape(values.shape)
    bad = null | ~finite.reshape(values.shape)
    for i in np.flatnonzero(bad.any(1) & (reasons == "")):
        j = int(bad[i].argmax())
        where = f"`{stored.name}` at position {j}"
        if not stored.in_lists:
            where = f"`{stored.columns[j]}`"
        if null[i, j]:
            reasons[i] = f"{where} is null"
        elif np.isnan(values[i, j]):
            reasons[i] = f"{where} is NaN"
        else:
            reasons[i] = f"{where} is infinite"


def _explain_keys(column: Any, name: str, reasons: Array) -> None:
    """Give a reason to each row without a key."""
    if column.null_count:
        null = np.asarray(column.is_null())
        reasons[null & (reasons == "")] = f"`{name}` is null"


def _explain_probs(values: Array, reasons: Array) -> None:
    """Give a reason to each row that is no distribution."""
    total = values.sum(1)
    outside = ((values < 0) | (values > 1 + ROUNDING)).any(1)
    bad = outside | (np.abs(total - 1) > PROBS_TOLERANCE)
    for i in np.flatnonzero(bad & (reasons == "")):
        row = values[i]
        extent = f"from {row.min():g} to {row.max():g}, with sum {total[i]:g}"
        reasons[i] = f"`probs` are no probabilities: {extent}"


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute in one thread: products may round otherwise with another number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _parquet_bytes_if_any(tables: list[Any]) -> bytes:
    """Return the content of a Parquet file, or nothing where there are no rows."""
    if any(len(table) for table in tables):
        return _parquet_bytes(tables)
    return b""


def _parquet_bytes(tables: list[Any]) -> bytes:
    """Return the content of a Parquet file with the rows of all tables."""
    sink = pa.BufferOutputStream()
    table = pa.concat_tables(tables)
    pq.write_table(table, sink, **WRITE_OPTIONS)
    content: bytes = sink.getvalue().to_pybytes()
    return content
