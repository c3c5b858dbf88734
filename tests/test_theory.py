"""The paper's statements about the Concrete distribution, each as a test.

Esaki et al., AISTATS 2024; docs/theory.md derives the moments.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from simplexcal import Concrete

DOUBLE = torch.float64
LOGITS = torch.tensor([1.5, 1.0, 0.0, -2.0], dtype=DOUBLE)


def predictive(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return P(argmax π = k) for K = 2, by integrating the density.

    The integral for class k runs over the part of the simplex where class k is the largest.
    """
    t = torch.linspace(0, 400, 100_001, dtype=DOUBLE)  # π_1 is σ(t) in one part, σ(-t) in the other
    weight = torch.full_like(t, 4e-3)
    weight[0] /= 2  # the trapezoid rule: t = 0 is the common end of both parts
    log_pi = torch.stack([-softplus(-t), -softplus(t)], -1).unsqueeze(1)
    d = Concrete(logits, temperature)
    mass = []
    for part in (log_pi, log_pi.flip(-1)):
        log_density = d.log_prob_from_log(part) + part.sum(-1)
        mass.append((weight[:, None] * log_density.exp()).sum(0))
    return torch.stack(mass, -1)


@pytest.mark.parametrize("lam", [0.1, 1.0, 10.0])
def test_theorem_1_the_predictive_distribution_is_softmax_whatever_the_temperature(
    lam: float, generator: torch.Generator
) -> None:
    n = 200_000
    winner = Concrete(LOGITS, lam).log_rsample((n,), generator).argmax(-1)
    share = torch.bincount(winner, minlength=4) / n
    p = LOGITS.softmax(-1)
    assert ((share - p).abs() <= 5 * (p * (1 - p) / n).sqrt()).all()


@given(seed=integers(0, 2**31), k=integers(2, 30))
def test_theorem_1_the_argmax_of_a_sample_does_not_depend_on_the_temperature(
    seed: int, k: int
) -> None:
    logits = torch.randn(k, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
    winners = [
        Concrete(logits, lam).log_rsample((50,), torch.Generator().manual_seed(seed)).argmax(-1)
        for lam in (0.05, 1.0, 20.0)
    ]
    assert torch.equal(winners[0], winners[1])
    assert torch.equal(winners[0], winners[2])


@pytest.mark.parametrize("lam", [0.5, 1.0, 4.0])
def test_theorem_1_by_integrating_the_density(lam: float) -> None:
    logits = torch.tensor([[0.4, -1.0], [3.0, 2.5]], dtype=DOUBLE)
    temperature = torch.full((2,), lam, dtype=DOUBLE)
    torch.testing.assert_close(
        predictive(logits, temperature), logits.softmax(-1), rtol=0, atol=1e-5
    )


def test_corollary_1_maximum_likelihood_is_cross_entropy(generator: torch.Generator) -> None:
    logits = torch.randn(6, 2, dtype=DOUBLE, generator=generator).requires_grad_()
    temperature = torch.tensor([0.4, 0.7, 1.0, 1.5, 2.0, 4.0], dtype=DOUBLE, requires_grad=True)
    labels = torch.tensor([0, 1, 1, 0, 1, 0])
    nll = -predictive(logits, temperature).gather(1, labels[:, None]).log().mean()
    ours = torch.autograd.grad(nll, (logits, temperature))
    loss = cross_entropy(logits, labels)
    torch.testing.assert_close(nll, loss, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours[0], torch.autograd.grad(loss, logits)[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(ours[1], torch.zeros_like(temperature), rtol=0, atol=1e-5)


def test_remark_1_mass_moves_from_the_apexes_to_the_centre() -> None:
    seeds = {lam: torch.Generator().manual_seed(0) for lam in (0.01, 0.1, 1.0, 10.0, 100.0)}
    largest = torch.stack(
        [Concrete(LOGITS, lam).sample((20_000,), g).amax(-1) for lam, g in seeds.items()]
    )
    assert (largest.diff(dim=0) <= 0).all()  # with the same noise, each sample moves inwards
    assert (largest[0] > 0.99).float().mean() > 0.95
    assert (largest[-1] < 0.30).all()


def test_remark_1_the_variance_changes_with_the_temperature_alone() -> None:
    variance = [
        Concrete(LOGITS, lam).sample((20_000,), torch.Generator().manual_seed(0)).var(0).sum()
        for lam in (0.01, 0.3, 1.0, 3.0, 30.0)
    ]
    assert (torch.stack(variance).diff() < 0).all()


def test_accuracy_is_preserved_where_a_sample_mean_loses_it(generator: torch.Generator) -> None:
    logits = torch.randn(2000, 10, generator=generator)
    temperature = 3 * torch.rand(2000, generator=generator) + 0.1
    d = Concrete(logits, temperature)
    label = logits.argmax(-1)
    assert torch.equal(d.mean.argmax(-1), label)
    assert not torch.equal(d.sample((30,), generator).mean(0).argmax(-1), label)


def test_limit_of_small_temperature_is_the_softmax() -> None:
    m = Concrete(LOGITS, 1e-9).moments()
    torch.testing.assert_close(m.mean, LOGITS.softmax(-1), rtol=0, atol=1e-12)
    assert m.expected_entropy.item() == pytest.approx(0, abs=1e-8)
    softmax_entropy = torch.special.entr(LOGITS.softmax(-1)).sum().item()
    assert m.mutual_information.item() == pytest.approx(softmax_entropy, abs=1e-8)


def test_limit_of_large_temperature_is_the_centre() -> None:
    m = Concrete(LOGITS, 1e9).moments()
    torch.testing.assert_close(m.mean, torch.full((4,), 0.25, dtype=DOUBLE), rtol=0, atol=1e-8)
    assert m.expected_entropy.item() == pytest.approx(math.log(4), abs=1e-8)
    assert m.mutual_information.item() == pytest.approx(0, abs=1e-8)
