"""Train the demo's LeNet-5 on Fashion-MNIST by the paper's recipe, in half a minute on one GPU.

usage: python experiments/demo_network.py DATA OUT.safetensors [--seed 0]

DATA holds the four original IDX files. SGD from 0.1 to 0 by a cosine, momentum 0.9, weight decay 5e-4, batches of 128,
200 epochs, no augmentation (Esaki et al. 2024, Sec. 5.2). The whole step is one CUDA graph.
"""

import argparse
import gzip
import math
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from simplexcal.demo.lenet5 import LeNet5, normalise

BATCH, EPOCHS, RATE, MOMENTUM, DECAY = 128, 200, 0.1, 0.9, 5e-4


def read_idx(path: Path) -> Tensor:
    """Read one gzipped IDX file of bytes."""
    raw = gzip.decompress(path.read_bytes())
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(raw[3])]
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape).copy())


class GraphedStep:
    """One step of SGD on a batch of rows, captured once and replayed."""

    def __init__(self, net: nn.Module, inputs: Tensor, labels: Tensor) -> None:
        self.net, self.inputs, self.labels = net, inputs, labels
        self.rows = torch.arange(BATCH, device=inputs.device)
        self.rate = torch.zeros((), device=inputs.device)
        self.momenta = [torch.zeros_like(p) for p in net.parameters()]
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()
        for buffer in self.momenta:
            buffer.zero_()

    def __call__(self, rows: Tensor, rate: float) -> None:
        self.rows.copy_(rows)
        self.rate.fill_(rate)
        self.graph.replay()

    def _step(self) -> None:
        params = list(self.net.parameters())
        loss = cross_entropy(self.net(self.inputs[self.rows]), self.labels[self.rows])
        gradients = torch.autograd.grad(loss, params)
        with torch.no_grad():
            for p, g, buffer in zip(params, gradients, self.momenta, strict=True):
                buffer.mul_(MOMENTUM).add_(g + DECAY * p)
                p.sub_(self.rate * buffer)


def train(net: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    """Train in place; the warm-up steps of the capture run at rate 0, so they leave the weights as they were."""
    step = GraphedStep(net, inputs, labels)
    per_epoch = len(inputs) // BATCH
    for i in range(EPOCHS * per_epoch):
        if i % per_epoch == 0:
            order = torch.randperm(len(inputs), device=inputs.device)
        at = i % per_epoch * BATCH
        step(order[at : at + BATCH], RATE / 2 * (1 + math.cos(math.pi * i / (EPOCHS * per_epoch))))


def main(data: Path, out: Path, seed: int) -> None:
    torch.manual_seed(seed)
    x, y, test_x, test_y = (
        read_idx(data / f"{name}-ubyte.gz").cuda()
        for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    )
    net = LeNet5().cuda()
    start = time.perf_counter()
    train(net, normalise(x), y.long())
    torch.cuda.synchronize()
    accuracy = (net(normalise(test_x)).argmax(-1) == test_y).float().mean()
    print(f"{time.perf_counter() - start:.1f} s, accuracy on the 10000 test images {accuracy:.4f}")
    save_file({name: value.cpu() for name, value in net.state_dict().items()}, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    main(args.data, args.out, args.seed)
