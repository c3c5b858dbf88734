"""The paper's own numbers (Esaki et al. 2024).

They are mean and standard deviation of 5 seeds, in % unless another unit stands there, typed once
from the paper's tables. The keys are those of ``SETTINGS`` and ``METHODS``.
"""

from typing import NamedTuple

# Bins of the paper's ECE. The library's own default is 15.
N_BINS = 10


class Number(NamedTuple):
    """Mean ± standard deviation.

    Args:
        mean: The mean.
        std: The standard deviation; nan for a single value.
    """

    mean: float
    std: float


def _setting(*numbers: tuple[float, float]) -> dict[str, Number]:
    keys = ("none", "pts", "adats", "sts-paper", "accuracy")
    return {key: Number(*number) for key, number in zip(keys, numbers, strict=True)}


# Table 1: ECE of the pre-trained network, PTS, AdaTS and STS; accuracy.
TABLE1 = {
    "fmnist-lenet5": _setting((3.52, 0.15), (0.95, 0.32), (0.93, 0.28), (0.91, 0.15), (91.2, 0.17)),
    "fmnist-resnet18": _setting(
        (3.86, 0.31), (2.32, 0.37), (1.15, 0.16), (1.15, 0.28), (94.0, 0.15)
    ),
    "cifar10-vgg16-bn": _setting(
        (4.40, 0.14), (2.48, 0.24), (1.90, 0.54), (1.48, 0.35), (93.7, 0.19)
    ),
    "cifar10-resnet18": _setting(
        (2.80, 0.17), (1.28, 0.18), (1.21, 0.38), (1.10, 0.24), (95.1, 0.14)
    ),
    "cifar100-resnet50": _setting(
        (9.04, 0.36), (6.71, 0.56), (4.03, 2.04), (3.73, 1.43), (78.7, 0.72)
    ),
    "cifar100-densenet121": _setting(
        (7.23, 0.59), (5.71, 0.81), (4.22, 1.08), (2.87, 0.25), (79.6, 0.50)
    ),
    "stl10-vgg16-bn": _setting(
        (15.23, 0.56), (3.84, 0.60), (4.41, 1.75), (2.15, 0.58), (79.4, 0.38)
    ),
    "stl10-resnet18": _setting(
        (12.88, 0.55), (2.01, 0.55), (2.20, 0.58), (1.48, 0.29), (77.8, 0.83)
    ),
}

# Section 5.5 and Appendix D.2: ECE of the Dirichlet method.
DIRICHLET = {"cifar10-resnet18": Number(67.49, 3.84)}

# Appendix C.3: the β with the smallest ECE.
BEST_BETA = {"cifar10-resnet18": 0.6, "stl10-resnet18": 1.3}

# Table of Appendix C.4: seconds, on an A100 and 8 cores of a Xeon Platinum 8358.
CALIBRATION_SECONDS = {"pts": 26142.47, "adats": 269.88, "sts-paper": 5097.18}
INFERENCE_SECONDS = {"pts": 18.37, "adats": 18.03, "sts-paper": 17.91}

# Table of Appendix F: AUPR and AUROC, by confidence, and for STS by differential entropy too.
OOD = {
    ("fmnist-resnet18", "notmnist"): {
        "aupr": ((97.80, 0.48), (97.97, 0.48), (96.80, 0.94), (98.02, 0.53), (98.63, 0.46)),
        "auroc": ((94.22, 1.28), (94.30, 1.38), (89.70, 3.30), (94.40, 1.56), (95.79, 1.43)),
    },
    ("cifar10-resnet18", "svhn"): {
        "aupr": ((98.74, 0.21), (98.84, 0.20), (98.89, 0.20), (98.81, 0.20), (98.93, 0.34)),
        "auroc": ((95.44, 0.51), (95.70, 0.50), (95.74, 0.68), (95.51, 0.53), (95.68, 1.70)),
    },
    ("cifar10-resnet18", "lsun"): {
        "aupr": ((95.04, 0.15), (95.39, 0.14), (94.94, 0.22), (95.28, 0.17), (96.58, 0.21)),
        "auroc": ((92.64, 0.17), (92.93, 0.18), (92.22, 0.25), (92.59, 0.23), (94.11, 0.37)),
    },
}
OOD_COLUMNS = ("none", "pts", "adats", "sts-paper", "sts-paper, differential entropy")

# Table of Appendix G.1: ECE for other R and S; those of R = S = 10 are in Table 1.
MIXUP = {
    "fmnist-resnet18": {"sts-r20-s5": Number(1.01, 0.16), "sts-r100-s1": Number(1.04, 0.26)},
    "cifar10-resnet18": {"sts-r20-s5": Number(1.06, 0.34), "sts-r100-s1": Number(1.08, 0.15)},
}

# Table of Appendix G.2: ECE with the smaller branch.
BRANCH = {
    "fmnist-resnet18": {"sts-small": Number(1.30, 0.18)},
    "cifar10-resnet18": {"sts-small": Number(1.11, 0.16)},
}


def best(numbers: dict[str, Number], largest: bool = False) -> set[str]:
    """Return what the paper sets in bold (Sec. 5.4).

    Bold are the best number and those within one standard deviation of it. The deviation is the
    best one's own: with that, the paper's tables come out as they are printed.

    Args:
        numbers: The numbers to compare, by name.
        largest: Whether the largest number is the best.
    """
    sign = 1
    if largest:
        sign = -1
    winner = min(numbers.values(), key=lambda number: sign * number.mean)
    bold = set()
    for name, number in numbers.items():
        distance = sign * (number.mean - winner.mean)
        if number.mean == winner.mean or distance <= winner.std:
            bold.add(name)
    return bold
