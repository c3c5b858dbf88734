"""Moments of the Concrete distribution by routes that share nothing with the library's own."""

import mpmath as mp
import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.special import expit, log_expit, xlogy

Array = NDArray[np.float64]


def two_classes(gap: float, temperature: float) -> dict[str, float]:
    """K = 2, g = (gap, 0): π_1 = σ((gap + L)/λ) with L logistic.

    So every moment is an integral over L, here by the trapezoid rule with an eighth of the
    narrower of the two widths, 1 and λ, as its step.
    """
    step = min(1.0, temperature) / 8
    noise = step * np.arange(-int(45 / step), int(45 / step))
    log_density = log_expit(noise) + log_expit(-noise)
    weight = step * np.exp(log_density)
    t = (gap + noise) / temperature
    p, log_jacobian = expit(t), log_expit(t) + log_expit(-t)
    return {
        "mean": float(weight @ p),
        "expected_entropy": float(weight @ -(xlogy(p, p) + xlogy(1 - p, 1 - p))),
        "entropy": float(weight @ (log_jacobian - log_density - np.log(temperature))),
    }


def mean_at_one(logits: list[float]) -> list[float]:
    """λ = 1: the noise G + G′ has a closed distribution.

    F(x) = r K_1(r), r = 2e^(-x/2), f(x) = r²/2 K_0(r).
    """
    with mp.workdps(25):
        step, top = mp.mpf(1) / 8, max(logits)
        total = [mp.mpf(0)] * len(logits)
        for i in range(8 * 50):
            radii = [2 * mp.exp(-(top - 8 + i * step - g) / 2) for g in logits]
            cdf = [r * mp.besselk(1, r) for r in radii]
            joint = mp.fprod(cdf)
            for k, r in enumerate(radii):
                total[k] += step * r**2 / 2 * mp.besselk(0, r) * joint / cdf[k]
        return [float(x) for x in total]


def mean_by_laplace(logits: list[float], temperature: float) -> list[float]:
    """E[π_k] = ∫ E[X_k e^(-t X_k)] Π_(i≠k) E[e^(-t X_i)] dt.

    X_i = (e^g_i / E_i)^(1/λ), E_i ~ Exp(1).
    Nested adaptive quadrature, with t = e^s and E = e^v.
    """

    def laplace(g: float, s: float, *, tilted: bool) -> float:
        def integrand(v: float) -> float:
            log_tx = s + (g - v) / temperature
            return float(
                np.exp(v - np.exp(v) - np.exp(min(log_tx, 700.0)) + (log_tx if tilted else 0.0))
            )

        return float(quad(integrand, -45, 4, epsabs=1e-13, epsrel=1e-12, limit=400)[0])

    def outer(s: float, k: int) -> float:
        return float(np.prod([laplace(g, s, tilted=i == k) for i, g in enumerate(logits)]))

    centre = -max(logits) / temperature
    low, high = centre - 36 * max(1, 1 / temperature), centre + 6 / temperature + 8
    return [
        float(quad(outer, low, high, args=(k,), epsabs=1e-10, limit=200)[0])
        for k in range(len(logits))
    ]


def mean_of_many(values: Array, counts: NDArray[np.int64], temperature: float) -> Array:
    """Return E[π_k] of one class of each value, when counts[i] classes have the logit values[i].

    With s = max(1, λ), ρ = min(λ, 1/λ): E[π_k] = ∫ f(z - g_k/s) Π_(i≠k) F(z - g_i/s) dz, with F and
    f of G + ρG′ as integrals over G′. Plain trapezoid rules, from where hundreds of factors F make
    the product vanish.
    """
    scale, ratio = max(1.0, temperature), min(temperature, 1 / temperature)
    t, z = np.arange(-4.5, 45, 1 / 8), np.arange(-3, 60, 1 / 8)
    weight = np.exp(-t - np.exp(-t)) / 8
    e = np.exp(-(z[:, None] - (values - values.max()) / scale)[..., None] + ratio * t)
    log_cdf = np.log1p(np.expm1(-e) @ weight)  # ln F
    density = (e * np.exp(-e)) @ weight
    total = (log_cdf @ counts)[:, None]
    return np.asarray((density * np.exp(total - log_cdf)).sum(0) / 8, np.float64)
