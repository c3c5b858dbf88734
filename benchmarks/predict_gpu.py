"""A default prediction takes little more time on a GPU than the bare ResNet-18.

usage: python -m benchmarks.predict_gpu [--profile]
    (from the repository's root, on a machine with a CUDA device)

Limits of the ratio: 1.3, 1.10 and 1.03 for batches of 1, 256 and 1024 images of 32 × 32. Random
weights, STS as ``calibrate`` fits it; medians of wall-clock times between synchronisations, in one
run, in which the network and the calibrated model take turns. With --profile the kernels and the
host's calls of a prediction follow.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from experiments.pretraining.architectures import resnet18
from torch import Generator
from torch.profiler import ProfilerActivity, profile

import simplexcal as sc

BATCHES = (1, 256, 1024)
N_IMAGES = 2000
N_WARMUPS = 5
N_REPEATS = 50


def _seconds(function: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _medians(*functions: Callable[[], object]) -> list[float]:
    """Return the median time of each function; they take turns, after a warm-up."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(N_WARMUPS + N_REPEATS):
        for function, own in zip(functions, times, strict=True):
            own.append(_seconds(function))
    return [statistics.median(own[N_WARMUPS:]) for own in times]


def _calibrated(net: torch.nn.Module) -> sc.CalibratedModel:
    """Calibrate the network with random images, and labels drawn from its own softmax."""
    generator = Generator("cuda").manual_seed(0)
    images = torch.randn(N_IMAGES, 3, 32, 32, device="cuda", generator=generator)
    with torch.no_grad():
        logits = torch.cat([net(part) for part in images.split(500)])
    labels = logits.softmax(-1).multinomial(1, generator=generator).squeeze(1)
    return sc.calibrate(net, (images, labels))


@torch.no_grad()
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    net = resnet18().cuda().eval()
    model = _calibrated(net)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("batch   network ms   predict ms   ratio   outputs ms   calibrator ms")
    for n in BATCHES:
        x = torch.randn(n, 3, 32, 32, device="cuda")
        outputs = model.backbone(x)
        network, predict, extract, calibrate = _medians(
            partial(net, x),
            partial(model.predict, x, batch_size=n),
            partial(model.backbone, x),
            partial(model.calibrator, outputs),
        )
        print(
            f"{n:5d} {1e3 * network:12.3f} {1e3 * predict:12.3f} {predict / network:7.2f} "
            f"{1e3 * extract:12.3f} {1e3 * calibrate:15.3f}"
        )
    if arguments.profile:
        x = torch.randn(256, 3, 32, 32, device="cuda")
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            model.predict(x)
        print(profiler.key_averages().table(sort_by="cuda_time_total", row_limit=40))


if __name__ == "__main__":
    main()
