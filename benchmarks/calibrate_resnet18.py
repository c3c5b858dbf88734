"""STS with 19 values of β calibrates a ResNet-18 with 5000 images of 32 × 32 in 7.5 s on one NVIDIA H200.

usage: python -m benchmarks.calibrate_resnet18      (from the repository's root, on a machine with a CUDA device)

The paper's branch and InputMixup; 10 000 mixes for each β, 3000 steps of 100. Random weights and images: the time does
not depend on them. The second run is reported, and then each part of it alone: 2.5 s for the mixes, which are forward
passes of the network, 4.6 s for the branches, 0.3 s for the head. The GPU spends 0.86 ms of a step of the branches in
matrix products, 0.37 ms in Adam, 0.15 ms in the rest. With kernels launched one by one, not as a graph, the same
machine took 14.5 s.
"""

import time
from collections import Counter
from collections.abc import Callable

import torch
from experiments.architectures import resnet18
from experiments.methods import PAPER_BETAS, PAPER_WIDTHS
from torch.profiler import ProfilerActivity, profile

import simplexcal as sc

N_STEPS, N_PROFILED = 3000, 200


def seconds(function: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def kernel_times(function: Callable[[], object]) -> Counter[str]:
    """Return the milliseconds that the GPU spends in matrix products, in Adam and in all other kernels."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        seconds(function)
    times: Counter[str] = Counter()
    for event in profiler.key_averages():
        kind = (
            "products"
            if "gemm" in event.key
            else "Adam"
            if "FusedOptimizer" in event.key
            else "the rest"
        )
        times[kind] += event.self_device_time_total / 1000
    return times


def main() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    net = resnet18().cuda()
    images = torch.randn(5000, 3, 32, 32, device="cuda", generator=generator)
    backbone = sc.Backbone(net)
    outputs = backbone(images)
    labels = outputs.logits.softmax(-1).multinomial(1, generator=generator).squeeze(1)

    def method(n_steps: int, head: bool) -> sc.SimplexTemperatureScaling:
        return sc.SimplexTemperatureScaling(
            PAPER_BETAS, PAPER_WIDTHS, n_steps=n_steps, batch_size=100, head=head
        )

    def run() -> None:
        sc.calibrate(
            net, (images, labels), method(N_STEPS, True), mixup="inputs", generator=generator
        )

    def fit_branches(mixup: sc.InputMixup | sc.FeatureMixup, n_steps: int) -> None:
        method(n_steps, False).fit(outputs, labels, mixup=mixup, generator=generator)

    def fit_head() -> None:
        sc.SimplexTemperatureScaling().fit(sc.Outputs(outputs.logits), labels, generator=generator)

    seconds(run)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: {seconds(run):.1f} s in all")
    mixup = sc.InputMixup(backbone, images, labels)
    mixing = seconds(lambda: [mixup.sample(beta, 10_000, generator) for beta in PAPER_BETAS])
    print(
        f"outputs of the 5000 images: {seconds(lambda: sc.extract(backbone, (images, labels))):.1f} s"
    )
    print(f"the head, 250 steps: {seconds(fit_head):.1f} s")
    print(f"19 x 10000 mixes: {mixing:.1f} s")
    print(
        f"the branches, {N_STEPS} steps: {seconds(lambda: fit_branches(mixup, N_STEPS)) - mixing:.1f} s"
    )
    quick = sc.FeatureMixup(backbone.head, outputs, labels)
    times = kernel_times(lambda: fit_branches(quick, 1 + N_PROFILED))
    times.subtract(kernel_times(lambda: fit_branches(quick, 1)))
    print(
        "of a step: "
        + ", ".join(f"{kind} {time / N_PROFILED:.2f} ms" for kind, time in times.most_common())
    )


if __name__ == "__main__":
    main()
