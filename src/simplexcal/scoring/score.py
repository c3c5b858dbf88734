"""Score Parquet files: plan, score what is missing, put the parts together."""

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from simplexcal._progress import track
from simplexcal.network_spec import NetworkSpec
from simplexcal.scoring.dataset import Dataset, Slice, by_file, open_dataset, read
from simplexcal.scoring.plan import IN_A_SLICE, manifest, plan
from simplexcal.scoring.shards import Parts
from simplexcal.scoring.worker import Job, Part, Scorer


@dataclass(frozen=True)
class Summary:
    """What came of a run: how many rows were scored and how many rejected, and where they are."""

    output: Path
    rows: int
    n_rejected: int
    rejected: Path | None
    n_resumed: int  # rows, of both kinds, that an earlier run had done
    seconds: float


def score(
    calibrator: Path,
    input: Path,
    output: Path,
    *,
    kind: str | None = None,
    network: NetworkSpec | None = None,
    key: str | None = None,
    probs: bool = False,
    engine: str = "local",
    address: str | None = None,
    batch_size: int | None = None,
    restart: bool = False,
    progress: bool = False,
) -> Summary:
    """Score the rows of a Parquet file, or of a folder of them, and write one Parquet file.

    The rows hold logits or probs, as ``kind`` says where there are both, with features where the calibrator needs
    them; or `inputs` for ``network``. Each row of the output has the ``key`` of its row, by default `id` or else the
    row's number, the predicted class, the confidence, and the uncertainties that the method has; with ``probs`` the
    calibrated probabilities too. Rows that cannot be scored go to a file `*.rejected.parquet` beside it.

    Memory does not grow with the number of rows. The work is kept in a folder `*.parts` until all is done: after an
    interruption the same call goes on there, with either engine, and the output is the same, byte for byte.
    ``engine`` is "local", in this process, or "ray": on the cluster at ``address``, or on all cores of this machine.
    """
    start = time.perf_counter()
    _check_engine(engine, address)
    data = open_dataset(input)
    _check_output(output, data)
    job = plan(calibrator, data, kind, network, key, batch_size, probs)
    slices, parts = data.slices(IN_A_SLICE * job.batch_size), Parts(output)
    with parts.opened(manifest(job, data), restart):
        missing = parts.missing(slices)
        with closing(_engine(engine, job, missing, address)) as results:
            for _ in track(missing, "Scoring", progress):
                parts.put(next(results))
        rows, n_rejected = parts.assemble(slices, job.schema)
    resumed = data.rows - sum(piece.rows for piece in missing)
    rejected = parts.rejected if n_rejected else None
    return Summary(output, rows, n_rejected, rejected, resumed, time.perf_counter() - start)


def _engine(engine: str, job: Job, slices: Sequence[Slice], address: str | None) -> Generator[Part]:
    if engine == "local" or not slices:
        return _scored_here(job, slices)
    from simplexcal.scoring.ray_engine import scored_by_ray

    return scored_by_ray(job, slices, address)


def _scored_here(job: Job, slices: Sequence[Slice]) -> Generator[Part]:
    scorer = Scorer(job)
    for own in by_file(slices):
        for piece, table in read(own, job.columns):
            yield scorer(piece, table)


def _check_engine(engine: str, address: str | None) -> None:
    if engine not in ("local", "ray"):
        raise ValueError(f'`engine` must be "local" or "ray"; got {engine!r}.')
    if engine == "local" and address is not None:
        raise ValueError("--address is that of a Ray cluster: give --engine ray too.")


def _check_output(output: Path, data: Dataset) -> None:
    """Refuse what cannot be written before hours are spent on it."""
    if output.suffix != ".parquet":
        raise ValueError(f"--output must end in .parquet; got '{output}'.")
    if not output.parent.is_dir():
        raise FileNotFoundError(
            f"--output is to go to '{output.parent}', which is no folder. Make it first."
        )
    if output.is_dir():
        raise IsADirectoryError(f"--output '{output}' is a folder. Give the name of a file.")
    if output.resolve() == data.path or (
        data.path.is_dir() and output.resolve().is_relative_to(data.path)
    ):
        raise ValueError(
            f"--output '{output}' would be read as input the next time. Write it to another folder."
        )
    if (rejected := Parts(output).rejected).resolve() == data.path:
        raise ValueError(
            f"'{rejected}', where rejected rows go, is the input. Give --output another name."
        )
