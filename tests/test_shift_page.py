"""The page on corrupted images says what the records say."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]


def benchmark(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module(name)


def test_the_page_is_rendered_from_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    render = benchmark("render_shift", monkeypatch)
    page = render.PAGE.read_text()
    assert render.render(page) == page
    for name in render.TABLES:
        assert f"<!-- table {name} -->" in page


def test_corruptions_grow_with_severity_and_are_always_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    corruptions = benchmark("_corruptions", monkeypatch)
    generator = torch.Generator().manual_seed(0)
    smooth = torch.rand(20, 1, 4, 4, generator=generator)
    images = torch.nn.functional.interpolate(smooth, size=28, mode="bicubic").clamp(0, 1)
    images = (255 * images).squeeze(1).byte()
    for name in corruptions.CORRUPTIONS:
        changes = []
        for severity in corruptions.SEVERITIES:
            found = corruptions.corrupt(name, images, severity)
            assert (found.dtype, found.shape) == (torch.uint8, images.shape)
            assert found.equal(corruptions.corrupt(name, images, severity))
            changes.append(float((found.float() - images.float()).square().mean()))
        assert sorted(changes) == changes, name
        assert changes[0] > 0
