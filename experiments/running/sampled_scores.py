"""Scores beside the library's own: the network's energy, and the paper's estimates.

The paper estimates from 30 samples (Appendix E): the probabilities by their mean, the differential
entropy by the mean of -ln p. The density has poles at the border of the simplex, where most
samples of a confident prediction lie, so it matters how near to it they may come. The entropy is
therefore estimated with samples that are kept a margin away, too.
"""

import torch
from torch import Tensor

import simplexcal as sc
from experiments.config.paper import N_BINS
from simplexcal.metrics import aupr, auroc, ece, fpr_at_tpr

N_SAMPLES = 30
MARGINS = (0.0, 1e-7, 1e-5, 1e-3)


def energy_scores(in_distribution: sc.Outputs, ood: sc.Outputs) -> dict[str, float]:
    """Return how well the network's energy, -logsumexp of the logits (Liu et al. 2020), detects.

    Args:
        in_distribution: Outputs for in-distribution inputs.
        ood: Outputs for out-of-distribution inputs.
    """
    score = -torch.cat([in_distribution.logits, ood.logits]).logsumexp(-1)
    is_ood = torch.arange(len(score)) >= len(in_distribution)
    return {
        "energy_auroc": auroc(score, is_ood).item(),
        "energy_aupr": aupr(score, is_ood).item(),
        "energy_fpr_95": fpr_at_tpr(score, is_ood).item(),
    }


def sampled_mean_scores(distribution: sc.Concrete, labels: Tensor, seed: int) -> dict[str, float]:
    """Return ECE and accuracy of the paper's estimate, and the share of labels that it changes.

    Args:
        distribution: The predicted distributions of N inputs.
        labels: Their classes (N,).
        seed: Decides the samples.
    """
    logits = distribution.logits
    generator = torch.Generator(logits.device).manual_seed(seed)
    total = torch.zeros_like(logits)
    for _ in range(N_SAMPLES):
        total += distribution.sample((), generator)
    confidence, label = (total / N_SAMPLES).clamp(max=1).cpu().max(-1)
    correct = label == labels
    changed = label != logits.argmax(-1).cpu()
    return {
        "ece": ece(confidence, correct, N_BINS).item(),
        "accuracy": correct.double().mean().item(),
        "changed": changed.double().mean().item(),
    }


def sampled_entropy_auroc(
    in_distribution: sc.Concrete, ood: sc.Concrete, seed: int
) -> dict[str, float]:
    """Return the AUROC of the paper's estimate of the differential entropy, for each margin.

    Args:
        in_distribution: Predicted distributions of in-distribution inputs.
        ood: Predicted distributions of out-of-distribution inputs.
        seed: Decides the samples.
    """
    n_in = len(in_distribution.logits)
    is_ood = torch.arange(n_in + len(ood.logits)) >= n_in
    found = {}
    for margin in MARGINS:
        known = sampled_entropy(in_distribution, margin, seed)
        unknown = sampled_entropy(ood, margin, seed)
        score = torch.cat([known, unknown]).cpu()
        found[f"{margin:g}"] = auroc(score, is_ood).item()
    return found


def sampled_entropy(distribution: sc.Concrete, margin: float, seed: int) -> Tensor:
    """Return the mean of -ln p over samples π, (N,).

    Args:
        distribution: The predicted distributions of N inputs.
        margin: Each π of K classes is moved to (1 - K·margin) π + margin before p is taken.
        seed: Decides the samples.
    """
    logits = distribution.logits
    generator = torch.Generator(logits.device).manual_seed(seed)
    inside = 1 - logits.shape[-1] * margin
    total = torch.zeros_like(logits[:, 0])
    for _ in range(N_SAMPLES):
        log_value = distribution.log_rsample((), generator).detach()
        if margin > 0:
            log_value = (inside * log_value.exp() + margin).log()
        total -= distribution.log_prob_from_log(log_value)
    return total / N_SAMPLES
