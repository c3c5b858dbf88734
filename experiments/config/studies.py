"""The paper's experiments, each a set of jobs: some rows, some methods, and what is asked of them."""

from typing import NamedTuple

from experiments.config.methods import EXCHANGED, FEW, MIXED, OF_FEW, UNCERTAINTY_BETAS
from experiments.config.settings import FORM_OF, TABLE1_ROWS

OURS = "Not in the paper: "  # begins the source of what is not
BASIC = ("none", "ts", "ets", "sts", "adats", "sts-paper", "pts")

STRANGERS = {
    "fmnist-lenet5": ("notmnist",),  # not in the paper, but cheap
    "fmnist-resnet18": ("notmnist",),
    "cifar10-resnet18": ("svhn", "lsun", "tinyimagenet"),
}
MORE_STRANGERS = {
    **STRANGERS,
    "cifar10-resnet18": (*STRANGERS["cifar10-resnet18"], "cifar100"),
    "cifar100-resnet50": ("svhn", "tinyimagenet", "cifar10"),
}


class Study(NamedTuple):
    """Where in the paper, its rows and methods; ``strangers`` to detect; ``alone`` to be timed one by one."""

    source: str
    rows: tuple[str, ...]
    methods: tuple[str, ...]
    strangers: dict[str, tuple[str, ...]] = {}
    alone: bool = False


STUDIES = {
    "table1": Study("Table 1", TABLE1_ROWS, BASIC),
    "dirichlet": Study("Section 5.5 and Appendix D", ("cifar10-resnet18",), ("dirichlet",)),
    "time": Study(
        "Appendix C.4", ("cifar10-resnet18",), ("adats", "sts", "sts-paper", "pts"), alone=True
    ),
    "ood": Study("Appendix F", ("fmnist-resnet18", "cifar10-resnet18"), BASIC, STRANGERS),
    "mixes": Study(
        "Appendix G.1", ("fmnist-resnet18", "cifar10-resnet18"), ("sts-r20-s5", "sts-r100-s1")
    ),
    "branch": Study("Appendix G.2", ("fmnist-resnet18", "cifar10-resnet18"), ("sts-small",)),
    "fresh": Study(
        "The paper's mixes, new ones for every step", ("fmnist-lenet5",), ("sts-fresh",)
    ),
    "steps": Study(
        f"{OURS}other trainings of the branch",
        TABLE1_ROWS,
        ("sts-steps-3000", "sts-annealed"),
    ),
    "forms": Study(
        f"{OURS}its networks in another form", tuple(FORM_OF), ("none", "ts", "sts", "sts-paper")
    ),
    "variants": Study(
        f"{OURS}variants of the methods",
        TABLE1_ROWS,
        ("ets-nll", "ts-x0.3", "sts-x0.3", *(f"sts-{kind}" for kind in MIXED)),
    ),
    "few": Study(
        f"{OURS}fewer labelled images",
        TABLE1_ROWS,
        tuple(f"{m}-of-{n}" for n in FEW for m in OF_FEW),
    ),
    "exchanged": Study(
        f"{OURS}the halves exchanged", TABLE1_ROWS, tuple(f"{m}-exchanged" for m in EXCHANGED)
    ),
    "uncertainty": Study(
        f"{OURS}which mixes and which β tell strangers apart",
        ("fmnist-lenet5", "cifar10-resnet18", "cifar100-resnet50"),
        ("none", *(f"sts-{kind}-{beta:g}" for kind in MIXED for beta in UNCERTAINTY_BETAS)),
        MORE_STRANGERS,
    ),
}
