"""In onnxruntime a calibrated network says what it says in torch, and takes little more time than the bare network.

usage: python benchmarks/onnx_overhead.py [--threads 1]

The demo's LeNet-5, which is small (0.4 million multiplications an input), on 1000 Fashion-MNIST images and a CPU.
Limits for every method: probabilities within 1e-5, all labels equal, in batches of 1 and of 257. Times are lower
quartiles, for a machine that has other work, of one run in which all graphs take turns, in a new order each time, after
a warm-up. What a method adds to a batch does not depend on the network: beside a larger one the ratio is nearer 1.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
import torch
from torch import Tensor

import simplexcal as sc
from simplexcal.demo.lenet5 import normalise
from simplexcal.demo.run import Data, prepare
from simplexcal.onnx.converter import convert

BATCHES = {1: 400, 32: 200, 257: 60, 1000: 25}  # rows: repeats
BARE = "bare network"
METHODS: dict[str, Callable[[], sc.Calibrator]] = sc.CALIBRATORS | {
    "pts": lambda: sc.ParameterizedTemperatureScaling(n_steps=100),
    "adats": lambda: sc.AdaptiveTemperatureScaling(n_epochs=1),
    "dirichlet": lambda: sc.DirichletTemperatureScaling(n_steps=10),
    "sts of the paper": lambda: sc.SimplexTemperatureScaling(
        betas=(1.0,),
        widths=sc.SimplexTemperatureScaling.paper().widths,
        n_steps=10,
        likelihood_head=False,
    ),
}  # taught briefly, where that takes minutes: it changes neither the graph nor its time


class Graph(NamedTuple):
    """A graph in onnxruntime, and the model that it was made from."""

    session: onnxruntime.InferenceSession
    model: sc.CalibratedModel | None


def graphs(data: Data, inputs: Tensor, threads: int) -> dict[str, Graph]:
    """Return the bare network's graph and that of every method."""
    mixup = sc.FeatureMixup(data.backbone.head, data.fit, data.fit_labels)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        bare = convert(Bare(data.backbone.net).eval(), {"inputs": inputs}, ["logits"], dynamic=(0,))
        found = {BARE: Graph(onnxruntime.InferenceSession(bare.SerializeToString(), options), None)}
        for name, make in METHODS.items():
            generator = torch.Generator().manual_seed(0)
            calibrator = make().fit(data.fit, data.fit_labels, mixup=mixup, generator=generator)
            model = sc.CalibratedModel(data.backbone, calibrator)
            model.to_onnx(path, inputs)
            found[name] = Graph(onnxruntime.InferenceSession(path, options), model)
    return found


class Bare(torch.nn.Module):
    """The network alone, in the form that ``convert`` takes."""

    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, inputs: list[Tensor]) -> tuple[Tensor]:
        """Return the logits."""
        return (self.net(inputs[0]),)


def agreement(graph: Graph, inputs: Tensor, size: int) -> tuple[float, int]:
    """Return the largest difference of a probability between onnxruntime and torch, and how many labels differ."""
    assert graph.model is not None
    expected = graph.model.predict(inputs)
    parts = [
        graph.session.run(["probs", "label"], {"inputs": part.numpy()})
        for part in inputs.split(size)
    ]
    probs, label = (np.concatenate(column) for column in zip(*parts, strict=True))
    return float(np.abs(probs - expected.probs.numpy()).max()), int(
        (label != expected.label.numpy()).sum()
    )


def seconds(found: dict[str, Graph], inputs: Tensor, repeats: int) -> dict[str, float]:
    """Return the lower quartile of the times of each graph, after three rounds of warm-up."""
    feed, turns = {"inputs": inputs.numpy()}, random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(repeats + 3):
        for name in turns.sample(list(found), len(found)):
            start = time.perf_counter()
            found[name].session.run(None, feed)
            times[name].append(time.perf_counter() - start)
    return {name: statistics.quantiles(measured[3:])[0] for name, measured in times.items()}


def main(threads: int) -> None:
    torch.set_num_threads(1)
    data = prepare()
    inputs = normalise(data.test_images[:1000])
    found = graphs(data, inputs[:2], threads)
    print(
        f"onnxruntime {onnxruntime.__version__}, torch {torch.__version__}, CPU, threads: {threads}\n"
    )
    print(
        "Largest difference of 1000 × 10 probabilities, and labels that differ; batch 1, batch 257\n"
    )
    print("| method | difference | labels |\n|---|---|---|")
    for name, graph in list(found.items())[1:]:
        (one, wrong), (many, wrong_too) = (agreement(graph, inputs, size) for size in (1, 257))
        print(f"| {name} | {one:.1e}, {many:.1e} | {wrong}, {wrong_too} |")
        assert max(one, many) <= 1e-5
        assert wrong == wrong_too == 0
    columns = [seconds(found, inputs[:n], repeats) for n, repeats in BATCHES.items()]
    bare = [column[BARE] for column in columns]
    print("\nTime over that of the bare network (and microseconds more for the batch)\n")
    print(
        "| graph |" + "".join(f" batch {n} |" for n in BATCHES) + "\n|---|" + "---|" * len(BATCHES)
    )
    for name in found:
        cells = [
            f"{c[name] / b:.2f} ({1e6 * (c[name] - b):+.0f})"
            for c, b in zip(columns, bare, strict=True)
        ]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print(
        "\nbare network: "
        + ", ".join(f"{1e6 * b:.0f} µs for {n}" for b, n in zip(bare, BATCHES, strict=True))
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    main(parser.parse_args().threads)
