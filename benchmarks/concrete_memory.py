"""The exact mean at N = 50000, K = 1000, float32, needs at most 1 GiB beyond its input.

usage: python benchmarks/concrete_memory.py

The peak resident memory of this process, before and after, so it wants a fresh process. The result itself is 0.19 GiB.
"""

import resource

import torch

import simplexcal as sc


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


@torch.no_grad()
def main(n: int = 50_000, k: int = 1_000) -> None:
    logits, temperature = torch.randn(n, k).mul_(3), 0.05 + 3 * torch.rand(n)
    sc.Concrete(logits[:10], temperature[:10]).moments()  # what is loaded once
    before = peak_gib()
    _ = sc.Concrete(logits, temperature).mean
    print(f"N = {n}, K = {k}: mean, {peak_gib() - before:.2f} GiB beyond the input")
    _ = sc.Concrete(logits, temperature).moments()
    print(f"N = {n}, K = {k}: all moments, {peak_gib() - before:.2f} GiB beyond the input")


if __name__ == "__main__":
    main()
