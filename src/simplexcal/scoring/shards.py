"""The folder of parts beside the output: each slice's result is written once, and a run goes on where one stopped."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from simplexcal.io._atomic import atomic_write
from simplexcal.scoring.dataset import Slice
from simplexcal.scoring.worker import Part

OWN = re.compile(r"\d{8}(\.rejected)?\.parquet|\.[0-9a-f]{16}\.part|manifest\.json|lock")
ROW_GROUP = 2**20  # values in a row group of the output, about


class Parts:
    """Of one output. A file that is there is whole, since all are written whole or not at all."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.rejected = output.with_suffix(".rejected.parquet")
        self.folder = output.with_name(f"{output.name}.parts")

    @contextmanager
    def opened(self, manifest: dict[str, Any], restart: bool) -> Iterator[None]:
        """Hold the folder for this run; parts of another run are refused or, with ``restart``, deleted."""
        self.folder.mkdir(exist_ok=True)
        with _locked(self.folder / "lock", self.output):
            self._prepare(json.loads(json.dumps(manifest)), restart)
            yield

    def missing(self, slices: Sequence[Slice]) -> list[Slice]:
        """Return the slices that are still to be scored."""
        return [piece for piece in slices if not self._scored(piece.number).exists()]

    def put(self, part: Part) -> None:
        """Write a part; its scored rows come last, as they tell that it is done."""
        if part.rejected:
            atomic_write(self._rejected(part.number), part.rejected)
        atomic_write(self._scored(part.number), part.scored)

    def assemble(self, slices: Sequence[Slice], schema: Any) -> tuple[int, int]:
        """Write the output and the file of rejected rows, and delete the parts; return how many rows each has."""
        with_rejects = [piece for piece in slices if self._rejected(piece.number).exists()]
        rejects = {piece.number: _rows(self._rejected(piece.number)) for piece in with_rejects}
        for piece in slices:
            if _rows(self._scored(piece.number)) + rejects.get(piece.number, 0) != piece.rows:
                raise ValueError(
                    f"'{self._scored(piece.number)}' is damaged: rows are missing. Give --restart."
                )
        if rejects:
            paths = [self._rejected(number) for number in rejects]
            self._join(paths, pq.read_schema(paths[0]), self.rejected)
        else:
            self.rejected.unlink(missing_ok=True)  # of an earlier run
        self._join([self._scored(piece.number) for piece in slices], schema, self.output)
        self._clear()
        (self.folder / "lock").unlink(missing_ok=True)
        with suppress(OSError):  # something else lies there
            self.folder.rmdir()
        n_rejected = sum(rejects.values())
        return sum(piece.rows for piece in slices) - n_rejected, n_rejected

    def _prepare(self, manifest: dict[str, Any], restart: bool) -> None:
        path = self.folder / "manifest.json"
        earlier = _parsed(path)
        if earlier is not None and earlier != manifest and not restart:
            other = next(
                (name for name in manifest if earlier.get(name) != manifest[name]), "format"
            )
            raise ValueError(
                f"'{self.folder}' holds the parts of an unfinished run with other {_WORDS.get(other, other)}. Give "
                "--restart to delete them, or another --output."
            )
        if earlier != manifest or restart:
            self._clear()
            atomic_write(path, json.dumps(manifest).encode())

    def _clear(self) -> None:
        """Delete all parts, in an order that may be interrupted: what tells that something is done goes first.

        Scored rows tell that their slice is done, with its rejected rows; the manifest, that parts may be used.
        """
        own = [
            path
            for path in self.folder.iterdir()
            if OWN.fullmatch(path.name) and path.name != "lock"
        ]
        for path in sorted(
            own, key=lambda path: (path.name == "manifest.json", ".rejected." in path.name)
        ):
            path.unlink()

    def _join(self, paths: Sequence[Path], schema: Any, output: Path) -> None:
        """Write the rows of all files to one, whole or not at all."""
        part = self.folder / f".{token_hex(8)}.part"
        with part.open("xb") as file:
            with pq.ParquetWriter(
                file, schema, use_dictionary=["predicted", "reason"], write_page_checksum=True
            ) as writer:
                for table in _gathered(paths, max(1, ROW_GROUP // len(schema))):
                    writer.write_table(table)
            file.flush()
            os.fsync(file.fileno())
        part.replace(output)

    def _scored(self, number: int) -> Path:
        return self.folder / f"{number:08d}.parquet"

    def _rejected(self, number: int) -> Path:
        return self.folder / f"{number:08d}.rejected.parquet"


_WORDS = {
    "input": "input files",
    "settings": "settings (--key, --kind, --batch-size or --probs)",
    "format": "versions",
}


@contextmanager
def _locked(path: Path, output: Path) -> Iterator[None]:
    """Hold a lock that the system lets go when the process ends, however it ends."""
    import fcntl

    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"Another run is writing '{output}' now. Wait for it, or give another --output."
            ) from error
        yield


def _parsed(path: Path) -> dict[str, Any] | None:
    """Return the manifest, or None where there is none."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return content


def _rows(path: Path) -> int:
    rows: int = pq.read_metadata(path).num_rows
    return rows


def _gathered(paths: Sequence[Path], rows: int) -> Iterator[Any]:
    """Yield the files' tables, in order, several as one until they have so many rows."""
    held: list[Any] = []
    for path in paths:
        held.append(pq.ParquetFile(path, page_checksum_verification=True).read())
        if sum(map(len, held)) >= rows:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)
