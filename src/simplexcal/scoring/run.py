"""Score Parquet files: plan, score the missing shards, put the results together."""

import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch

from simplexcal._progress import track
from simplexcal._validation import check_count
from simplexcal.io._atomic import check_output_path
from simplexcal.io._columns import Names
from simplexcal.network_spec import NetworkSpec
from simplexcal.scoring.dataset import Dataset, Shard, Shards, open_dataset
from simplexcal.scoring.local_engine import score_locally
from simplexcal.scoring.plan import BATCHES_PER_SHARD, manifest, plan
from simplexcal.scoring.shards import ShardFolder
from simplexcal.scoring.worker import ShardResult, Worker


@dataclass(frozen=True)
class Summary:
    """What came of a run.

    Args:
        output: The file of scored rows.
        rows: How many rows were scored.
        n_rejected: How many rows were rejected.
        rejected: The file of rejected rows, or None where there are none.
        n_resumed: How many rows, of both kinds, an earlier run had done.
        seconds: How long the run took.
    """

    output: Path
    rows: int
    n_rejected: int
    rejected: Path | None
    n_resumed: int
    seconds: float


def score(
    calibrator: Path,
    data: Path,
    output: Path,
    *,
    kind: str | None = None,
    network: NetworkSpec | None = None,
    names: Names | None = None,
    with_probs: bool = False,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    batch_size: int | None = None,
    restart: bool = False,
    progress: bool = False,
) -> Summary:
    """Score the rows of a Parquet file, or of a folder of them, and write one Parquet file.

    The rows hold logits or probabilities, with features where the calibrator reads them; or
    `inputs` for ``network``. Each row of the output has the key of its row, the predicted class,
    the confidence, the uncertainties that the method has, and `accepted` where the calibrator has
    thresholds. Rows that cannot be scored go to a file `*.rejected.parquet` beside it, with the
    reason.

    Memory does not grow with the number of rows. The work is kept in a folder `*.shards` until all
    is done: after an interruption the same call goes on there, with either engine and any number of
    workers, and the output is the same, byte for byte. A KeyboardInterrupt says how much is done.

    Args:
        calibrator: A file from ``save_calibrator``.
        data: A .parquet file, or a folder of them.
        output: The file to write, .parquet.
        kind: "logits" or "probs", where the rows hold both.
        network: The network, where the rows hold its inputs.
        names: The columns of `logits`, `probs`, `features`, `labels` or `id`, where they have other
            names, such as ``{"id": "key"}``, or ``{"logits": "z_"}`` for z_0, z_1, …. `id` names
            a row; without one, the number of the row does. `labels` are written only if they are
            named here, as a column `label`.
        with_probs: Whether to write the calibrated probabilities of all classes.
        engine: "local", in this process, or "ray".
        address: The Ray cluster, as host:port. The default is one on all cores of this machine.
        workers: How many threads of the local engine score shards. The default is the number of
            threads that torch computes with, one for each core. A network takes one batch at a
            time, whatever their number.
        batch_size: The number of rows that are scored at a time.
        restart: Whether to delete what an earlier run left.
        progress: Whether to show progress on stderr.

    Raises:
        ValueError: If an argument is invalid, or a file is malformed or does not fit.
        TypeError: If a column is of another type.
        OSError: If a file cannot be read or written, or the cluster fails.
        ImportError: If Ray is needed and not installed.
    """
    start = time.perf_counter()
    _check_engine(engine, address, workers)
    rows = open_dataset(data)
    folder = ShardFolder(output)
    _check_output(folder, rows)
    worker = plan(calibrator, rows, kind, network, names or {}, batch_size, with_probs)
    shards = rows.shards(BATCHES_PER_SHARD * worker.job.batch_size)
    n_done_now = 0
    with folder.opened(manifest(worker.job, rows), restart), _says_what_is_done(folder, shards):
        n_missing = len(shards) - folder.count_done()
        n_threads = min(workers or torch.get_num_threads(), max(1, n_missing))
        found = _score_shards(engine, worker, folder.missing(shards), address, n_threads)
        with closing(found):
            results: Iterable[ShardResult] = found
            if progress:
                results = track(found, "Scoring", total=n_missing)
            for result in results:
                folder.write(result)
                n_done_now += result.rows
        n_scored, n_rejected = folder.assemble(shards, worker.job.schema)
    rejected = None
    if n_rejected:
        rejected = folder.rejected
    n_resumed = rows.rows - n_done_now
    return Summary(output, n_scored, n_rejected, rejected, n_resumed, time.perf_counter() - start)


@contextmanager
def _says_what_is_done(folder: ShardFolder, shards: Shards) -> Iterator[None]:
    """Let an interruption say how much is done, and how to go on."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            f"{folder.count_done()} of {len(shards)} shards, of {shards.size} rows each, are done "
            f"and kept in '{folder.folder}'. Start the same again to go on there."
        ) from error


def _score_shards(
    engine: str, worker: Worker, shards: Iterator[Shard], address: str | None, n_threads: int
) -> Generator[ShardResult]:
    """Yield the results of all shards, in whatever order they are done."""
    first = next(shards, None)
    if first is None:
        return score_locally(worker, [], 1)
    shards = chain([first], shards)
    if engine == "local":
        return score_locally(worker, shards, n_threads)
    from simplexcal.scoring.ray_engine import score_on_ray

    return score_on_ray(worker.job, shards, address)


def _check_engine(engine: str, address: str | None, workers: int | None) -> None:
    if engine not in ("local", "ray"):
        raise ValueError(f'`engine` must be "local" or "ray"; got {engine!r}.')
    if engine == "local" and address is not None:
        raise ValueError('`address` is that of a Ray cluster. Pass `engine` as "ray" too.')
    if workers is None:
        return
    if engine == "ray":
        raise ValueError(
            "`workers` is about the local engine; Ray uses the cores that it has. Leave it out."
        )
    check_count("workers", workers)


def _check_output(folder: ShardFolder, data: Dataset) -> None:
    """Reject an output that cannot be written, or that would be read as input."""
    output = folder.output
    check_output_path(output, [".parquet"])
    folder.check_names()
    resolved = output.resolve()
    is_below = data.path.is_dir() and resolved.is_relative_to(data.path)
    if resolved == data.path or is_below:
        raise ValueError(
            f"`output` '{output}' would be read as input the next time. Write it to another folder."
        )
    if folder.rejected.resolve() == data.path:
        raise ValueError(
            f"'{folder.rejected}', where rejected rows go, is the input. "
            "Give `output` another name."
        )
    for path in (output, folder.rejected):
        _check_no_input(path, data)
    folder.check_rejected()


def _check_no_input(path: Path, data: Dataset) -> None:
    """Raise ValueError if a file to be written is one of the input, under whatever name."""
    if not path.exists():
        return
    for file in data.files:
        if path.samefile(file.path):
            raise ValueError(
                f"'{path}' would be overwritten and is read as input, as '{file.name}'. "
                "Give `output` another name."
            )
