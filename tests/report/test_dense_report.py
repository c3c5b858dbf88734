"""The report on tokens and pixels: its counts beside those of rows, its pictures, its page."""

import base64
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import browser
from PIL import Image
from playwright.sync_api import Browser
from torch import Generator, Tensor, nn

from simplexcal import Prediction, SimplexTemperatureScaling, calibrate, evaluate_dense
from simplexcal.dense import prediction_maps
from simplexcal.dense_evaluation import ImageSums, prediction_rows
from simplexcal.metrics import aurc
from simplexcal.report import DenseReport, chart_data, write_report
from simplexcal.report._classes import class_errors, class_table, confused_pairs
from simplexcal.report._dense_sums import N_LEVELS, DenseCounts, dense_bin_rows
from simplexcal.report._overlays import Example, Maps, Range, panels, scale_colours, value_ranges

K = 4
SHAPE = (12, 6, 5)  # of the labels of images


def dense_prediction(shape: tuple[int, ...], seed: int = 0) -> tuple[Prediction, Tensor]:
    """Return predictions with uncertainties for pixels or tokens, and labels."""
    g = Generator().manual_seed(seed)
    n = int(np.prod(shape))
    probs = (2 * torch.randn(n, K, generator=g)).softmax(-1)
    entropy = torch.special.entr(probs).sum(-1)
    rows = Prediction(probs, probs.argmax(-1), 0.9 * entropy, entropy - 3, 0.1 * entropy)
    labels = probs.multinomial(1, generator=g).view(shape)
    return prediction_maps(rows, shape), labels


def page_data(path: Path) -> Any:
    """Return the numbers that the page holds."""
    text = re.search(r'<script id="data" type="application/json">(.*?)</script>', path.read_text())
    assert text is not None
    return json.loads(text[1])


# --- counts ---


@pytest.fixture(scope="module")
def counted() -> tuple[DenseCounts, Prediction, Tensor]:
    """Return the counts of two batches, and all their rows."""
    prediction, labels = dense_prediction(SHAPE)
    rows = prediction_rows(prediction)
    labels = labels.flatten()
    counts = DenseCounts(K)
    counts.add(rows[:100], labels[:100])
    counts.add(rows[100:100], labels[100:100])
    counts.add(rows[100:], labels[100:])
    return counts, rows, labels


def test_counts_at_thresholds_are_those_of_the_rows(counted: Any) -> None:
    counts, rows, labels = counted
    expected = chart_data.threshold_levels(rows, rows.label == labels)
    found = counts.threshold_levels()
    assert found["kept"] == expected["kept"]
    for name in ("confidence", "accuracy"):
        pairs = zip(found[name], expected[name], strict=True)
        assert all(a == b or a == pytest.approx(b, abs=1e-6) for a, b in pairs)


def test_the_curve_and_its_area_are_those_of_the_rows(counted: Any) -> None:
    counts, rows, labels = counted
    correct = rows.label == labels
    # Confidences of one level are ties.
    levels = (rows.confidence.double() * N_LEVELS).floor() / N_LEVELS
    assert counts.aurc() == pytest.approx(aurc(levels, correct).item(), abs=1e-12)
    curve = counts.curve_rows("sts")
    assert curve[-1]["coverage"] == 1
    assert curve[-1]["risk"] == round(1 - correct.double().mean().item(), 4)
    for row in curve[::40]:
        # So many are at least as confident as the last one that is taken.
        n = round(row["coverage"] * len(labels))
        chosen = levels >= levels.sort(descending=True).values[n - 1]
        assert int(chosen.sum()) == n
        assert row["risk"] == pytest.approx(1 - correct[chosen].double().mean().item(), abs=1e-4)


def test_classes_and_mistakes_are_those_of_the_rows(counted: Any) -> None:
    counts, rows, labels = counted
    names = ["a", "b", "c", "d"]
    n_label = labels.bincount(minlength=K)
    errors = class_errors(rows, labels, 15)
    assert counts.class_rows(n_label, errors, names) == class_table(rows, labels, names, 15)
    pairs = counts.confused_pairs(n_label, names)
    assert len(pairs) == 10
    assert {(p.label, p.prediction, p.n) for p in pairs} <= {
        (names[i], names[j], str(int(((labels == i) & (rows.label == j)).sum())))
        for i in range(K)
        for j in range(K)
    }
    assert pairs[0] == confused_pairs(rows, labels, names)[0]


def test_the_interval_of_a_bin_is_binomial_where_an_input_is_one_position() -> None:
    n = torch.ones(100, 1, dtype=torch.float64)
    correct = (torch.arange(100).view(100, 1) < 80).double()
    sums = ImageSums(n, 0.9 * n, correct, n.squeeze(1), n.squeeze(1))
    (row,) = dense_bin_rows("sts", sums, 1)
    assert (row["accuracy"], row["count"]) == (0.8, 100)
    assert row["high"] - 0.8 == pytest.approx(1.96 * (0.8 * 0.2 / 100) ** 0.5, abs=1e-4)
    assert row["state"] == "over-confident"


def test_the_interval_of_a_bin_counts_inputs_not_positions() -> None:
    n = torch.full((10, 1), 50.0, dtype=torch.float64)
    correct = 50 * (torch.arange(10).view(10, 1) < 8).double()
    sums = ImageSums(n, 0.9 * n, correct, n.squeeze(1), n.squeeze(1))
    (row,) = dense_bin_rows("sts", sums, 1)
    assert row["high"] == pytest.approx(min(1, 0.8 + 1.96 * (0.8 * 0.2 / 10) ** 0.5), abs=1e-4)
    alone = ImageSums(*[x[:1] for x in sums])
    assert dense_bin_rows("sts", alone, 1)[0]["state"] == "calibrated"


# --- pictures ---


def example(**changes: Any) -> Example:
    """Return an input of 2 x 3 pixels; the last one does not count."""
    maps = Maps(
        label=torch.tensor([[0, 1, 2], [0, 1, 2]]),
        confidence=torch.tensor([[0.0, 0.5, 1.0], [0.2, 0.4, 0.6]]),
        aleatoric=torch.arange(6.0).view(2, 3),
        epistemic=None,
    )
    labels = torch.tensor([[0, 1, 2], [0, 2, 0]])
    counts = torch.tensor([[True, True, True], [True, True, False]])
    made = Example("7", labels, counts, maps, None, 0.5, torch.zeros(3, 4, 6))
    return replace(made, **changes)


def decoded(uri: str) -> np.ndarray:
    """Return the pixels of a data URI."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))))


def test_panels_show_classes_mistakes_and_values() -> None:
    shown = panels(example(), value_ranges([example()]), "STS")
    titles = ["Input", "True classes", "Predicted", "Mistakes", "Confidence", "Aleatoric"]
    assert [panel.title for panel in shown] == titles
    pictures = {panel.title: decoded(panel.picture) for panel in shown}
    assert all(picture.shape == (2, 3, 3) for picture in pictures.values())
    assert not pictures["Input"].any()
    # The same class has the same colour; the pixel that does not count has none.
    true = pictures["True classes"]
    assert (true[0] == pictures["Predicted"][0]).all()
    assert (true[1, 1] == true[0, 2]).all()
    assert true[1, 2].tolist() == [0, 0, 0]
    assert pictures["Mistakes"].any(-1).tolist() == [[False] * 3, [False, True, False]]
    brightness = pictures["Confidence"].astype(int).sum(-1)
    assert brightness.flatten().argsort().tolist()[0] == 0
    assert brightness.flatten().argsort().tolist()[-1] == 2


def test_an_example_knows_its_own_accuracy_and_confidence() -> None:
    assert example().accuracy == pytest.approx(4 / 5)
    assert example().confidence == pytest.approx((0 + 0.5 + 1 + 0.2 + 0.4) / 5)


def test_the_ends_of_a_scale_are_its_colours() -> None:
    values = torch.tensor([-5.0, 1.0, 2.0, 3.0, 9.0, float("nan")])
    colours = scale_colours(values, Range("x", 1, 3))
    assert colours[[0, 1, 5]].tolist() == [[68, 1, 84]] * 3
    assert colours[2].tolist() == [33, 145, 140]
    assert colours[[3, 4]].tolist() == [[253, 231, 37]] * 2


def test_confidence_before_calibration_has_a_panel() -> None:
    before = example(before=torch.full((2, 3), 0.9))
    titles = [panel.title for panel in panels(before, value_ranges([before]), "STS")]
    assert titles[4:6] == ["Confidence before", "Confidence, STS"]


# --- the page ---


def test_the_page_has_the_numbers_of_an_evaluation(tmp_path: Path) -> None:
    prediction, labels = dense_prediction(SHAPE)
    labels[:, :2] = 255
    before = replace(prediction, aleatoric=None, epistemic=None, mutual_information=None)
    path = tmp_path / "r.html"
    predictions = {"none": before, "sts": prediction}
    assert write_report(path, predictions, labels, class_names=list("abcd")) == path
    text = path.read_text()
    expected = evaluate_dense(prediction, labels)
    for value in (f"{100 * expected.ece:.2f}", f"{expected.nll:.3f}", f"{expected.brier:.3f}"):
        assert value in text
    assert "12 inputs" in text
    assert "240 pixels" in text
    data = page_data(path)
    assert data["n"] == 240
    assert sum(row["count"] for row in data["tables"]["bins"] if row["method"] == "sts") == 240
    assert data["specs"].keys() == {"reliability", "histogram", "curve"}
    assert text.count("<article") == 6
    assert text.count("among the largest NLL") == 3


def test_batches_give_the_numbers_of_the_whole(tmp_path: Path) -> None:
    prediction, labels = dense_prediction(SHAPE)
    whole = write_report(tmp_path / "whole.html", {"sts": prediction}, labels)
    report = DenseReport()
    for start in range(0, 12, 5):
        part = slice(start, start + 5)
        report.add({"sts": prediction[part]}, labels[part])
    assert page_data(report.write(tmp_path / "parts.html")) == page_data(whole)


def test_tokens_are_words_with_their_classes(tmp_path: Path) -> None:
    prediction, labels = dense_prediction((9, 4))
    mask = torch.ones(9, 4)
    mask[:, 3] = 0
    words = [[f"w{i}.{t}" for t in range(4)] for i in range(9)]
    words[0] = ["<b>", "w0.1", "w0.2", "unseen"]
    path = tmp_path / "r.html"
    write_report(path, {"sts": prediction}, labels, attention_mask=mask, words=words)
    text = path.read_text()
    assert "27 tokens" in text
    assert "unseen" not in text
    assert "<b>w" not in text
    assert re.search(r"w\d\.2<small>class \d</small>", text)


class Segmenter(nn.Module):
    """Two convolutions: logits (N, K, H, W)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(1, 5, 3, padding=1)
        self.head = nn.Conv2d(5, K, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x).relu())
        return logits


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report of a model on images that are its inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Segmenter().eval()
        x = torch.randn(16, 1, 8, 6)
        probs = (net(x) / 2).softmax(1).movedim(1, -1)
        labels = probs.reshape(-1, K).multinomial(1).view(16, 8, 6)
    sts = SimplexTemperatureScaling(n_steps=5, pool_size=200)
    model = calibrate(net, (x[:8], labels[:8]), sts)
    path = tmp_path_factory.mktemp("report") / "r.html"
    return model.write_report(path, (x[8:], labels[8:]), batch_size=3)


def test_a_model_reports_on_pixels_before_and_after(report: Path) -> None:
    text = report.read_text()
    assert page_data(report)["methods"].keys() == {"none", "sts"}
    for title in ("Input", "Confidence before", "Confidence, STS", "Aleatoric", "Epistemic"):
        assert f"<figcaption>{title}</figcaption>" in text


def test_a_model_reports_on_whole_inputs(tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Linear(5, 3)
        x = torch.randn(200, 5)
        labels = net(x).softmax(-1).multinomial(1).squeeze(1)
    model = calibrate(net, (x[:100], labels[:100]), "ts")
    model.threshold((x[100:], labels[100:]), coverage=0.9)
    text = model.write_report(tmp_path / "r.html", (x[100:], labels[100:])).read_text()
    assert "Accept, or hand over to a person" in text
    assert "100 inputs" in text.replace("\u202f", " ")


def test_what_a_report_cannot_show_is_refused(tmp_path: Path) -> None:
    prediction, labels = dense_prediction(SHAPE)
    path = tmp_path / "r.html"
    with pytest.raises(ValueError, match="`ood` must be None for predictions of tokens or pixels"):
        write_report(path, {"sts": prediction}, labels, ood={"sts": prediction})
    with pytest.raises(ValueError, match=r"at least two inputs.*got 1"):
        write_report(path, {"sts": prediction[:1]}, labels[:1])
    report = DenseReport()
    with pytest.raises(ValueError, match="The report is empty"):
        report.write(path)
    report.add({"sts": prediction}, labels)
    with pytest.raises(ValueError, match="must be those of sts for 4 classes in every batch"):
        report.add({"ts": prediction}, labels)
    with pytest.raises(ValueError, match=r"labels \(N, T\) or \(N, H, W\); got \(360,\)"):
        DenseReport().add({"ts": prediction_rows(prediction)}, labels)
    assert not path.exists()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser.started() as started:
        yield started


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_drawn_and_does_not_scroll_sideways(
    chromium: Browser, report: Path, width: int
) -> None:
    context = chromium.new_context(viewport={"width": width, "height": 800})
    page = context.new_page()
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready]")
    assert faults == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#reliability svg").count() == 1
    assert page.locator(".panels img").count() == 6 * 8
    page.locator("#threshold").fill("0")
    assert page.locator("#coverage-note").inner_text().replace("\u202f", " ") == "384 of 384"
    context.close()
