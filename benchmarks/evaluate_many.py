"""All numbers of an evaluation at N = 50000, K = 1000, float32, in at most 20 s on 2 cores and 2 GiB beyond its input.

usage: python benchmarks/evaluate_many.py

The peak resident memory of this process, before and after, so it wants a fresh process.
"""

import resource
import time

import torch

import simplexcal as sc


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main(n: int = 50_000, k: int = 1_000) -> None:
    torch.set_num_threads(2)
    labels = torch.randint(k, (n,))
    logits = torch.randn(n, k).scatter_add_(1, labels.unsqueeze(-1), torch.full((n, 1), 6.0))
    label, probs = (
        logits.argmax(-1),
        torch.softmax(logits, -1, out=logits),
    )  # in place: the peak before stays small
    prediction = sc.Prediction(probs, label)
    sc.evaluate(sc.Prediction(probs[:10], label[:10]), labels[:10])  # what is loaded once
    before, start = peak_gib(), time.perf_counter()
    result = sc.evaluate(prediction, labels)
    seconds = time.perf_counter() - start
    print(sc.tabulate({"softmax": result}))
    print(
        f"N = {n}, K = {k}: {seconds:.1f} s on 2 threads, {peak_gib() - before:.2f} GiB beyond the input"
    )


if __name__ == "__main__":
    main()
