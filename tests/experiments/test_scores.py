import math

import pytest
import torch
from experiments.scores import MARGINS, judged_by_energy, judged_by_samples, sampled_entropy

import simplexcal as sc


def law_of(scale: float, generator: torch.Generator, n: int = 4000) -> sc.Concrete:
    return sc.Concrete(scale * torch.randn(n, 5, generator=generator), 0.8)


def test_without_a_margin_it_estimates_the_differential_entropy(generator: torch.Generator) -> None:
    law = law_of(2.0, generator)
    estimate, exact = sampled_entropy(law, 0.0, 0), law.entropy()
    error = estimate - exact
    assert abs(error.mean()) < 4 * error.std() / math.sqrt(len(error))
    assert 0.2 < error.std() < 2  # of 30 samples


def test_with_the_largest_margin_every_sample_is_the_centre(generator: torch.Generator) -> None:
    law = law_of(2.0, generator, 10)
    torch.testing.assert_close(
        sampled_entropy(law, 0.2, 0), -law.log_prob(torch.full((10, 5), 0.2)), rtol=1e-4, atol=1e-4
    )


def test_samples_tell_a_sure_law_from_an_unsure_one(generator: torch.Generator) -> None:
    found = judged_by_samples(law_of(3.0, generator, 200), law_of(0.1, generator, 100), seed=0)
    assert list(found) == [f"{margin:g}" for margin in MARGINS]
    assert all(area > 0.9 for area in found.values())


def test_the_energy_by_hand() -> None:
    known, unknown = sc.Outputs(torch.tensor([[5.0, 0.0], [3.0, 0.0]])), sc.Outputs(torch.tensor([[4.0, 0.0]]))
    assert judged_by_energy(known, unknown)["energy_auroc"] == pytest.approx(0.5)
