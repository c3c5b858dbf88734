"""The calibration card, and the facts in a calibrator's file that it is made from."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor, nn

import simplexcal as sc
from simplexcal.facts import Facts, FitFacts, today
from simplexcal.io.native import _checksum

K = 3
NAMES = ("cat", "dog", "a | <b>")


def make_net() -> nn.Module:
    net = nn.Linear(4, K)
    generator = Generator().manual_seed(0)
    with torch.no_grad():
        net.weight.copy_(3 * torch.randn(K, 4, generator=generator))
        net.bias.zero_()
    return net


def make_data(net: nn.Module, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs and labels for which the network is over-confident."""
    generator = Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator)
    labels = (net(x) / 2).softmax(-1).multinomial(1, generator=generator).squeeze(1)
    return x, labels


@pytest.fixture
def net() -> nn.Module:
    return make_net()


@pytest.fixture
def model(net: nn.Module) -> sc.CalibratedModel:
    return sc.calibrate(net, make_data(net, 200, 1), "ts", class_names=NAMES)


def without_facts(path: Path) -> None:
    """Make a file one of an older version."""
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["simplexcal"])
    tensors = load_file(path)
    del header["facts"]
    del header["checksum"]
    header["checksum"] = _checksum(header, tensors)
    save_file(tensors, path, {"simplexcal": json.dumps(header)})


def test_the_card_says_what_was_fitted(net: nn.Module, model: sc.CalibratedModel) -> None:
    card = model.card()
    assert card.method == "ts"
    assert card.settings == sc.TemperatureScaling().settings
    assert card.changed_settings == ()
    assert card.n_classes == K
    assert card.n_features is None
    assert card.class_names == NAMES
    assert card.fingerprint == sc.Backbone(net).fingerprint()
    fit = card.fit
    assert fit is not None
    assert (fit.n, fit.noun, fit.weighted, fit.date) == (200, "inputs", False, today())
    assert fit.versions == card.versions
    assert fit.versions["torch"] == str(torch.__version__)
    assert fit.nll_after is not None
    x, labels = make_data(net, 200, 1)
    nll = nn.functional.nll_loss(model.predict(x).probs.log(), labels)
    assert fit.nll_after == pytest.approx(nll.item(), rel=1e-5)


def test_without_an_evaluation_the_card_has_no_figures(model: sc.CalibratedModel) -> None:
    text = str(model.card())
    assert "Not measured on held-out data." in text
    assert "which flatter every calibrator" in " ".join(text.split())
    assert "before |" not in text


def test_an_evaluation_gives_the_figures(net: nn.Module, model: sc.CalibratedModel) -> None:
    found = model.evaluate(make_data(net, 400, 2), n_bins=10)
    facts = model.card().evaluation
    assert facts is not None
    assert (facts.n, facts.n_positions, facts.n_bins) == (400, None, 10)
    assert facts.before["nll"] == found.before.nll
    assert facts.after["ece"] == found.after.ece
    assert facts.changes["ece"] == {
        "mean": found.ece.mean,
        "low": found.ece.low,
        "high": found.ece.high,
        "p_value": found.ece.p_value,
    }
    e = found.after
    rows = [re.split(r" *\| *", line) for line in str(model.card()).splitlines()]
    cells = {row[1]: row[2:-1] for row in rows if len(row) == 7}
    assert cells["ECE %"][1] == f"{100 * e.ece:.2f}"
    assert cells["ECE interval"][1] == f"{100 * e.ece_low:.2f} to {100 * e.ece_high:.2f}"
    assert cells["ECE %"][3] == f"{100 * found.ece.low:+.2f} to {100 * found.ece.high:+.2f}"


def test_data_of_the_fit_give_no_figures(net: nn.Module, model: sc.CalibratedModel) -> None:
    with pytest.warns(UserWarning, match="are the ones that the calibrator was fitted to"):
        model.evaluate(make_data(net, 200, 1))
    assert model.card().evaluation is None


def test_a_file_has_the_card_and_none_of_the_data(
    net: nn.Module, model: sc.CalibratedModel, tmp_path: Path
) -> None:
    held_out = make_data(net, 400, 2)
    model.evaluate(held_out)
    model.threshold(held_out, coverage=0.9)
    path = tmp_path / "net.safetensors"
    model.save(path)
    assert sc.CalibrationCard.read(path) == model.card()
    assert sc.load(path, net).card() == model.card()
    assert str(sc.CalibrationCard.read(path)) == str(model.card())
    assert path.stat().st_size < 6000


def test_a_new_fit_forgets_the_old_facts(net: nn.Module, model: sc.CalibratedModel) -> None:
    model.evaluate(make_data(net, 400, 2))
    outputs, labels = sc.extract(net, make_data(net, 100, 3))
    calibrator = model.calibrator
    calibrator.fit(outputs, labels, sample_weight=torch.rand(100) + 0.1)
    assert calibrator.facts == Facts(FitFacts(100, weighted=True))
    with pytest.raises(ValueError, match="must"):
        calibrator.fit(outputs, labels[:5])
    assert "100 weighted inputs" in str(sc.CalibrationCard.of(calibrator))


def test_an_older_file_says_what_is_not_known(
    net: nn.Module, model: sc.CalibratedModel, tmp_path: Path
) -> None:
    path = tmp_path / "net.safetensors"
    model.save(path)
    without_facts(path)
    loaded = sc.load(path, net)
    x, _ = make_data(net, 10, 2)
    assert torch.equal(loaded.predict(x).probs, model.predict(x).probs)
    card = sc.CalibrationCard.read(path)
    assert (card.fit, card.evaluation, card.class_names) == (None, None, None)
    text = " ".join(str(card).split())
    assert "data whose size and date are not known" in text
    assert "3; names not known" in text
    assert "NLL" not in repr(loaded)


def test_facts_of_a_newer_version_are_ignored() -> None:
    record = Facts(FitFacts(5), class_names=NAMES).as_dict()
    record["fit"]["new"] = 1
    record["new"] = 2
    assert Facts.from_record(json.loads(json.dumps(record))) == Facts(FitFacts(5), None, NAMES)


def test_names_cannot_be_markup(model: sc.CalibratedModel) -> None:
    text = str(model.card())
    assert "3: cat, dog, a | &lt;b>" in text
    assert "<b>" not in text


def test_a_saved_calibrator_without_a_network_says_so(tmp_path: Path, net: nn.Module) -> None:
    outputs, labels = sc.extract(net, make_data(net, 200, 1))
    calibrator = sc.EnsembleTemperatureScaling(loss="nll").fit(outputs, labels)
    calibrator.save(tmp_path / "c.safetensors")
    card = sc.CalibrationCard.read(tmp_path / "c.safetensors")
    text = " ".join(str(card).split())
    assert "**Network:** not known" in text
    assert "Every network with 3 classes is accepted" in text
    assert card.changed_settings == ("loss",)
    assert "loss = nll; otherwise the defaults" in text
    values = json.loads(json.dumps(card.as_dict()))
    assert values["fit"]["n"] == 200


def test_a_method_that_changes_predictions_says_so(net: nn.Module) -> None:
    outputs, labels = sc.extract(net, make_data(net, 200, 1))
    changing = sc.VectorScaling().fit(outputs, labels)
    keeping = sc.TemperatureScaling().fit(outputs, labels)
    texts = [" ".join(str(sc.CalibrationCard.of(x)).split()) for x in (changing, keeping)]
    assert ["may change predictions" in text for text in texts] == [True, False]
    assert ["The predicted class is the network's own." in text for text in texts] == [False, True]


def test_there_is_no_card_before_the_fit() -> None:
    with pytest.raises(sc.NotFittedError, match="so there is no card"):
        sc.CalibrationCard.of(sc.TemperatureScaling())


@pytest.mark.parametrize(
    ("id2label", "expected"),
    [
        ({1: "b", 0: "a", 2: "c"}, ["a", "b", "c"]),
        ({0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}, None),
        ({0: "a", 1: "b"}, None),
        ({1: "a", 2: "b", 3: "c"}, None),
        (["a", "b", "c"], None),
    ],
)
def test_names_come_from_the_config_of_the_network(
    net: Any, id2label: Any, expected: list[str] | None
) -> None:
    net.config = SimpleNamespace(id2label=id2label)
    data = make_data(net, 50, 1)
    assert sc.calibrate(net, data, "ts").class_names == expected
    assert sc.calibrate(net, data, "ts", class_names=NAMES).class_names == list(NAMES)


def test_wrong_names_are_refused_before_the_fit(net: nn.Module) -> None:
    with pytest.raises(ValueError, match="`class_names` must name all 3 classes"):
        sc.calibrate(net, make_data(net, 50, 1), "ts", class_names=["a"])


def test_a_network_of_pixels_counts_positions() -> None:
    torch.manual_seed(0)
    net = nn.Conv2d(2, K, 1)
    x = torch.randn(8, 2, 6, 5)
    labels = net(x).softmax(1).argmax(1)
    labels[:, :2] = 0
    model = sc.calibrate(net, (x[:4], labels[:4]), "ts")
    model.evaluate((x[4:], labels[4:]))
    card = model.card()
    assert card.is_dense
    assert card.fit is not None
    assert (card.fit.n, card.fit.noun) == (120, "positions")
    assert card.evaluation is not None
    assert (card.evaluation.n, card.evaluation.n_positions) == (4, 120)
    assert "120 positions of 4 inputs" in str(card)
