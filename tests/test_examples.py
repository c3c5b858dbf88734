"""The examples: their pages are what their records say, and their comparison is right."""

import importlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

import simplexcal as sc

ROOT = Path(__file__).parents[1]
RECORDS = [json.loads(path.read_text()) for path in (ROOT / "examples" / "records").iterdir()]


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "examples")
    return importlib.import_module(name)


def some_predictions(labels: Tensor, seed: int, n_classes: int = 4) -> sc.Prediction:
    logits = torch.randn(*labels.shape, n_classes, generator=Generator().manual_seed(seed))
    rows = sc.Outputs(logits.flatten(0, -2))
    flat = sc.CALIBRATORS["none"]()(rows)
    values = {
        name: x.reshape(labels.shape)
        for name, x in vars(flat).items()
        if x is not None and x.dim() == 1
    }
    return sc.Prediction(**{**values, "probs": flat.probs.reshape(*labels.shape, n_classes)})


def test_the_pages_are_what_the_records_say(monkeypatch: pytest.MonkeyPatch) -> None:
    render = example("render", monkeypatch)
    shown = []
    for name in render.PAGES:
        page = (render.PAGES_FOLDER / name).read_text()
        assert render.render(page) == page
        shown += re.findall(r"<!-- record (\w+) -->", page)
    assert sorted(shown) == sorted(record["example"] for record in RECORDS)
    readme = render.README.read_text()
    assert render.render_readme(readme) == readme
    assert sorted(render.CLASSIFIERS) == sorted(shown)


def test_the_records_are_of_one_version_and_keep_every_prediction() -> None:
    assert len({record["versions"]["simplexcal"] for record in RECORDS}) == 1
    assert len({record["versions"]["torch"] for record in RECORDS}) == 1
    tables = [x for record in RECORDS for x in record["blocks"] if x["kind"] == "methods"]
    for table in tables:
        assert list(table["rows"]) == ["none", "ts", "ets", "sts"]
        assert table["changed"] == 0
        assert len({row["accuracy"] for row in table["rows"].values()}) == 1


def test_what_the_pages_say_of_the_figures_is_so() -> None:
    tables = [x for record in RECORDS for x in record["blocks"]]
    for table in tables:
        if table["kind"] == "methods":  # "STS has the lowest NLL in every table"
            losses = {key: row["nll"] for key, row in table["rows"].items()}
            assert min(losses, key=lambda key: losses[key]) == "sts"
        if table["kind"] == "detection":
            scores = table["rows"]
            first, second = sorted(scores, key=lambda name: scores[name]["auroc"])[-2:]
            assert {first, second} == {"energy", "epistemic uncertainty, STS"}
            shown = {f"{100 * scores[name]['auroc']:.2f}" for name in (first, second)}
            assert len(shown) == 1
            assert min(scores, key=lambda name: scores[name]["fpr_95"]) == "energy"
            surest = max(scores, key=lambda name: scores[name]["aupr"])
            assert surest == "epistemic uncertainty, STS"


def test_the_difference_of_two_nlls(monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = example("_comparison", monkeypatch)
    labels = torch.arange(50) % 4
    first, second = some_predictions(labels, 0), some_predictions(labels, 1)
    mean, error = comparison.nll_difference(first, second, labels)
    losses = [-x.probs[torch.arange(50), labels].double().log() for x in (first, second)]
    difference = losses[0] - losses[1]
    assert mean == pytest.approx(
        sc.evaluate(first, labels).nll - sc.evaluate(second, labels).nll, abs=1e-6
    )
    assert mean == pytest.approx(difference.mean().item())
    assert error == pytest.approx(difference.std().item() / math.sqrt(50))


def test_the_difference_of_two_nlls_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = example("_comparison", monkeypatch)
    labels = torch.arange(120).view(20, 6) % 4
    labels[:, 3:] = -100
    first, second = some_predictions(labels, 0), some_predictions(labels, 1)
    mean, error = comparison.nll_difference(first, second, labels)
    evaluated = [comparison.evaluate(x, labels).nll for x in (first, second)]
    assert mean == pytest.approx(evaluated[0] - evaluated[1], abs=1e-6)
    # Three tokens in each: a sentence counts like a single input with their mean.
    kept = labels[:, :3].unsqueeze(-1)
    losses = [-x.probs[:, :3].gather(-1, kept).double().log() for x in (first, second)]
    by_sentence = (losses[0] - losses[1]).mean((1, 2))
    assert error == pytest.approx(by_sentence.std().item() / math.sqrt(20))


def test_no_group_is_both_in_a_fit_and_in_its_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = example("_comparison", monkeypatch)
    generator = Generator().manual_seed(0)
    outputs = sc.Outputs(3 * torch.randn(200, 4, generator=generator))
    labels = (outputs.logits / 2).softmax(-1).multinomial(1, generator=generator).squeeze(1)
    groups = [f"group {i % 7}" for i in range(200)]
    before = comparison.predict_by_folds(outputs, labels, groups, n_folds=7)("ts")
    in_group = torch.arange(200) % 7 == 2
    changed = torch.where(in_group, outputs.logits.argmax(-1), labels)
    after = comparison.predict_by_folds(outputs, changed, groups, n_folds=7)("ts")
    assert torch.equal(after.probs[in_group], before.probs[in_group])
    assert not torch.isclose(after.confidence[~in_group], before.confidence[~in_group]).any()
    assert torch.equal(before.label, outputs.logits.argmax(-1))


def test_files_of_uncertain_type_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = example("_files", monkeypatch)
    folder = tmp_path / "samples" / "C"
    (folder / "filenames").mkdir(parents=True)
    text = "int main() { return 0; } // a comment\n"
    contents = {
        "main.c": text,
        "copy.c": text,
        "main.h": text + "//",
        "short.c": "int x;",
        "main.go": text + "// go",
        "filenames/makefile": text + "// make",
    }
    for name, content in contents.items():
        (folder / name).write_text(content)
    found = files.files_of_linguist(tmp_path, {"C": "c"})
    assert len(found) == len(contents)
    kept = files.certain(found, ["c", "go", "xml"])
    assert [file.path.name for file in kept] == ["copy.c", "makefile"]
    assert files.group_of(kept[0]) == "c copy"
    other_xml = files.File(Path("a.xsl"), "xml", b"<" * 40)
    assert not files.has_certain_type(other_xml, ["xml"])


def test_the_words_of_a_treebank_are_padded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tagger = example("tagger", monkeypatch)
    rows = [("1", "Give", "VERB"), ("2-3", "'em", "_"), ("2", "'em", "PRON"), ("2.1", "x", "X")]
    lines = ["# text = Give 'em", *("\t".join([a, b, "_", c]) for a, b, c in rows)]
    (tmp_path / "a.conllu").write_text("\n".join(lines) + "\n\n1\tGo\tgo\tVERB\n\n")
    sentences = tagger.read(tmp_path / "a.conllu")
    assert sentences == [[("Give", "VERB"), ("'em", "PRON")], [("Go", "VERB")]]
    data = tagger.encode(sentences, {"give": 2, "go": 3})
    assert data["input_ids"].tolist() == [[2, tagger.UNKNOWN], [3, 0]]
    assert data["attention_mask"].tolist() == [[1, 1], [1, 0]]
    verb, pronoun = tagger.CLASSES.index("VERB"), tagger.CLASSES.index("PRON")
    assert data["labels"].tolist() == [[verb, pronoun], [verb, -100]]
    net = tagger.Tagger(4).eval()
    alone = tagger.encode(sentences[1:], {"go": 3})
    inputs = [{name: x for name, x in part.items() if name != "labels"} for part in (data, alone)]
    torch.testing.assert_close(net(**inputs[0])[1, 0], net(**inputs[1])[0, 0])


def test_the_pieces_of_a_query_are_hashed_and_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    intents = example("intents", monkeypatch)
    assert list(intents.pieces_of("Go on")) == [
        *("go", "on", "go on"),
        *("<go", "go>", "<go>"),
        *("<on", "on>", "<on>"),
    ]
    encoded = intents.encode(["go on", "go"])
    assert encoded.shape == (2, 9)
    assert encoded[1, 4:].tolist() == [0] * 5
    net = intents.Network(3).eval()
    torch.testing.assert_close(net(encoded)[1], net(encoded[1:, :4])[0])
