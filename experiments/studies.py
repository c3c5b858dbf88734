"""The paper's experiments, each a set of jobs: some rows, some methods, and what is asked of them."""

from typing import NamedTuple

from experiments.methods import SHORTER
from experiments.rows import ROWS

BASIC = ("none", "ts", "ets", "sts", "adats", "sts-paper", "pts")


class Study(NamedTuple):
    """Where in the paper, its rows and methods; ``strangers`` to detect; ``alone`` to be timed one by one."""

    source: str
    rows: tuple[str, ...]
    methods: tuple[str, ...]
    strangers: dict[str, tuple[str, ...]] = {}
    alone: bool = False


STUDIES = {
    "table1": Study("Table 1", tuple(ROWS), BASIC),
    "dirichlet": Study("Section 5.5 and Appendix D", ("cifar10-resnet18",), ("dirichlet",)),
    "time": Study("Appendix C.4", ("cifar10-resnet18",), ("adats", "sts", "sts-paper", "pts"), alone=True),
    "ood": Study(
        "Appendix F",
        ("fmnist-resnet18", "cifar10-resnet18"),
        BASIC,
        {
            "fmnist-lenet5": ("notmnist",),  # not in the paper, but cheap
            "fmnist-resnet18": ("notmnist",),
            "cifar10-resnet18": ("svhn", "lsun", "tinyimagenet"),
        },
    ),
    "mixes": Study("Appendix G.1", ("fmnist-resnet18", "cifar10-resnet18"), ("sts-r20-s5", "sts-r100-s1")),
    "branch": Study("Appendix G.2", ("fmnist-resnet18", "cifar10-resnet18"), ("sts-small",)),
    "fresh": Study("The paper's mixes, new ones for every step", ("fmnist-lenet5",), ("sts-fresh",)),
    "steps": Study("Not in the paper: a shorter training", tuple(ROWS), tuple(f"sts-steps-{n}" for n in SHORTER)),
}
