"""The report: its words on hand-made predictions, its file parsed, its page in a real browser."""

import base64
import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import browser
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, Request
from torch import Generator, Tensor

from simplexcal.calibrators import CALIBRATORS
from simplexcal.evaluation import evaluate
from simplexcal.metrics import classwise_ece, ece
from simplexcal.report import chart_data, write_report
from simplexcal.report._classes import class_errors, class_table, confused_pairs
from simplexcal.report._format import count, method_description, method_title, percent
from simplexcal.report._ood import ood_table
from simplexcal.report._paired import N_DRAWS, ece_change
from simplexcal.report._provenance import fingerprint
from simplexcal.report.acceptance import acceptance_table
from simplexcal.report.mistakes import most_confident_mistakes
from simplexcal.report.table import score_table
from simplexcal.report.verdict import TOLERANCE, Verdict, assess, make_verdict
from simplexcal.thresholds import find_prediction_threshold, find_threshold
from simplexcal.types import Prediction

CHARTS = ("reliability", "histogram", "curve", "scatter")
NASTY = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 1'>"


Groups = list[tuple[float, int, int]]


def predicted(groups: Groups, n_classes: int = 3) -> tuple[Prediction, Tensor]:
    """Return a prediction and labels from groups (confidence, inputs, correct ones).

    Classes 0 and 1 are predicted in turn.
    """
    confidence = torch.cat([torch.full((n,), c) for c, n, _ in groups])
    correct = torch.cat([torch.arange(n) < hits for _, n, hits in groups])
    label = torch.arange(len(confidence)) % 2
    probs = ((1 - confidence) / (n_classes - 1)).unsqueeze(1).repeat(1, n_classes)
    probs[torch.arange(len(label)), label] = confidence
    return Prediction(probs, label), torch.where(correct, label, n_classes - 1)


def verdict(after: Groups, before: Groups | None = None, tolerance: float = TOLERANCE) -> Verdict:
    """Return the verdict on STS, or on the network itself where there is nothing before."""
    prediction, labels = predicted(after)
    predictions = {"sts": prediction}
    focus = "sts"
    title = "STS"
    if before is None:
        predictions = {"none": prediction}
        focus = "none"
        title = "Uncalibrated"
    else:
        predictions["none"], same = predicted(before)
        assert torch.equal(labels, same)
    g = Generator().manual_seed(0)
    evaluations = {name: evaluate(p, labels, generator=g) for name, p in predictions.items()}
    return make_verdict(predictions, labels, evaluations, focus, title, 10, tolerance)


def words(v: Verdict) -> str:
    return " ".join((v.headline, *v.sentences)).replace("\u202f", " ")


def network(n: int, seed: int = 0, k: int = 10) -> tuple[dict[str, Prediction], Tensor]:
    """Return an over-confident network, one less so, a calibrated one, and labels."""
    g = Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, k, generator=g)
    labels = logits.softmax(-1).multinomial(1, generator=g).squeeze(1)
    label, entropy = logits.argmax(-1), torch.distributions.Categorical(logits=logits).entropy()
    predictions = {
        "none": Prediction((2 * logits).softmax(-1), label),
        "ts": Prediction((1.3 * logits).softmax(-1), label),
        "sts": Prediction(
            logits.softmax(-1), label, entropy, -40 + 8 * entropy + torch.randn(n, generator=g)
        ),
    }
    return predictions, labels


# ---- the verdict


def test_over_confident_in_words() -> None:
    v = verdict([(0.97, 2000, 1820)])  # a confidence of 97 %, an accuracy of 91 %
    assert v.tone == "bad"
    assert v.headline == "This network is over-confident."
    assert (
        "The mean confidence is 97.0 % and the accuracy is 91.0 %: "
        "over-confident by 6.0 percentage points." in words(v)
    )
    assert "The expected calibration error (ECE) of 6.00 %" in words(v)
    assert "more than chance explains" in words(v)


def test_under_confident_in_words() -> None:
    v = verdict([(0.6, 2000, 1600)])
    assert v.headline == "This network is under-confident."
    assert "under-confident by 20.0 percentage points." in words(v)


def test_calibrated_on_average_only() -> None:
    v = verdict([(0.95, 1000, 800), (0.65, 1000, 800)])  # both means are 0.8
    assert v.tone == "bad"
    assert "calibrated on average, but not at each level of confidence" in v.headline
    assert "over-confident" not in words(v)
    assert "under-confident" not in words(v)


def test_calibrated_alone() -> None:
    v = verdict([(0.9, 2000, 1800), (0.6, 1000, 600)])
    assert v.tone == "good"
    assert v.headline == "This network is well calibrated."
    assert "no more than chance explains: with 3 000 inputs, a perfectly calibrated" in words(v)


def test_a_method_alone_is_named(tmp_path: Path) -> None:
    prediction, labels = predicted([(0.9, 2000, 1800)])
    text = Parsed(write_report(tmp_path / "r.html", {"sts": prediction}, labels)).text
    assert "With STS, this network is well calibrated." in text
    assert "before" not in text.lower()


def test_calibration_that_works() -> None:
    v = verdict([(0.8, 2000, 1600)], before=[(0.95, 2000, 1600)])
    assert v.tone == "good"
    assert v.headline == "After STS, this network is well calibrated."
    assert "Before calibration, the mean confidence is 95.0 %" in words(v)
    assert "After STS, the mean confidence is 80.0 % and the accuracy is 80.0 %." in words(v)
    assert "(NLL) falls" in words(v)
    assert [(s.title, s.accuracy) for s in v.summaries] == [("Before", 0.8), ("After STS", 0.8)]
    assert [s.confidence for s in v.summaries] == pytest.approx([0.95, 0.8])


def test_calibration_that_is_not_needed() -> None:
    v = verdict([(0.801, 2000, 1600)], before=[(0.8, 2000, 1600)])
    assert v.tone == "good"
    assert v.headline == "This network is well calibrated, both before and after STS."


def test_calibration_that_helps_in_part() -> None:
    v = verdict([(0.85, 5000, 4000)], before=[(0.99, 5000, 4000)])
    assert v.tone == "mixed"
    assert v.headline == "STS removes most of the calibration error, but not all of it."
    assert "over-confident by 5.0 percentage points." in words(v)


def test_calibration_that_does_harm() -> None:
    v = verdict([(0.95, 2000, 1600)], before=[(0.8, 2000, 1600)])
    assert (v.tone, v.headline) == ("bad", "STS makes the calibration of this network worse.")
    assert "But the negative log-likelihood (NLL) rises" in words(v)


def test_calibration_that_changes_nothing() -> None:
    """Half a point of fifteen is clear in a paired test, but no effect worth the name."""
    v = verdict([(0.945, 2000, 1600)], before=[(0.95, 2000, 1600)])
    assert v.tone == "bad"
    assert v.headline == "STS lowers the NLL, but hardly changes the calibration error."
    same = verdict([(0.95, 2000, 1600)], before=[(0.95, 2000, 1600)])
    assert same.headline == "STS does not help here: the calibration error hardly changes."
    assert "(NLL) stays at" in words(same)


def test_a_large_improvement_of_few_inputs_is_said() -> None:
    v = verdict([(0.7, 300, 215)], before=[(0.99, 300, 215)])
    assert v.tone == "unsure"
    assert words(v).startswith(
        "STS lowers the calibration error; 300 inputs are too few to tell what is left of it."
    )


def test_an_improved_nll_is_help() -> None:
    """The error stays at 15 points, but the easy inputs are now told from the hard ones."""
    v = verdict(
        [(0.95, 2000, 1600), (0.55, 2000, 800)], before=[(0.75, 2000, 1600), (0.75, 2000, 800)]
    )
    assert v.headline == "STS lowers the NLL, but hardly changes the calibration error."
    assert "does not help" not in words(v)
    assert "STS leaves the ECE at 15.00 %." in words(v)


def test_a_small_error_of_many_inputs_is_tolerated() -> None:
    few = evaluate(*predicted([(0.9047, 100, 90)]))
    many = replace(few, n=1_000_000, ece_floor_95=0.0009, ece_low=0.0042, ece_high=0.0053)
    v = assess(many, "Uncalibrated", "This network", TOLERANCE)
    assert v.tone == "good"
    assert v.headline == "This network is well calibrated."
    assert "The expected calibration error (ECE) of 0.47 % is more than chance explains" in words(v)
    assert "an ECE of up to 1 percentage point is tolerated" in words(v)
    assert "over-confident" not in words(v)
    (row,) = score_table({"none": many}, TOLERANCE)
    assert (row.within_chance, row.within_tolerance) == (False, True)
    strict = assess(many, "Uncalibrated", "This network", 0.002)
    assert strict.headline == "This network is over-confident."
    assert "it is above the tolerance of 0.2 percentage points." in words(strict)


def test_an_error_that_may_be_tolerable_is_slight() -> None:
    v = verdict([(0.914, 10_000, 9000)])
    assert v.tone == "mixed"
    assert v.headline == "This network is slightly over-confident."
    assert "it may be within the tolerance of 1 percentage point." in words(v)


def test_a_change_that_no_printed_digit_shows_is_none() -> None:
    v = verdict([(0.8999, 10_000, 8500)], before=[(0.9, 10_000, 8500)])
    text = words(v)
    assert not re.search(r"from ([\d.]+) to \1\b", text)
    assert "(NLL) stays at" in text


def test_the_paired_test_of_the_ece_beside_a_bootstrap() -> None:
    predictions, labels = network(1500)
    before = predictions["none"]
    after = predictions["ts"]
    change = ece_change(before, after, labels, 10)
    g = Generator().manual_seed(1)
    resampled = []
    for _ in range(1000):
        rows = torch.randint(1500, (1500,), generator=g)
        ends = [ece(p.confidence[rows], (p.label == labels)[rows], 10) for p in (after, before)]
        resampled.append(ends[0] - ends[1])
    draws = torch.stack(resampled).double()
    spread = draws.std().item()
    kurtosis = ((draws - draws.mean()) / spread).pow(4).mean().item()
    # Both standard deviations are estimates, of 1000 and of N_DRAWS samples.
    error = spread * ((kurtosis - 1) / 4 * (1 / 1000 + 1 / N_DRAWS)) ** 0.5
    assert abs(change.standard_error - spread) < 4 * error
    assert 4 * error < spread / 4
    exact = [ece(p.confidence, p.label == labels, 10).item() for p in (after, before)]
    assert change.mean == pytest.approx(exact[0] - exact[1], abs=1e-6)
    assert change.is_clear


def test_calibration_that_loses_information() -> None:
    """A confidence of 75 % everywhere is calibrated, but the network knew the easy inputs."""
    v = verdict(
        [(0.75, 2000, 1800), (0.75, 2000, 1200)], before=[(0.9, 2000, 1800), (0.6, 2000, 1200)]
    )
    assert v.tone == "mixed"
    assert "less informative" in v.headline
    assert "(NLL) rises" in words(v)


def test_few_inputs_cannot_tell() -> None:
    v = verdict([(0.8, 40, 30)])
    assert v.tone == "unsure"
    assert v.headline == "40 inputs are too few to tell whether the network is calibrated."
    needed = int(re.search(r"About ([\d ]+) inputs", words(v))[1].replace(" ", ""))  # type: ignore[index]
    e = evaluate(*predicted([(0.8, 40, 30)]), generator=Generator().manual_seed(0))
    assert needed == pytest.approx(40 * (e.ece_floor_95 / 0.02) ** 2, rel=0.1)


def test_few_inputs_after_a_visible_error() -> None:
    v = verdict([(0.75, 60, 45)], before=[(0.86, 60, 45)])  # the paired test finds no change
    assert v.tone == "unsure"
    assert "60 inputs show no clear error, but prove little" in words(v)


def test_few_inputs_show_a_gross_error() -> None:
    v = verdict([(0.99, 40, 20)])
    assert v.headline == "This network is over-confident."


def test_points_are_those_of_the_printed_numbers() -> None:
    # 96.8 and 89.7 are printed. Their difference is 7.1; unrounded it is 7.2.
    v = verdict([(0.96849, 10000, 8966)])
    assert "over-confident by 7.1 percentage points" in words(v)


def test_numbers_as_they_are_printed() -> None:
    assert (percent(0.0712, 2), count(12345)) == ("7.12\u202f%", "12\u202f345")


def test_methods_as_they_are_named() -> None:
    for key, method in CALIBRATORS.items():
        assert method_title(key) == method.abbreviation
        assert method_description(key) == method.title
    assert (method_title("mine"), method_description("mine")) == ("mine", "")


# ---- tables and rows


def test_the_best_of_a_column_is_marked_where_methods_differ() -> None:
    predictions, labels = network(2000)
    table = {
        s.name: s
        for s in score_table(
            {name: evaluate(p, labels) for name, p in predictions.items()}, TOLERANCE
        )
    }
    assert table["sts"].best >= {"nll", "brier"}
    assert not table["none"].best
    assert table["sts"].within_chance
    assert not table["none"].within_chance
    assert all("accuracy" not in score.best for score in table.values())  # it is the same for all


def test_the_smallest_ece_is_best_only_where_none_is_within_chance() -> None:
    off = {
        "none": evaluate(*predicted([(0.99, 2000, 1600)])),
        "ts": evaluate(*predicted([(0.9, 2000, 1600)])),
    }
    assert ["ece" in score.best for score in score_table(off, TOLERANCE)] == [False, True]
    good = off | {"sts": evaluate(*predicted([(0.8, 2000, 1600)]))}
    assert ["ece" in score.best for score in score_table(good, TOLERANCE)] == [False, False, False]


def test_a_method_alone_is_best_in_nothing() -> None:
    (score,) = score_table({"ts": evaluate(*predicted([(0.9, 100, 80)]))}, TOLERANCE)
    assert not score.best


def test_thresholds_by_hand() -> None:
    prediction, labels = predicted([(0.5, 1, 1), (0.7, 2, 1), (0.95, 1, 1)])
    levels = chart_data.threshold_levels(prediction, labels == prediction.label)
    at = {step / chart_data.N_STEPS: i for i, step in enumerate(range(chart_data.N_STEPS + 1))}
    assert [levels["kept"][at[t]] for t in (0.0, 0.6, 0.9, 1.0)] == [4, 3, 1, 0]
    assert levels["accuracy"][at[0.6]] == pytest.approx(2 / 3, abs=1e-6)
    assert levels["confidence"][at[0.6]] == pytest.approx((0.7 + 0.7 + 0.95) / 3, abs=1e-6)
    assert (levels["confidence"][at[1.0]], levels["accuracy"][at[1.0]]) == (None, None)


def test_bins_are_over_confident_under_confident_or_calibrated() -> None:
    prediction, labels = predicted([(0.95, 100, 50), (0.75, 100, 75), (0.45, 100, 90)])
    found = chart_data.bin_rows("ts", prediction, labels == prediction.label, 10)
    states = [row["state"] for row in found]
    assert states == ["under-confident", "calibrated", "over-confident"]
    assert [row["count"] for row in found] == [100, 100, 100]


def test_curve_ends_at_the_error_rate_of_all() -> None:
    prediction, labels = predicted([(0.9, 700, 650), (0.6, 300, 150)])
    curve = chart_data.curve_rows("ts", prediction, labels == prediction.label)
    assert len(curve) == chart_data.N_CURVE
    assert curve[-1] == {"method": "ts", "coverage": 1.0, "risk": 0.2}
    assert "20.0" in chart_data.describe_curve(curve, "TS")


def test_points_are_a_sample_with_the_wrong_ones_on_top(generator: Generator) -> None:
    predictions, labels = network(4000)
    points = chart_data.point_rows(
        predictions["sts"], labels, [str(i) for i in range(10)], generator
    )
    assert len({p["input"] for p in points}) == chart_data.N_POINTS
    outcomes = [p["outcome"] for p in points]
    assert outcomes == sorted(outcomes)  # "correct" before "wrong"
    share = outcomes.count("wrong") / len(outcomes)
    wrong = (predictions["sts"].label != labels).double().mean().item()
    assert abs(share - wrong) < 5 * (wrong * (1 - wrong) / chart_data.N_POINTS) ** 0.5
    p = points[0]
    expected = predictions["sts"].confidence[p["input"]].item()
    assert p["confidence"] == pytest.approx(expected, abs=1e-4)


# ---- the file


class Parsed(HTMLParser):
    """The elements of a page as (tag, attributes), its visible text, and its scripts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.scripts, self._inside = "", [""], ""
        self.feed(path.read_text(encoding="utf-8"))
        self.text = " ".join(self.text.replace("\u202f", " ").split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag if tag in ("script", "style") else ""
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif not self._inside:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    predictions, labels = network(2500)
    images = torch.rand(2500, 20, 20, generator=Generator().manual_seed(0))
    ids = [f"=photo-{i}" for i in range(2500)]
    path = tmp_path_factory.mktemp("report") / "report.html"
    names = [f"kind {i}" for i in range(9)] + [NASTY]
    g = Generator().manual_seed(0)
    return write_report(
        path,
        predictions,
        labels,
        images=images,
        class_names=names,
        title=NASTY,
        ids=ids,
        n_bins=10,
        generator=g,
    )


def test_words_table_and_mistakes_are_in_the_file(report: Path) -> None:
    text = Parsed(report).text
    assert "After STS, this network is well calibrated." in text
    assert "✓ within chance" in text
    assert "simplex temperature scaling" in text
    assert "A random 1 500 of the 2 500 inputs" in text
    assert re.search(r"The 12 most confident of \d+ mistakes, by STS", text)


def test_the_page_is_well_made(report: Path) -> None:
    page = Parsed(report)
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("h1")) == 1
    assert len(page.all("caption")) == len(page.all("table")) == 4
    assert all(th.get("scope") in ("col", "row") for th in page.all("th"))
    assert all(image["alt"] for image in page.all("img"))
    assert len(page.all("img")) == 12
    charts = [e for _, e in page.elements if e.get("class") == "chart"]
    assert [c["id"] for c in charts] == list(CHARTS)
    assert all(c["role"] == "img" and c["aria-label"] for c in charts)
    assert {"threshold"} <= {e.get("for") for e in page.all("label")}
    assert page.all("a")[0] == {"class": "skip", "href": "#main"}
    ids = [e["id"] for _, e in page.elements if "id" in e]
    assert len(ids) == len(set(ids))
    assert {e["aria-labelledby"] for _, e in page.elements if "aria-labelledby" in e} <= set(ids)


def test_names_and_title_are_text_and_nothing_else(report: Path) -> None:
    page = Parsed(report)
    assert NASTY in page.text  # as characters, in the title and the heading
    assert NASTY not in report.read_text(encoding="utf-8")
    assert len(page.scripts) == 1 + 3
    data = json.loads(page.scripts[1])
    assert any(p["prediction"] == NASTY for p in data["tables"]["points"])
    assert not any(e.get("onerror") for _, e in page.elements)


def test_nothing_is_fetched_from_anywhere(report: Path) -> None:
    page = Parsed(report)
    targets = [e[key] for _, e in page.elements for key in ("src", "href") if key in e]
    assert targets
    assert all(t is not None and t.startswith(("data:", "#")) for t in targets)
    policy = next(
        e["content"] for e in page.all("meta") if e.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_mistakes_are_the_most_confident_wrong_ones(report: Path) -> None:
    predictions, labels = network(2500)
    p = predictions["sts"]
    wrong = [i for i in range(2500) if p.label[i] != labels[i]]
    expected = sorted(wrong, key=lambda i: (-float(p.confidence[i]), i))[:12]
    texts = [image["alt"] or "" for image in Parsed(report).all("img")]
    found = [int(number) for text in texts for number in re.findall(r"^Input =photo-(\d+):", text)]
    assert found == expected


def test_a_file_with_5000_images_stays_small(tmp_path: Path) -> None:
    predictions, labels = network(5000)
    images = torch.rand(5000, 3, 32, 32)  # noise, which no compression makes smaller
    assert (
        write_report(tmp_path / "r.html", predictions, labels, images=images).stat().st_size
        <= 3_000_000
    )


def test_the_same_input_gives_the_same_file(tmp_path: Path) -> None:
    predictions, labels = network(100)
    state = torch.get_rng_state()
    a, b = (
        write_report(tmp_path / name, predictions, labels).read_bytes()
        for name in ("a.html", "b.html")
    )
    assert a == b
    assert torch.equal(torch.get_rng_state(), state)


def test_one_plain_method(tmp_path: Path) -> None:
    """There is no scatter without uncertainties, and no choice and no star without rivals."""
    prediction, labels = predicted([(0.9, 300, 240)])
    page = Parsed(write_report(tmp_path / "r.html", {"none": prediction}, labels))
    assert "This network is over-confident." in page.text
    assert "scatter" not in {e.get("id") for _, e in page.elements}
    assert not page.all("fieldset")
    assert "★" not in page.text
    assert "class 2" in page.text
    assert "Before calibration" not in page.text


def test_nothing_wrong_at_all(tmp_path: Path) -> None:
    prediction, labels = predicted([(0.99, 300, 300)])
    page = Parsed(write_report(tmp_path / "r.html", {"sts": prediction}, labels))
    assert "None of the 300 inputs is classified wrongly." in page.text


def test_focus_is_the_last_or_named(tmp_path: Path) -> None:
    predictions, labels = network(3000)
    text = Parsed(write_report(tmp_path / "r.html", predictions, labels, focus="ts")).text
    assert "After TS, the mean confidence is" in text
    assert "After STS" not in text


GREY = np.arange(100, dtype=np.uint8).reshape(1, 10, 10).repeat(20, 0)
COLOUR = np.stack([GREY, GREY + 50, GREY + 100], -1)


@pytest.mark.parametrize(
    ("images", "pixels"),
    [
        (GREY, GREY[0]),
        (torch.from_numpy(GREY), GREY[0]),
        (GREY[:, None], GREY[0]),
        (GREY[..., None], GREY[0]),
        (GREY / 255, GREY[0]),
        (
            torch.from_numpy(GREY > 50).to(torch.bfloat16),
            255 * (GREY[0] > 50),
        ),  # numpy has no bfloat16
        (COLOUR, COLOUR[0]),
        (COLOUR.transpose(0, 3, 1, 2), COLOUR[0]),
        (torch.from_numpy(COLOUR.transpose(0, 3, 1, 2) / 255).float(), COLOUR[0]),
    ],
)
def test_images_of_every_form_become_the_same_pixels(images: Any, pixels: Any) -> None:
    mistakes = most_confident_mistakes(*predicted([(0.9, 20, 15)]), None, ["a", "b", "c"], images)
    assert len(mistakes) == 5
    decoded = np.asarray(decode(mistakes[0].picture))
    np.testing.assert_array_equal(decoded, pixels)


def test_large_images_are_made_small() -> None:
    (mistake,) = most_confident_mistakes(
        *predicted([(0.9, 4, 3)]), None, ["a", "b", "c"], torch.rand(4, 3, 300, 600)
    )
    assert decode(mistake.picture).size == (112, 56)


def decode(uri: str | None) -> Image.Image:
    return Image.open(
        io.BytesIO(base64.b64decode((uri or "").removeprefix("data:image/png;base64,")))
    )


def test_mistakes_know_the_confidence_before() -> None:
    prediction, labels = predicted([(0.7, 4, 3)])
    before, _ = predicted([(0.95, 4, 3)])
    (mistake,) = most_confident_mistakes(prediction, labels, before, ["ant", "bee", "cat"], None)
    assert (mistake.row, mistake.prediction, mistake.label) == (3, "bee", "cat")
    assert mistake.confidence == pytest.approx(0.7)
    assert mistake.before == pytest.approx(0.95)
    assert mistake.picture is None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"predictions": {}}, ValueError, "`predictions` is empty"),
        (
            {"labels": torch.zeros(7, dtype=torch.long)},
            ValueError,
            r"`labels` must have shape \(10,\)",
        ),
        ({"focus": "ets"}, ValueError, "`focus` must be one of .* none, sts; got 'ets'"),
        ({"class_names": ["a", "b"]}, ValueError, "`class_names` must name all 3 classes.* got 2"),
        (
            {"images": torch.zeros(9, 8, 8)},
            ValueError,
            r"`images` must have shape .* N = 10 .* got \(9, 8, 8\)",
        ),
        ({"ids": ["a", "b"]}, ValueError, "`ids` must be a key for each of the 10 inputs; got 2"),
        ({"tolerance": 1.0}, ValueError, "`tolerance` must be between 0 and 1; got 1"),
        (
            {"ood": {"ets": predicted([(0.9, 10, 8)])[0]}},
            ValueError,
            "`ood` must be of methods in `predictions`: none, sts; got 'ets'",
        ),
        (
            {"ood": {"sts": predicted([(0.9, 10, 8)], n_classes=4)[0]}},
            ValueError,
            "`ood` must hold inputs with probabilities of 3 classes",
        ),
        ({"images": torch.zeros(10, 8, 8, 8)}, ValueError, r"`images` must have shape"),
        (
            {"thresholds": {"ets": []}},
            ValueError,
            "`thresholds` must be of methods in `predictions`: none, sts; got 'ets'",
        ),
        ({"images": [1, 2]}, TypeError, "`images` must be a tensor or an array; got list"),
        (
            {"images": torch.zeros(10, 8, 8) - 0.5},
            ValueError,
            "between 0 and 1 .* before normalisation",
        ),
        (
            {"images": torch.zeros(10, 8, 8, dtype=torch.long)},
            TypeError,
            r"`images` must be bytes .* got int64",
        ),
        (
            {
                "predictions": {
                    "sts": Prediction(torch.full((10, 3), torch.nan), predicted([(0.9, 10, 8)])[1])
                }
            },
            ValueError,
            "found nan",
        ),
        (
            {
                "predictions": {
                    "none": predicted([(0.9, 10, 8)])[0],
                    "ts": predicted([(0.9, 9, 8)])[0],
                }
            },
            ValueError,
            "'ts' of",
        ),
    ],
)
def test_errors_are_one_clear_sentence(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    prediction, labels = predicted([(0.9, 10, 8)])
    given: dict[str, Any] = {
        "predictions": {"none": prediction, "sts": prediction},
        "labels": labels,
    } | arguments
    with pytest.raises(error, match=message):
        write_report(tmp_path / "r.html", **given)
    assert not list(tmp_path.iterdir())


def test_thresholds_are_shown_with_what_they_accept_here(tmp_path: Path) -> None:
    predictions, labels = network(600)
    p = predictions["sts"]
    accuracy = find_prediction_threshold(p, labels, target_accuracy=0.8)
    alarm = find_prediction_threshold(p, false_alarm=0.1)
    assert p.epistemic is not None
    rows = acceptance_table({"sts": [accuracy, alarm]}, predictions, labels)
    each = [p.confidence >= accuracy.value, p.epistemic <= alarm.value]
    for row, accepted in zip(rows, [*each, each[0] & each[1]], strict=True):
        assert row.share == percent(accepted.double().mean().item())
        right = (p.label == labels)[accepted]
        assert row.accuracy == percent(right.double().mean().item(), 2)
    assert rows[0].promise == "accuracy of at least 80\u202f%, with 95\u202f% certainty"
    assert rows[1].promise == "at most 10\u202f% false alarms"
    path = write_report(
        tmp_path / "r.html", predictions, labels, thresholds={"sts": [accuracy, alarm]}
    )
    text = Parsed(path).text
    assert "Accept, or hand over to a person" in text
    for row in rows:
        assert row.rule in text
        assert row.accuracy.replace("\u202f", " ") in text
    path = write_report(tmp_path / "r.html", predictions, labels)
    assert "hand over to a person" not in Parsed(path).text


def test_a_threshold_that_accepts_nothing_here_has_no_accuracy() -> None:
    prediction, labels = predicted([(0.9, 10, 8)])
    strict = find_threshold(torch.linspace(0.95, 1, 19), coverage=0.9)
    strict = replace(strict, level=0.9995)
    (row,) = acceptance_table({"ts": [strict]}, {"ts": prediction}, labels)
    assert (row.share, row.accuracy) == (percent(0.0), "–")
    assert row.promise == "at least 99.95\u202f% accepted"


def test_classes_by_hand() -> None:
    """Five of ten inputs of class 0, at a confidence of 0.8; class 1 has four of five correct."""
    probs = torch.tensor([[0.8, 0.1, 0.1]] * 10 + [[0.2, 0.6, 0.2]] * 5)
    labels = torch.tensor([0] * 5 + [2] * 5 + [1] * 4 + [0])
    prediction = Prediction(probs, probs.argmax(-1))
    names = ["ant", "bee", "cat"]
    rows = {row.name: row for row in class_table(prediction, labels, names, 10)}
    assert next(iter(rows)) == "cat"  # 10 · |0.1 - 0.5| + 5 · |0.2 - 0| = 5 of 15
    assert rows["cat"].ece == percent(5 / 15, 2)
    assert (rows["cat"].n, rows["cat"].n_predicted, rows["cat"].accuracy) == ("5", "0", "–")
    ant = rows["ant"]
    assert (ant.n, ant.n_predicted) == ("6", "10")
    assert (ant.accuracy, ant.confidence) == (percent(0.5), percent(0.8))
    mean = class_errors(prediction, labels, 10).mean().item()
    assert mean == pytest.approx(classwise_ece(probs, labels).item(), abs=1e-6)
    pairs = confused_pairs(prediction, labels, names)
    assert [(p.label, p.prediction, p.n) for p in pairs] == [
        ("cat", "ant", "5"),
        ("ant", "bee", "1"),
    ]
    assert (pairs[0].share, pairs[0].confidence) == (percent(1.0), percent(0.8))
    assert pairs[1].share == percent(1 / 6)


def test_out_of_distribution_inputs_have_a_section(tmp_path: Path) -> None:
    predictions, labels = network(300)
    sts = predictions["sts"]
    assert sts.epistemic is not None
    ood = {"none": predictions["none"][:50], "sts": replace(sts, epistemic=sts.epistemic + 1000)}
    rows = ood_table(predictions, ood)
    found = {(row.name, row.score): row for row in rows}
    assert list(found) == [
        ("none", "confidence"),
        ("sts", "confidence"),
        ("sts", "aleatoric uncertainty"),
        ("sts", "epistemic uncertainty"),
    ]
    best = found["sts", "epistemic uncertainty"]
    assert (best.auroc, best.fpr_95, best.is_best) == (percent(1.0), percent(0.0), True)
    assert found["sts", "confidence"].auroc == percent(0.5)  # the same inputs
    path = write_report(tmp_path / "r.html", predictions, labels, ood=ood)
    text = Parsed(path).text
    assert "How well each score tells 300 out-of-distribution inputs" in text
    path = write_report(tmp_path / "r.html", predictions, labels)
    assert "out-of-distribution" not in Parsed(path).text.lower()


def test_provenance_names_files_versions_and_numbers(tmp_path: Path) -> None:
    prediction, labels = predicted([(0.9, 10, 8)])
    given = {"Data": "test.npz <b>"}
    path = write_report(tmp_path / "r.html", {"sts": prediction}, labels, sources=given)
    text = Parsed(path).text
    for words_shown in ("test.npz <b>", "10, in 3 classes", f"torch {torch.__version__}"):
        assert words_shown in text
    digest = fingerprint({"sts": prediction}, labels)
    assert digest in text
    assert digest != fingerprint({"sts": prediction}, 1 - labels)
    assert digest != fingerprint({"sts": replace(prediction, probs=prediction.probs / 2)}, labels)


def test_uncertainties_of_one_distribution_are_called_so(tmp_path: Path) -> None:
    predictions, labels = network(100)
    sts = predictions["sts"]
    assert sts.aleatoric is not None
    entropy = torch.special.entr(sts.probs).sum(-1)
    one = replace(sts, aleatoric=0.7 * entropy, mutual_information=0.3 * entropy)
    assert chart_data.uncertainties_add_up(one)
    two = replace(one, aleatoric=entropy)
    assert not chart_data.uncertainties_add_up(two)
    sentence = "the aleatoric uncertainty and the mutual information add up to their entropy"
    shown = Parsed(write_report(tmp_path / "one.html", {"sts": one}, labels)).text
    assert sentence in shown
    assert sentence not in Parsed(write_report(tmp_path / "two.html", {"sts": two}, labels)).text


@pytest.mark.parametrize("package", ["altair", "jinja2", "PIL", "vl_convert"])
def test_a_missing_extra_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    prediction, labels = predicted([(0.9, 10, 8)])
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ModuleNotFoundError, match=rf'needs {package}, .* pip install "simplexcal\[report\]"'
    ):
        write_report(tmp_path / "r.html", {"sts": prediction}, labels)


def test_importing_the_report_loads_the_core_only() -> None:
    extra = {"altair", "jinja2", "PIL", "vl_convert"}
    code = f"import sys, simplexcal.report; print(*{extra} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prediction, labels = predicted([(0.9, 10, 8)])
    path = tmp_path / "r.html"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_report(path, {"sts": prediction}, labels)
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]


# ---- the page in a browser

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser.started() as started:
        yield started


@pytest.fixture
def show(chromium: Browser, report: Path) -> Iterator[Open]:
    """Open a page as a user would. Console messages and requests are errors at the end."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def logged(message: ConsoleMessage) -> None:
        complaints.append(message.text)

    def failed(error: Error) -> None:
        complaints.append(str(error))

    def requested(request: Request) -> None:
        if not request.url.startswith(("file:", "data:")):
            complaints.append(request.url)

    def show(path: Path = report, width: int = 1280, **options: Any) -> Page:
        context = chromium.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", logged)
        page.on("pageerror", failed)
        page.on("request", requested)
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield show
    for context in contexts:
        context.close()
    assert complaints == []


def colours(page: Page, chart: str) -> int:
    """Return how many colours a chart shows; a blank one has one."""
    shot = Image.open(io.BytesIO(page.locator(f"#{chart}").screenshot()))
    return len(shot.convert("RGB").getcolors(10**6) or [])


def contrast(page: Page, selector: str, background: str, attribute: str = "color") -> float:
    """Return the WCAG contrast of an element's colour with that of its background element."""
    script = "([s, key]) => getComputedStyle(document.querySelector(s))[key]"
    found = (
        page.evaluate(script, [selector, attribute]),
        page.evaluate(script, [background, "backgroundColor"]),
    )
    light = sorted(luminance(colour) for colour in found)
    return (light[1] + 0.05) / (light[0] + 0.05)


def luminance(colour: str) -> float:
    channels = [int(x) / 255 for x in re.findall(r"\d+", colour)[:3]]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_luminance_by_hand() -> None:
    assert luminance("rgb(255, 255, 255)") == pytest.approx(1)
    assert luminance("rgb(0, 0, 0)") == 0


def test_charts_are_drawn_and_nothing_complains(show: Open) -> None:
    page = show()
    for chart in CHARTS:
        box = page.locator(f"#{chart} svg").bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) > 80
        assert colours(page, chart) > 10
    assert page.title() == NASTY
    assert page.evaluate("window.broken") is None
    assert page.locator("#scatter .mark-symbol path").count() == chart_data.N_POINTS


def test_the_threshold_changes_the_numbers(show: Open) -> None:
    page = show()
    predictions, labels = network(2500)
    p = predictions["sts"]
    for threshold in (0.9, 0.5):
        page.locator("#threshold").fill(str(round(threshold * chart_data.N_STEPS)))
        kept = p.confidence.double() >= threshold
        accuracy = (p.label == labels)[kept].double().mean().item()
        assert page.locator("#level").inner_text() == percent(threshold)
        assert page.locator("#coverage").inner_text() == percent(kept.double().mean().item())
        assert (
            page.locator("#coverage-note").inner_text()
            == f"{count(int(kept.sum()))} of {count(2500)}"
        )
        assert page.locator("#accuracy").inner_text() == percent(accuracy)
    # Where no input is left, there is no accuracy.
    page.locator("#threshold").fill(str(chart_data.N_STEPS))
    assert page.locator("#accuracy").inner_text() in ("–", percent(1.0))


def test_the_rules_follow_the_threshold(show: Open) -> None:
    page = show()

    def places() -> list[float]:
        boxes = [
            page.locator(f"#{c} .mark-rule.role-mark line").last.bounding_box()
            for c in ("reliability", "histogram", "curve")
        ]
        return [box["x"] for box in boxes if box]

    before = places()
    page.locator("#threshold").fill("80")
    page.wait_for_function(
        "x => document.querySelector('#curve .mark-rule.role-mark line')"
        ".getBoundingClientRect().x > x",
        arg=before[2],
    )
    after = places()
    assert after[0] < before[0]  # a lower threshold ...
    assert after[1] == pytest.approx(
        after[0], abs=1.5
    )  # ... at the same place in both charts of confidence ...
    assert after[2] > before[2]  # ... answers more


def test_the_method_is_chosen_for_all_charts(show: Open) -> None:
    page = show()
    confidence_of_sts = page.locator("#confidence").inner_text()
    diagram = page.locator("#reliability svg").inner_html()
    page.get_by_label("Uncalibrated").check()
    assert page.locator("#confidence").inner_text() != confidence_of_sts
    assert "of Uncalibrated" in (page.locator("#reliability").get_attribute("aria-label") or "")
    page.wait_for_function(
        "old => document.querySelector('#reliability svg').innerHTML !== old", arg=diagram
    )


def test_a_brush_sums_up_what_it_selects(show: Open) -> None:
    page = show()
    page.locator("#scatter").scroll_into_view_if_needed()
    box = page.locator("#scatter svg").bounding_box()
    assert box is not None
    x, y = box["x"], box["y"]
    page.mouse.move(x + box["width"] * 0.3, y + box["height"] * 0.2)
    page.mouse.down()
    page.mouse.move(x + box["width"] * 0.9, y + box["height"] * 0.8, steps=4)
    page.mouse.up()
    page.wait_for_function("document.querySelector('#brushed').textContent.includes('selected')")
    selected = re.match(
        r"([\d\s]+) inputs selected: mean confidence [\d.]+\s%",
        page.locator("#brushed").inner_text(),
    )
    assert selected
    n = int(re.sub(r"\s", "", selected[1]))
    assert 0 < n < chart_data.N_POINTS
    assert page.locator("#selected tr").count() == min(n, 100)
    assert page.locator("#selected th").first.inner_text().startswith("=photo-")
    header, *rows = downloaded(page, "#save-selection")
    assert header[:3] == ["id", "predicted", "label"]
    assert len(rows) == n


def downloaded(page: Page, button: str) -> list[list[str]]:
    """Return the rows of the CSV file that a button of the page gives."""
    with page.expect_download() as download:
        page.locator(button).click()
    text = Path(download.value.path()).read_text(encoding="utf-8-sig")
    return list(csv.reader(io.StringIO(text)))


def test_all_mistakes_are_downloaded(show: Open) -> None:
    header, *rows = downloaded(show(), "#save-mistakes")
    predictions, labels = network(2500)
    p = predictions["sts"]
    wrong = (p.label != labels).nonzero().squeeze(1).tolist()
    assert header == ["id", "predicted", "label", "confidence", "confidence_before"]
    # An apostrophe keeps a spreadsheet from running the id as a formula.
    assert sorted(row[0] for row in rows) == sorted(f"'=photo-{i}" for i in wrong)
    first = int(rows[0][0].removeprefix("'=photo-"))
    assert float(rows[0][3]) == pytest.approx(p.confidence[first].item(), abs=1e-4)
    names = [f"kind {i}" for i in range(9)] + [NASTY]
    assert rows[0][1:3] == [names[int(p.label[first])], names[int(labels[first])]]


def test_a_tooltip_shows_names_as_text(show: Open) -> None:
    page = show()
    at = page.evaluate(
        "name => JSON.parse(document.querySelector('#data').textContent)"
        ".tables.points.findLastIndex(p => p.label === name)",
        NASTY,
    )
    page.locator("#scatter .mark-symbol path").nth(at).hover(force=True)
    page.wait_for_selector("#vg-tooltip-element.visible")
    assert NASTY in page.locator("#vg-tooltip-element").inner_text()
    assert page.locator("#vg-tooltip-element img").count() == 0
    assert page.evaluate("window.broken") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(show: Open, scheme: str) -> None:
    page = show(color_scheme=scheme)
    page_light = luminance(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert page_light > 0.8 if scheme == "light" else page_light < 0.05
    on_page = ("h1", ".facts", "section > h2 + p", "footer")
    on_card = (
        ".badge",
        "#verdict",
        "caption",
        "figcaption",
        "#brushed",
        "td .best",
        "small.chance",
        ".true",
    )
    assert {s: c for s in on_page if (c := contrast(page, s, "body")) < 4.5} == {}
    assert {s: c for s in on_card if (c := contrast(page, s, ".card")) < 4.5} == {}
    assert contrast(page, "#curve .role-axis-label text", ".card", "fill") >= 4.5
    assert contrast(page, "#curve .mark-line path[stroke='var(--correct)']", ".card", "stroke") >= 3


def test_a_change_of_scheme_reaches_the_charts(show: Open) -> None:
    page = show(color_scheme="light")
    light = contrast(page, "#curve .role-axis-label text", ".card", "fill")
    page.emulate_media(color_scheme="dark")
    assert contrast(page, "#curve .role-axis-label text", ".card", "fill") != light
    assert contrast(page, "#curve .role-axis-label text", ".card", "fill") >= 4.5


@pytest.mark.parametrize("width", [320, 375, 768])
def test_a_narrow_page_does_not_scroll_sideways(show: Open, width: int) -> None:
    page = show(width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for chart in CHARTS:
        box = page.locator(f"#{chart} svg").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    table = page.locator(".scroll").first
    scrolls = table.evaluate("e => e.scrollWidth > e.clientWidth")
    assert scrolls or width == 768
    assert page.locator(".hint").first.is_visible() == scrolls


LONG = "https://example.org/a-long-name-without-spaces/"


@pytest.fixture(scope="module")
def long_words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on 40 classes whose names, and the ids of the inputs, cannot be divided."""
    predictions, labels = network(400, k=40)
    path = tmp_path_factory.mktemp("long") / "long.html"
    names = [f"{LONG}class/{i}" for i in range(40)]
    ids = [f"{LONG}input/{i}" for i in range(400)]
    return write_report(path, predictions, labels, class_names=names, ids=ids)


@pytest.mark.parametrize("width", [1280, 500])
def test_the_confidence_of_a_mistake_is_not_broken_within_a_word(
    show: Open, tmp_path: Path, width: int
) -> None:
    predictions, labels = network(300)
    images = torch.zeros(300, 8, 8)
    path = write_report(tmp_path / "page.html", {"sts": predictions["sts"]}, labels, images=images)
    heights = "nodes => nodes.map(x => x.clientHeight / parseFloat(getComputedStyle(x).lineHeight))"
    rows = show(path, width).locator(".mistakes dl div").filter(has_text="Confidence")
    lines = rows.locator("dt, dd").evaluate_all(heights)
    assert len(lines) == 24
    assert max(lines) < 1.5


def test_long_ids_and_names_leave_room_on_a_phone(show: Open, long_words: Path) -> None:
    page = show(long_words, width=390)
    for title in ("classes", "pairs", "mistakes"):
        first = page.locator(f"section[aria-labelledby={title}] tbody tr").first
        cells = [cell.bounding_box() for cell in first.locator("th, td").all()[:2]]
        assert cells[0] is not None
        assert cells[1] is not None
        assert cells[0]["width"] < 200
        assert cells[1]["x"] < 250


def test_a_long_table_of_classes_scrolls_and_says_so(show: Open, long_words: Path) -> None:
    section = show(long_words).locator("section[aria-labelledby=classes]")
    table = section.locator(".scroll")
    assert table.evaluate("e => e.scrollHeight > e.clientHeight")
    assert "The table scrolls." in section.inner_text()
    caption = table.locator("caption").bounding_box()  # on top, where it can be seen
    header = table.locator("thead").bounding_box()
    assert caption is not None
    assert header is not None
    assert caption["y"] < header["y"]


def test_a_short_table_of_classes_is_shown_whole(show: Open) -> None:
    section = show().locator("section[aria-labelledby=classes]")
    assert section.locator("tbody tr").count() == 10
    assert section.locator(".scroll").evaluate("e => e.scrollHeight <= e.clientHeight")
    assert "The table scrolls." not in section.inner_text()


def test_a_threshold_that_no_input_reaches_has_no_share_of_mistakes(
    show: Open, long_words: Path
) -> None:
    page = show(long_words)
    page.locator("#threshold").fill(str(chart_data.N_STEPS))
    assert page.locator("#coverage-note").inner_text().startswith("0 of")
    assert page.locator("#accuracy-note").inner_text() == "no inputs"


def test_charts_follow_the_width_of_the_window(show: Open) -> None:
    page = show()
    page.set_viewport_size({"width": 500, "height": 900})
    page.wait_for_function(
        "document.querySelector('#scatter svg').getBoundingClientRect().width < 500"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 500


def test_controls_work_by_keyboard(show: Open) -> None:
    page = show()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached: list[str] = []
    while "threshold" not in reached and len(reached) < 10:
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.name"))
    assert reached[-2:] == ["method", "threshold"]
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    level, coverage = page.locator("#level").inner_text(), page.locator("#coverage").inner_text()
    for _ in range(10):
        page.keyboard.press("ArrowLeft")
    assert page.locator("#level").inner_text() == percent(0.85)
    assert level == percent(0.9)
    assert page.locator("#coverage").inner_text() != coverage
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.value") == "ts"
    assert "of TS" in (page.locator("#curve").get_attribute("aria-label") or "")


def test_it_prints(show: Open) -> None:
    page = show(color_scheme="dark")
    page.emulate_media(media="print")
    assert luminance(
        page.evaluate("getComputedStyle(document.body).backgroundColor")
    ) == pytest.approx(1)
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_one_method_without_uncertainties_is_drawn_too(show: Open, tmp_path: Path) -> None:
    prediction, labels = predicted([(0.9, 300, 240)])
    page = show(write_report(tmp_path / "r.html", {"mine": prediction}, labels))
    assert page.locator("#coverage").inner_text() == percent(
        0.0 if prediction.confidence[0].double() < 0.9 else 1.0
    )
    assert all(colours(page, chart) > 5 for chart in CHARTS[:3])


def test_the_chosen_method_is_in_view_on_a_phone(show: Open, tmp_path: Path) -> None:
    prediction, labels = predicted([(0.9, 300, 240)])
    many = {f"a method with a long name, {i}": prediction for i in range(6)}
    page = show(write_report(tmp_path / "r.html", many, labels), width=375)
    chosen = page.locator(".choices label").last.bounding_box()
    assert chosen is not None
    assert 0 <= chosen["x"] <= chosen["x"] + chosen["width"] <= 375
