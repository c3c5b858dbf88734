"""STS with 19 values of β calibrates a ResNet-18 with 5000 images in 7.5 s on one NVIDIA H200.

usage: python -m benchmarks.calibrate_resnet18
    (from the repository's root, on a machine with a CUDA device)

Images of 32 × 32, the paper's branch and InputMixup; 10 000 mixup samples for each β, 3000 steps
of 100. Weights and images are random: the time does not depend on them. The second run is
reported, and then each stage by itself: 2.5 s for the mixup samples, which are forward passes of
the network, 4.6 s for the branches, 0.3 s for the likelihood head. The GPU spends 0.86 ms of a
step of the branches in matrix products, 0.37 ms in Adam, 0.15 ms in the rest. With kernels
launched one by one, not as a graph, the same machine took 14.5 s.
"""

import time
from collections import Counter
from collections.abc import Callable

import torch
from experiments.pretraining.architectures import resnet18
from torch import Generator, Tensor
from torch.profiler import ProfilerActivity, profile

import simplexcal as sc
from simplexcal.mixup import Mixup

N_IMAGES = 5000
N_STEPS = 3000
N_PROFILED = 200
N_MIXUP_SAMPLES = 10_000
PAPER = sc.SimplexTemperatureScaling.paper()


class _Benchmark:
    """A ResNet-18 on the GPU, with random images and labels drawn from its own softmax."""

    def __init__(self) -> None:
        self.generator = Generator("cuda").manual_seed(0)
        self.net = resnet18().cuda()
        shape = (N_IMAGES, 3, 32, 32)
        self.images = torch.randn(shape, device="cuda", generator=self.generator)
        self.backbone = sc.Backbone(self.net)
        self.outputs = self.backbone(self.images)
        self.labels = _sample_labels(self.outputs.logits, self.generator)

    def calibrate(self) -> None:
        """Calibrate the network, from images to the fitted calibrator."""
        sc.calibrate(
            self.net,
            (self.images, self.labels),
            _paper_method(N_STEPS, likelihood_head=True),
            mixup="inputs",
            generator=self.generator,
        )

    def extract(self) -> None:
        """Run the network on all images."""
        sc.extract(self.backbone, (self.images, self.labels))

    def fit_head(self) -> None:
        """Fit the likelihood head without branches."""
        outputs = sc.Outputs(self.outputs.logits)
        sc.SimplexTemperatureScaling().fit(outputs, self.labels, generator=self.generator)

    def fit_branches(self, mixup: Mixup, n_steps: int) -> None:
        """Fit the branches without the likelihood head."""
        method = _paper_method(n_steps, likelihood_head=False)
        method.fit(self.outputs, self.labels, mixup=mixup, generator=self.generator)

    def sample_mixup(self, mixup: Mixup) -> None:
        """Draw the mixup samples of every β."""
        for beta in PAPER.betas:
            mixup.sample(beta, N_MIXUP_SAMPLES, self.generator)


def _sample_labels(logits: Tensor, generator: Generator) -> Tensor:
    probs = logits.softmax(-1)
    return probs.multinomial(1, generator=generator).squeeze(1)


def _paper_method(n_steps: int, likelihood_head: bool) -> sc.SimplexTemperatureScaling:
    return sc.SimplexTemperatureScaling(
        PAPER.betas,
        PAPER.widths,
        n_steps=n_steps,
        batch_size=100,
        likelihood_head=likelihood_head,
    )


def _seconds(function: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _kernel_times(function: Callable[[], object]) -> Counter[str]:
    """Return the milliseconds that the GPU spends in each kind of kernel."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        _seconds(function)
    times: Counter[str] = Counter()
    for event in profiler.key_averages():
        times[_kernel_kind(event.key)] += event.self_device_time_total / 1000
    return times


def _kernel_kind(name: str) -> str:
    if "gemm" in name:
        return "products"
    if "FusedOptimizer" in name:
        return "Adam"
    return "the rest"


def _print_stages(benchmark: _Benchmark) -> None:
    mixup = sc.InputMixup(benchmark.backbone, benchmark.images, benchmark.labels)
    mixing = _seconds(lambda: benchmark.sample_mixup(mixup))
    branches = _seconds(lambda: benchmark.fit_branches(mixup, N_STEPS)) - mixing
    print(f"outputs of the {N_IMAGES} images: {_seconds(benchmark.extract):.1f} s")
    print(f"the likelihood head, 250 steps: {_seconds(benchmark.fit_head):.1f} s")
    print(f"{len(PAPER.betas)} x {N_MIXUP_SAMPLES} mixup samples: {mixing:.1f} s")
    print(f"the branches, {N_STEPS} steps: {branches:.1f} s")


def _print_kernels(benchmark: _Benchmark) -> None:
    """Print the time of each kind of kernel in one step: many steps less one, divided."""
    mixup = sc.FeatureMixup(benchmark.backbone.head, benchmark.outputs, benchmark.labels)
    times = _kernel_times(lambda: benchmark.fit_branches(mixup, 1 + N_PROFILED))
    times.subtract(_kernel_times(lambda: benchmark.fit_branches(mixup, 1)))
    cells = [f"{kind} {total / N_PROFILED:.2f} ms" for kind, total in times.most_common()]
    print("of a step: " + ", ".join(cells))


def main() -> None:
    """Time the whole calibration, its stages, and the kernels of a step."""
    benchmark = _Benchmark()
    _seconds(benchmark.calibrate)
    total = _seconds(benchmark.calibrate)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: {total:.1f} s in all")
    _print_stages(benchmark)
    _print_kernels(benchmark)


if __name__ == "__main__":
    main()
