"""A Ray cluster of two nodes for a test: on loopback, behind a token, and gone afterwards.

Also what it runs, and where it listens.
"""

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F")  # as the kernel writes 127.0.0.1
DETECTION = {
    "initial_delay_ms": 1000,
    "period_ms": 500,
    "timeout_ms": 1000,
    "failure_threshold": 6,
}  # of a dead node


class Cluster(NamedTuple):
    process: "subprocess.Popen[str]"
    address: str
    second: int  # the raylet of the node that can be killed
    environment: dict[str, str]

    def kill_second(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("kill\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "killed\n"


@contextmanager
def two_nodes() -> Iterator[Cluster]:
    """Start the nodes with a new token in a file, and stop them."""
    script = Path(__file__).with_name("two_nodes.py")
    # The path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        environment = _environment(Path(folder))
        with subprocess.Popen(
            [sys.executable, script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as process:
            assert process.stdout is not None
            address, second = process.stdout.readline().split()
            yield Cluster(process, address, int(second), environment)


def _environment(folder: Path) -> dict[str, str]:
    token = folder / "token"
    token.touch(0o600)
    token.write_text(secrets.token_hex(32))
    ray = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Otherwise Ray replaces 127.0.0.1 by an address that others reach.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_TMPDIR": str(folder),
        "OMP_NUM_THREADS": "1",
        **{f"RAY_health_check_{name}": str(value) for name, value in DETECTION.items()},
    }
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | ray


def below(roots: set[int]) -> set[int]:
    """Return the processes that descend from these, and these."""
    parents = {pid: parent for pid, (_, parent) in processes().items()}
    found = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def processes() -> dict[int, tuple[str, int]]:
    """Return the living processes' names, as `ps` shows them, and parents."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                name = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(entry.name)] = (name, int(parent))
    return found


def listeners(pids: set[int]) -> set[str]:
    """Return the local addresses, in the kernel's hexadecimal, on which these processes listen."""
    sockets = set()
    for fd in (fd for pid in pids for fd in _files(pid)):
        with suppress(OSError):  # it was closed meanwhile
            sockets.add(str(fd.readlink()))
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {
        row[1].partition(":")[0]
        for row in rows
        if row[3] == "0A" and f"socket:[{row[9]}]" in sockets
    }


def _files(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []
