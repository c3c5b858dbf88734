"""Threads score shards: order, errors, what is in memory, interruptions, and the same bytes."""

import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from helpers.parquet_rows import K, columns, save, write
from torch import Tensor, nn

from simplexcal.cli import main
from simplexcal.network_spec import NetworkSpec
from simplexcal.scoring import local_engine, score
from simplexcal.scoring.dataset import Shard, open_dataset, read_shards
from simplexcal.scoring.local_engine import score_locally
from simplexcal.scoring.shards import ShardFolder
from simplexcal.scoring.worker import ShardResult, StoppedError, Worker

nan = float("nan")
N_SHARDS = 12
BATCH = 2
SHARD = 4 * BATCH


@pytest.fixture(autouse=True)
def _no_thread_stays_and_torch_computes_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before
    left = [t.name for t in threading.enumerate() if t.name.startswith("simplexcal-score")]
    assert left == []


def rows(folder: Path) -> Path:
    content = columns(N_SHARDS * SHARD)
    content["logit_0"] = content["logit_0"].copy()
    content["logit_0"][::7] = nan
    return write(folder / "x.parquet", content)


class Fake:
    """A worker that does in each shard what it is told."""

    def __init__(self, action: Callable[[int, threading.Event], None]) -> None:
        self.job = SimpleNamespace(columns=["id"])
        self.action = action

    def __call__(self, shard: Any, table: Any, stop: threading.Event) -> ShardResult:
        assert len(table) == shard.rows
        self.action(shard.number, stop)
        return ShardResult(shard.number, shard.rows, b"", b"")


def engine(
    folder: Path, n_threads: int, action: Callable[[int, threading.Event], None]
) -> Iterator[ShardResult]:
    shards = open_dataset(rows(folder)).shards(SHARD)
    return score_locally(Fake(action), shards, n_threads)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["ts", "sts"])
def test_any_number_of_workers_writes_the_same_bytes(method: str, tmp_path: Path) -> None:
    calibrator, data = save(tmp_path, method), rows(tmp_path)
    written = set()
    for workers in (1, 2, 5, None):
        score(calibrator, data, tmp_path / "y.parquet", batch_size=BATCH, workers=workers)
        both = (tmp_path / "y.parquet", tmp_path / "y.rejected.parquet")
        written.add(tuple(path.read_bytes() for path in both))
    assert len(written) == 1
    assert pq.read_metadata(tmp_path / "y.rejected.parquet").num_rows == 14  # ⌈96 / 7⌉


def test_results_come_in_order_though_later_shards_are_done_first(tmp_path: Path) -> None:
    done: list[int] = []

    def action(number: int, _: threading.Event) -> None:
        if number % 3 == 0:
            time.sleep(0.05)
        done.append(number)

    numbers = [result.number for result in engine(tmp_path, 3, action)]
    assert numbers == list(range(N_SHARDS))
    assert done != numbers


def test_two_shards_are_scored_at_a_time(tmp_path: Path) -> None:
    meeting = threading.Barrier(2, timeout=30)

    def action(*_: object) -> None:
        meeting.wait()  # One thread alone would break it.

    assert len(list(engine(tmp_path, 2, action))) == N_SHARDS


def test_no_more_shards_are_read_than_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_read = 0

    def count(*arguments: Any) -> Iterator[Any]:
        nonlocal n_read
        for item in read_shards(*arguments):
            n_read += 1
            yield item

    monkeypatch.setattr(local_engine, "read_shards", count)
    results = engine(tmp_path, 2, lambda number, stop: None)
    for n_taken, _ in enumerate(results):
        time.sleep(0.01)  # The threads have nothing else to do now.
        assert n_read <= n_taken + 3
    assert n_read == N_SHARDS


def test_an_error_comes_in_the_turn_of_its_shard_and_ends_the_run(tmp_path: Path) -> None:
    started = []

    def action(number: int, _: threading.Event) -> None:
        started.append(number)
        if number == 4:
            raise OSError("the disk is gone")
        time.sleep(0.01)

    results = engine(tmp_path, 3, action)
    assert [result.number for result in islice(results, 4)] == [0, 1, 2, 3]
    with pytest.raises(OSError, match="the disk is gone"):
        next(results)
    assert max(started) <= 4 + 3


def test_a_file_that_cannot_be_read_leaves_the_shards_before_it(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "a.parquet", columns(4 * SHARD))
    path = write(folder / "b.parquet", columns(SHARD))
    content = bytearray(path.read_bytes())
    content[40:400] = bytes(360)
    path.write_bytes(content)
    for workers in (1, 4):
        output = tmp_path / f"{workers}.parquet"
        with pytest.raises(ValueError, match=r"b\.parquet' cannot be read as \.parquet"):
            score(save(tmp_path, "ts"), folder, output, batch_size=BATCH, workers=workers)
        assert ShardFolder(output).count_done() == 4


def test_a_run_goes_on_with_another_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrator, data = save(tmp_path, "sts"), rows(tmp_path)
    output = tmp_path / "y.parquet"
    interrupt_after(5, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        score(calibrator, data, output, batch_size=BATCH, workers=3)
    monkeypatch.undo()
    summary = score(calibrator, data, output, batch_size=BATCH, workers=2)
    assert summary.n_resumed == 5 * SHARD
    score(calibrator, data, tmp_path / "whole.parquet", batch_size=BATCH, workers=1)
    assert output.read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def interrupt_after(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the run when so many shards are written."""
    plain = ShardFolder.write
    left = iter(range(n))

    def write_shard(self: ShardFolder, result: ShardResult) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        plain(self, result)

    monkeypatch.setattr(ShardFolder, "write", write_shard)


@pytest.mark.parametrize("workers", [1, 3])
def test_an_interruption_says_what_is_done_and_how_to_go_on(
    workers: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calibrator, data = save(tmp_path, "ts"), rows(tmp_path)
    output = tmp_path / "y.parquet"
    command = ["score", str(calibrator), str(data), "-o", str(output), "--batch-size", str(BATCH)]
    interrupt_after(5, monkeypatch)
    assert main([*command, "--workers", str(workers)]) == 130
    assert capsys.readouterr() == (
        "",
        "error: interrupted; 5 of 12 shards, of 8 rows each, are done and kept in "
        f"'{output}.shards'. Start the same again to go on there.\n",
    )


def test_an_interruption_does_not_wait_for_whole_shards(tmp_path: Path) -> None:
    given_up = []

    def action(number: int, stop: threading.Event) -> None:
        if number > 0:
            assert stop.wait(30)
            given_up.append(number)
            raise StoppedError

    results = engine(tmp_path, 2, action)
    assert next(results).number == 0
    results.close()  # type: ignore[attr-defined]
    assert 1 in given_up
    assert max(given_up) <= 3


def test_a_worker_gives_a_shard_up_between_two_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    n_batches = 0
    plain = Worker._score

    def count(self: Worker, batch: Any) -> tuple[Any, Any]:
        nonlocal n_batches
        n_batches += 1
        stop.set()
        return plain(self, batch)

    real = Worker.__call__

    def call(self: Worker, shard: Shard, table: Any) -> ShardResult:
        return real(self, shard, table, stop)

    monkeypatch.setattr(Worker, "_score", count)
    monkeypatch.setattr(Worker, "__call__", call)
    calibrator, data = save(tmp_path, "ts"), rows(tmp_path)
    with pytest.raises(StoppedError):
        score(calibrator, data, tmp_path / "y.parquet", batch_size=BATCH, workers=1)
    assert n_batches == 1


class OneAtATime(nn.Module):
    """A network that notices two calls at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, K)
        self.is_busy = False

    def forward(self, x: Tensor) -> Tensor:
        assert not self.is_busy
        self.is_busy = True
        time.sleep(0.002)
        self.is_busy = False
        found: Tensor = self.linear(x)
        return found


def make_network() -> nn.Module:
    torch.manual_seed(0)
    return OneAtATime()


def test_a_network_is_called_by_one_thread_at_a_time(tmp_path: Path) -> None:
    inputs = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    data = write(tmp_path / "x.parquet", {"inputs": inputs.tolist()})
    network = NetworkSpec("test_local_engine:make_network")
    written = set()
    for workers in (1, 4):
        output = tmp_path / "y.parquet"
        calibrator = save(tmp_path, "ts")
        summary = score(
            calibrator, data, output, network=network, batch_size=BATCH, workers=workers
        )
        assert (summary.rows, summary.n_rejected) == (60, 0)
        written.add(output.read_bytes())
    assert len(written) == 1


def test_the_number_of_workers_is_checked(tmp_path: Path) -> None:
    calibrator, data = save(tmp_path, "ts"), rows(tmp_path)
    output = tmp_path / "y.parquet"
    with pytest.raises(ValueError, match="`workers` must be"):
        score(calibrator, data, output, workers=0)
    with pytest.raises(ValueError, match="`workers` is about the local engine"):
        score(calibrator, data, output, workers=2, engine="ray")
