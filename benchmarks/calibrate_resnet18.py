"""STS with 19 values of β calibrates a ResNet-18 with 5000 images of 32 × 32 in about 12 s on one NVIDIA H200.

usage: python -m benchmarks.calibrate_resnet18      (from the repository's root, on a machine with a CUDA device)

The paper's branch and InputMixup; 10 000 mixes for each β, 3000 steps of 100. Random weights and images: the time does
not depend on them. The second run is reported, and then each part of it alone. The aim is 10 s; 11.7 s were measured
with Adam in many passes over the parameters, which is one pass now and was not measured again.
"""

import time
from collections.abc import Callable

import torch
from experiments.networks import ResNet18

import simplexcal as sc
from simplexcal.calibrators.simplex import PAPER_BETAS, PAPER_WIDTHS


def seconds(function: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    net = ResNet18().cuda()
    images = torch.randn(5000, 3, 32, 32, device="cuda", generator=generator)
    labels = sc.Backbone(net)(images).logits.softmax(-1).multinomial(1, generator=generator).squeeze(1)
    method = sc.SimplexTemperatureScaling(PAPER_BETAS, PAPER_WIDTHS, n_steps=3000, batch_size=100)

    def run() -> None:
        sc.calibrate(net, (images, labels), method, mixup="inputs", generator=generator)

    seconds(run)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: {seconds(run):.1f} s in all")
    backbone = sc.Backbone(net)
    print(f"outputs of the 5000 images: {seconds(lambda: sc.extract(backbone, (images, labels))):.1f} s")
    outputs = backbone(images)
    mixup = sc.InputMixup(backbone, images, labels)
    print(f"19 x 10000 mixes: {seconds(lambda: [mixup.draw(b, 10_000, generator) for b in PAPER_BETAS]):.1f} s")
    alone = sc.SimplexTemperatureScaling()
    logits = sc.Outputs(outputs.logits)
    print(f"the head: {seconds(lambda: alone.fit(logits, labels, generator=generator)):.1f} s; the rest: the branches")


if __name__ == "__main__":
    main()
