"""Files that announce much: memory and time depend on what they hold."""

import struct
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.parquet_rows import K, columns, save, write

from simplexcal.io._arrow import _sort_numbered
from simplexcal.scoring import score
from simplexcal.scoring.dataset import Shard, _check_unique_columns, open_dataset, read_shards

ROWS = 77_777


def varint(number: int) -> bytes:
    """Return a count as a Parquet footer stores it: zigzag, seven bits in a byte."""
    rest = 2 * number
    content = bytearray()
    while rest >= 128:
        content.append(rest % 128 + 128)
        rest //= 128
    return bytes([*content, rest])


def announce(path: Path, n: int) -> Path:
    """Write a small file of logits whose footer says that there are so many rows."""
    write(path, {f"logit_{i}": [0.0] * ROWS for i in range(K)}, group=ROWS)
    content = path.read_bytes()
    (size,) = struct.unpack("<I", content[-8:-4])
    footer = content[-8 - size : -8].replace(varint(ROWS), varint(n))
    path.write_bytes(content[: -8 - size] + footer + struct.pack("<I", len(footer)) + b"PAR1")
    assert pq.read_metadata(path).num_rows == n
    return path


def test_a_file_that_announces_2_to_50_rows_is_an_error_in_little_memory(tmp_path: Path) -> None:
    calibrator = save(tmp_path, "ts")
    data = announce(tmp_path / "x.parquet", 2**50)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"x.parquet' cannot be read as .parquet"):
            score(calibrator, data, tmp_path / "y.parquet")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**24


def test_shards_are_made_when_they_are_needed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.parquet", columns(5))
    pq.write_table(pa.table(columns(5)).slice(5), tmp_path / "in" / "b.parquet")
    write(tmp_path / "in" / "c.parquet", columns(4))
    shards = open_dataset(tmp_path / "in").shards(2)
    a, c = (tmp_path / "in" / f"{name}.parquet" for name in "ac")
    expected = [
        Shard(0, a, 0, 2, 0),
        Shard(1, a, 2, 2, 2),
        Shard(2, a, 4, 1, 4),
        Shard(3, c, 0, 2, 5),
        Shard(4, c, 2, 2, 7),
    ]
    assert len(shards) == 5
    assert list(shards) == list(shards) == expected
    assert iter(shards) is not iter(shards)
    ids = [table["id"].to_pylist() for _, table in read_shards(iter(expected[1:3]), ["id"])]
    assert ids == [["row 14", "row 21"], ["row 28"]]
    huge = open_dataset(announce(tmp_path / "x.parquet", 2**50)).shards(1)
    assert len(huge) == 2**50


class Counted(str):
    """A name that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_names_of_columns_are_compared_a_few_times_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "compared", 0)
    n = 500
    names: list[str] = [Counted(f"logit_{i}") for i in range(n)]
    _check_unique_columns(Path("x.parquet"), list(names))
    assert _sort_numbered(Path("x.parquet"), "logits", names[::-1], "logit_") == names
    assert Counted.compared < 10 * n
