"""The experiments' own code, as far as it runs without their data."""

import sys
from pathlib import Path

import torch
from scipy.stats import mannwhitneyu

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from experiments import lenet5, lenet5_ood, render  # noqa: E402
from experiments.networks import ResNet18  # noqa: E402


def test_the_results_page_is_what_the_records_say() -> None:
    assert render.PAGE.read_text() == render.render()
    assert render.README.read_text() == render.readme(render.README.read_text())


def test_auroc_is_the_mann_whitney_statistic(generator: torch.Generator) -> None:
    inside = torch.randint(10, (50,), generator=generator).float()
    outside = torch.randint(5, 15, (70,), generator=generator).float()
    expected = mannwhitneyu(outside.numpy(), inside.numpy()).statistic / (50 * 70)
    assert abs(lenet5_ood.auroc(inside, outside) - expected) < 1e-12


def test_the_noise_floor_of_certain_predictions_is_zero() -> None:
    assert lenet5.floor(torch.ones(100), 10) == (0.0, 0.0)


def test_the_split_is_the_papers() -> None:
    fit, test = lenet5.split(10_000)
    assert len(fit) == len(test) == 5000
    assert sorted([*fit.tolist(), *test.tolist()]) == list(range(10_000))


def test_resnet18_has_the_published_size_for_cifar() -> None:
    net = ResNet18()
    assert sum(p.numel() for p in net.parameters()) == 11_173_962
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
