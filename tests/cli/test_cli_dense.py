"""The commands on networks that classify each token or pixel."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from helpers.command_line import error_of, simplexcal
from helpers.dense_networks import Segmentation, Tagger
from helpers.quick_branches import quick_branches
from onnx import TensorProto, helper
from torch import Generator, Tensor

import simplexcal as sc
from simplexcal.io.tables import read_predictions

N, K, VOID = 12, 3, 255
SEGMENTATION = "--model helpers.dense_networks:Segmentation"
TAGGER = "--model helpers.dense_networks:Tagger"
LENGTH_FREE_TAGGER = "--model helpers.dense_networks:MasklessTagger"
Arrays = dict[str, npt.NDArray[Any]]


def drawn(logits: Tensor, generator: Generator) -> Tensor:
    """Return labels from a distribution that is less certain than these logits, (R, K)."""
    return (logits / 3).softmax(-1).multinomial(1, generator=generator).squeeze(-1)


def scenes() -> Arrays:
    """Return images and maps of labels, with void, and the logits of the network."""
    g = Generator().manual_seed(0)
    images = torch.randn(N, 3, 6, 8, generator=g)
    logits = Segmentation()(images).detach()
    labels = drawn(logits.movedim(1, -1).reshape(-1, K), g).view(N, 6, 8)
    labels[:, :2] = VOID
    return {"inputs": images.numpy(), "labels": labels.numpy(), "logits": logits.numpy()}


def sentences() -> Arrays:
    """Return padded texts whose padding has a class too, which does not count."""
    g = Generator().manual_seed(0)
    ids = torch.randint(20, (N, 9), generator=g)
    mask = (torch.arange(9) < torch.randint(4, 10, (N, 1), generator=g)).long()
    logits = Tagger()(ids, mask).detach()
    labels = drawn(logits.reshape(-1, K), g).view(N, 9).masked_fill(mask == 0, 0)
    return {
        "input_ids": ids.numpy(),
        "attention_mask": mask.numpy(),
        "labels": labels.numpy(),
        "logits": logits.numpy(),
    }


def select(arrays: Arrays, *names: str) -> Arrays:
    return {name: arrays[name] for name in names}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with images in images.npz and saved logits in logits.npz."""
    monkeypatch.chdir(tmp_path)
    arrays = scenes()
    np.savez("images.npz", **select(arrays, "inputs", "labels"))  # type: ignore[arg-type]
    np.savez("logits.npz", **select(arrays, "logits", "labels"))  # type: ignore[arg-type]
    return tmp_path


def record_of(capsys: pytest.CaptureFixture[str], command: str) -> dict[str, Any]:
    capsys.readouterr()
    assert simplexcal(f"{command} --json") == 0, capsys.readouterr().err
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def scene_tensors() -> tuple[Tensor, Tensor]:
    arrays = scenes()
    return torch.from_numpy(arrays["inputs"]), torch.from_numpy(arrays["labels"])


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("method", ["ts", "sts"])
def test_pixels_from_a_network_as_in_the_library(
    method: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_branches(monkeypatch, 20)
    images, labels = scene_tensors()
    model = sc.calibrate(Segmentation(), (images, labels), method, batch_size=8)
    fit = f"calibrate images.npz {SEGMENTATION} --method {method} -o net.safetensors"
    assert record_of(capsys, fit)["n"] == (labels != VOID).sum()
    command = f"evaluate images.npz {SEGMENTATION} --calibrator net.safetensors"
    found = record_of(capsys, command)["methods"]
    expected = model.evaluate((images, labels))
    for name, evaluation in (("none", expected.before), (method, expected.after)):
        for score in ("n", "n_positions", "accuracy", "nll", "brier", "ece", "ece_high"):
            value = getattr(evaluation, score)
            assert found[name][score] == pytest.approx(value, rel=1e-5), score
    n_label = [int((labels == k).sum()) for k in range(K)]
    assert [row["n"] for row in found[method]["classes"]] == n_label
    assert simplexcal(f"predict net.safetensors images.npz {SEGMENTATION} -o out.npz") == 0
    prediction, written = read_predictions("out.npz")
    torch.testing.assert_close(prediction.probs, model.predict(images).probs)
    assert torch.equal(prediction.label, model.predict(images).label)
    assert written is not None
    assert torch.equal(written, labels)
    again = record_of(capsys, "evaluate out.npz")["methods"]["out"]
    assert again["nll"] == pytest.approx(found[method]["nll"], rel=1e-5)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_saved_logits_give_what_the_network_gives(
    suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for data, model in (("images", SEGMENTATION), ("logits", "")):
        assert simplexcal(f"calibrate {data}.npz {model} --method ts -o {data}.safetensors") == 0
        command = f"predict {data}.safetensors {data}.npz {model} -o {data}_out{suffix}"
        assert simplexcal(command) == 0
    capsys.readouterr()
    images, _ = read_predictions(f"images_out{suffix}")
    logits, _ = read_predictions(f"logits_out{suffix}")
    torch.testing.assert_close(images.probs, logits.probs)
    # The model of saved logits is one of the network, too.
    assert sc.load("logits.safetensors", Segmentation()).is_dense


@pytest.mark.usefixtures("folder")
def test_probabilities_of_pixels(capsys: pytest.CaptureFixture[str]) -> None:
    arrays = scenes()
    probs = torch.from_numpy(arrays["logits"]).softmax(1).numpy()
    np.savez("probs.npz", probs=probs, labels=arrays["labels"])
    found = record_of(capsys, "evaluate probs.npz")["methods"]["none"]
    expected = record_of(capsys, "evaluate logits.npz")["methods"]["none"]
    assert found["nll"] == pytest.approx(expected["nll"], rel=1e-5)


@pytest.mark.usefixtures("folder")
def test_labels_to_be_ignored_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    arrays = scenes()
    other = np.where(arrays["labels"] == VOID, 77, arrays["labels"])
    np.savez("other.npz", logits=arrays["logits"], labels=other)
    expected = record_of(capsys, "evaluate logits.npz")["methods"]["none"]
    found = record_of(capsys, "evaluate other.npz --ignore-index 77")["methods"]["none"]
    assert found == expected
    two = record_of(capsys, "evaluate other.npz --ignore-index 77 --ignore-index 0")["methods"]
    n_others = int(np.isin(other, [1, 2]).sum())
    assert two["none"]["n_positions"] == n_others
    fit = "calibrate other.npz --method ts --ignore-index 77 -o net.safetensors"
    assert record_of(capsys, fit)["n"] == expected["n_positions"]
    small = record_of(capsys, f"{fit} --max-positions 50 --batch-size 5")
    assert small["n"] == 50


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("names", "model"),
    [
        ({"input_ids": "input_ids"}, TAGGER),
        ({"inputs": "input_ids"}, TAGGER),
        ({"inputs": "input_ids"}, LENGTH_FREE_TAGGER),
        ({"logits": "logits"}, ""),
    ],
    ids=["names", "inputs and mask", "inputs alone", "logits"],
)
def test_tokens_that_are_masked_do_not_count(
    names: dict[str, str], model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = sentences()
    counted = arrays["attention_mask"] != 0
    data = {name: arrays[source] for name, source in names.items()}
    data |= select(arrays, "attention_mask", "labels")
    np.savez("texts.npz", **data)  # type: ignore[arg-type]
    fit = f"calibrate texts.npz {model} --method ts -o net.safetensors"
    assert record_of(capsys, fit)["n"] == counted.sum()
    command = f"evaluate texts.npz {model} --calibrator net.safetensors"
    found = record_of(capsys, command)["methods"]
    right = arrays["logits"].argmax(-1) == arrays["labels"]
    assert found["ts"]["accuracy"] == pytest.approx(right[counted].mean())
    assert found["ts"]["n_positions"] == counted.sum()
    assert simplexcal(f"predict net.safetensors texts.npz {model} -o out.npz") == 0
    again = record_of(capsys, "evaluate out.npz")["methods"]["out"]
    assert again["nll"] == pytest.approx(found["ts"]["nll"], rel=1e-5)
    report = f"report texts.npz {model} --calibrator net.safetensors -o report.html"
    assert record_of(capsys, report)["methods"] == ["none", "ts"]
    assert f"{counted.sum()} tokens" in Path("report.html").read_text()


@pytest.mark.usefixtures("folder")
def test_the_mask_reaches_a_network_that_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    # The masked tagger changes the logits of all tokens by the number of tokens that count.
    arrays = sentences()
    np.savez("texts.npz", **select(arrays, "input_ids", "attention_mask", "labels"))  # type: ignore[arg-type]
    np.savez("logits.npz", **select(arrays, "logits", "attention_mask", "labels"))  # type: ignore[arg-type]
    found = record_of(capsys, f"evaluate texts.npz {TAGGER}")["methods"]["none"]
    expected = record_of(capsys, "evaluate logits.npz")["methods"]["none"]
    assert found["nll"] == pytest.approx(expected["nll"], rel=1e-5)


@pytest.mark.usefixtures("folder")
def test_the_table_and_the_report_name_the_classes(capsys: pytest.CaptureFixture[str]) -> None:
    arrays = scenes()
    names = np.array(["sky", "road", "tree"])
    np.savez("named.npz", logits=arrays["logits"], labels=arrays["labels"], class_names=names)
    assert simplexcal("evaluate named.npz") == 0
    out = capsys.readouterr().out
    assert "| road " in out
    assert "Verdict: " in out
    assert simplexcal("report named.npz -o report.html --title Streets") == 0
    page = Path("report.html").read_text()
    assert "<title>Streets</title>" in page
    assert "sky" in page


@pytest.mark.usefixtures("folder")
def test_the_figures_are_stored_for_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert simplexcal("calibrate logits.npz --method ts -o ts.safetensors") == 0
    found = record_of(capsys, "evaluate logits.npz --calibrator ts.safetensors --save")["methods"]
    card = record_of(capsys, "info ts.safetensors")
    assert card["fit"]["noun"] == "positions"
    assert card["evaluation"]["n_positions"] == found["ts"]["n_positions"]
    assert card["evaluation"]["after"]["nll"] == pytest.approx(found["ts"]["nll"])


@pytest.mark.usefixtures("folder")
def test_one_image_proves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    arrays = {name: x[:1] for name, x in scenes().items()}
    np.savez("one.npz", logits=arrays["logits"], labels=arrays["labels"])
    assert simplexcal("evaluate one.npz") == 0
    out = capsys.readouterr().out
    assert "One input is too few" in out
    assert "nan" not in out


def damaged(**changes: Any) -> Arrays:
    return {**scenes(), **changes}


LABELS = scenes()["labels"]
BAD: list[tuple[str, Arrays, tuple[str, ...], str, str]] = [
    (
        "labels of another size",
        damaged(labels=LABELS[:, :4]),
        ("logits", "labels"),
        "evaluate bad.npz",
        "'bad.npz': `labels` must have shape (12, 6, 8), for `logits` (12, 3, 6, 8)",
    ),
    (
        "logits with the classes last",
        damaged(logits=scenes()["logits"].transpose(0, 2, 3, 1)),
        ("logits", "labels"),
        "calibrate bad.npz -o net.safetensors",
        "with the classes in dimension 1 of maps",
    ),
    (
        "a network with other labels",
        damaged(labels=LABELS[:, :4]),
        ("inputs", "labels"),
        f"calibrate bad.npz {SEGMENTATION} -o net.safetensors",
        "one class for each position",
    ),
    (
        "void that is not named",
        damaged(labels=np.where(LABELS == VOID, 3, LABELS)),
        ("inputs", "labels"),
        f"evaluate bad.npz {SEGMENTATION}",
        "`labels` must be in 0..2 for 3 classes; found 3 at position 0. Pass --ignore-index",
    ),
    (
        "nothing that counts",
        damaged(labels=np.full_like(LABELS, VOID)),
        ("inputs", "labels"),
        f"calibrate bad.npz {SEGMENTATION} -o net.safetensors",
        "`labels` hold no position that counts: all are ignored. Check --ignore-index",
    ),
    (
        "no labels",
        damaged(),
        ("inputs",),
        f"evaluate bad.npz {SEGMENTATION}",
        "'bad.npz' holds no true classes",
    ),
    (
        "channels last",
        damaged(inputs=scenes()["inputs"].transpose(0, 2, 3, 1)),
        ("inputs", "labels"),
        f"evaluate bad.npz {SEGMENTATION}",
        "The network cannot take the `inputs` of 'bad.npz'",
    ),
    (
        "mixed inputs",
        damaged(),
        ("inputs", "labels"),
        f"calibrate bad.npz {SEGMENTATION} --mixup inputs -o net.safetensors",
        "--mixup must be features or logits",
    ),
    (
        "an empty batch",
        damaged(),
        ("inputs", "labels"),
        f"calibrate bad.npz {SEGMENTATION} --batch-size 0 -o net.safetensors",
        "--batch-size must be at least 1; got 0.",
    ),
    (
        "maps as rows",
        damaged(),
        ("logits", "labels"),
        "predict ts.safetensors bad.npz -o out.parquet",
        "'out.parquet' must end in .npz or .safetensors for predictions of tokens or pixels",
    ),
    (
        "a threshold",
        damaged(),
        ("logits", "labels"),
        "threshold ts.safetensors bad.npz --coverage 0.9",
        "'bad.npz' is about tokens or pixels",
    ),
    (
        "OOD pixels",
        damaged(),
        ("logits", "labels"),
        "ood bad.npz bad.npz",
        "'bad.npz' is about tokens or pixels",
    ),
    (
        "a report on OOD pixels",
        damaged(),
        ("logits", "labels"),
        "report bad.npz --ood bad.npz -o report.html",
        "--ood is about whole inputs",
    ),
    (
        "whole inputs with labels to be ignored",
        {"logits": np.eye(3, dtype=np.float32), "labels": np.arange(3)},
        ("logits", "labels"),
        "evaluate bad.npz --ignore-index 1",
        "--ignore-index is about tokens or pixels; 'bad.npz' has one class for each input.",
    ),
    (
        "a mask of another size",
        {**sentences(), "attention_mask": sentences()["attention_mask"][:, :5]},
        ("input_ids", "attention_mask", "labels"),
        f"evaluate bad.npz {TAGGER}",
        "'bad.npz': `attention_mask` must have shape (12, 9)",
    ),
]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arrays", "names", "command", "expected"), [row[1:] for row in BAD], ids=[x[0] for x in BAD]
)
def test_bad_input_gives_one_sentence(
    arrays: Arrays,
    names: tuple[str, ...],
    command: str,
    expected: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    np.savez("bad.npz", **select(arrays, *names))  # type: ignore[arg-type]
    if "ts.safetensors" in command:
        assert simplexcal("calibrate logits.npz --method ts -o ts.safetensors") == 0
        capsys.readouterr()
    before = set(Path.cwd().iterdir())
    assert expected in error_of(capsys, command)
    assert set(Path.cwd().iterdir()) == before


@pytest.mark.usefixtures("folder")
def test_features_beside_saved_maps_are_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    arrays = scenes()
    np.savez("f.npz", logits=arrays["logits"], labels=arrays["labels"], features=arrays["inputs"])
    assert simplexcal("calibrate f.npz --method ts -o net.safetensors") == 0
    err = capsys.readouterr().err
    assert err.startswith("warning: 'f.npz': `features` of tokens or pixels are not read")
    assert "pass --model and its inputs" in err


@pytest.mark.usefixtures("folder")
def test_a_graph_of_pixels_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    shape: list[str | int | None] = ["n", 3, 6, 8]
    images, logits = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name in ("images", "logits")
    )
    node = helper.make_node("Neg", ["images"], ["logits"])
    graph = helper.make_graph([node], "net", [images], [logits])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    Path("net.onnx").write_bytes(model.SerializeToString())
    command = "evaluate images.npz --model net.onnx --kind logits"
    assert "Pixels and tokens are calibrated with a PyTorch network" in error_of(capsys, command)
