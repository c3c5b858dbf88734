"""The page of the normalisation of mixes, from records with numbers that are easy to check."""

from dataclasses import replace
from pathlib import Path

import pytest
from experiments.page import normalisation
from experiments.running.normalisation_records import (
    NormalisationBeta,
    NormalisationRecord,
    OodDetection,
    read_records,
    write_record,
)
from experiments.running.records import Mixup, SplitMetrics, Versions
from helpers.records import SAMPLED_OOD, TRAINING

SETTING = "fmnist-resnet18"
TITLE = "Fashion-MNIST, ResNet-18"


def one(beta: float, calibration: float, test: float, auroc: float) -> NormalisationBeta:
    metrics = replace(SAMPLED_OOD, epistemic_auroc=auroc, mutual_information_auroc=0.75)
    return NormalisationBeta(
        beta=beta,
        accuracy=0.9,
        changed=0.0,
        calibration=SplitMetrics(calibration, 0.3, 0.0),
        test=SplitMetrics(test, 0.3, 0.0),
        ood=[OodDetection("notmnist", metrics)],
    )


def record(mode: str, *betas: NormalisationBeta, n_steps: int = 25_000) -> NormalisationRecord:
    chosen = min(betas, key=lambda one: one.calibration.ece or 0.0)
    return NormalisationRecord(
        setting=SETTING,
        seed=0,
        mode=mode,
        calibrator_settings={"n_steps": n_steps},
        mixup=Mixup("inputs", 100, 1, True),
        moving_batches=None,
        mixup_dtype="float32",
        training=TRAINING,
        dry_run=False,
        versions=Versions("0.1.0", "2.11.0", "3.12"),
        device="cpu",
        seconds=1.0,
        accuracy=0.9,
        betas=list(betas),
        beta=chosen.beta,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder in which batch statistics calibrate better and detect worse."""
    moved = replace(one(0.5, 0.05, 0.05, 0.6), accuracy=0.7, changed=0.25)
    for made in (
        record("frozen", one(0.5, 0.03, 0.02, 0.8), one(1.0, 0.04, 0.10, 0.9)),
        record("batch", one(0.5, 0.01, 0.015, 0.7), one(1.0, 0.02, 0.12, 0.95)),
        record("moving", moved, replace(moved, beta=1.0, accuracy=0.4)),
    ):
        write_record(tmp_path, made)
    return tmp_path


def test_the_tables_by_hand(folder: Path) -> None:
    networks = normalisation.read_networks(folder)
    assert normalisation.chosen_table(networks).rows == [
        [TITLE, "frozen", "0.5", "90.00", "90.00", "0.00", "2.00", "1.15 ± 0.28"],
        [TITLE, "batch", "0.5", "90.00", "90.00", "0.00", "1.50", "1.15 ± 0.28"],
        [TITLE, "moving", "0.5", "90.00", "70.00", "25.00", "5.00", "1.15 ± 0.28"],
    ]
    first = normalisation.detection_table(networks).rows[0]
    assert first[1:7] == ["frozen", "0.5", "80.00", "50.00", "50.10", "95.79 ± 1.43"]
    assert normalisation.best_table(networks).rows == [
        [f"{TITLE}, notmnist", "1", "90.00", "10.00", "1", "95.00", "12.00"]
    ]
    assert list(normalisation.grid_table(networks[SETTING]).rows[1]) == [
        *["1", "10.00", "12.00", "5.00", "40.00", "25.00"],
        *["90.00", "95.00", "60.00"],
    ]


def test_the_verdict_is_counted(folder: Path) -> None:
    context = normalisation.context(folder)
    assert context["lower_ece"] == [TITLE]
    assert context["higher_ece"] == []
    assert context["n_above_paper"] == 1
    assert context["detections"] == {"n": 1, "better": 0}
    assert context["lost_accuracy"] == {"least": "20.0", "most": "50.0"}


def test_fewer_steps_stand_beside_all(folder: Path) -> None:
    for mode in normalisation.MODES:
        write_record(folder, record(mode, one(0.5, 0.03, 0.021, 0.65), n_steps=6000))
    networks = normalisation.read_networks(folder)
    shorter = normalisation.read_networks(folder, 6000)
    rows = normalisation.steps_table(networks, shorter).rows
    assert list(rows[0][1:]) == ["frozen", "0.5", "2.00", "80.00", "0.5", "2.10", "65.00"]
    assert normalisation.steps_differences(networks, shorter) == {"ece": "2.90", "auroc": "15.00"}


def test_a_record_replaces_the_one_with_its_key(folder: Path) -> None:
    changed = record("batch", one(0.5, 0.01, 0.033, 0.7))
    write_record(folder, changed)
    found = {made.mode: made for made in read_records(folder, SETTING)}
    assert len(found) == 3
    assert found["batch"] == changed


def test_a_dry_run_is_no_result(folder: Path) -> None:
    write_record(folder, replace(record("batch", one(0.5, 0.01, 0.03, 0.7)), dry_run=True))
    with pytest.raises(ValueError, match="of a dry run"):
        normalisation.read_networks(folder)


def test_without_records_the_page_says_nothing(tmp_path: Path) -> None:
    assert normalisation.context(tmp_path)["networks"] == {}
