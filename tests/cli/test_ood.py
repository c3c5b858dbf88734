"""`simplexcal ood`: the numbers, the table, and what it is not told."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from helpers.command_line import error_of, simplexcal
from helpers.methods import METHODS
from sklearn.metrics import average_precision_score, roc_auc_score

from simplexcal.io import save_calibrator
from simplexcal.mixup import LogitMixup
from simplexcal.types import Outputs

Arrays = dict[str, npt.NDArray[Any]]
OOD = "ood val.npz far.npz --calibrator sts.safetensors"


@pytest.fixture
def far(folder: Path, arrays: Arrays) -> Path:
    """The current folder, with uncertain outputs in far.npz, and STS in sts.safetensors."""
    np.savez(folder / "far.npz", logits=arrays["logits"][:90] / 4)
    outputs = Outputs(torch.from_numpy(arrays["logits"]))
    labels = torch.from_numpy(arrays["labels"])
    calibrator = METHODS["sts"]().fit(outputs, labels, mixup=LogitMixup(outputs, labels))
    save_calibrator(calibrator, folder / "sts.safetensors")
    return folder


def columns(name: str, path: str) -> npt.NDArray[Any]:
    assert simplexcal(f"predict sts.safetensors {path} -o {path}.p.npz") == 0
    with np.load(f"{path}.p.npz") as file:
        return np.asarray(file[name])


@pytest.mark.usefixtures("far")
def test_the_numbers_the_table_and_predictions(capsys: pytest.CaptureFixture[str]) -> None:
    assert simplexcal(f"{OOD} --json") == 0
    record = json.loads(capsys.readouterr().out)
    assert list(record["methods"]) == ["none", "sts"]
    assert record["methods"]["none"]["epistemic_auroc"] is None
    found = record["methods"]["sts"]
    assert (found["n_in"], found["n_out"]) == (300, 90)
    is_outside = np.arange(390) >= 300
    for name in ("confidence", "aleatoric", "epistemic", "mutual_information"):
        sign = 1
        if name == "confidence":
            sign = -1
        score = sign * np.concatenate([columns(name, "val.npz"), columns(name, "far.npz")])
        assert found[f"{name}_auroc"] == pytest.approx(roc_auc_score(is_outside, score), abs=1e-6)
        expected = average_precision_score(is_outside, score)
        assert found[f"{name}_aupr"] == pytest.approx(expected, abs=1e-6)
    capsys.readouterr()
    assert simplexcal(OOD) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    table, legend, verdict = text.split("\n\n")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert rows[0] == ["method", "score", "AUROC %", "AUPR %", "FPR95 %"]
    assert [row[1] for row in rows[2:]] == [
        "confidence",
        "confidence",
        "aleatoric uncertainty",
        "epistemic uncertainty",
        "mutual information",
    ]
    best = max(float(row[2]) for row in rows[2:])
    assert " ".join(verdict.split()).endswith(f"with the highest AUROC, {best:.1f} %.")
    assert f"{100 * 90 / 390:.1f} is chance" in " ".join(legend.split())
    # Saved predictions have the same numbers.
    assert simplexcal("ood val.npz.p.npz far.npz.p.npz --json") == 0
    (saved,) = json.loads(capsys.readouterr().out)["methods"].values()
    assert saved == pytest.approx(found, abs=1e-6)


@pytest.mark.usefixtures("fitted")
def test_the_verdict_is_no_surer_than_chance(capsys: pytest.CaptureFixture[str]) -> None:
    assert simplexcal("ood val.npz val.npz --calibrator net.safetensors --json") == 0
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert verdict == "No score detects these OOD inputs clearly better than chance."


def test_what_does_not_fit_together_is_one_line(
    fitted: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(fitted / "two.npz", logits=arrays["logits"][:, :2])
    assert simplexcal("predict net.safetensors val.npz -o p.npz") == 0
    capsys.readouterr()
    assert "'p.npz' must hold the same as DATA" in error_of(capsys, "ood val.npz p.npz")
    assert "'val.npz' must hold the same as DATA" in error_of(capsys, "ood p.npz val.npz")
    assert "OOD must hold inputs with probabilities of 3" in error_of(capsys, "ood val.npz two.npz")
    error = error_of(capsys, "ood p.npz p.npz --calibrator net.safetensors")
    assert "Leave out --calibrator" in error
    assert "missing.npz" in error_of(capsys, "ood val.npz missing.npz")


def test_a_report_of_predictions_takes_ood_predictions(
    fitted: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(fitted / "far.npz", logits=arrays["logits"][:40] / 9)
    for name in ("val", "far"):
        assert simplexcal(f"predict net.safetensors {name}.npz -o {name}.csv") == 0
    assert simplexcal("report val.csv --ood far.csv -o r.html") == 0
    assert "tells 40 out-of-distribution" in (fitted / "r.html").read_text()
    capsys.readouterr()
    assert "--kind" not in error_of(capsys, "report val.csv --ood far.npz -o r.html")
