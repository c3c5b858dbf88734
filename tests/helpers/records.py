"""Records of experiments with numbers that are easy to check by hand."""

from dataclasses import replace
from typing import Any

from experiments.config.settings import SETTINGS
from experiments.running.records import (
    SCHEMA_VERSION,
    Augmentation,
    BetaMetrics,
    Bins,
    Metrics,
    OodMetrics,
    Record,
    SplitMetrics,
    Timings,
    Training,
    Versions,
)
from experiments.running.sampled_scores import MARGINS

TRAINING = Training(
    epochs=200,
    augmentation=Augmentation(4, None, True),
    concurrent=2,
    settings=None,
    compiled=None,
    seconds=7.0,
    device="cpu",
)
BINS = Bins(
    edges=[0.0, 0.3, 0.6, 0.9, 1.0],
    count=[0, 30, 10, 60],
    confidence=[None, 0.5, 0.7, 0.95],
    accuracy=[None, 0.4, 0.8, 0.99],
)
OOD = OodMetrics(
    n_in=100,
    n_out=50,
    confidence_auroc=0.9,
    confidence_aupr=0.9,
    confidence_fpr_95=0.9,
    aleatoric_auroc=0.9,
    aleatoric_aupr=0.9,
    aleatoric_fpr_95=0.9,
    epistemic_auroc=0.9,
    epistemic_aupr=0.9,
    epistemic_fpr_95=0.9,
    mutual_information_auroc=None,
    mutual_information_aupr=None,
    mutual_information_fpr_95=None,
    energy_auroc=0.9,
    energy_aupr=0.9,
    energy_fpr_95=0.9,
    sampled_entropy_auroc=None,
)
SAMPLED_OOD = replace(
    OOD, sampled_entropy_auroc={f"{margin:g}": 0.5 + margin for margin in MARGINS}
)


def metrics(ece: float, nll: float) -> Metrics:
    """Return metrics with a Brier score of half the NLL."""
    return Metrics(
        n=100,
        n_classes=10,
        accuracy=0.9,
        confidence=0.8,
        nll=nll,
        brier=nll / 2,
        brier_calibration=0.01,
        brier_refinement=0.02,
        ece=ece,
        ece_floor=0.005,
        ece_floor_95=0.01,
        ece_low=0.0,
        ece_high=0.1,
        adaptive_ece=ece,
        classwise_ece=ece,
        mce=ece,
        rms_ce=ece,
        smooth_ece=ece,
        aurc=0.01,
        aleatoric=None,
        epistemic=None,
    )


def record(
    study: str, setting: str, seed: int, method: str, ece: float, nll: float, **changes: Any
) -> Record:
    """Return a record; its ECE on the calibration split is half of that on the test split."""
    made = Record(
        schema_version=SCHEMA_VERSION,
        study=study,
        setting=setting,
        network=SETTINGS[setting].network,
        seed=seed,
        method=method,
        ood_set=None,
        calibrator="Uncalibrated",
        calibrator_settings={},
        mixup=None,
        mixup_dtype=None,
        n_calibration=None,
        swapped=None,
        beta=None,
        training=TRAINING,
        dry_run=False,
        versions=Versions(simplexcal="0", torch="2", python="3"),
        device="cpu",
        tf32=False,
        threads=1,
        cores=2,
        timings=Timings(pretraining=7.0, outputs=0.5, calibration=1.5, prediction=0.25),
        n_timed=100,
        accuracy=0.9,
        labels_preserved=True,
        metrics=metrics(ece, nll),
        calibration=SplitMetrics(ece / 2, nll, None),
        bins=BINS,
        betas=None,
        sampled=None,
        ood=None,
    )
    return replace(made, **changes)


def betas(error: float) -> list[BetaMetrics]:
    """Return the errors of three β.

    The second has ``error``, the smallest, on the test split; the third diverged.
    """
    found = []
    for beta, calibration, test in (
        (0.5, 0.01, 2 * error),
        (0.6, 0.02, error),
        (0.7, None, None),
    ):
        splits = (SplitMetrics(ece, None, None) for ece in (calibration, test))
        found.append(BetaMetrics(beta, *splits))
    return found
