"""`monitor`: the rule, the expected accuracy, files and predictions, the page, and bad input."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import simplexcal as sc
from simplexcal.drift import measure_drift
from simplexcal.io.tables import write_predictions
from simplexcal.monitoring import decide


def sample(n: int, seed: int, sharpness: float = 2.0) -> tuple[sc.Prediction, torch.Tensor]:
    """Return calibrated predictions with an uncertainty, and labels that are drawn from them."""
    generator = torch.Generator().manual_seed(seed)
    probs = (sharpness * torch.randn(n, 3, generator=generator)).softmax(-1)
    labels = torch.multinomial(probs, 1, generator=generator).squeeze(-1)
    prediction = sc.Prediction(probs, probs.argmax(-1), epistemic=probs.log().mean(-1))
    return prediction, labels


REFERENCE = sample(3000, 0)


@pytest.mark.parametrize(
    ("n", "sharpness", "verdict"),
    [(3000, 2.0, "steady"), (3000, 1.0, "recalibrate"), (100, 2.0, "undecided")],
)
def test_the_verdict(n: int, sharpness: float, verdict: str) -> None:
    found = sc.monitor(REFERENCE[0], sample(n, 1, sharpness)[0])
    assert found.verdict == verdict
    assert [drift.score for drift in found.drifts] == ["confidence", "epistemic"]
    assert found.finding.lower().startswith(verdict)
    assert (found.n_reference, found.n) == (3000, n)
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    assert found.remedy in " ".join(text.split())


def test_the_rule_at_its_bounds() -> None:
    generator = torch.Generator().manual_seed(0)
    drift = measure_drift(
        "x", torch.randn(900, generator=generator), torch.randn(900, generator=generator) + 1, 0.95
    )
    assert decide((drift,), drift.high) == "steady"
    assert decide((drift,), drift.high - 1e-9) == "undecided"
    assert decide((drift,), drift.low) == "undecided"
    assert decide((drift,), drift.low - 1e-9) == "recalibrate"
    alike = measure_drift("x", torch.arange(900.0), torch.arange(900.0), 0.95)
    assert decide((alike, drift), drift.low - 1e-9) == "recalibrate"
    assert decide((alike, drift), drift.high) == "steady"


def test_a_smaller_sample_asks_for_as_many_inputs_as_would_do() -> None:
    found = sc.monitor(REFERENCE[0], sample(100, 1)[0])
    needed = int(re.findall(r"about (\d+) inputs", found.remedy)[0])
    assert sc.monitor(sample(needed, 2)[0], sample(needed, 3)[0]).verdict == "steady"


def test_intervals_hold_together() -> None:
    (one,) = sc.monitor(REFERENCE[0].probs, sample(500, 1)[0].probs).drifts
    assert one.level == pytest.approx(0.95)
    both = sc.monitor(REFERENCE[0], sample(500, 1)[0]).drifts
    assert [drift.level for drift in both] == [pytest.approx(0.975)] * 2
    assert both[0].distance == one.distance


@pytest.mark.parametrize("method", ["shift-aware", "atc", "confidence", None])
def test_the_accuracy_is_that_of_estimate_accuracy(method: Any) -> None:
    batch = sample(400, 1, sharpness=1.0)[0]
    found = sc.monitor(REFERENCE, batch, method=method)
    assert found.accuracy == sc.estimate_accuracy(batch, reference=REFERENCE, method=method)
    correct = REFERENCE[0].label == REFERENCE[1]
    assert found.reference_accuracy == pytest.approx(float(correct.double().mean()))


def test_without_labels_the_accuracy_is_the_mean_confidence() -> None:
    batch = sample(400, 1)[0]
    found = sc.monitor(REFERENCE[0], batch)
    assert found.reference_accuracy is None
    assert found.accuracy == sc.estimate_accuracy(batch)
    assert "reference has" not in found.expectation


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
def test_files_say_the_same(suffix: str, tmp_path: Path) -> None:
    batch = sample(400, 1)[0]
    reference = tmp_path / f"reference{suffix}"
    known, labels = sample(500, 0)
    write_predictions(reference, known, labels=labels)
    write_predictions(tmp_path / f"batch{suffix}", batch)
    found = sc.monitor(reference, str(tmp_path / f"batch{suffix}"))
    expected = sc.monitor((known, labels), batch)
    assert [d.distance for d in found.drifts] == [d.distance for d in expected.drifts]
    assert found.accuracy.estimate == pytest.approx(expected.accuracy.estimate, abs=1e-6)
    paired = sc.monitor((reference, labels), batch)
    assert paired.accuracy.estimate == pytest.approx(found.accuracy.estimate, abs=1e-6)


def test_the_record_is_json_without_the_percentiles() -> None:
    found = sc.monitor(REFERENCE, sample(400, 1)[0])
    record = json.loads(json.dumps(found.as_dict()))
    assert record["verdict"] == "undecided"
    assert record["accuracy"]["method"] == "shift-aware"
    assert list(record["drifts"][0])[:4] == ["score", "distance", "low", "high"]
    assert "reference_percentiles" not in record["drifts"][0]
    assert record["remedy"] == found.remedy


def test_the_page(tmp_path: Path) -> None:
    found = sc.monitor(REFERENCE, sample(2000, 1, sharpness=1.0)[0], method="atc")
    path = found.write_report(
        tmp_path / "page.html", title="<b> & co", sources={"Batch": "monday.parquet"}
    )
    page = path.read_text()
    assert "<title>&lt;b&gt; &amp; co</title>" in page
    assert found.finding in page
    assert found.remedy in page
    assert "monday.parquet" in page
    assert page.count('role="img"') == 2
    # Nothing is loaded and nothing runs.
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'\"" in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    for x, y in re.findall(r"[ML](-?[\d.]+),(-?[\d.]+)", page):
        assert 44 <= float(x) <= 460
        assert 0 <= float(y) <= 212


def test_equal_scores_have_a_picture_too(tmp_path: Path) -> None:
    probs = torch.tensor([[0.75, 0.25]] * 10)
    page = sc.monitor(probs, probs).write_report(tmp_path / "page.html").read_text()
    (path, _) = re.findall(r'd="(M[^ "]*,[^"]*)" stroke="var\(--(?:correct|wrong)', page)
    assert set(path.removeprefix("M").split(" L")) == {
        f"44.0,{round(2.12 * p, 1)}" for p in range(101)
    }


WITHOUT = sc.Prediction(REFERENCE[0].probs, REFERENCE[0].label)
DENSE = sc.Prediction(torch.full((2, 3, 4), 0.25), torch.zeros(2, 3, dtype=torch.long))
NOT_FINITE = sc.Prediction(
    REFERENCE[0].probs, REFERENCE[0].label, epistemic=torch.full((3000,), torch.nan)
)


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: sc.monitor(REFERENCE, WITHOUT), ValueError, "the scores of `reference`"),
        (lambda: sc.monitor(DENSE, DENSE), ValueError, "one class for each input"),
        (lambda: sc.monitor(REFERENCE, NOT_FINITE), ValueError, "`epistemic` must be finite"),
        (lambda: sc.monitor(REFERENCE, REFERENCE), TypeError, "`batch` must be predictions alone"),
        (lambda: sc.monitor(REFERENCE, REFERENCE[0], level=1.5), ValueError, "`level`"),
        (lambda: sc.monitor(REFERENCE, REFERENCE[0], tolerance=-1), ValueError, "`tolerance`"),
        (
            lambda: sc.monitor(REFERENCE, REFERENCE[0], method="x"),  # type: ignore[arg-type]
            ValueError,
            "`method` must be one of",
        ),
        (
            lambda: sc.monitor(REFERENCE[0], REFERENCE[0], method="atc"),
            ValueError,
            "`method` must be 'confidence' for a reference without labels",
        ),
        (
            lambda: sc.monitor(torch.full((5, 4), 0.25), torch.full((5, 3), 1 / 3)),
            ValueError,
            "the 4 classes of `reference`",
        ),
        (
            lambda: sc.monitor(torch.full((5, 4), 0.25), torch.full((0, 4), 0.25)),
            ValueError,
            "is empty",
        ),
        (
            lambda: sc.monitor((WITHOUT, REFERENCE[1][:-1]), WITHOUT),
            ValueError,
            "`labels` must have",
        ),
        (lambda: sc.monitor(REFERENCE, torch.randn(9, 3)), ValueError, "`probs` must be"),
    ],
)
def test_bad_input(call: Callable[[], object], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error) as raised:
        call()
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
