"""Memory of `score` does not grow with the number of rows.

10 million rows of logits (K = 10) are scored by TS, and 1 million with 84 features by STS, in as
many threads as --workers says.

usage: PYTHONPATH=tests python benchmarks/score_rows.py [--ts 10000000] [--sts 1000000]
                                                        [--workers 1] [--ray]

Each run is a process of its own, beside one with a tenth of the rows; its peak resident memory
includes some 300 MiB of libraries. --ray scores the second file once more, on two nodes on
loopback, and kills one when a fifth is done; only this needs tests/ on the path.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import simplexcal as sc
from simplexcal.io import save_calibrator
from simplexcal.scoring import score

K = 10
D = 84
ROWS_PER_GROUP = 100_000
ROWS_PER_SHARD = 32_768


def task() -> tuple[torch.nn.Linear, sc.Outputs, torch.Tensor]:
    """Return a last layer with 2000 of its outputs and labels, which it is too sure of."""
    generator = torch.Generator().manual_seed(0)
    head = torch.nn.Linear(D, K).requires_grad_(False)
    head.weight.copy_(torch.randn(K, D, generator=generator) / 3)
    head.bias.zero_()
    features = torch.randn(2000, D, generator=generator).relu()
    logits = head(features)
    labels = torch.multinomial((logits / 1.5).softmax(-1), 1, generator=generator).squeeze(1)
    return head, sc.Outputs(logits, features), labels


def fit(folder: Path) -> None:
    head, outputs, labels = task()
    generator = torch.Generator().manual_seed(0)
    sts = sc.SimplexTemperatureScaling(n_steps=200)
    sts.fit(outputs, labels, mixup=sc.FeatureMixup(head, outputs, labels), generator=generator)
    save_calibrator(sts, folder / "sts.safetensors")
    save_calibrator(sc.TemperatureScaling().fit(outputs, labels), folder / "ts.safetensors")


def write(path: Path, rows: int, with_features: bool) -> Path:
    rng = np.random.default_rng(0)
    weight = task()[0].weight.numpy()
    writer = None
    for start in range(0, rows, ROWS_PER_GROUP):
        n = min(ROWS_PER_GROUP, rows - start)
        features = np.maximum(rng.standard_normal((n, D), dtype=np.float32), 0)
        logits = features @ weight.T
        columns = {"id": np.arange(start, start + n)}
        columns |= {f"logit_{i}": logits[:, i] for i in range(K)}
        if with_features:
            columns |= {f"feature_{i}": features[:, i] for i in range(D)}
        table = pa.table(columns)
        if writer is None:
            writer = pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()
    return path


def run(calibrator: Path, data: Path, output: Path, where: str) -> None:
    """Score, and print the measurements for the process that asked.

    Args:
        calibrator: The file of the calibrator.
        data: The rows.
        output: The file to write.
        where: The number of threads here, or the address of a Ray cluster.
    """
    if where.isdecimal():
        summary = score(calibrator, data, output, workers=int(where))
    else:
        summary = score(calibrator, data, output, engine="ray", address=where)
    print(json.dumps({"rows": summary.rows, "seconds": summary.seconds, "mib": peak_mib()}))


def peak_mib() -> float:
    """Return this program's peak; ru_maxrss would include what ran before it in the process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 2**10
    raise RuntimeError("Linux does not tell the peak of this process.")


def start(*arguments: object, environment: dict[str, str] | None = None) -> "subprocess.Popen[str]":
    command = [sys.executable, __file__, "--run", *map(str, arguments)]
    one = {**(environment or os.environ), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=one)


def report(name: str, process: "subprocess.Popen[str]") -> None:
    found = json.loads(process.communicate()[0].splitlines()[-1])
    rate = found["rows"] / found["seconds"]
    print(
        f"{name}: {found['rows']:>10} rows, {rate:>8.0f} rows/s, peak {found['mib']:.0f} MiB",
        flush=True,
    )


def measure(folder: Path, method: str, rows: int, workers: int) -> Path:
    """Score a tenth of the rows, and all; return the file of all."""
    for n in (rows // 10, rows):
        data = write(folder / f"{method}.in.parquet", n, with_features=method == "sts")
        calibrator = folder / f"{method}.safetensors"
        report(method, start(calibrator, data, folder / f"{method}.parquet", workers))
    return data


def on_ray(folder: Path, data: Path) -> None:
    from helpers.ray_cluster import two_nodes

    output = folder / "ray.parquet"
    with two_nodes() as cluster:
        arguments = (folder / "sts.safetensors", data, output, cluster.address)
        process = start(*arguments, environment=cluster.environment)
        shards = folder / "ray.parquet.shards"
        total = math.ceil(pq.read_metadata(data).num_rows / ROWS_PER_SHARD)
        while process.poll() is None and len(list(shards.glob("*.parquet"))) < total / 5:
            time.sleep(0.02)
        cluster.kill_second()
        left = total - len(list(shards.glob("*.parquet")))
        report(f"sts, two Ray nodes, one killed with {left} of {total} shards to go", process)
    same = output.read_bytes() == (folder / "sts.parquet").read_bytes()
    print(f"the same file as the local run's, byte for byte: {same}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ts", type=int, default=10_000_000)
    parser.add_argument("--sts", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--run", nargs="+")
    options = parser.parse_args()
    if options.run:
        calibrator, data, output, where = options.run
        run(Path(calibrator), Path(data), Path(output), where)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fit(folder)
        measure(folder, "ts", options.ts, options.workers)
        data = measure(folder, "sts", options.sts, options.workers)
        if options.ray:
            on_ray(folder, data)


if __name__ == "__main__":
    main()
