"""The page on corrupted images says what the records say."""

import importlib
from pathlib import Path
from statistics import fmean
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


CIFAR = ("shift_cifar10", "shift_cifar100")
SEVERITIES = (1, 2, 3, 4, 5)


def mean_scores(render: Any, record: str, severity: int, score: str) -> dict[str, float]:
    """Return the mean of a score over the sets of a severity, for each method."""
    rows = render.of_severity(render.read_record(record)["rows"], severity)
    assert len(rows) == {0: 5}.get(severity, 15)
    return {key: fmean(row["methods"][key][score] for row in rows) for key in rows[0]["methods"]}


@pytest.mark.parametrize("record", CIFAR)
def test_what_the_prose_says_about_the_methods(
    record: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    render = benchmark("render_shift", monkeypatch)
    clean = mean_scores(render, record, 0, "nll")
    assert min(clean, key=lambda key: clean[key]) == "sts"
    keeps = render.read_record(record)["keeps_predictions"]
    for severity in SEVERITIES:
        nll = mean_scores(render, record, severity, "nll")
        ece = mean_scores(render, record, severity, "ece")
        assert nll["ets"] < nll["ts"] < nll["sts"] < nll["iop-diag"]
        assert ece["ets"] < min(ece["ts"], ece["sts"])
        assert min(nll, key=lambda key: nll[key]) in ("ets", "pts", "isotonic")
        aurc = mean_scores(render, record, severity, "aurc")
        confidence = mean_scores(render, record, severity, "confidence")
        accuracy = mean_scores(render, record, severity, "accuracy")
        for key in aurc:
            assert confidence[key] > accuracy[key]
            assert abs(aurc[key] - aurc["none"]) < 0.005 or not keeps[key]


@pytest.mark.parametrize("record", CIFAR)
def test_what_the_prose_says_about_the_reason(record: str, monkeypatch: pytest.MonkeyPatch) -> None:
    render = benchmark("render_shift", monkeypatch)
    rows = render.read_record(record)["rows"]

    def part(severity: int, key: str, name: str) -> float:
        found = render.of_severity(rows, severity)
        return fmean(row["divided"][key][name] for row in found)

    def whole(severity: int, key: str) -> float:
        return part(severity, key, "right_or_wrong") + part(severity, key, "which_other")

    for key in ("ts", "sts"):
        assert whole(5, key) == pytest.approx(mean_scores(render, record, 5, "nll")[key], rel=1e-4)
    distance = part(5, "sts", "which_other") - part(5, "ts", "which_other")
    assert distance > 0.9 * (whole(5, "sts") - whole(5, "ts"))
    assert whole(0, "sts-straight") > max(whole(0, "sts"), whole(0, "sts-first"))
    for severity in SEVERITIES:
        assert whole(severity, "sts-straight") < whole(severity, "ts")
        assert whole(severity, "sts-first") > whole(severity, "ts")
        assert whole(severity, "sts-classless") > whole(severity, "ts")
    first, last = render.read_record(record)["slopes"]
    assert last < 1 < first
    shares = [
        fmean(row["runner_up"] for row in render.of_severity(rows, severity))
        for severity in (0, *SEVERITIES)
    ]
    assert shares == sorted(shares, reverse=True)


def test_what_the_prose_says_about_the_reason_of_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    render = benchmark("render_shift", monkeypatch)
    worst = render.of_severity(render.read_record("shift")["rows"], 5)

    def mean(key: str, name: str) -> float:
        return fmean(row["divided"][key][name] for row in worst)

    parts = [mean("sts", name) - mean("ts", name) for name in ("right_or_wrong", "which_other")]
    assert parts[0] == pytest.approx(0.9 * sum(parts), rel=0.01)
    distance = mean("sts", "ece") - mean("ts", "ece")
    assert distance > 0
    assert mean("sts-classless", "ece") - mean("ts", "ece") < 0.1 * distance
    assert mean("sts-first", "ece") - mean("ts", "ece") < 0.5 * distance


@pytest.mark.parametrize("record", CIFAR)
def test_what_the_prose_says_about_estimates_and_verdicts(
    record: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    render = benchmark("render_shift", monkeypatch)
    rows = render.read_record(record)["rows"]
    for severity in SEVERITIES:
        found = [batch for row in render.of_severity(rows, severity) for batch in row["estimates"]]
        errors = {
            key: fmean(abs(batch[key] - batch["accuracy"]) for batch in found)
            for key in ("shift-aware", "atc", "confidence")
        }
        closest = "shift-aware"
        if record == "shift_cifar100" and severity < 3:
            closest = "atc"
        assert min(errors, key=lambda key: errors[key]) == closest
    for key in errors:
        assert fmean(batch[key] - batch["accuracy"] for batch in found) > 0
    inside = [batch["interval"][0] <= batch["accuracy"] <= batch["interval"][1] for batch in found]
    assert sum(inside) in (1, 2)
    clean = mean_scores(render, record, 0, "ece")["sts"]
    for row in rows:
        is_alarm = row["verdicts"] == ["recalibrate"]
        assert not (is_alarm and row["severity"] == 0)
        if row["severity"] >= 4 and not is_alarm:
            assert row["methods"]["sts"]["ece"] < clean + 0.01
    if record == "shift_cifar100":
        missed = [row for row in rows if "recalibrate" not in row["verdicts"]]
        lowest = min(row["methods"]["sts"]["accuracy"] for row in missed)
        assert mean_scores(render, record, 0, "accuracy")["sts"] - lowest == pytest.approx(
            0.12, abs=0.005
        )
