import fcntl
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from helpers.parquet_rows import columns, save, write

from simplexcal.scoring import Summary, run, score
from simplexcal.scoring.dataset import Shard
from simplexcal.scoring.local_engine import score_locally
from simplexcal.scoring.worker import ShardResult, Worker

N_KILLS = 6


def rows_with_faults(path: Path, n: int) -> Path:
    content = columns(n)
    content["logit_0"] = content["logit_0"].copy()
    content["logit_0"][::97] = float("nan")
    return write(path, content)


@pytest.fixture
def runs() -> Iterator[subprocess.Popen[str]]:
    script = Path(__file__).parents[1] / "helpers" / "forks.py"
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


def ends(runs: "subprocess.Popen[str]", arguments: list[Path], after: float | None) -> int:
    """Let a run be, or kill it so many seconds after its start, and return its exit status."""
    assert runs.stdin is not None
    assert runs.stdout is not None
    runs.stdin.write(json.dumps([after, *map(str, arguments)]) + "\n")
    runs.stdin.flush()
    return int(runs.stdout.readline())


def test_a_run_killed_anywhere_goes_on_to_the_same_files(
    runs: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    data, calibrator = rows_with_faults(tmp_path / "x.parquet", 4000), save(tmp_path, "ts")
    start = time.perf_counter()
    assert ends(runs, [calibrator, data, tmp_path / "whole.parquet"], after=None) == 0
    duration, rng = time.perf_counter() - start, random.Random(0)
    killed, seen = 0, []
    for _ in range(N_KILLS):
        killed += (
            ends(runs, [calibrator, data, tmp_path / "y.parquet"], rng.uniform(0, duration / 3))
            == -signal.SIGKILL
        )
        seen.append(len(list((tmp_path / "y.parquet.shards").glob("*[0-9].parquet"))))
    assert killed >= 3
    assert max(seen) > 0  # some work was done before a kill
    assert ends(runs, [calibrator, data, tmp_path / "y.parquet"], after=None) == 0
    for suffix in (".parquet", ".rejected.parquet"):
        assert (tmp_path / f"y{suffix}").read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()
    assert pq.read_metadata(tmp_path / "y.parquet").num_rows == 4000 - 42  # ⌈4000 / 97⌉ are bad
    names = {
        "x.parquet",
        "ts.safetensors",
        *(f"{s}{t}" for s in ("y", "whole") for t in (".parquet", ".rejected.parquet")),
    }
    assert {path.name for path in tmp_path.iterdir()} == names


class StoppedError(Exception):
    pass


def stop_after(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the calls of the worker after the first ``n`` fail."""
    calls = iter(range(n))
    plain = Worker.__call__

    def call(self: Worker, *arguments: object) -> ShardResult:
        if next(calls, None) is None:
            raise StoppedError
        return plain(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Worker, "__call__", call)


def stopped(folder: Path, monkeypatch: pytest.MonkeyPatch, n: int = 3) -> tuple[Path, Path]:
    """Leave a run of 10 shards of 16 rows after ``n`` of them; return calibrator and data."""
    calibrator, data = save(folder, "ts"), rows_with_faults(folder / "x.parquet", 160)
    with monkeypatch.context() as patch:
        stop_after(n, patch)
        with pytest.raises(StoppedError):
            # Of several threads another one could make the call that fails.
            score(calibrator, data, folder / "y.parquet", batch_size=4, workers=1)
    return calibrator, data


def test_what_is_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrator, data = stopped(tmp_path, monkeypatch)
    assert not (tmp_path / "y.parquet").exists()
    stop_after(7, monkeypatch)  # as many as are missing
    summary: Summary = score(calibrator, data, tmp_path / "y.parquet", batch_size=4)
    assert (summary.rows, summary.n_rejected, summary.n_resumed) == (158, 2, 48)
    monkeypatch.undo()
    score(calibrator, data, tmp_path / "whole.parquet", batch_size=4)
    assert (tmp_path / "y.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


@pytest.mark.parametrize("other", ["calibrator", "input files", "settings"])
def test_the_shards_of_another_run_are_refused_or_deleted(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrator, data = stopped(tmp_path, monkeypatch)
    calibrator = save(tmp_path, "ets") if other == "calibrator" else calibrator
    data = rows_with_faults(tmp_path / "x.parquet", 161) if other == "input files" else data
    size = 5 if other == "settings" else 4
    with pytest.raises(
        ValueError, match=f"unfinished run with other {other}.*Pass `restart=True` to delete them"
    ):
        score(calibrator, data, tmp_path / "y.parquet", batch_size=size)
    assert (
        score(calibrator, data, tmp_path / "y.parquet", batch_size=size, restart=True).n_resumed
        == 0
    )
    score(calibrator, data, tmp_path / "whole.parquet", batch_size=size)
    assert (tmp_path / "y.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_a_run_killed_while_it_tidies_up_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrator, data = save(tmp_path, "ts"), rows_with_faults(tmp_path / "x.parquet", 160)
    score(calibrator, data, tmp_path / "whole.parquet", batch_size=4)
    plain, left = Path.unlink, iter(range(6))

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if ".shards" in str(path) and path.suffix == ".parquet" and next(left, None) is None:
            raise StoppedError
        plain(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        with pytest.raises(StoppedError):
            score(calibrator, data, tmp_path / "y.parquet", batch_size=4)
    assert score(calibrator, data, tmp_path / "y.parquet", batch_size=4).n_resumed == 64
    for suffix in (".parquet", ".rejected.parquet"):
        assert (tmp_path / f"y{suffix}").read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()


def test_shards_without_a_manifest_are_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrator, data = stopped(tmp_path, monkeypatch)
    (tmp_path / "y.parquet.shards" / "manifest.json").unlink()
    assert score(calibrator, data, tmp_path / "y.parquet", batch_size=4).n_resumed == 0


def test_a_shard_that_lost_rows_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrator, data = stopped(tmp_path, monkeypatch)
    shard = tmp_path / "y.parquet.shards" / "00000001.parquet"
    pq.write_table(pq.read_table(shard).slice(1), shard)
    with pytest.raises(
        ValueError, match=r"00000001.parquet' is damaged: rows are missing. Pass `restart=True`"
    ):
        score(calibrator, data, tmp_path / "y.parquet", batch_size=4)
    assert not (tmp_path / "y.parquet").exists()


@pytest.mark.parametrize("part", ["00000001.parquet", "00000000.rejected.parquet"])
@pytest.mark.parametrize("where", [0, 4, -4])
def test_a_damaged_shard_is_named_with_the_remedy(
    part: str, where: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrator, data = stopped(tmp_path, monkeypatch)
    shard = tmp_path / "y.parquet.shards" / part
    content = bytearray(shard.read_bytes())
    content[where : where + 2 or None] = b"\xff\xff"
    shard.write_bytes(content)
    if where == 0:
        shard.write_bytes(b"")
    with pytest.raises(
        ValueError, match=rf"{part}' cannot be read as .parquet \(.*\). Pass `restart=True`"
    ):
        score(calibrator, data, tmp_path / "y.parquet", batch_size=4)
    assert not (tmp_path / "y.parquet").exists()
    assert score(calibrator, data, tmp_path / "y.parquet", batch_size=4, restart=True).rows == 158


def test_two_runs_do_not_write_one_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrator, data = stopped(tmp_path, monkeypatch)
    with (tmp_path / "y.parquet.shards" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="Another run is writing"):
            score(calibrator, data, tmp_path / "y.parquet", batch_size=4)


def test_foreign_files_among_the_shards_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrator, data = stopped(tmp_path, monkeypatch)
    (tmp_path / "y.parquet.shards" / "notes.txt").write_text("mine")
    score(calibrator, data, tmp_path / "y.parquet", batch_size=4, restart=True)
    assert [path.name for path in (tmp_path / "y.parquet.shards").iterdir()] == ["notes.txt"]


def test_either_engine_goes_on_with_the_others_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrator, data = stopped(tmp_path, monkeypatch)
    asked = []

    def other(
        engine: str, worker: Worker, shards: Iterable[Shard], _: str | None, n_threads: int
    ) -> Generator[ShardResult]:
        asked.append(engine)
        return score_locally(worker, shards, n_threads)

    monkeypatch.setattr(run, "_score_shards", other)
    summary = score(calibrator, data, tmp_path / "y.parquet", batch_size=4, engine="ray")
    assert (asked, summary.n_resumed) == (["ray"], 48)
