"""The exact mean at N = 50000, K = 1000, float32, needs at most 1 GiB beyond its input.

usage: python benchmarks/concrete_memory.py

The peak resident memory of this process, before and after. The result itself is 0.19 GiB.
"""

import resource

import torch

import simplexcal as sc

N = 50_000
K = 1_000


def _peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


@torch.no_grad()
def main() -> None:
    """Print the memory of the mean and of all moments."""
    logits = torch.randn(N, K).mul_(3)
    temperature = 0.05 + 3 * torch.rand(N)
    sc.Concrete(logits[:10], temperature[:10]).moments()  # Loads what is loaded once.
    before = _peak_gib()
    _ = sc.Concrete(logits, temperature).mean
    print(f"N = {N}, K = {K}: mean, {_peak_gib() - before:.2f} GiB beyond the input")
    _ = sc.Concrete(logits, temperature).moments()
    print(f"N = {N}, K = {K}: all moments, {_peak_gib() - before:.2f} GiB beyond the input")


if __name__ == "__main__":
    main()
