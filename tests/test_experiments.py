"""The experiments' own code, as far as it runs without their data."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from scipy.stats import mannwhitneyu

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from experiments import lenet5_forms, lenet5_ood, lenet5_page, render  # noqa: E402

from simplexcal.demo.lenet5 import LeNet5  # noqa: E402


def test_the_results_page_is_what_the_records_say() -> None:
    assert render.PAGE.read_text() == render.render()
    assert render.README.read_text() == render.readme(render.README.read_text())
    for path in re.findall(r"\]\((figures/[^)]*)\)", render.render()):
        assert (render.PAGE.parent / path).is_file()


def test_auroc_is_the_mann_whitney_statistic(generator: torch.Generator) -> None:
    inside = torch.randint(10, (50,), generator=generator).float()
    outside = torch.randint(5, 15, (70,), generator=generator).float()
    expected = mannwhitneyu(outside.numpy(), inside.numpy()).statistic / (50 * 70)
    assert abs(lenet5_ood.told_apart(inside, outside) - expected) < 1e-12


def test_the_demos_network_is_the_form_nearest_to_the_paper(generator: torch.Generator) -> None:
    nearest = lenet5_forms.nearest(lenet5_page.RESULTS / "lenet5_forms.jsonl", lenet5_page.PAPER_ACCURACY)
    form, net = lenet5_forms.Form(**lenet5_forms.FORMS[nearest]), LeNet5()
    form.load_state_dict(dict(zip(form.state_dict(), net.state_dict().values(), strict=True)))
    images = torch.randn(3, 1, 28, 28, generator=generator)
    assert torch.equal(form(images), net(images))


@pytest.mark.parametrize("name", lenet5_forms.FORMS)
def test_every_form_takes_the_images(name: str) -> None:
    assert lenet5_forms.Form(**lenet5_forms.FORMS[name])(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_a_cell_is_above_only_by_more_than_its_spread(tmp_path: Path) -> None:
    flat = dict.fromkeys(lenet5_ood.SCORES, 0.5)
    cells = [{"mixup": m, "beta": b, **flat} for m in lenet5_ood.MIXES for b in lenet5_ood.BETAS for _ in range(2)]
    cells[0]["entropy"], cells[1]["entropy"] = 0.8, 0.9  # 0.85 ± 0.071
    path = tmp_path / "ood.jsonl"
    path.write_text("\n".join(json.dumps(cell) for cell in cells))
    assert lenet5_ood.above(path, 0.77) == ["differential entropy, FeatureMixup, β = 0.5"]
    assert lenet5_ood.above(path, 0.79) == []
