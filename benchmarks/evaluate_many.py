"""An evaluation at N = 50000, K = 1000, float32, takes at most 20 s on 2 cores and 2 GiB.

usage: python benchmarks/evaluate_many.py

The peak resident memory of this process beyond the input, before and after.
"""

import resource
import time

import torch

import simplexcal as sc

N = 50_000
K = 1_000


def _peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _prediction(labels: torch.Tensor) -> sc.Prediction:
    """Return predictions of which many are right; made in place, so that the peak stays small."""
    logits = torch.randn(N, K)
    logits[torch.arange(N), labels] += 6.0
    label = logits.argmax(-1)
    probs = torch.softmax(logits, -1, out=logits)
    return sc.Prediction(probs, label)


def main() -> None:
    """Print the table, the time and the memory of an evaluation."""
    torch.set_num_threads(2)
    labels = torch.randint(K, (N,))
    prediction = _prediction(labels)
    sc.evaluate(prediction[:10], labels[:10])  # Loads what is loaded once.
    before = _peak_gib()
    start = time.perf_counter()
    result = sc.evaluate(prediction, labels)
    seconds = time.perf_counter() - start
    memory = _peak_gib() - before
    print(sc.tabulate({"softmax": result}))
    print(f"N = {N}, K = {K}: {seconds:.1f} s on 2 threads, {memory:.2f} GiB beyond the input")


if __name__ == "__main__":
    main()
