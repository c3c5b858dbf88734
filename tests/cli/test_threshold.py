"""`simplexcal threshold`: found, printed, stored, and used by the other commands."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers.command_line import error_of, simplexcal

from simplexcal.io import load_calibrator

ACCURACY = "threshold net.safetensors new.npz --target-accuracy 0.7"


@pytest.fixture
def new(fitted: Path) -> Path:
    """The current folder, with held-out outputs that are not those of the fit in new.npz."""
    rng = np.random.default_rng(1)
    logits = 3 * rng.normal(size=(400, 3)).astype(np.float32)
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(1)
    np.savez(fitted / "new.npz", logits=logits, labels=labels)
    np.savez(fitted / "unlabelled.npz", logits=logits)
    np.save(fitted / "new.npy", logits)
    return fitted


def test_a_threshold_is_stored_and_used(new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (new / "net.safetensors").read_bytes()
    assert simplexcal(ACCURACY) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("Accept where confidence is at least 0.")
    assert "Then at least 70 % of accepted predictions are right, with 95 % certainty." in out
    assert (new / "net.safetensors").read_bytes() == before
    assert simplexcal(f"{ACCURACY} --save") == 0
    assert "Stored in net.safetensors." in capsys.readouterr().out
    (threshold,) = load_calibrator(new / "net.safetensors")[0].thresholds.values()
    assert simplexcal("predict net.safetensors new.npz -o p.parquet") == 0
    share = f"The thresholds accept {100 * threshold.accepted_share:.1f} % of them."
    assert share in capsys.readouterr().out
    rows = pq.read_table("p.parquet")
    expected = rows["confidence"].to_numpy() >= threshold.value
    assert rows["accepted"].to_pylist() == expected.tolist()
    report = "report new.npz --calibrator net.safetensors -o r.html"
    assert simplexcal(report) == 0
    assert threshold.rule in (new / "r.html").read_text()


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".csv"])
@pytest.mark.usefixtures("new")
def test_predictions_of_every_format_have_accepted(suffix: str) -> None:
    assert simplexcal(f"{ACCURACY} --save") == 0
    assert simplexcal(f"predict net.safetensors new.npz -o p{suffix}") == 0
    assert simplexcal(f"evaluate p{suffix}") == 0


def test_a_copy_keeps_earlier_thresholds_and_the_fingerprint(
    new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simplexcal(f"{ACCURACY} -o first.safetensors --json") == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["promise"], record["level"], record["n"]) == ("target_accuracy", 0.7, 400)
    alarm = "threshold first.safetensors unlabelled.npz --false-alarm 0.05"
    assert simplexcal(f"{alarm} -o second.safetensors") == 0
    calibrator, header = load_calibrator(new / "second.safetensors")
    assert list(calibrator.thresholds) == ["target_accuracy", "false_alarm"]
    assert header["fingerprint"] == load_calibrator(new / "net.safetensors")[1]["fingerprint"]
    assert load_calibrator(new / "net.safetensors")[0].thresholds == {}


@pytest.mark.usefixtures("new")
def test_saved_predictions_have_the_same_threshold(capsys: pytest.CaptureFixture[str]) -> None:
    assert simplexcal(f"{ACCURACY} --json") == 0
    expected = json.loads(capsys.readouterr().out)
    assert simplexcal("predict net.safetensors new.npz -o p.parquet") == 0
    capsys.readouterr()
    assert simplexcal("threshold p.parquet --target-accuracy 0.7 --json") == 0
    assert json.loads(capsys.readouterr().out) == expected


@pytest.mark.usefixtures("new")
def test_the_data_of_the_fit_are_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert simplexcal("threshold net.safetensors val.npz --coverage 0.9") == 0
    assert "warning: These data are the ones" in capsys.readouterr().err


@pytest.mark.usefixtures("new")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("net.safetensors new.npz", "exactly one of --target-accuracy, --coverage"),
        (
            "net.safetensors unlabelled.npz --target-accuracy 0.7",
            "must be given for --target-accuracy",
        ),
        (
            "net.safetensors new.npz --target-accuracy 0.99",
            "No threshold on confidence promises a --target-accuracy of 0.99 with --delta 0.05",
        ),
        (
            "net.safetensors new.npz --coverage 0.9 --score epistemic",
            "--score is 'epistemic', which this method does not have",
        ),
        (
            "net.safetensors new.npz --coverage 0.9 --save -o copy.safetensors",
            "Give one of the two",
        ),
        ("val.npz --coverage 0.9 --save", "Predictions are taken as they are"),
        ("net.safetensors new.npy --coverage 0.9", "'new.npy' holds one array without a name"),
        ("new.npy --coverage 0.9", "Say what it is: pass --kind predictions."),
    ],
)
def test_errors_name_the_flags(
    command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in error_of(capsys, f"threshold {command}")
