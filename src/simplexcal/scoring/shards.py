"""The folder of shard results beside the output.

Each result is written once, so that a run goes on where an earlier one stopped.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from simplexcal.io._atomic import atomic_open, atomic_write, check_name_length
from simplexcal.io._columns import reraise_parse_errors
from simplexcal.scoring.dataset import Shard, Shards
from simplexcal.scoring.worker import WRITE_OPTIONS, ShardResult

OWN = re.compile(r"\d{8,}(\.rejected)?\.parquet|\.[0-9a-f]{16}\.part|manifest\.json|lock")
SCORED = re.compile(r"\d{8,}\.parquet")
RESTART = "Pass `restart=True` to score its rows again."
ROW_GROUP_VALUES = 2**20  # in a row group of the output, about
REJECTED_MARK = {b"simplexcal": b"rejected rows"}  # in the metadata of the file of rejected rows
DESCRIPTIONS = {
    "input": "input files",
    "settings": "settings (`names`, `kind`, `batch_size` or `with_probs`)",
    "format": "versions",
}


class ShardFolder:
    """The shard results of one output. A file that is there is whole, since writes are atomic.

    Args:
        output: The file that the results become in the end.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self.rejected = output.with_suffix(".rejected.parquet")
        self.folder = output.with_name(f"{output.name}.shards")

    def check_names(self) -> None:
        """Raise ValueError if the name of a file beside the output would be too long."""
        check_name_length(self.rejected)
        check_name_length(self.folder)

    def check_rejected(self) -> None:
        """Raise ValueError if a file lies where rejected rows go that is not of an earlier run."""
        if self.rejected.exists() and not _is_rejected_file(self.rejected):
            raise ValueError(
                f"'{self.rejected}' is where rejected rows go, and was not written by `score`. "
                "Move it, or give `output` another name."
            )

    @contextmanager
    def opened(self, manifest: dict[str, Any], restart: bool) -> Iterator[None]:
        """Hold the folder for this run.

        Args:
            manifest: What the run depends on.
            restart: Whether to delete the results of another run, which are an error otherwise.

        Raises:
            ValueError: If the folder holds results of another run, or if another run holds it.
        """
        self.folder.mkdir(exist_ok=True)
        with _locked(self.folder / "lock", self.output):
            self._prepare(json.loads(json.dumps(manifest)), restart)
            yield

    def missing(self, shards: Iterable[Shard]) -> Iterator[Shard]:
        """Return the shards that are still to be scored.

        Args:
            shards: All shards of the run.
        """
        return (shard for shard in shards if not self._scored(shard).exists())

    def count_done(self) -> int:
        """Return the number of shards that are scored."""
        return sum(SCORED.fullmatch(path.name) is not None for path in self.folder.iterdir())

    def write(self, result: ShardResult) -> None:
        """Write a shard result; the scored rows come last, as they show that it is done.

        Args:
            result: The result.
        """
        if result.rejected:
            atomic_write(self._rejected(result), result.rejected)
        atomic_write(self._scored(result), result.scored)

    def assemble(self, shards: Shards, schema: Any) -> tuple[int, int]:
        """Write the output and the file of rejected rows, and delete the shard results.

        Args:
            shards: All shards of the run.
            schema: The columns of the output.

        Returns:
            The number of scored rows, and that of rejected rows.

        Raises:
            ValueError: If a shard result is damaged or lost rows.
        """
        n_rows = sum(shard.rows for shard in shards)
        n_rejected = sum(self._count_rejected(shard) for shard in shards)
        self._join_rejected(shards)
        self._join((self._scored(shard) for shard in shards), schema, self.output)
        self._clear()
        (self.folder / "lock").unlink(missing_ok=True)
        with suppress(OSError):  # The folder stays where something else lies in it.
            self.folder.rmdir()
        return n_rows - n_rejected, n_rejected

    def _count_rejected(self, shard: Shard) -> int:
        """Return the number of rejected rows of a shard, if no row of it is missing."""
        path = self._scored(shard)
        n_rejected = 0
        if self._rejected(shard).exists():
            n_rejected = _count_rows(self._rejected(shard))
        if _count_rows(path) + n_rejected != shard.rows:
            raise ValueError(f"'{path}' is damaged: rows are missing. Pass `restart=True`.")
        return n_rejected

    def _prepare(self, manifest: dict[str, Any], restart: bool) -> None:
        """Leave only shard results that this run can use."""
        path = self.folder / "manifest.json"
        earlier = _read_manifest(path)
        if earlier == manifest and not restart:
            return
        if earlier is not None and not restart:
            different = [name for name in manifest if earlier.get(name) != manifest[name]]
            name = next(iter(different), "format")
            raise ValueError(
                f"'{self.folder}' holds the shards of an unfinished run with other "
                f"{DESCRIPTIONS.get(name, name)}. Pass `restart=True` to delete them, or another "
                "`output`."
            )
        self._clear()
        atomic_write(path, json.dumps(manifest).encode())

    def _clear(self) -> None:
        """Delete all shard results, in an order that may be interrupted.

        Scored rows show that a shard is done, with its rejected rows, and go first. The manifest
        shows that shard results may be used, and goes last.
        """
        own = [path for path in self.folder.iterdir() if OWN.fullmatch(path.name)]
        for path in sorted(own, key=_deletion_order):
            if path.name != "lock":
                path.unlink()

    def _join_rejected(self, shards: Iterable[Shard]) -> None:
        """Write the file of rejected rows; without any, delete that of an earlier run."""
        paths = (self._rejected(shard) for shard in shards)
        present = (path for path in paths if path.exists())
        first = next(present, None)
        if first is None:
            self.rejected.unlink(missing_ok=True)
            return
        schema = _read_schema(first).with_metadata(REJECTED_MARK)
        self._join(chain([first], present), schema, self.rejected)

    def _join(self, paths: Iterable[Path], schema: Any, output: Path) -> None:
        """Write the rows of all files to one, whole or not at all."""
        group_size = max(1, ROW_GROUP_VALUES // len(schema))
        with (
            atomic_open(output, self.folder) as file,
            pq.ParquetWriter(file, schema, **WRITE_OPTIONS) as writer,
        ):
            for table in _read_gathered(paths, group_size):
                writer.write_table(table)

    def _scored(self, shard: Shard | ShardResult) -> Path:
        return self.folder / f"{shard.number:08d}.parquet"

    def _rejected(self, shard: Shard | ShardResult) -> Path:
        return self.folder / f"{shard.number:08d}.rejected.parquet"


def _deletion_order(path: Path) -> tuple[bool, bool]:
    return path.name == "manifest.json", ".rejected." in path.name


def _is_rejected_file(path: Path) -> bool:
    """Return whether a file was written by an earlier run, for its rejected rows."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError):
        return False
    return REJECTED_MARK.items() <= metadata.items()


@contextmanager
def _locked(path: Path, output: Path) -> Iterator[None]:
    """Hold a lock that the system releases when the process ends, however it ends."""
    import fcntl

    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"Another run is writing '{output}' now. Wait for it, or pass another `output`."
            ) from error
        yield


def _read_manifest(path: Path) -> dict[str, Any] | None:
    """Return the manifest, None where there is none, or nothing where it cannot be read."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return content


def _count_rows(path: Path) -> int:
    with reraise_parse_errors(path, RESTART):
        rows: int = pq.read_metadata(path).num_rows
    return rows


def _read_schema(path: Path) -> Any:
    with reraise_parse_errors(path, RESTART):
        return pq.read_schema(path)


def _read_gathered(paths: Iterable[Path], rows: int) -> Iterator[Any]:
    """Yield the files' tables, in order, several as one until they have so many rows."""
    tables: list[Any] = []
    for path in paths:
        with reraise_parse_errors(path, RESTART):
            tables.append(pq.ParquetFile(path, page_checksum_verification=True).read())
        if sum(map(len, tables)) >= rows:
            yield pa.concat_tables(tables)
            tables = []
    if tables:
        yield pa.concat_tables(tables)
