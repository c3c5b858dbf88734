"""Runs a study: pre-trains what is missing, then does every job that has no record yet, side by side.

A record is there whole or not at all, and so is everything in the cache. So the same command goes on where the last one
stopped, however that ended.
"""

import math
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from itertools import product
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import cast

import torch

from experiments.config.run_config import Place, say
from experiments.config.studies import STUDIES
from experiments.datasets.loading import load_ood
from experiments.pretraining.outputs import write_outputs, write_strangers
from experiments.pretraining.pretrain import Which, pretrain
from experiments.running.job import Job, Record, run

GPU_WORKERS = 2  # the kernels of one fill the gaps of the other

Result = tuple[Job, Record | Exception]


class JobsFailedError(RuntimeError):
    """Some jobs raised an error; the others are done."""


def run_study(
    study: str,
    rows: Sequence[str],
    seeds: Sequence[int],
    methods: Sequence[str],
    place: Place,
    *,
    workers: int = 0,
    at_once: int = 5,
    seconds: float = math.inf,
) -> bool:
    """Do what is left of a study, and return whether nothing is left; it stops after ``seconds``.

    ``workers`` processes do the jobs that need no GPU, one thread each, and two more those that do. With 0 workers this
    process does them all, one after the other, and looks at the time between them.
    """
    deadline = time.monotonic() + seconds
    jobs = [job for row in rows for job in _left(study, row, seeds, methods, place)]
    networks = list(dict.fromkeys(Which(job.row, job.seed) for job in jobs))
    if not pretrain(networks, place, at_once, deadline):
        return False
    for which in networks:
        write_outputs(*which, place)
    for row, seed, stranger in dict.fromkeys((job.row, job.seed, job.stranger) for job in jobs):
        if stranger is not None:
            write_strangers(row, seed, stranger, place)
    alone = workers == 0 or STUDIES[study].alone
    done = (
        _one_by_one(jobs, place, deadline)
        if alone
        else _side_by_side(jobs, place, deadline, workers)
    )
    failures, n_done = [], 0
    for job, result in done:
        if isinstance(result, Exception):
            failures.append(f"{job}: {result!r}")
            say(failures[-1])
        else:
            n_done += 1
            say(f"[{n_done}/{len(jobs)}] {job}: {_brief(result)}")
    say(f"{study}: {n_done} jobs done, {len(jobs) - n_done} left")
    if failures:
        raise JobsFailedError("These jobs failed:\n" + "\n".join(failures))
    return n_done == len(jobs)


def _left(
    study: str, row: str, seeds: Sequence[int], methods: Sequence[str], place: Place
) -> list[Job]:
    """Return the jobs of a row that have no record yet, the first method's of all seeds first."""
    strangers = _strangers(study, row, place)
    jobs = [
        Job(study, row, seed, m, stranger)
        for stranger, m, seed in product(strangers, methods, seeds)
    ]
    return [job for job in jobs if not job.path(place).exists()]


def _strangers(study: str, row: str, place: Place) -> list[str | None]:
    """Return the sets to detect that are in the data folder, or [None] where the study has none."""
    if not STUDIES[study].strangers:
        return [None]
    found: list[str | None] = []
    for name in STUDIES[study].strangers.get(row, ()):
        try:
            load_ood(name, place.data)
            found.append(name)
        except FileNotFoundError as error:
            say(f"{study}, {row}: left out {name}, which is not there ({error})")
    return found


def _one_by_one(jobs: Sequence[Job], place: Place, deadline: float) -> Iterator[Result]:
    for job in jobs:
        if time.monotonic() >= deadline:
            return
        try:
            result: Record | Exception = run(job, place)
        except Exception as error:  # one job that fails does not end the others
            result = error
        yield job, result


def _side_by_side(
    jobs: Sequence[Job], place: Place, deadline: float, workers: int
) -> Iterator[Result]:
    """Do the jobs in worker processes, which end with the time, and with this process, however it ends."""
    with ExitStack() as stack:
        futures = dict(_submitted(jobs, place, deadline, workers, stack))
        for future in as_completed(futures):
            error = future.exception()
            if isinstance(error, BrokenProcessPool) and time.monotonic() >= deadline:
                continue  # the time was up
            yield futures[future], error if isinstance(error, Exception) else future.result()


def _submitted(
    jobs: Sequence[Job], place: Place, deadline: float, workers: int, stack: ExitStack
) -> Iterator[tuple[Future[Record], Job]]:
    pools: dict[bool, ProcessPoolExecutor] = {}
    for job in jobs:
        on_gpu = job.device(place) != "cpu"
        if on_gpu not in pools:
            n = GPU_WORKERS if on_gpu else workers
            left = deadline - time.monotonic()
            pools[on_gpu] = stack.enter_context(
                ProcessPoolExecutor(n, get_context("spawn"), _begin, (left,))
            )
        yield pools[on_gpu].submit(run, job, place), job


def _begin(seconds: float) -> None:
    """Prepare a worker: one thread, and an end when the time is up or the parent is gone."""
    torch.set_num_threads(1)
    Thread(target=_end, args=(seconds,), daemon=True).start()


def _end(seconds: float) -> None:
    parent = cast(BaseProcess, parent_process())
    wait([parent.sentinel], None if math.isinf(seconds) else max(seconds, 0))
    os._exit(1)


def _brief(record: Record) -> str:
    error, likelihood = record["metrics"]["ece"], record["metrics"]["nll"]
    took = record["timings"]["calibration"]
    seconds = "from the cache" if took is None else f"{took:.1f} s"
    return f"ECE {100 * error:.2f} %, NLL {likelihood:.4f}, {seconds}"
