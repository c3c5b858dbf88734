"""The paper's experiments and ours. A study is some settings, some methods and what is asked."""

from dataclasses import dataclass, field

from experiments.config.methods import (
    FEW_LABELS_METHODS,
    LABEL_COUNTS,
    MIXUP_KINDS,
    SWAPPED_METHODS,
    UNCERTAINTY_BETAS,
)
from experiments.config.settings import ARCHITECTURE_VARIANTS, TABLE1_SETTINGS

BASIC_METHODS = ("none", "ts", "ets", "sts", "adats", "sts-paper", "pts")
TABLE1 = tuple(TABLE1_SETTINGS)
RESNET18 = ("fmnist-resnet18", "cifar10-resnet18")

PAPER_OOD_SETS = {
    "fmnist-lenet5": ("notmnist",),  # The paper does not have it, but it is cheap.
    "fmnist-resnet18": ("notmnist",),
    "cifar10-resnet18": ("svhn", "lsun", "tinyimagenet"),
}
MORE_OOD_SETS = {
    **PAPER_OOD_SETS,
    "cifar10-resnet18": (*PAPER_OOD_SETS["cifar10-resnet18"], "cifar100"),
    "cifar100-resnet50": ("svhn", "tinyimagenet", "cifar10"),
}


@dataclass(frozen=True)
class Study:
    """Jobs that answer one question.

    Args:
        title: The heading on the results pages; the place in the paper, if the paper has it.
        settings: Keys of ``SETTINGS``.
        methods: Keys of ``METHODS``.
        in_paper: Whether the paper has this study.
        ood_sets: Out-of-distribution data sets to detect, for each setting.
        sequential: Run the jobs one after the other, so that their times can be compared.
    """

    title: str
    settings: tuple[str, ...]
    methods: tuple[str, ...]
    in_paper: bool = True
    ood_sets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sequential: bool = False


def _few_labels_methods() -> tuple[str, ...]:
    return tuple(f"{name}-{n}-labels" for n in LABEL_COUNTS for name in FEW_LABELS_METHODS)


def _uncertainty_methods() -> tuple[str, ...]:
    branches = [f"sts-{kind}-{beta:g}" for kind in MIXUP_KINDS for beta in UNCERTAINTY_BETAS]
    return ("none", *branches)


STUDIES = {
    "table1": Study("Table 1", TABLE1, BASIC_METHODS),
    "table1-0.2": Study("Table 1, version 0.2", TABLE1, BASIC_METHODS, in_paper=False),
    "dirichlet": Study("Section 5.5 and Appendix D", ("cifar10-resnet18",), ("dirichlet-ts",)),
    "time": Study(
        "Appendix C.4",
        ("cifar10-resnet18",),
        ("adats", "sts", "sts-paper", "pts"),
        sequential=True,
    ),
    "ood": Study("Appendix F", RESNET18, BASIC_METHODS, ood_sets=PAPER_OOD_SETS),
    "mixup": Study("Appendix G.1", RESNET18, ("sts-r20-s5", "sts-r100-s1")),
    "branch": Study("Appendix G.2", RESNET18, ("sts-small",)),
    "resampled": Study("Algorithm 1", ("fmnist-lenet5",), ("sts-resampled",)),
    "steps": Study(
        "Training of the branch", TABLE1, ("sts-steps-3000", "sts-lr-decay"), in_paper=False
    ),
    "architectures": Study(
        "Architecture variants",
        tuple(ARCHITECTURE_VARIANTS),
        ("none", "ts", "sts", "sts-paper"),
        in_paper=False,
    ),
    "variants": Study(
        "Variants of the methods",
        TABLE1,
        ("ets-nll", "ts-x0.3", "sts-x0.3", "sts-features", "sts-inputs"),
        in_paper=False,
    ),
    "few-labels": Study("Few labels", TABLE1, _few_labels_methods(), in_paper=False),
    "swapped": Study(
        "Calibration and test splits swapped",
        TABLE1,
        tuple(f"{name}-swapped" for name in SWAPPED_METHODS),
        in_paper=False,
    ),
    "uncertainty": Study(
        "OOD detection by mixup kind and β",
        ("fmnist-lenet5", "cifar10-resnet18", "cifar100-resnet50"),
        _uncertainty_methods(),
        in_paper=False,
        ood_sets=MORE_OOD_SETS,
    ),
}
