"""Scoring in this process: threads score shards, while this thread reads and writes others.

torch and pyarrow let other threads run while they compute. Each thread computes with one core
(``one_thread``), so a shard has the same result whatever the number of threads.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from threading import Event
from typing import Any

import torch

from simplexcal.scoring.dataset import Shard, group_by_file, read_shards
from simplexcal.scoring.worker import ShardResult, Worker, one_thread

Result = Future[ShardResult]


def score_locally(
    worker: Worker, shards: Iterable[Shard], n_threads: int
) -> Generator[ShardResult]:
    """Yield the results of all shards, in their order.

    An error is raised when the turn of its shard comes, so that the results before it are kept. As
    many shards as there are threads, and one more, are in memory, with their rows or results.

    Args:
        worker: What scores a shard.
        shards: The shards, in the order of the files.
        n_threads: How many shards are scored at a time; with 1 this thread scores them.
    """
    tables = _read(worker, shards)
    if n_threads == 1:
        for shard, table in tables:
            yield worker(shard, table)
        return
    with _threads(n_threads) as (threads, stop):
        submitted = (threads.submit(worker, *shard, stop) for shard in tables)
        results = _with_errors(submitted)
        waiting = deque(islice(results, n_threads + 1))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(islice(results, 1))


def _read(worker: Worker, shards: Iterable[Shard]) -> Iterator[tuple[Shard, Any]]:
    """Yield each shard with its rows."""
    for group in group_by_file(shards):
        yield from read_shards(group, worker.job.columns)


def _with_errors(submitted: Iterator[Result]) -> Iterator[Result]:
    """Yield the results to come, and in the end an error of reading as one of them."""
    try:
        yield from submitted
    except Exception as error:
        failed: Result = Future()
        failed.set_exception(error)
        yield failed


@contextmanager
def _threads(n: int) -> Iterator[tuple[ThreadPoolExecutor, Event]]:
    """Start threads, and give up in the end what they still do, as after an error."""
    stop = Event()
    threads = ThreadPoolExecutor(n, "simplexcal-score", _compute_alone)
    # A thread that set this and then restored it would change it for the others.
    with one_thread():
        try:
            yield threads, stop
        finally:
            stop.set()
            threads.shutdown(cancel_futures=True)


def _compute_alone() -> None:
    """Let torch compute in this thread alone."""
    torch.set_num_threads(1)
