"""In onnxruntime a calibrated network predicts as in torch, and takes little more time than before.

usage: python benchmarks/onnx_overhead.py [--threads 1] [--methods "sts"]

The demo's LeNet-5, which is small (0.4 million multiplications an input), on 1000 Fashion-MNIST
images and a CPU. Limits for every method: probabilities within 1e-5, all labels equal, in batches
of 1 and of 257. Times are lower quartiles, for a machine that has other work, of one run in which
all graphs take turns, in a new order each time, after a warm-up. What a method adds to a batch does
not depend on the network: beside a larger one the ratio is nearer 1. With ALONE in its name a graph
has no uncertainties.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch
from torch import Generator, Tensor, nn

import simplexcal as sc
from simplexcal.demo.lenet5 import normalise
from simplexcal.demo.run import Data, prepare
from simplexcal.onnx.converter import convert

REPEATS = {1: 400, 32: 200, 257: 60, 1000: 25}  # by the rows of a batch
N_WARMUPS = 3
TOLERANCE = 1e-5


def _sts_of_the_paper() -> sc.SimplexTemperatureScaling:
    widths = sc.SimplexTemperatureScaling.paper().widths
    return sc.SimplexTemperatureScaling(
        betas=(1.0,), widths=widths, n_steps=10, likelihood_head=False
    )


ALONE = ", probabilities alone"

# Methods that take minutes are trained briefly: it changes neither the graph nor its time.
METHODS: dict[str, Callable[[], sc.Calibrator]] = {
    **sc.CALIBRATORS,
    "pts": lambda: sc.ParameterizedTemperatureScaling(n_steps=100),
    "adats": lambda: sc.AdaptiveTemperatureScaling(n_epochs=1),
    "dirichlet-ts": lambda: sc.DirichletTemperatureScaling(n_steps=10),
    "sts of the paper": _sts_of_the_paper,
    f"sts{ALONE}": sc.SimplexTemperatureScaling,
}


class _Bare(nn.Module):
    """The network alone, in the form that ``convert`` takes."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, inputs: list[Tensor]) -> tuple[Tensor]:
        """Return the logits."""
        return (self.net(inputs[0]),)


class _Exported(NamedTuple):
    """A graph in onnxruntime, and the model that it was made from."""

    session: Any
    model: sc.CalibratedModel


class _Agreement(NamedTuple):
    """The largest difference of a probability, and the number of labels that differ."""

    difference: float
    n_labels: int


def _options(n_threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    return options


def _bare_session(net: nn.Module, example: Tensor, n_threads: int) -> Any:
    bare = _Bare(net).eval()
    model = convert(bare, {"inputs": example}, ["logits"], dynamic=(0,))
    return onnxruntime.InferenceSession(model.SerializeToString(), _options(n_threads))


def _export_methods(
    data: Data, example: Tensor, n_threads: int, names: str
) -> dict[str, _Exported]:
    """Return the graph of every method whose name begins so."""
    mixup = sc.FeatureMixup(data.backbone.head, data.fit, data.fit_labels)
    exported = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        for name, method in METHODS.items():
            if not name.startswith(names):
                continue
            generator = Generator().manual_seed(0)
            calibrator = method().fit(data.fit, data.fit_labels, mixup=mixup, generator=generator)
            model = sc.CalibratedModel(data.backbone, calibrator)
            outputs = None
            if name.endswith(ALONE):
                outputs = ("label", "probs", "confidence")
            model.to_onnx(path, example, outputs=outputs)
            session = onnxruntime.InferenceSession(path, _options(n_threads))
            exported[name] = _Exported(session, model)
    return exported


def _agreement(exported: _Exported, inputs: Tensor, batch_size: int) -> _Agreement:
    """Compare onnxruntime, in batches of this size, with torch."""
    expected = exported.model.predict(inputs)
    probs = []
    labels = []
    for batch in inputs.split(batch_size):
        batch_probs, batch_labels = exported.session.run(
            ["probs", "label"], {"inputs": batch.numpy()}
        )
        probs.append(batch_probs)
        labels.append(batch_labels)
    differences = np.concatenate(probs) - expected.probs.numpy()
    differs = np.concatenate(labels) != expected.label.numpy()
    return _Agreement(float(np.abs(differences).max()), int(differs.sum()))


def _quartile_times(sessions: dict[str, Any], inputs: Tensor, n_repeats: int) -> dict[str, float]:
    """Return the lower quartile of the times of each graph, in seconds."""
    feed = {"inputs": inputs.numpy()}
    order = random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(N_WARMUPS + n_repeats):
        for name in order.sample(list(sessions), len(sessions)):
            start = time.perf_counter()
            sessions[name].run(None, feed)
            times[name].append(time.perf_counter() - start)
    return {name: _lower_quartile(own[N_WARMUPS:]) for name, own in times.items()}


def _lower_quartile(values: list[float]) -> float:
    return statistics.quantiles(values)[0]


def _print_agreement(exported: dict[str, _Exported], inputs: Tensor) -> None:
    print(
        "Largest difference of 1000 × 10 probabilities, and labels that differ; "
        "batch 1, batch 257\n"
    )
    print("| method | difference | labels |\n|---|---|---|")
    for name, graph in exported.items():
        one = _agreement(graph, inputs, 1)
        many = _agreement(graph, inputs, 257)
        print(
            f"| {name} | {one.difference:.1e}, {many.difference:.1e} "
            f"| {one.n_labels}, {many.n_labels} |"
        )
        assert max(one.difference, many.difference) <= TOLERANCE
        assert one.n_labels == many.n_labels == 0


def _print_times(bare: Any, exported: dict[str, _Exported], inputs: Tensor) -> None:
    sessions = {"bare network": bare}
    sessions |= {name: graph.session for name, graph in exported.items()}
    times = {n: _quartile_times(sessions, inputs[:n], REPEATS[n]) for n in REPEATS}
    bare_times = {n: times[n]["bare network"] for n in REPEATS}
    print("\nTime over that of the bare network (and microseconds more for the batch)\n")
    header = "".join(f" batch {n} |" for n in REPEATS)
    print(f"| graph |{header}\n|---|{'---|' * len(REPEATS)}")
    for name in sessions:
        cells = [_ratio(times[n][name], bare_times[n]) for n in REPEATS]
        print(f"| {name} | {' | '.join(cells)} |")
    absolute = [f"{1e6 * seconds:.0f} µs for {n}" for n, seconds in bare_times.items()]
    print("\nbare network: " + ", ".join(absolute))


def _ratio(seconds: float, bare: float) -> str:
    return f"{seconds / bare:.2f} ({1e6 * (seconds - bare):+.0f})"


def main(n_threads: int, names: str) -> None:
    """Print the tables of agreement and of time.

    Args:
        n_threads: Threads of onnxruntime.
        names: What the names of the methods begin with.
    """
    torch.set_num_threads(1)
    data = prepare()
    inputs = normalise(data.test_images[:1000])
    versions = f"onnxruntime {onnxruntime.__version__}, torch {torch.__version__}"
    print(f"{versions}, CPU, threads: {n_threads}\n")
    bare = _bare_session(data.backbone.net, inputs[:2], n_threads)
    exported = _export_methods(data, inputs[:2], n_threads, names)
    _print_agreement(exported, inputs)
    _print_times(bare, exported, inputs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--methods", default="", help="what the names of the methods begin with")
    options = parser.parse_args()
    main(options.threads, options.methods)
