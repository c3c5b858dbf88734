"""Time of the exact mean of the Concrete distribution on a GPU: fused kernels, torch, 30 samples.

usage: python benchmarks/concrete_gpu.py

On an NVIDIA H200 the fused mean takes 0.18, 0.04 and 0.03 of the time of 30 samples, K = 10, 100
and 1000; with SIMPLEXCAL_TRITON=rows in the environment 0.08 at K = 10. Float32, eager, medians of
CUDA events in one run, in which all take turns. Then the likelihood with its gradient, the moments
of a given mean, and the probabilities of simplex temperature scaling for 2 million rows of 19
classes, as a multiple of a softmax, with the fused kernels and without them.
"""

import statistics
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import simplexcal as sc
from simplexcal.concrete import _fused, moments_of_mean

SIZES = [(2**21, 10), (2**20, 100), (2**17, 1_000)]
N_SAMPLES = 30
N_WARMUPS = 3
N_REPEATS = 10
ROWS = 2_000_000
CLASSES = 19
COPIED_BYTES = 2**30


def _times(*functions: Callable[[], object]) -> list[float]:
    """Return the median time of each function in seconds; they take turns, after a warm-up."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(N_WARMUPS + N_REPEATS):
        for function, own_times in zip(functions, times, strict=True):
            own_times.append(_time(function))
    return [statistics.median(own_times[N_WARMUPS:]) for own_times in times]


def _time(function: Callable[[], object]) -> float:
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    function()
    end.record()
    torch.cuda.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return milliseconds / 1e3


def _switch(on: bool) -> None:
    _fused.IS_ON = on


def _exact_mean(logits: Tensor, temperature: Tensor, fused: bool) -> Tensor:
    _switch(fused)
    return sc.Concrete(logits, temperature, validate_args=False).mean


def _likelihood_gradient(logits: Tensor, temperature: Tensor, fused: bool) -> None:
    _switch(fused)
    with torch.enable_grad():
        d = sc.Concrete(logits.detach().requires_grad_(), temperature, validate_args=False)
        labels = logits.argmax(-1)
        d.log_likelihood(labels).sum().backward()


def _moments_of_mean(probs: Tensor, temperature: Tensor, fused: bool) -> None:
    _switch(fused)
    moments_of_mean(probs, temperature)


def _sampled_mean(logits: Tensor, temperature: Tensor) -> Tensor:
    """Estimate the mean as the paper does (its Section 4.4), a sample at a time."""
    total = torch.zeros_like(logits)
    for _ in range(N_SAMPLES):
        uniform = torch.rand_like(logits)
        gumbel = -torch.log(-torch.log(uniform))
        total += ((logits + gumbel) / temperature.unsqueeze(-1)).softmax(-1)
    return total / N_SAMPLES


def _copy_bandwidth() -> float:
    """Return the bytes that a copy reads and writes in a second."""
    source = torch.rand(COPIED_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    (seconds,) = _times(lambda: target.copy_(source))
    return 2 * COPIED_BYTES / seconds


def _compare_with_samples(bandwidth: float) -> None:
    print("       N      K   fused ms  torch ms  30 samples ms  fused/samples  of copy bandwidth")
    for n, k in SIZES:
        logits = 3 * torch.randn(n, k, device="cuda")
        temperature = 0.05 + 3 * torch.rand(n, device="cuda")
        fused, reference, sampled = _times(
            partial(_exact_mean, logits, temperature, fused=True),
            partial(_exact_mean, logits, temperature, fused=False),
            partial(_sampled_mean, logits, temperature),
        )
        # Logits and temperature are read once, the mean is written once.
        share = 4 * n * (2 * k + 1) / fused / bandwidth
        print(
            f"{n:8d} {k:6d} {1e3 * fused:10.3f} {1e3 * reference:9.2f} {1e3 * sampled:14.2f} "
            f"{fused / sampled:14.4f} {share:18.1%}"
        )


def _compare_others() -> None:
    """Compare the likelihood with its gradient, and the moments of a given mean, with torch's."""
    print("       N      K  likelihood: fused, torch ms  moments of a mean: fused, torch ms")
    for n, k in SIZES:
        logits = 3 * torch.randn(n // 8, k, device="cuda")
        temperature = 0.05 + 3 * torch.rand(n // 8, device="cuda")
        times = _times(
            partial(_likelihood_gradient, logits, temperature, fused=True),
            partial(_likelihood_gradient, logits, temperature, fused=False),
            partial(_moments_of_mean, logits.softmax(-1), temperature, fused=True),
            partial(_moments_of_mean, logits.softmax(-1), temperature, fused=False),
        )
        print(f"{n // 8:8d} {k:6d}" + "".join(f" {1e3 * seconds:14.3f}" for seconds in times))


def _fitted() -> sc.Calibrator:
    """Return simplex temperature scaling of logits alone; how well it is fitted does not matter."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2000, CLASSES, generator=generator)
    labels = (logits / 2).softmax(-1).multinomial(1, generator=generator).squeeze(1)
    _switch(on=True)
    calibrator = sc.SimplexTemperatureScaling(n_steps=20, pool_size=5000)
    with torch.enable_grad():
        return calibrator.fit(sc.Outputs(logits.cuda()), labels.cuda(), generator=generator)


def _compare_with_softmax() -> None:
    calibrator = _fitted()
    outputs = sc.Outputs(3 * torch.randn(ROWS, CLASSES, device="cuda"))

    def calibrated(fused: bool) -> Tensor:
        _switch(fused)
        probs: Tensor = calibrator(outputs).probs
        return probs

    softmax, fused, reference = _times(
        lambda: outputs.logits.softmax(-1),
        lambda: calibrated(fused=True),
        lambda: calibrated(fused=False),
    )
    print(
        f"STS, N = {ROWS}, K = {CLASSES}: softmax {1e3 * softmax:.3f} ms; "
        f"fused {1e3 * fused:.2f} ms, {fused / softmax:.1f} softmaxes; "
        f"torch {1e3 * reference:.2f} ms, {reference / softmax:.1f} softmaxes"
    )


@torch.no_grad()
def main() -> None:
    """Print the tables."""
    if not _fused.IS_ON:
        raise SystemExit(
            f"The fused kernels are off: triton is missing, or {_fused.VARIABLE} is 0."
        )
    torch.manual_seed(0)
    bandwidth = _copy_bandwidth()
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, copy {bandwidth / 1e9:.0f} GB/s")
    _compare_with_samples(bandwidth)
    _compare_others()
    _compare_with_softmax()


if __name__ == "__main__":
    main()
