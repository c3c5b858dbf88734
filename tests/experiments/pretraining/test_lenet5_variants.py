from pathlib import Path

import pytest
import torch
from experiments.pretraining import lenet5_variants as lenet5_forms
from experiments.pretraining.lenet5_variants import FORMS, Form
from helpers import tiny

from simplexcal.demo.lenet5 import LeNet5


def test_the_demos_network_is_the_form_nearest_to_the_paper(generator: torch.Generator) -> None:
    form, net = Form(**FORMS[lenet5_forms.nearest()]), LeNet5()
    form.load_state_dict(dict(zip(form.state_dict(), net.state_dict().values(), strict=True)))
    images = torch.randn(3, 1, 28, 28, generator=generator)
    assert torch.equal(form(images), net(images))


@pytest.mark.parametrize("name", FORMS)
def test_every_form_takes_the_images(name: str) -> None:
    assert Form(**FORMS[name])(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_the_forms_are_trained_and_judged(tmp_path: Path) -> None:
    tiny.write_fashion_mnist(tmp_path)
    found = tmp_path / "forms.jsonl"
    lenet5_forms.run(tmp_path, "cpu", found, epochs=1)
    assert len(found.read_text().splitlines()) == 2 * len(FORMS)
    assert all(f"\n| {name} | " in lenet5_forms.section(found) for name in FORMS)
