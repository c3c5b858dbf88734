"""Print exact confidence and uncertainties beside the paper's estimate of them from 30 random samples."""

import torch

from simplexcal import Concrete

LOGITS = {
    "sure": [9.0, 2.0, 1.0, 0.0, -1.0],
    "two rivals": [5.0, 4.8, 0.0, -1.0, -2.0],
    "no idea": [0.3, 0.2, 0.1, 0.0, -0.1],
}
TEMPERATURES = [0.1, 1.0, 5.0]
N_SAMPLES = 30
HEADER = f"{'logits':>10} {'λ':>5}   {'confidence':<25} {'aleatoric':<25} {'epistemic':<25}"
SUBHEADER = f"{'':>10} {'':>5}   " + f"{'exact':>7} {'sampled':>8} {'error':>8} " * 3


def main() -> None:
    """Print one line for each pair of logits and temperature."""
    generator = torch.Generator().manual_seed(0)
    print(f"Concrete(logits, temperature): exact, and as estimated from {N_SAMPLES} samples\n")
    print(HEADER, SUBHEADER, sep="\n")
    for name, values in LOGITS.items():
        for temperature in TEMPERATURES:
            print(_line(name, Concrete(torch.tensor(values), temperature), generator))
    print("\nconfidence: largest entry of E[π]; aleatoric: E[H(π)]; epistemic: differential entropy of π (nats).")
    print(
        "On a CPU the exact values cost less time than the estimate: make bench. How they are computed: docs/theory.md."
    )


def _line(name: str, d: Concrete, generator: torch.Generator) -> str:
    m = d.moments()
    log_pi = d.log_rsample((N_SAMPLES,), generator)
    pi = log_pi.exp()
    pairs = [
        (m.mean.max(), pi.mean(0).max()),
        (m.expected_entropy, -(pi * log_pi).sum(-1).mean()),
        (m.entropy, -d.log_prob_from_log(log_pi).mean()),
    ]
    cells = [f"{exact:7.4f} {sampled:8.4f} {sampled - exact:+8.4f} " for exact, sampled in pairs]
    return f"{name:>10} {d.temperature:5.1f}   " + "".join(cells)


if __name__ == "__main__":
    main()
