"""`simplexcal info`, and `evaluate --save`, which stores the figures that it prints."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import error_of, simplexcal

from simplexcal import CalibrationCard
from simplexcal.cli._dense import DenseOptions
from simplexcal.cli._inputs import read_evaluation_inputs
from simplexcal.io import load_calibrator


@pytest.fixture
def new(fitted: Path) -> Path:
    """The current folder, with held-out outputs that are not those of the fit in new.npz."""
    rng = np.random.default_rng(1)
    logits = 3 * rng.normal(size=(400, 3)).astype(np.float32)
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(1)
    np.savez(fitted / "new.npz", logits=logits, labels=labels)
    return fitted


def test_info_prints_the_card(new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simplexcal("info net.safetensors") == 0
    out = capsys.readouterr().out
    assert out == f"{CalibrationCard.read('net.safetensors')}\n"
    assert "300 inputs" in out
    assert simplexcal("info net.safetensors --json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["fit"]["n"] == 300
    assert record["evaluation"] is None
    assert (new / "net.safetensors").exists()


@pytest.mark.usefixtures("new")
def test_an_evaluation_is_stored_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert simplexcal("threshold net.safetensors new.npz --coverage 0.9 --save") == 0
    capsys.readouterr()
    assert simplexcal("evaluate new.npz --calibrator net.safetensors --save --json") == 0
    printed = json.loads(capsys.readouterr().out)["methods"]
    assert simplexcal("info net.safetensors --json") == 0
    stored = json.loads(capsys.readouterr().out)
    assert stored["evaluation"]["n"] == 400
    for name, key in (("none", "before"), ("ts", "after")):
        assert stored["evaluation"][key]["ece"] == printed[name]["ece"]
        assert stored["evaluation"][key]["nll"] == printed[name]["nll"]
    assert list(stored["thresholds"]) == ["coverage"]


def test_figures_on_the_data_of_the_fit_are_not_stored(
    fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (fitted / "net.safetensors").read_bytes()
    error = error_of(capsys, "evaluate val.npz --calibrator net.safetensors --save")
    assert "was fitted to the data in 'val.npz'" in error
    assert (fitted / "net.safetensors").read_bytes() == before


@pytest.mark.usefixtures("fitted")
def test_figures_are_stored_for_one_calibrator(capsys: pytest.CaptureFixture[str]) -> None:
    assert "one --calibrator; got 0" in error_of(capsys, "evaluate val.npz --save")


@pytest.mark.usefixtures("capsys")
def test_class_names_in_the_data_are_stored_and_used_again(folder: Path) -> None:
    arrays = dict(np.load(folder / "val.npz"))
    names = np.array(["red", "green", "blue"])
    np.savez(folder / "named.npz", **arrays, class_names=names)
    assert simplexcal("calibrate named.npz --method ts -o named.safetensors") == 0
    calibrator, _ = load_calibrator(folder / "named.safetensors")
    assert calibrator.facts.class_names == ("red", "green", "blue")
    np.savez(folder / "part.npz", logits=arrays["logits"][:200], labels=arrays["labels"][:200])
    part = read_evaluation_inputs(
        folder / "part.npz", None, [folder / "named.safetensors"], None, {}, DenseOptions()
    )
    assert part.class_names == ("red", "green", "blue")


def test_other_files_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "not a whole safetensors file" in error_of(capsys, "info val.npz")
    assert "'nothing': No such file" in error_of(capsys, "info nothing")
    assert folder.exists()
