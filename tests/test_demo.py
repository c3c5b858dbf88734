"""The embedded network and data are as documented, small, and can be saved."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.command_line import error_of, simplexcal
from torch import Tensor

from simplexcal.backbone import Backbone
from simplexcal.calibrators import TemperatureScaling
from simplexcal.demo import fashion_mnist, run
from simplexcal.demo.fashion_mnist import CLASSES, calibration_test_split, images_and_labels
from simplexcal.demo.files import check_folder, save
from simplexcal.demo.lenet5 import normalise
from simplexcal.io.tables import read_inputs, read_outputs
from simplexcal.network_spec import load_network

FOLDER = Path(fashion_mnist.__file__).parent


def test_the_embedded_files_are_small() -> None:
    sizes = [path.stat().st_size for path in FOLDER.rglob("*") if path.suffix != ".pyc"]
    assert sum(sizes) <= 6_000_000


def test_the_images_are_ten_thousand_of_ten_classes() -> None:
    images, labels = images_and_labels()
    assert images.shape == (10_000, 28, 28)
    assert images.dtype == torch.uint8
    assert labels.bincount().tolist() == [1000] * len(CLASSES)


def test_the_split_has_each_row_once() -> None:
    fit, test = calibration_test_split(10_000)
    assert len(fit) == len(test) == 5_000
    assert torch.equal(torch.cat([fit, test]).sort().values, torch.arange(10_000))


def test_the_network_has_learned() -> None:
    data = run.prepare()
    accuracy = (data.test.label == data.test_labels).double().mean()
    assert accuracy > 0.89


def test_each_image_is_predicted_by_a_calibrator_of_the_other_half() -> None:
    data = run.prepare()
    first, second = calibration_test_split(len(data.labels))
    expected = torch.empty(len(data.labels), 10)
    for fitted, predicted in ((first, second), (second, first)):
        calibrator = TemperatureScaling().fit(data.outputs[fitted], data.labels[fitted])
        expected[predicted] = calibrator(data.outputs[predicted]).probs
    ((_, prediction),) = run.predictions(data, ["ts"])
    assert torch.equal(prediction.probs, expected)


def test_no_method_changes_a_prediction() -> None:
    quick = ("none", "ts", "ets")
    data = run.prepare()
    predictions = dict(run.predictions(data, quick))
    assert tuple(predictions) == quick
    assert all(torch.equal(p.label, data.outputs.label) for p in predictions.values())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "new" / "data"
    check_folder(folder)
    save(run.prepare(), folder)
    return folder


def images_of(ids: Any) -> Tensor:
    images, _ = images_and_labels()
    return images[torch.from_numpy(ids)]


def network_of(folder: Path) -> Backbone:
    return Backbone(load_network("simplexcal.demo.lenet5:LeNet5", folder / "lenet5.safetensors"))


def test_saved_halves_are_whole_and_have_each_image_once(saved: Path) -> None:
    _, labels = images_and_labels()
    keys = []
    for name in ("val.npz", "test.npz"):
        table = read_outputs(saved / name, "logits", images=True)
        assert table.ids is not None
        assert table.images is not None
        assert table.labels is not None
        assert table.head is not None
        assert table.class_names == CLASSES
        assert torch.equal(table.images, images_of(table.ids))
        assert torch.equal(table.labels, labels[torch.from_numpy(table.ids)])
        assert table.outputs.features is not None
        with torch.no_grad():
            torch.testing.assert_close(table.head(table.outputs.features), table.outputs.logits)
        keys += table.ids.tolist()
    assert sorted(keys) == list(range(10_000))


def test_saved_rows_are_the_test_half(saved: Path) -> None:
    rows = read_outputs(saved / "rows.parquet", "logits")
    test = read_outputs(saved / "test.npz", "logits")
    assert rows.ids is not None
    assert test.ids is not None
    assert rows.ids.tolist() == test.ids.tolist()
    assert torch.equal(rows.outputs.logits, test.outputs.logits)
    assert rows.outputs.features is not None
    assert test.outputs.features is not None
    assert torch.equal(rows.outputs.features, test.outputs.features)


@pytest.mark.parametrize(("name", "negative"), [("test.npz", False), ("ood.npz", True)])
def test_saved_outputs_are_those_of_the_saved_network(
    saved: Path, name: str, negative: bool
) -> None:
    table = read_outputs(saved / name, "logits")
    assert table.ids is not None
    pixels = images_of(table.ids[:50])
    if negative:
        pixels = 255 - pixels
    with torch.no_grad():
        logits = network_of(saved).net(normalise(pixels))
    torch.testing.assert_close(table.outputs.logits[:50], logits)


def test_saved_inputs_are_of_the_calibration_half(saved: Path) -> None:
    given = read_inputs(saved / "inputs.npz")
    val = read_outputs(saved / "val.npz", "logits")
    n = len(given.inputs)
    assert n == 500
    assert given.inputs.dtype == torch.float32
    assert given.labels is not None
    assert val.labels is not None
    assert torch.equal(given.labels, val.labels[:n])
    with torch.no_grad():
        logits = network_of(saved).net(given.inputs)
    torch.testing.assert_close(logits, val.outputs.logits[:n])


def test_the_command_saves_the_data_and_no_report(
    saved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the same files may be written again
        assert simplexcal("demo --save-data data") == 0
    wrote = capsys.readouterr().out.partition("Next:")[0]
    names = {path.name for path in saved.iterdir()}
    assert set(re.findall(r"data/([\w.]+\w)", wrote)) == names
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    for name in names:
        assert (tmp_path / "data" / name).read_bytes() == (saved / name).read_bytes()


def test_own_files_of_the_same_names_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "rows.parquet"
    own.write_bytes(b"mine")
    message = error_of(capsys, f"demo --save-data {tmp_path}")
    assert f"'{own}' is there with other content" in message
    assert "Give --save-data another folder" in message
    assert own.read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [own]


def test_a_folder_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    assert "--save-data must be a folder" in error_of(capsys, f"demo --save-data {file}")
    assert str(file) in error_of(capsys, f"demo --save-data {file}/folder")
    # A superuser may write everywhere.
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    message = error_of(capsys, f"demo --save-data {tmp_path}")
    assert f"--save-data: you may not write to '{tmp_path}'" in message


def test_saving_needs_the_extra_of_the_command_line_only(tmp_path: Path) -> None:
    others = ["altair", "jinja2", "matplotlib", "onnx", "PIL", "ray", "sklearn", "vl_convert"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({others}));"
        "from simplexcal.cli import main; sys.exit(main(['demo', '--save-data', '.']))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "rows.parquet").exists()
