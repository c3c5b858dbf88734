"""Scoring on Ray: a task scores one shard, and this process writes what comes back.

So every machine of the cluster needs the library, and must see the input, the calibrator and the
network under the same paths. Only this process writes. Ray repeats a task elsewhere if its worker
or its machine dies.
"""

import logging
import os
import socket
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Any

from simplexcal.scoring.dataset import Shard, read_shards
from simplexcal.scoring.worker import Job, ShardResult, load_worker

ERRORS = {own.__name__: own for own in (ValueError, TypeError, OSError, ImportError, RuntimeError)}
MAX_SHARDS = 20_000  # that Ray is given at a time
MAX_BLOCKS = 1000  # of the data set of shards; each is a task
REMEDY = (
    "Check the address, Ray's version, and the token: RAY_AUTH_MODE and RAY_AUTH_TOKEN or "
    "RAY_AUTH_TOKEN_PATH."
)
QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
# The second setting makes Ray listen on 127.0.0.1 only.
ON_LOOPBACK = {"RAY_AUTH_MODE": "token", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def score_on_ray(job: Job, shards: Iterable[Shard], address: str | None) -> Generator[ShardResult]:
    """Yield the results of all shards, in whatever order they are done.

    Args:
        job: What to do with a shard.
        shards: The shards.
        address: The cluster, as host:port; None starts one on this machine for this run.

    Raises:
        OSError: If the cluster cannot be used, or fails.
        ImportError: If Ray is not installed.
    """
    remaining = iter(shards)
    with _connected(address) as ray, _errors_in_one_line(ray):
        while some := list(islice(remaining, MAX_SHARDS)):
            items = [{**shard._asdict(), "path": str(shard.path)} for shard in some]
            data = ray.data.from_items(items, override_num_blocks=min(len(items), MAX_BLOCKS))
            for row in data.map(_score_shard, fn_kwargs={"job": job}, num_cpus=1).iter_rows():
                if row["error"]:
                    raise ERRORS[row["kind"]](row["error"])
                yield ShardResult(row["number"], row["rows"], row["scored"], row["rejected"])


def _score_shard(row: dict[str, Any], job: Job) -> dict[str, Any]:
    """Score one shard; an error is returned as data, since Ray would wrap an exception."""
    shard = Shard(**{**row, "path": Path(row["path"])})
    result = ShardResult(shard.number, shard.rows, b"", b"")
    kind = ""
    message = ""
    try:
        _, table = next(read_shards([shard], job.columns))
        result = load_worker(job)(shard, table)
    except tuple(ERRORS.values()) as error:
        kind = next(name for name, own in ERRORS.items() if isinstance(error, own))
        message = str(error) or repr(error)
    return {**result._asdict(), "kind": kind, "error": message}


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Connect to the cluster, or start one here; a connection that is in use stays as it is."""
    settings = dict(QUIET)
    if address is None:
        settings |= {**ON_LOOPBACK, "RAY_AUTH_TOKEN": token_hex(32)}
    for name, value in settings.items():
        # The import of Ray reads them.
        os.environ.setdefault(name, value)
    ray = _import_ray()
    if ray.is_initialized():
        yield ray
        return
    # Ray prints to stdout what happens to its nodes.
    with redirect_stdout(sys.stderr):
        try:
            _start(ray, address)
            yield ray
        finally:
            ray.shutdown()


def _import_ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError(
            'The engine "ray" needs Ray, which is not installed. Run pip install "simplexcal[ray]".'
        ) from error
    return ray


def _start(ray: Any, address: str | None) -> None:
    """Connect to the cluster, or start one on this machine."""
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    where = "on this machine"
    if address is not None:
        where = f"at '{address}'"
    try:
        if address is None:
            ray.init("local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        else:
            _check_reachable(address)
            ray.init(address, **quiet)
    except Exception as error:  # of many kinds: no such host, another version, a wrong token
        raise OSError(
            f"No Ray cluster {where} could be used: {_first_line(error)}. {REMEDY}"
        ) from error


def _check_reachable(address: str) -> None:
    """Fail at once where nothing listens; Ray itself would try for a quarter of an hour."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


@contextmanager
def _errors_in_one_line(ray: Any) -> Iterator[None]:
    """Turn an error of the cluster into one line, and silence Ray's progress."""
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield
    except ray.exceptions.RayError as error:
        remedy = "Start the same command again: it goes on where it stopped."
        raise OSError(f"The work on Ray failed: {_first_line(error)}. {remedy}") from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[0].rstrip(".")
