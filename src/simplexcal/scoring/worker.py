"""From rows to scored rows: the one function that every engine calls, so that all give the same bytes."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from simplexcal.backbone import Backbone
from simplexcal.calibrators import Calibrator
from simplexcal.io import load_calibrator
from simplexcal.io._columns import Array
from simplexcal.io._parquet_fields import Field, values
from simplexcal.network_spec import NETWORK_ERRORS, NetworkSpec, first_line, load_network
from simplexcal.scoring.dataset import Slice
from simplexcal.types import Outputs, Prediction

UNCERTAINTIES = ("aleatoric", "epistemic", "mutual_information")
ROW_NUMBER = "row_number"
NEARLY = 0.99e-3  # how far a sum of probabilities may be from 1: less than ``check_probs`` forgives, however it rounds


class Job(NamedTuple):
    """All that is needed to score a slice, as plain data: engines send it to other processes and machines."""

    calibrator: Path
    digest: str  # of the calibrator's file
    network: NetworkSpec | None
    fields: tuple[
        Field, ...
    ]  # logits or probs, and features where they are needed; or inputs for the network
    key: str | None
    batch_size: int
    with_probs: bool
    schema: Any = None  # of the scored rows

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return [
            *([self.key] if self.key else []),
            *(name for field in self.fields for name in field.columns),
        ]


class Part(NamedTuple):
    """What becomes of a slice: two Parquet files' contents, of scored and of rejected rows, the latter often empty."""

    number: int
    scored: bytes
    rejected: bytes


class Scorer:
    """A calibrator, and its network where there is one, ready to score."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.calibrator, self.header = load_checked(job.calibrator, job.digest)
        self.backbone = None if job.network is None else load_backbone(job.network)

    def __call__(self, piece: Slice, table: Any) -> Part:
        """Score the rows of a slice, batch by batch; the same rows always come in the same batches."""
        numbers = pa.array(np.arange(piece.first, piece.first + piece.rows))
        table = table.append_column(ROW_NUMBER, numbers)
        with _one_thread(), torch.no_grad():
            batches = [
                self._score(table.slice(start, self.job.batch_size))
                for start in range(0, piece.rows, self.job.batch_size)
            ]
        scored, rejected = (pa.concat_tables(tables) for tables in zip(*batches, strict=True))
        return Part(piece.number, _content(scored), _content(rejected) if len(rejected) else b"")

    def predict(self, arrays: list[Array]) -> Prediction:
        """Return the predictions for rows without faults: of each field of the job its array."""
        tensors = [torch.from_numpy(x) for x in arrays]
        if self.backbone is not None:
            outputs = self.backbone(arrays[0])
        elif self.job.fields[0].name == "probs":
            outputs = Outputs.from_probs(*tensors)
        else:
            outputs = Outputs(*tensors)
        prediction: Prediction = self.calibrator(outputs)
        return prediction

    def columns(self, prediction: Prediction) -> dict[str, Array]:
        """Return what is written of each row beside its key."""
        found = {name: getattr(prediction, name) for name in UNCERTAINTIES}
        columns = {"predicted": prediction.label, "confidence": prediction.confidence}
        columns |= {name: x for name, x in found.items() if x is not None}
        if self.job.with_probs:
            columns |= {f"prob_{i}": x for i, x in enumerate(prediction.probs.unbind(-1))}
        return {name: x.numpy() for name, x in columns.items()}

    def _score(self, batch: Any) -> tuple[Any, Any]:
        found = [values(batch, field) for field in self.job.fields]
        reasons = _first(batch, self.job, [own for _, own in found])
        _explain_probs(self.job, found[0][0], reasons)
        prediction = self._predict_good([x for x, _ in found], reasons)
        if prediction is None:
            return self.job.schema.empty_table(), self._rejected(batch, reasons)
        ok, columns = reasons == "", self.columns(prediction)
        finite = np.isfinite(columns["confidence"])
        reasons[np.flatnonzero(ok)[~finite]] = (
            "the confidence is not finite: logits or features are too large"
        )
        key = batch[self.job.key or ROW_NUMBER].filter(pa.array(reasons == ""))
        scored = [key, *(x[finite] for x in columns.values())]
        return pa.table(scored, schema=self.job.schema), self._rejected(batch, reasons)

    def _predict_good(self, arrays: list[Array], reasons: Array) -> Prediction | None:
        """Predict the rows that have no reason against them; where the network fails, the rows it fails at get one."""
        good = np.flatnonzero(reasons == "")
        if not len(good):
            return None
        try:
            return self.predict([x[good] for x in arrays])
        except NETWORK_ERRORS:
            if self.backbone is None:
                raise
        for i, reason in self._refused(arrays, good).items():
            reasons[i] = reason
        return self.predict([x[reasons == ""] for x in arrays]) if (reasons == "").any() else None

    def _refused(self, arrays: list[Array], rows: Array) -> dict[int, str]:
        """Return why the network cannot take a row, for each that it cannot take alone."""
        found: dict[int, str] = {}
        for i in rows:
            try:
                self.predict([x[i : i + 1] for x in arrays])
            except NETWORK_ERRORS as error:
                found[int(i)] = f"the network cannot take it: {first_line(error)}"
        return found

    def _rejected(self, batch: Any, reasons: Array) -> Any:
        bad = reasons != ""
        names = [*([self.job.key] if self.job.key else []), ROW_NUMBER]
        kept = batch.select(names).filter(pa.array(bad))
        columns = [*kept.columns, pa.array(reasons[bad], pa.string())]
        return pa.table(
            columns, names=[*names, "reason"]
        )  # nullable all, whatever the file says of the key


@lru_cache(maxsize=1)
def scorer_of(job: Job) -> Scorer:
    """Return the scorer of a job, loaded once in each process."""
    return Scorer(job)


def load_checked(path: Path, digest: str) -> tuple[Calibrator, dict[str, Any]]:
    """Return the calibrator in a file, and its header, if the file is still the same."""
    if digest_of(path) != digest:
        raise ValueError(f"'{path}' is not the file that this run began with. Start the run again.")
    return load_calibrator(path)


def digest_of(path: Path) -> str:
    """Return a file's SHA-256 digest."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def load_backbone(network: NetworkSpec) -> Backbone:
    """Return the network, frozen."""
    return Backbone(load_network(network.model, network.weights), network.head)


def _first(batch: Any, job: Job, reasons: list[Array]) -> Array:
    """Return the first reason against each row, or ""; a row without a key is as bad as one without numbers."""
    result = reasons[0]
    for other in reasons[1:]:
        result = np.where(result == "", other, result)
    if job.key and batch[job.key].null_count:
        result[np.asarray(batch[job.key].is_null()) & (result == "")] = f"`{job.key}` is null"
    return result


def _explain_probs(job: Job, x: Array, reasons: Array) -> None:
    """Give a reason to each row of probabilities that is no distribution."""
    if job.fields[0].name != "probs":
        return
    total = x.sum(1)
    for i in np.flatnonzero(((x < 0) | (x > 1)).any(1) | (np.abs(total - 1) > NEARLY)):
        range_ = f"from {x[i].min():g} to {x[i].max():g}, with sum {total[i]:g}"
        reasons[i] = reasons[i] or f"`probs` are no probabilities: {range_}"


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in one thread, since products of matrices may round otherwise with another number of them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _content(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, use_dictionary=["predicted", "reason"], write_page_checksum=True)
    content: bytes = sink.getvalue().to_pybytes()
    return content
