import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.parquet_rows import columns, read, save, write
from helpers.ray_cluster import LOOPBACK, Cluster, below, listeners, processes, two_nodes

from simplexcal.scoring import score

ROWS, SIZE = 20_000, 64
CODE = """
import sys
from pathlib import Path
from simplexcal.scoring import score
calibrator, data, output = map(Path, sys.argv[1:4])
score(calibrator, data, output, engine="ray", address=sys.argv[4], batch_size=int(sys.argv[5]))
"""


@contextmanager
def started(
    cluster: Cluster, *arguments: object, **environment: str
) -> "Iterator[subprocess.Popen[str]]":
    """Start a run on the cluster, in a process of its own."""
    command = [sys.executable, "-c", CODE, *map(str, arguments), cluster.address, str(SIZE)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=cluster.environment | environment,
    ) as run:
        try:
            yield run
        finally:
            run.kill()


def kill_in_mid_run(cluster: Cluster, run: "subprocess.Popen[str]", shards: Path) -> set[int]:
    """Kill the second node while it works and some shards are done; return all processes."""
    while run.poll() is None:
        there = processes()
        at_work = any(
            parent == cluster.second and "ray::Map" in name for name, parent in there.values()
        )
        if at_work and len(list(shards.glob("*.parquet"))) >= 5:
            ours = below({cluster.process.pid, run.pid})
            assert listeners(ours)
            assert listeners(ours) <= set(LOOPBACK)
            cluster.kill_second()
            assert run.poll() is None
            return ours
        time.sleep(0.02)
    raise AssertionError(f"The run was over before a node could be killed: {run.communicate()}")


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/net/tcp").exists(), reason="It looks into /proc to see what listens."
)
def test_with_a_node_killed_every_row_is_scored_once_and_as_locally(tmp_path: Path) -> None:
    content = columns(ROWS)
    content["logit_0"] = content["logit_0"].copy()
    content["logit_0"][::1000] = float("nan")
    data, calibrator = write(tmp_path / "x.parquet", content, group=3000), save(tmp_path, "sts")
    score(calibrator, data, tmp_path / "local.parquet", batch_size=SIZE)
    with (
        two_nodes() as cluster,
        started(cluster, calibrator, data, tmp_path / "ray.parquet") as run,
        started(
            cluster, calibrator, data, tmp_path / "no.parquet", RAY_AUTH_TOKEN="0" * 64
        ) as intruder,
    ):
        ours = kill_in_mid_run(cluster, run, tmp_path / "ray.parquet.shards")
        stdout, stderr = run.communicate(timeout=120)
        assert (run.returncode, stdout) == (0, ""), stderr
        said = intruder.communicate(timeout=120)[1]
        assert (
            said.strip()
            .splitlines()[-1]
            .startswith(f"OSError: No Ray cluster at '{cluster.address}' could be used")
        )
    assert not ours & set(processes())
    for suffix in (".parquet", ".rejected.parquet"):
        assert (tmp_path / f"ray{suffix}").read_bytes() == (
            tmp_path / f"local{suffix}"
        ).read_bytes()
    keys = read(tmp_path / "ray.parquet")["id"] + read(tmp_path / "ray.rejected.parquet")["id"]
    assert sorted(keys) == sorted(content["id"])


@pytest.mark.long
@pytest.mark.skipif(
    not Path("/proc/net/tcp").exists(), reason="It looks into /proc to see what listens."
)
def test_without_an_address_ray_is_started_here_on_loopback_and_stopped(tmp_path: Path) -> None:
    data, calibrator = write(tmp_path / "x.parquet", columns(2000)), save(tmp_path, "ts")
    score(calibrator, data, tmp_path / "local.parquet", batch_size=SIZE)
    output, said = tmp_path / "ray.parquet", tmp_path / "said.txt"
    arguments = [
        "score",
        calibrator,
        data,
        "--output",
        output,
        "--engine",
        "ray",
        "--batch-size",
        SIZE,
    ]
    seen, heard = set(), set()
    with (
        said.open("w") as file,
        subprocess.Popen(
            [sys.executable, "-m", "simplexcal", *map(str, arguments)],
            stdout=file,
            stderr=subprocess.STDOUT,
        ) as run,
    ):
        while run.poll() is None:
            seen |= below({run.pid})
            heard |= listeners(seen)
            time.sleep(0.05)
    assert run.returncode == 0, said.read_text()
    assert heard
    assert heard <= set(LOOPBACK)
    assert not seen & set(processes())
    assert output.read_bytes() == (tmp_path / "local.parquet").read_bytes()


def test_an_address_where_nothing_listens_is_one_sentence(tmp_path: Path) -> None:
    data, calibrator = write(tmp_path / "x.parquet", columns(5)), save(tmp_path, "ts")
    done = subprocess.run(
        [sys.executable, "-c", CODE, calibrator, data, tmp_path / "y.parquet", "127.0.0.1:1", "4"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("OSError: No Ray cluster at '127.0.0.1:1' could be used: ")
