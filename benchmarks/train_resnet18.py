"""ResNet-18 train on 52800 images of 32 × 32 a second on one NVIDIA H200 when alone, on 72200 when five train at once.

usage: python -m benchmarks.train_resnet18 [--at-once 1 2 4 5] [--network resnet18] [--side 32] [--channels 3]
        [--classes 10] [--dtype bfloat16] [--compiled]   (from the root, with a CUDA device)

CIFAR-10's form: 50000 random images of 32 × 32, batches of 128, crops and flips, the whole step in one CUDA graph. 100
steps after the capture and 10 more; images a second of all networks together, and what 200 epochs of 50000 images take
for each network at that rate.

Measured there, with PyTorch 2.11, in bfloat16 and compiled: 52803 alone and 72194 five at once, ready after 32 s. Not
compiled: 44920 alone, 62746 four at once (63481 in float16). Five at once on grey images of 28 × 28: 86669, and 73275
not compiled.
"""

import argparse
import time

import torch
from experiments.architectures import NETWORKS, make
from experiments.augmentation import CROPS_AND_FLIPS, Pictures
from experiments.training import Training

N, BATCH, STEPS = 50_000, 128, 100


def measure(training: Training) -> float:
    """Return the seconds of 100 steps."""
    training.begin_epoch()
    for _ in range(10):
        training.advance()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS):
        training.advance()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def main(args: argparse.Namespace) -> None:
    n = N if args.side <= 32 else N // 9  # random images of 96 × 96 need not be as many
    images = torch.randint(256, (n, args.channels, args.side, args.side), dtype=torch.uint8)
    labels = torch.randint(args.classes, (n,))
    pictures = Pictures(
        images,
        labels,
        mean=[0.5] * args.channels,
        std=[0.25] * args.channels,
        augment=CROPS_AND_FLIPS,
        device="cuda",
    )
    print(
        f"{args.network}, {args.dtype}, compiled: {args.compiled}; {torch.cuda.get_device_name()}, {torch.__version__}"
    )
    for m in args.at_once:
        torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        networks = [
            make(args.network, args.channels, args.classes, seed).cuda() for seed in range(m)
        ]
        training = Training(
            networks, pictures, range(m), 200, BATCH, getattr(torch, args.dtype), args.compiled
        )
        ready = time.perf_counter() - start
        speed = m * BATCH * STEPS / measure(training)
        memory = torch.cuda.max_memory_reserved() / 2**30
        print(
            f"{m} at once: {speed:8.0f} images/s; {200 * N / speed:6.0f} s for each network of 200 epochs; "
            f"ready after {ready:.1f} s; {memory:.1f} GiB",
            flush=True,
        )
        del training, networks
        torch.cuda.empty_cache()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", default="resnet18", choices=NETWORKS)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 2, 4, 5])
    main(parser.parse_args())
