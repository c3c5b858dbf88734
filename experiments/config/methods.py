"""The methods that the paper's experiments compare, by name: a calibrator, what it mixes, and where it is fitted."""

from collections.abc import Callable
from typing import Any, NamedTuple

import simplexcal as sc

PAPER_BETAS, PAPER_WIDTHS = (
    sc.SimplexTemperatureScaling.paper().betas,
    sc.SimplexTemperatureScaling.paper().widths,
)
SMALL_WIDTHS = (
    512,
    256,
)  # Appendix G.2 has "fewer layers and narrower widths" and no more in words
N_MIXES = 50_000  # for each β


class Mixes(NamedTuple):
    """What is mixed, "inputs" or "features", from R samples a class in S shuffles; ``fresh`` as in sc.InputMixup."""

    kind: str
    per_class: int
    n_shuffles: int
    fresh: bool = False


class Method(NamedTuple):
    """A calibrator to be, its mixes if it learns from any, whether it is worth a GPU, a factor of the logits.

    ``n_fit`` images of the validation half calibrate, or all of them; ``exchanged`` lets the test half calibrate and
    the validation half judge.
    """

    make: Callable[[], sc.Calibrator]
    mixes: Mixes | None = None
    gpu: bool = False
    factor: float = 1.0
    n_fit: int | None = None
    exchanged: bool = False


def drawn_once(**changes: Any) -> Callable[[], sc.Calibrator]:
    """Return a maker of the paper's method that learns from 50 000 mixes for each β, all drawn before the first step.

    Fresh mixes for every step are 47.5 million forward passes of the network; study "fresh" compares the two.
    ``changes`` are of its other settings.
    """
    paper = sc.SimplexTemperatureScaling.paper().settings
    settings: dict[str, Any] = {**paper, "resample": False, "pool_size": N_MIXES, **changes}
    return lambda: sc.SimplexTemperatureScaling(**settings)


def branch_alone(*betas: float, **settings: Any) -> Callable[[], sc.Calibrator]:
    """Return a maker of the default's branch without its head: the branch gives the probabilities too."""
    return lambda: sc.SimplexTemperatureScaling(betas, likelihood_head=False, **settings)


INPUTS, FEATURES = (
    Mixes("inputs", 10, 10),
    Mixes("features", 100, 10, fresh=True),
)  # the paper's; the default's
MIXED = {"features": FEATURES, "inputs": INPUTS}
UNCERTAINTY_BETAS = (0.5, 1.0, 2.0, 4.0, 8.0)
FEW = (100, 250, 500, 1000, 2000)
OF_FEW = ("ts", "ets", "sts")
EXCHANGED = ("none", "ts", "ets", "sts", "pts", "adats")

METHODS: dict[str, Method] = {
    "none": Method(sc.Uncalibrated),
    "ts": Method(sc.TemperatureScaling),
    "ets": Method(sc.EnsembleTemperatureScaling),
    "sts": Method(sc.SimplexTemperatureScaling, FEATURES),
    "adats": Method(sc.AdaptiveTemperatureScaling),
    "sts-paper": Method(drawn_once(), INPUTS, gpu=True),
    "pts": Method(sc.ParameterizedTemperatureScaling),
    "sts-fresh": Method(sc.SimplexTemperatureScaling.paper, INPUTS, gpu=True),
    "sts-r20-s5": Method(drawn_once(), Mixes("inputs", 20, 5), gpu=True),
    "sts-r100-s1": Method(drawn_once(), Mixes("inputs", 100, 1), gpu=True),
    "sts-small": Method(drawn_once(widths=SMALL_WIDTHS), INPUTS, gpu=True),
    "sts-steps-3000": Method(drawn_once(n_steps=3000), INPUTS, gpu=True),
    "sts-annealed": Method(drawn_once(lr_decay=True), INPUTS, gpu=True),
    "dirichlet": Method(
        lambda: sc.DirichletTemperatureScaling(PAPER_BETAS, resample=False, pool_size=N_MIXES),
        INPUTS,
        gpu=True,
    ),
    "ets-nll": Method(lambda: sc.EnsembleTemperatureScaling("nll")),
    "ts-x0.3": Method(sc.TemperatureScaling, factor=0.3),
    "sts-x0.3": Method(sc.SimplexTemperatureScaling, factor=0.3),
    **{
        f"sts-{kind}": Method(branch_alone(*PAPER_BETAS, n_steps=3000), mixes, gpu=mixes is INPUTS)
        for kind, mixes in MIXED.items()
    },
    **{
        f"sts-{kind}-{beta:g}": Method(branch_alone(beta), mixes, gpu=mixes is INPUTS)
        for kind, mixes in MIXED.items()
        for beta in UNCERTAINTY_BETAS
    },
}
_UNMIXED = {
    name: METHODS[name]._replace(mixes=None) for name in EXCHANGED
}  # which change no probability of "sts"
METHODS.update({f"{name}-of-{n}": _UNMIXED[name]._replace(n_fit=n) for name in OF_FEW for n in FEW})
METHODS.update({f"{name}-exchanged": _UNMIXED[name]._replace(exchanged=True) for name in EXCHANGED})

TITLES = {
    "none": "pre-trained",
    "ts": "TS",
    "ets": "ETS",
    "pts": "PTS",
    "adats": "AdaTS",
    "sts-paper": "STS, paper",
    "sts": "STS, default",
    "dirichlet": "Dirichlet",
    "sts-fresh": "STS, paper, fresh mixes",
    "sts-steps-3000": "STS, paper, 3000 steps",
    "sts-annealed": "STS, paper, rate to 0",
    "sts-r20-s5": "STS, paper, R = 20, S = 5",
    "sts-r100-s1": "STS, paper, R = 100, S = 1",
    "sts-small": f"STS, paper, branch {' → '.join(map(str, SMALL_WIDTHS))}",
    "ets-nll": "ETS, by likelihood",
    "ts-x0.3": "TS, logits times 0.3",
    "sts-x0.3": "STS, default, logits times 0.3",
    **{f"sts-{kind}": f"STS, the branch alone, mixed {kind}" for kind in MIXED},
    **{
        f"sts-{kind}-{beta:g}": f"STS, mixed {kind}, β = {beta:g}"
        for kind in MIXED
        for beta in UNCERTAINTY_BETAS
    },
}
TITLES.update({f"{name}-of-{n}": f"{TITLES[name]}, {n} labels" for name in OF_FEW for n in FEW})
TITLES.update({f"{name}-exchanged": f"{TITLES[name]}, halves exchanged" for name in EXCHANGED})

# What a trial run makes of a method's settings: the same code in less than a second.
TRIAL: dict[str, object] = {
    "n_steps": 4,
    "n_epochs": 1,
    "pool_size": 100,
    "batch_size": 50,
    "widths": (16,),
}


def calibrator(name: str, trial: bool = False) -> sc.Calibrator:
    """Return a method's calibrator, not fitted yet; for a trial with fewer steps and smaller sizes."""
    made = METHODS[name].make()
    if not trial:
        return made
    return type(made)(**{key: TRIAL.get(key, value) for key, value in made.settings.items()})


__all__ = ["METHODS", "PAPER_BETAS", "PAPER_WIDTHS", "TITLES", "Method", "Mixes", "calibrator"]
