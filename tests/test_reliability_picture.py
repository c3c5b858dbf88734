"""The README's picture shows what the records say."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from simplexcal.metrics import Bins, reliability

# A plain import would give mypy the file under two names.
picture: Any = importlib.import_module("benchmarks.reliability_picture")
README = (Path(__file__).parents[1] / "README.md").read_text()


def as_record(bins: Bins) -> dict[str, object]:
    """Return bins as the records hold them: an empty bin has no means."""
    columns = {name: values.tolist() for name, values in bins._asdict().items()}
    for name in ("confidence", "accuracy"):
        columns[name] = [None if value != value else value for value in columns[name]]
    decoded: dict[str, object] = json.loads(json.dumps(columns))
    return decoded


def test_pooled_bins_are_those_of_all_predictions(generator: torch.Generator) -> None:
    parts = []
    for n in (50, 400):
        confidence = 0.3 + 0.7 * torch.rand(n, generator=generator)
        parts.append((confidence, torch.rand(n, generator=generator) < confidence))
    pooled = picture.pool([as_record(reliability(*part, n_bins=10)) for part in parts])
    confidence, correct = map(torch.cat, zip(*parts, strict=True))
    expected = reliability(confidence, correct, n_bins=10)
    for name, values in expected._asdict().items():
        torch.testing.assert_close(getattr(pooled, name), values, equal_nan=True)


def test_the_picture_has_the_networks_of_the_tables() -> None:
    before = picture.read_records("none")
    after = picture.read_records("sts")
    networks = [(record["setting"], record["seed"]) for record in before]
    assert networks == [(record["setting"], record["seed"]) for record in after]
    assert len(set(networks)) == len(networks)
    n = sum(record["metrics"]["n"] for record in before)
    assert f"*The {len(networks)} networks of" in README
    assert f"Reliability of {len(networks)} networks" in README
    assert f"{n} predictions" in README
    assert f"Of these {len(networks)} networks" in README


def test_the_picture_says_both_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "PICTURE", tmp_path / "picture.png")
    drawn: list[Any] = []
    draw = picture.draw

    def draw_and_keep(ax: Any, *rest: Any) -> None:
        draw(ax, *rest)
        drawn.append(ax)

    monkeypatch.setattr(picture, "draw", draw_and_keep)
    picture.main()
    for ax, method in zip(drawn, ("none", "sts"), strict=True):
        errors = [record["metrics"]["ece"] for record in picture.read_records(method)]
        mean = sum(errors) / len(errors)
        assert f"ECE {mean:.2%}" in ax.get_title(loc="left")
        pooled = re.search(r"ECE ([\d.]+)%", ax.get_legend().get_title().get_text())
        assert pooled is not None
        assert 0 < float(pooled[1]) < 100 * mean  # opposite errors cancel
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
