"""The README's picture shows what the records say."""

import json
import re
from pathlib import Path

import pytest
import torch
from benchmarks import reliability_picture
from benchmarks.reliability_picture import pool, read_records

from simplexcal.metrics import Bins, reliability

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
    pooled = pool([as_record(reliability(*part, n_bins=10)) for part in parts])
    expected = reliability(*map(torch.cat, zip(*parts, strict=True)), n_bins=10)
    for name, values in expected._asdict().items():
        torch.testing.assert_close(getattr(pooled, name), values, equal_nan=True)


def test_the_picture_has_the_networks_of_the_tables() -> None:
    before = read_records("none")
    after = read_records("sts")
    networks = [(record["setting"], record["seed"]) for record in before]
    assert networks == [(record["setting"], record["seed"]) for record in after]
    assert len(set(networks)) == len(networks)
    n = sum(record["metrics"]["n"] for record in before)
    assert f"*The {len(networks)} networks of" in README
    assert f"Reliability of {len(networks)} networks" in README
    assert f"{n} predictions" in README
    assert f"Of these {len(networks)} networks" in README


def test_the_picture_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reliability_picture, "PICTURE", tmp_path / "picture.png")
    titles = []
    draw = reliability_picture.draw
    monkeypatch.setattr(
        reliability_picture, "draw", lambda ax, *rest: (draw(ax, *rest), titles.append(ax))
    )
    reliability_picture.main()
    for ax, method in zip(titles, ("none", "sts"), strict=True):
        errors = [record["metrics"]["ece"] for record in read_records(method)]
        mean = sum(errors) / len(errors)
        assert f"ECE {mean:.2%}" in ax.get_title(loc="left")
        pooled = re.search(r"ECE ([\d.]+)%", ax.get_legend().get_title().get_text())
        assert pooled is not None
        assert 0 < float(pooled[1]) < 100 * mean  # opposite errors cancel
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
