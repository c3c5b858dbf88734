"""Train the demo's LeNet-5 on Fashion-MNIST by the paper's recipe, in half a minute on one GPU.

usage: python experiments/demo_network.py DATA OUT.safetensors [--seed 0]

DATA holds the four original IDX files. SGD from 0.1 to 0 by a cosine, momentum 0.9, weight decay 5e-4, batches of 128,
200 epochs, no augmentation (Esaki et al. 2024, Sec. 5.2). A step is one CUDA graph.
"""

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from simplexcal.demo.fashion_mnist import read_idx
from simplexcal.demo.lenet5 import LeNet5, normalise
from simplexcal.metrics import ece

BATCH, EPOCHS, RATE, MOMENTUM, DECAY = 128, 200, 0.1, 0.9, 5e-4


class GraphedStep:
    """One step of SGD for each network, on rows of its own: captured once and replayed, the networks side by side."""

    def __init__(self, nets: Sequence[nn.Module], inputs: Tensor, labels: Tensor) -> None:
        self.nets, self.inputs, self.labels = nets, inputs, labels
        self.rows = torch.arange(BATCH, device=inputs.device).repeat(len(nets), 1)
        self.rate = torch.zeros((), device=inputs.device)
        self.params: list[Tensor] = [p for net in nets for p in net.parameters()]
        self.momenta = [torch.zeros_like(p) for p in self.params]
        self.streams = [torch.cuda.Stream() for _ in nets]
        self.graph = torch.cuda.CUDAGraph()
        self._capture()

    def __call__(self, rows: Tensor, rate: float) -> None:
        self.rows.copy_(rows)
        self.rate.fill_(rate)
        self.graph.replay()

    def _capture(self) -> None:
        """Capture the step after a warm-up at rate 0, which leaves the weights as they were."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(self.graph):
            self._step()
        torch._foreach_zero_(self.momenta)

    def _step(self) -> None:
        main, gradients = torch.cuda.current_stream(), list[Tensor]()
        for net, rows, stream in zip(self.nets, self.rows, self.streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                loss = cross_entropy(net(self.inputs[rows]), self.labels[rows])
                gradients += torch.autograd.grad(loss, list(net.parameters()))
        for stream in self.streams:
            main.wait_stream(stream)
        with torch.no_grad():
            torch._foreach_add_(gradients, self.params, alpha=DECAY)
            torch._foreach_mul_(self.momenta, MOMENTUM)
            torch._foreach_add_(self.momenta, gradients)
            torch._foreach_sub_(self.params, list(torch._foreach_mul(self.momenta, self.rate)))


def train(nets: Sequence[nn.Module], seeds: Sequence[int], inputs: Tensor, labels: Tensor) -> None:
    """Train in place, each network on the rows in the order that its seed gives."""
    step, per_epoch = GraphedStep(nets, inputs, labels), len(inputs) // BATCH
    generators = [torch.Generator(inputs.device).manual_seed(seed) for seed in seeds]
    for i in range(EPOCHS * per_epoch):
        if i % per_epoch == 0:
            orders = [torch.randperm(len(inputs), generator=g, device=inputs.device) for g in generators]
            rows = torch.stack([order[: per_epoch * BATCH].view(per_epoch, BATCH) for order in orders], 1)
        step(rows[i % per_epoch], RATE / 2 * (1 + math.cos(math.pi * i / (EPOCHS * per_epoch))))


def load(data: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return inputs and labels of the training set, then those of the test set, on the GPU."""
    x, y, test_x, test_y = (
        read_idx(data / f"{name}-ubyte.gz").cuda()
        for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    )
    return normalise(x), y.long(), normalise(test_x), test_y.long()


def main(data: Path, out: Path, seed: int) -> None:
    x, y, test_x, test_y = load(data)
    torch.manual_seed(seed)
    net = LeNet5().cuda()
    start = time.perf_counter()
    train([net], [seed], x, y)
    torch.cuda.synchronize()
    confidence, label = net(test_x).softmax(-1).max(-1)
    accuracy, error = (label == test_y).float().mean(), ece(confidence, label == test_y)
    print(f"{time.perf_counter() - start:.1f} s; on the 10000 test images accuracy {accuracy:.4f}, ECE {error:.4f}")
    save_file({name: value.cpu() for name, value in net.state_dict().items()}, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    main(args.data, args.out, args.seed)
