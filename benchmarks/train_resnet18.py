"""One NVIDIA H200 trains a ResNet-18 on 52800 images of 32 × 32 a second, five on 72200.

usage: python -m benchmarks.train_resnet18 [--concurrent 1 2 4 5] [--network resnet18] [--side 32]
    [--channels 3] [--classes 10] [--dtype bfloat16] [--compiled]
    (from the repository's root, with a CUDA device)

As for CIFAR-10: 50000 random images of 32 × 32, batches of 128, crops and flips, the whole step in
one CUDA graph. 100 steps after the capture and 10 more; images a second of all networks together,
and how long 200 epochs of 50000 images take for each network at that rate.

Measured there, with PyTorch 2.11, in bfloat16 and compiled: 52803 for one network and 72194 for
five trained concurrently, ready after 32 s. Not compiled: 44920 for one, 62746 for four (63481 in
float16). Five on grey images of 28 × 28: 86669, and 73275 not compiled.
"""

import argparse
import time

import torch
from experiments.config.settings import CROPS_AND_FLIPS
from experiments.pretraining.architectures import NETWORKS, make
from experiments.pretraining.augmentation import AugmentedImages
from experiments.pretraining.training import Training

N_IMAGES = 50_000
BATCH_SIZE = 128
N_EPOCHS = 200
DTYPES = ("bfloat16", "float16", "float32")
N_WARMUPS = 10
N_STEPS = 100


def _step_seconds(training: Training) -> float:
    """Return the seconds of 100 steps."""
    training.begin_epoch()
    for _ in range(N_WARMUPS):
        training.advance()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(N_STEPS):
        training.advance()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _random_images(args: argparse.Namespace) -> AugmentedImages:
    n = N_IMAGES
    if args.side > 32:
        n = N_IMAGES // 9  # Random images of 96 × 96 need not be as many.
    shape = (n, args.channels, args.side, args.side)
    return AugmentedImages(
        torch.randint(256, shape, dtype=torch.uint8),
        torch.randint(args.classes, (n,)),
        mean=[0.5] * args.channels,
        std=[0.25] * args.channels,
        augmentation=CROPS_AND_FLIPS,
        device="cuda",
    )


def _prepare(args: argparse.Namespace, images: AugmentedImages, n_networks: int) -> Training:
    networks = []
    for seed in range(n_networks):
        network = make(args.network, args.channels, args.classes, seed)
        networks.append(network.cuda())
    dtype = getattr(torch, args.dtype)
    return Training(networks, images, range(n_networks), N_EPOCHS, BATCH_SIZE, dtype, args.compiled)


def _print_speed(args: argparse.Namespace, images: AugmentedImages, n_networks: int) -> None:
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    training = _prepare(args, images, n_networks)
    ready = time.perf_counter() - start
    speed = n_networks * BATCH_SIZE * N_STEPS / _step_seconds(training)
    memory = torch.cuda.max_memory_reserved() / 2**30
    print(
        f"{n_networks} concurrently: {speed:8.0f} images/s; "
        f"{N_EPOCHS * N_IMAGES / speed:6.0f} s for each network of {N_EPOCHS} epochs; "
        f"ready after {ready:.1f} s; {memory:.1f} GiB",
        flush=True,
    )


def main(args: argparse.Namespace) -> None:
    """Print the speed for each number of networks.

    Args:
        args: The options of the command.
    """
    images = _random_images(args)
    print(
        f"{args.network}, {args.dtype}, compiled: {args.compiled}; "
        f"{torch.cuda.get_device_name()}, {torch.__version__}"
    )
    for n_networks in args.concurrent:
        _print_speed(args, images, n_networks)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", default="resnet18", choices=NETWORKS)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--concurrent", type=int, nargs="+", default=[1, 2, 4, 5])
    main(parser.parse_args())
