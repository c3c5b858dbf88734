import math

import pytest
import torch
from experiments.running.sampled_scores import (
    MARGINS,
    energy_scores,
    sampled_entropy,
    sampled_entropy_auroc,
    sampled_mean_scores,
)

import simplexcal as sc


def distribution(scale: float, generator: torch.Generator, n: int = 4000) -> sc.Concrete:
    return sc.Concrete(scale * torch.randn(n, 5, generator=generator), 0.8)


def test_without_a_margin_it_estimates_the_differential_entropy(generator: torch.Generator) -> None:
    predicted = distribution(2.0, generator)
    estimate, exact = sampled_entropy(predicted, 0.0, 0), predicted.entropy()
    error = estimate - exact
    assert abs(error.mean()) < 4 * error.std() / math.sqrt(len(error))
    assert 0.2 < error.std() < 2  # of 30 samples


def test_with_the_largest_margin_every_sample_is_the_centre(generator: torch.Generator) -> None:
    predicted = distribution(2.0, generator, 10)
    torch.testing.assert_close(
        sampled_entropy(predicted, 0.2, 0),
        -predicted.log_prob(torch.full((10, 5), 0.2)),
        rtol=1e-4,
        atol=1e-4,
    )


def test_samples_detect_inputs_with_a_flat_distribution(generator: torch.Generator) -> None:
    found = sampled_entropy_auroc(
        distribution(3.0, generator, 200), distribution(0.1, generator, 100), seed=0
    )
    assert list(found) == [f"{margin:g}" for margin in MARGINS]
    assert all(area > 0.9 for area in found.values())


def test_the_mean_of_samples_changes_labels_that_are_nearly_tied() -> None:
    logits = torch.tensor([[20.0, 0.0, 0.0]] * 300 + [[0.1, 0.0, -20.0]] * 700)
    found = sampled_mean_scores(sc.Concrete(logits, 0.1), torch.zeros(1000), 0)
    p = 1 / (
        1 + math.exp(-0.1)
    )  # each sample is nearly a vertex: 30 draws of a coin for the tied, who lose below 15
    wins = [math.comb(30, k) * p**k * (1 - p) ** (30 - k) for k in range(31)]
    loses = sum(wins[:15]) + wins[15] / 2
    assert found["changed"] == pytest.approx(
        0.7 * loses, abs=4 * 0.7 * math.sqrt(loses * (1 - loses) / 700)
    )
    assert found["accuracy"] == pytest.approx(1 - found["changed"])


def test_the_mean_of_samples_is_evaluated_by_its_own_label() -> None:
    predicted = sc.Concrete(torch.tensor([[20.0, 0.0, 0.0]] * 10), 0.1)
    assert sampled_mean_scores(predicted, torch.zeros(10), 0) == pytest.approx(
        {"ece": 0.0, "accuracy": 1.0, "changed": 0.0}
    )
    assert sampled_mean_scores(predicted, torch.ones(10), 0) == pytest.approx(
        {"ece": 1.0, "accuracy": 0.0, "changed": 0.0}
    )


def test_the_energy_by_hand() -> None:
    known, unknown = (
        sc.Outputs(torch.tensor([[5.0, 0.0], [3.0, 0.0]])),
        sc.Outputs(torch.tensor([[4.0, 0.0]])),
    )
    assert energy_scores(known, unknown)["energy_auroc"] == pytest.approx(0.5)
