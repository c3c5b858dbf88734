"""Scoring on Ray: the slices are a data set, a task scores one, and this process writes what comes back.

So every machine of the cluster needs the library, and must see the input, the calibrator and the network under the
same paths; the output is written here alone. A task whose worker or machine dies is done again elsewhere by Ray.
"""

import logging
import os
import socket
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from secrets import token_hex
from typing import Any

from simplexcal.scoring.dataset import Slice, read
from simplexcal.scoring.worker import Job, Part, scorer_of

ERRORS = {own.__name__: own for own in (ValueError, TypeError, OSError, ImportError, RuntimeError)}
MOST_BLOCKS = 1000  # of the data set of slices; each is a task
REMEDY = "Check the address, Ray's version, and the token: RAY_AUTH_MODE and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH."
QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
ALONE = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}  # the latter: listen on 127.0.0.1 only


def scored_by_ray(job: Job, slices: Sequence[Slice], address: str | None) -> Generator[Part]:
    """Yield the parts of all slices, in whatever order they are done."""
    with _connected(address) as ray, _speaking_plainly(ray):
        items = [{**piece._asdict(), "path": str(piece.path)} for piece in slices]
        data = ray.data.from_items(items, override_num_blocks=min(len(items), MOST_BLOCKS))
        for row in data.map(_work, fn_kwargs={"job": job}, num_cpus=1).iter_rows():
            if row["error"]:
                raise ERRORS[row["kind"]](row["error"])
            yield Part(row["number"], row["scored"], row["rejected"])


def _work(row: dict[str, Any], job: Job) -> dict[str, Any]:
    """Score one slice; what is wrong with it is told as data, since an exception would arrive as Ray's own."""
    piece = Slice(**{**row, "path": Path(row["path"])})
    part, kind, said = Part(piece.number, b"", b""), "", ""
    try:
        _, table = next(read([piece], job.columns))
        part = scorer_of(job)(piece, table)
    except tuple(ERRORS.values()) as error:
        kind = next(name for name, own in ERRORS.items() if isinstance(error, own))
        said = str(error) or repr(error)
    return {**part._asdict(), "kind": kind, "error": said}


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Connect to the cluster, or start one on this machine alone, for this run; one that is in use stays as it is."""
    for name, value in (
        QUIET if address else QUIET | {**ALONE, "RAY_AUTH_TOKEN": token_hex(32)}
    ).items():
        os.environ.setdefault(name, value)  # before the import, which reads them
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError(
            '--engine ray needs Ray, which is not installed. Run pip install "simplexcal[ray]".'
        ) from error
    if ray.is_initialized():
        yield ray
        return
    with redirect_stdout(sys.stderr):  # to which Ray would print what happens to its nodes
        try:
            _start(ray, address)
            yield ray
        finally:
            ray.shutdown()


def _start(ray: Any, address: str | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address is None:
            ray.init("local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        else:
            _check_reachable(address)
            ray.init(address, **quiet)
    except Exception as error:  # of many kinds: no such host, another version, a wrong token
        where = "on this machine" if address is None else f"at '{address}'"
        raise OSError(f"No Ray cluster {where} could be used: {_line(error)}. {REMEDY}") from error


def _check_reachable(address: str) -> None:
    """Fail at once where nothing listens; Ray itself would try for a quarter of an hour."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


@contextmanager
def _speaking_plainly(ray: Any) -> Iterator[None]:
    """Turn what goes wrong in the cluster into one line; show none of Ray's progress."""
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield
    except ray.exceptions.RayError as error:
        remedy = "Start the same command again: it goes on where it stopped."
        raise OSError(f"The work on Ray failed: {_line(error)}. {remedy}") from error


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
