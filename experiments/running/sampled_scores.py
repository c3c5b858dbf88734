"""Scores beside the library's own: the network's energy, and what the paper estimates from 30 samples (Appendix E).

Its probabilities are the mean of the samples, its differential entropy the mean of -ln p over them. The density has
poles at the border of the simplex, where most samples of a sure prediction lie: how near to it they may come matters.
So the entropy is estimated with samples that are kept a margin away, too.
"""

import torch
from torch import Tensor

import simplexcal as sc
from simplexcal.metrics import aupr, auroc, ece, fpr_at_tpr

N_SAMPLES = 30
MARGINS = (0.0, 1e-7, 1e-5, 1e-3)


def judged_by_energy(known: sc.Outputs, unknown: sc.Outputs) -> dict[str, float]:
    """Return how well the network's energy, the logits' -logsumexp (Liu et al. 2020), tells strangers apart."""
    score = -torch.cat([known.logits, unknown.logits]).logsumexp(-1)
    stranger = torch.arange(len(score)) >= len(known)
    measures = {"auroc": auroc, "aupr": aupr, "fpr_95": fpr_at_tpr}
    return {f"energy_{name}": measure(score, stranger).item() for name, measure in measures.items()}


def judged_by_mean(law: sc.Concrete, labels: Tensor, seed: int) -> dict[str, float]:
    """Return ECE and accuracy of the paper's estimate of the probabilities, and the share of labels that it changes."""
    generator = torch.Generator(law.logits.device).manual_seed(seed)
    total = torch.zeros_like(law.logits)
    for _ in range(N_SAMPLES):
        total += law.sample((), generator)
    confidence, label = (total / N_SAMPLES).clamp(max=1).cpu().max(-1)
    correct, changed = label == labels, label != law.logits.argmax(-1).cpu()
    return {
        "ece": ece(confidence, correct).item(),
        "accuracy": correct.double().mean().item(),
        "changed": changed.double().mean().item(),
    }


def judged_by_samples(known: sc.Concrete, unknown: sc.Concrete, seed: int) -> dict[str, float]:
    """Return the AUROC of the paper's estimate of the differential entropy, for each margin."""
    stranger = torch.arange(len(known.logits) + len(unknown.logits)) >= len(known.logits)
    found = {}
    for margin in MARGINS:
        score = torch.cat([sampled_entropy(law, margin, seed) for law in (known, unknown)]).cpu()
        found[f"{margin:g}"] = auroc(score, stranger).item()
    return found


def sampled_entropy(law: sc.Concrete, margin: float, seed: int) -> Tensor:
    """Return the mean of -ln p (N,) over samples π, each moved to (1 - K·margin) π + margin before p is taken."""
    generator = torch.Generator(law.logits.device).manual_seed(seed)
    inside = 1 - law.logits.shape[-1] * margin
    total = torch.zeros_like(law.logits[:, 0])
    for _ in range(N_SAMPLES):
        log_value = law.log_rsample((), generator).detach()
        total -= law.log_prob_from_log(
            (inside * log_value.exp() + margin).log() if margin > 0 else log_value
        )
    return total / N_SAMPLES
