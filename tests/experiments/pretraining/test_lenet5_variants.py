from pathlib import Path

import pytest
import torch
from experiments.pretraining import lenet5_variants
from experiments.pretraining.lenet5_variants import VARIANTS, LeNet5Variant
from helpers import tiny

from simplexcal.demo.lenet5 import LeNet5


def test_the_demos_network_is_the_variant_nearest_to_the_paper(generator: torch.Generator) -> None:
    variant, net = LeNet5Variant(**VARIANTS[lenet5_variants.nearest_to_paper()]), LeNet5()
    variant.load_state_dict(dict(zip(variant.state_dict(), net.state_dict().values(), strict=True)))
    images = torch.randn(3, 1, 28, 28, generator=generator)
    assert torch.equal(variant(images), net(images))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_takes_the_images(name: str) -> None:
    assert LeNet5Variant(**VARIANTS[name])(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_the_variants_are_trained_and_evaluated(tmp_path: Path) -> None:
    tiny.write_fashion_mnist(tmp_path)
    found = tmp_path / "variants.jsonl"
    lenet5_variants.run(tmp_path, "cpu", found, epochs=1)
    assert len(found.read_text().splitlines()) == 2 * len(VARIANTS)
    evaluated = lenet5_variants.read(found)
    assert [[e.seed for e in seeds] for seeds in evaluated.values()] == [[0, 1]] * len(VARIANTS)
    assert lenet5_variants.nearest_to_paper(found) in VARIANTS
