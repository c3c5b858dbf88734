"""Runs a study: trains the networks that are missing, then does every job without a record.

A record is there whole or not at all, and so is everything in the cache. The same command resumes
where the last one stopped, however that ended.
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

from experiments.config.run_config import RunConfig, log
from experiments.config.studies import STUDIES
from experiments.datasets.loading import load_ood
from experiments.pretraining.outputs import write_ood_outputs, write_outputs
from experiments.pretraining.pretrain import pretrain
from experiments.running.job import Job, run
from experiments.running.records import Record, RecordStore

GPU_WORKERS = 2  # The kernels of one fill the gaps of the other.

Result = tuple[Job, Record | Exception]


class JobsFailedError(RuntimeError):
    """Some jobs raised an error; the others are done."""


def run_study(
    study: str,
    settings: Sequence[str],
    seeds: Sequence[int],
    methods: Sequence[str],
    config: RunConfig,
    *,
    workers: int = 0,
    concurrent: int = 5,
    seconds: float = math.inf,
) -> bool:
    """Do what is left of a study, and return whether nothing is left.

    Args:
        study: The study.
        settings: Its settings to run.
        seeds: The networks' seeds.
        methods: The methods to fit.
        config: Folders and device of the run.
        workers: Processes, of one thread each, for the jobs that need no GPU; two more do those
            that need one. With 0, this process does all jobs and looks at the time between them.
        concurrent: How many networks train concurrently.
        seconds: Stop after so long.

    Raises:
        JobsFailedError: If jobs failed. All others are done first.
    """
    deadline = time.monotonic() + seconds
    store = RecordStore(config.results)
    jobs = []
    for setting in settings:
        jobs += _jobs_left(study, setting, seeds, methods, config)
    if not _prepare_networks(jobs, config, concurrent, deadline):
        return False
    if workers == 0 or STUDIES[study].sequential:
        results = _run_sequentially(jobs, config, deadline)
    else:
        results = _run_in_workers(jobs, config, deadline, workers)
    failures = []
    n_done = 0
    for job, result in results:
        if isinstance(result, Exception):
            failures.append(f"{job}: {result!r}")
            log(failures[-1])
        else:
            store.write(result)
            n_done += 1
            log(f"[{n_done}/{len(jobs)}] {job}: {_summary(result)}")
    log(f"{study}: {n_done} jobs done, {len(jobs) - n_done} left")
    if failures:
        raise JobsFailedError("These jobs failed:\n" + "\n".join(failures))
    return n_done == len(jobs)


def _jobs_left(
    study: str, setting: str, seeds: Sequence[int], methods: Sequence[str], config: RunConfig
) -> list[Job]:
    """Return the jobs of a setting without a record, the first method's of all seeds first."""
    done = {record.key for record in RecordStore(config.results).read(study, setting)}
    ood_sets = _ood_sets(study, setting, config)
    jobs = []
    for ood_set, method, seed in product(ood_sets, methods, seeds):
        job = Job(study, setting, seed, method, ood_set)
        if job.key not in done:
            jobs.append(job)
    return jobs


def _ood_sets(study: str, setting: str, config: RunConfig) -> list[str | None]:
    """Return the OOD data sets that are in the data folder, or [None] if the study has none."""
    if not STUDIES[study].ood_sets:
        return [None]
    found: list[str | None] = []
    for name in STUDIES[study].ood_sets.get(setting, ()):
        try:
            load_ood(name, config.data)
        except FileNotFoundError as error:
            log(f"{study}, {setting}: left out {name}, which is not there ({error})")
        else:
            found.append(name)
    return found


def _prepare_networks(
    jobs: Sequence[Job], config: RunConfig, concurrent: int, deadline: float
) -> bool:
    """Train the jobs' networks and write their outputs; return False if the time is up."""
    networks = list(dict.fromkeys([job.network for job in jobs]))
    if not pretrain(networks, config, concurrent, deadline):
        return False
    for network in networks:
        write_outputs(*network, config)
    for network, ood_set in dict.fromkeys([(job.network, job.ood_set) for job in jobs]):
        if ood_set is not None:
            write_ood_outputs(*network, ood_set, config)
    return True


def _run_sequentially(jobs: Sequence[Job], config: RunConfig, deadline: float) -> Iterator[Result]:
    for job in jobs:
        if time.monotonic() >= deadline:
            return
        result: Record | Exception
        try:
            result = run(job, config)
        except Exception as error:  # One job that fails does not end the others.
            result = error
        yield job, result


def _run_in_workers(
    jobs: Sequence[Job], config: RunConfig, deadline: float, workers: int
) -> Iterator[Result]:
    """Do the jobs in worker processes, which end with the time and with this process."""
    with ExitStack() as stack:
        futures = _submit(jobs, config, deadline, workers, stack)
        for future in as_completed(futures):
            error = future.exception()
            if error is None:
                yield futures[future], future.result()
            elif not isinstance(error, Exception):
                raise error
            elif not (isinstance(error, BrokenProcessPool) and time.monotonic() >= deadline):
                yield futures[future], error


def _submit(
    jobs: Sequence[Job], config: RunConfig, deadline: float, workers: int, stack: ExitStack
) -> dict[Future[Record], Job]:
    """Start the processes that the jobs need, and return what each is to do."""
    pools: dict[bool, ProcessPoolExecutor] = {}
    futures = {}
    for job in jobs:
        on_gpu = job.device(config) != "cpu"
        if on_gpu not in pools:
            n_workers = GPU_WORKERS if on_gpu else workers
            seconds = deadline - time.monotonic()
            pool = ProcessPoolExecutor(n_workers, get_context("spawn"), _start_worker, (seconds,))
            pools[on_gpu] = stack.enter_context(pool)
        futures[pools[on_gpu].submit(run, job, config)] = job
    return futures


def _start_worker(seconds: float) -> None:
    """Prepare a worker: one thread, and an end when the time is up or the parent is gone."""
    torch.set_num_threads(1)
    Thread(target=_exit_with_parent, args=(seconds,), daemon=True).start()


def _exit_with_parent(seconds: float) -> None:
    parent = cast(BaseProcess, parent_process())
    timeout = None
    if math.isfinite(seconds):
        timeout = max(seconds, 0)
    wait([parent.sentinel], timeout)
    os._exit(1)


def _summary(record: Record) -> str:
    fitted = "from the cache"
    if record.timings.calibration is not None:
        fitted = f"{record.timings.calibration:.1f} s"
    ece = record.metrics.ece
    nll = record.metrics.nll
    if ece is None or nll is None:
        return f"diverged, {fitted}"
    return f"ECE {100 * ece:.2f} %, NLL {nll:.4f}, {fitted}"
