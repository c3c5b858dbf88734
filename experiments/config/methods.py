"""The methods that the experiments compare, by name.

A method is a calibrator, the mixup samples it learns from, and what it is fitted to.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import simplexcal as sc

PAPER_BETAS = sc.SimplexTemperatureScaling.paper().betas
PAPER_WIDTHS = sc.SimplexTemperatureScaling.paper().widths
SMALL_WIDTHS = (512, 256)  # Appendix G.2 says only "fewer layers and narrower widths".
POOL_SIZE = 50_000  # mixup samples for each β
UNCERTAINTY_BETAS = (0.5, 1.0, 2.0, 4.0, 8.0)
LABEL_COUNTS = (100, 250, 500, 1000, 2000)
FEW_LABELS_METHODS = ("ts", "ets", "sts")
SWAPPED_METHODS = ("none", "ts", "ets", "sts", "pts", "adats")

MakeCalibrator = Callable[[], sc.Calibrator]


class MixupScheme(NamedTuple):
    """How mixup samples are made.

    Args:
        kind: What is mixed, "inputs", "features" or "logits".
        per_class: R, the samples of each class in a pool.
        n_shuffles: S, the shuffles of a pool.
        weights_per_sample: Draw a weight vector for each mixup sample, as in ``sc.InputMixup``.
    """

    kind: str
    per_class: int
    n_shuffles: int
    weights_per_sample: bool = False


@dataclass(frozen=True)
class Method:
    """A calibrator and what it is fitted to.

    Args:
        title: The name on the results pages.
        make: Returns the calibrator, not fitted yet.
        mixup: The mixup samples that it learns from, if any.
        gpu: Whether a GPU makes the fit faster.
        logit_scale: All logits are multiplied by this.
        n_calibration: The number of labelled images to calibrate with; None means all.
        swapped: Calibrate on the test split and evaluate on the calibration split.
    """

    title: str
    make: MakeCalibrator
    mixup: MixupScheme | None = None
    gpu: bool = False
    logit_scale: float = 1.0
    n_calibration: int | None = None
    swapped: bool = False


PAPER_MIXUP = MixupScheme("inputs", 10, 10)
DEFAULT_MIXUP = MixupScheme("features", 100, 10, weights_per_sample=True)
MIXUP_KINDS = {"features": DEFAULT_MIXUP, "inputs": PAPER_MIXUP}
MIXUP_TITLES = {"features": "feature mixup", "inputs": "input mixup"}


def paper_sts(**changes: Any) -> MakeCalibrator:
    """Return a maker of the paper's method with mixup samples that are drawn once.

    Resampling in every step would take 47.5 million forward passes of the network; the study
    "resampled" compares the two.

    Args:
        changes: Settings of the calibrator that differ.
    """
    paper = sc.SimplexTemperatureScaling.paper().settings
    settings: dict[str, Any] = {**paper, "resample": False, "pool_size": POOL_SIZE, **changes}
    return lambda: sc.SimplexTemperatureScaling(**settings)


def branch_only(*betas: float, **changes: Any) -> MakeCalibrator:
    """Return a maker of the default method without its likelihood head.

    Args:
        betas: Dirichlet concentrations of the mixup weights.
        changes: Settings of the calibrator that differ.
    """
    return lambda: sc.SimplexTemperatureScaling(betas, likelihood_head=False, **changes)


def _paper_method(title: str, mixup: MixupScheme = PAPER_MIXUP, **changes: Any) -> Method:
    """Return a variant of the paper's method."""
    return Method(f"STS, paper{title}", paper_sts(**changes), mixup, gpu=True)


def _dirichlet() -> sc.Calibrator:
    return sc.DirichletTemperatureScaling(PAPER_BETAS, resample=False, pool_size=POOL_SIZE)


def _branch_methods() -> dict[str, Method]:
    """Return the branch without its head, with 19 values of β and with one at a time."""
    methods = {}
    for kind, mixup in MIXUP_KINDS.items():
        gpu = kind == "inputs"
        make = branch_only(*PAPER_BETAS, n_steps=3000)
        title = f"STS, branch only, {MIXUP_TITLES[kind]}"
        methods[f"sts-{kind}"] = Method(title, make, mixup, gpu)
    for kind, mixup in MIXUP_KINDS.items():
        gpu = kind == "inputs"
        for beta in UNCERTAINTY_BETAS:
            title = f"STS, {MIXUP_TITLES[kind]}, β = {beta:g}"
            methods[f"sts-{kind}-{beta:g}"] = Method(title, branch_only(beta), mixup, gpu)
    return methods


def _few_labels_methods(methods: dict[str, Method]) -> dict[str, Method]:
    few = {}
    for name in FEW_LABELS_METHODS:
        for n in LABEL_COUNTS:
            # Mixup samples train the branch, which changes no probability of the default.
            few[f"{name}-{n}-labels"] = replace(
                methods[name],
                title=f"{methods[name].title}, {n} labels",
                mixup=None,
                n_calibration=n,
            )
    return few


def _swapped_methods(methods: dict[str, Method]) -> dict[str, Method]:
    swapped = {}
    for name in SWAPPED_METHODS:
        title = f"{methods[name].title}, splits swapped"
        swapped[f"{name}-swapped"] = replace(methods[name], title=title, mixup=None, swapped=True)
    return swapped


METHODS: dict[str, Method] = {
    "none": Method("pre-trained", sc.Uncalibrated),
    "ts": Method(sc.TemperatureScaling.abbreviation, sc.TemperatureScaling),
    "ets": Method(sc.EnsembleTemperatureScaling.abbreviation, sc.EnsembleTemperatureScaling),
    "pts": Method(
        sc.ParameterizedTemperatureScaling.abbreviation, sc.ParameterizedTemperatureScaling
    ),
    "adats": Method(sc.AdaptiveTemperatureScaling.abbreviation, sc.AdaptiveTemperatureScaling),
    "sts-paper": _paper_method(""),
    "sts": Method("STS, default", sc.SimplexTemperatureScaling, DEFAULT_MIXUP),
    "dirichlet-ts": Method("Dirichlet", _dirichlet, PAPER_MIXUP, gpu=True),
    "sts-resampled": Method(
        "STS, paper, resampled mixup", sc.SimplexTemperatureScaling.paper, PAPER_MIXUP, gpu=True
    ),
    "sts-steps-3000": _paper_method(", 3000 steps", n_steps=3000),
    "sts-lr-decay": _paper_method(", learning-rate decay", lr_decay=True),
    "sts-r20-s5": _paper_method(", R = 20, S = 5", MixupScheme("inputs", 20, 5)),
    "sts-r100-s1": _paper_method(", R = 100, S = 1", MixupScheme("inputs", 100, 1)),
    "sts-small": _paper_method(", branch 512 → 256", widths=SMALL_WIDTHS),
    "ets-nll": Method("ETS, fitted by NLL", lambda: sc.EnsembleTemperatureScaling("nll")),
    "ts-x0.3": Method("TS, logits times 0.3", sc.TemperatureScaling, logit_scale=0.3),
    "sts-x0.3": Method(
        "STS, default, logits times 0.3", sc.SimplexTemperatureScaling, logit_scale=0.3
    ),
    **_branch_methods(),
}
METHODS.update(_few_labels_methods(METHODS) | _swapped_methods(METHODS))

# A dry run replaces these settings, so that the same code takes less than a second.
DRY_RUN_SETTINGS: dict[str, object] = {
    "n_steps": 4,
    "n_epochs": 1,
    "pool_size": 100,
    "batch_size": 50,
    "widths": (16,),
}


def make_calibrator(name: str, dry_run: bool = False) -> sc.Calibrator:
    """Return a method's calibrator, not fitted yet.

    Args:
        name: A key of ``METHODS``.
        dry_run: Take fewer steps and smaller sizes.
    """
    made = METHODS[name].make()
    if not dry_run:
        return made
    settings = {key: DRY_RUN_SETTINGS.get(key, value) for key, value in made.settings.items()}
    return type(made)(**settings)
