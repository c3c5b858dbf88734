"""The numbers of the kernels in which a thread holds a row (``_row_kernels``).

They are written into the compiled code as constants, so a product with one needs no load. The
kernel at ρ is one Chebyshev series there, not a table of pieces: all rows use the same constants.
"""

import hashlib

import numpy as np
import torch
from numpy.polynomial.chebyshev import chebvander

from simplexcal.concrete import _chebyshev
from simplexcal.concrete._chebyshev import Resolution
from simplexcal.concrete._gumbel_sum import Array
from simplexcal.concrete._kernel import Kernel, kernel_for

# As fine as float32 needs, and so coarse that the kernel at ρ fits into the registers of a thread.
RESOLUTION = Resolution(
    stride=5,
    first_node=-4.375,
    reach=19.0,
    tail=8.0,
    depth=24,
    degree=17,
    rank=14,
    terms=14,
    ratio_rank=14,
    node_rank=13,
)
# The nodes are those for so many classes. With more, a thread would be busy with them for too long.
MOST_CLASSES = 32
# The polynomials are T_4j T_i with i < 4, which need fewer operations than T_p.
N_IN_BLOCK = 4
# Sums over the classes: one more than the polynomials of φ, for the mean has one more.
N_SUMS = RESOLUTION.degree + 2


class Table:
    """Numbers that a kernel reads while it is compiled.

    Args:
        values: An array; it is read in the order of memory.
    """

    def __init__(self, values: Array) -> None:
        numbers = np.ravel(values).astype(np.float32)
        self.values: list[float] = numbers.tolist()
        self.checksum = hashlib.sha256(numbers.tobytes()).hexdigest()

    def __getitem__(self, i: int) -> float:
        return self.values[i]

    def __repr__(self) -> str:
        """Triton's cache tells compiled kernels apart by this."""
        return f"Table({self.checksum})"

    def __deepcopy__(self, memo: object) -> "Table":
        """Triton copies the constants of a kernel, and compares them at every launch."""
        return self


def _kernel() -> Kernel:
    like = torch.empty(0, MOST_CLASSES, dtype=torch.float64)
    return kernel_for(like, torch.float64, RESOLUTION)


def _from_products(n: int) -> Array:
    """Return n polynomials T_p as combinations of T_4j T_i, (n, n)."""
    change = np.zeros((n, n))
    for p in range(n):
        block, i = divmod(p, N_IN_BLOCK)
        change[p, p] = 1
        if block > 0 and i > 0:
            # T_m T_i = (T_(m+i) + T_(m-i)) / 2
            change[p, p] = 2
            change[p] -= change[N_IN_BLOCK * block - i]
    return change


_SIGNS = _chebyshev.signs(N_SUMS)
_CHANGE = _from_products(N_SUMS)
_SIGNS_OF_CURVE = _chebyshev.signs(N_SUMS + 1)
_CHANGE_OF_CURVE = _from_products(N_SUMS + 1)
_KERNEL = _kernel()
_POLYNOMIALS_AT_TOP = chebvander(np.array([_chebyshev.TOP]), N_SUMS - 1)[0]

SPACING = _KERNEL.spacing
N_NODES = len(_KERNEL.unit_step)
# The kernel as a Chebyshev series in ρ, (T, R·Z).
SERIES = Table((_KERNEL.ratio_functions @ _KERNEL.core).numpy())
# φ_r as coefficients of the polynomials, (N_SUMS, R).
COLLECT = Table(_CHANGE[: N_SUMS - 1].T @ (_SIGNS[: N_SUMS - 1, None] * _KERNEL.collect.numpy()))
# The coefficients of the mean likewise, (R, N_SUMS).
SHARE = Table((_KERNEL.share.numpy() * _SIGNS) @ _CHANGE)
# Those of its derivative likewise, (R, N_SUMS + 1).
CURVE = Table((_KERNEL.curve.numpy() * _SIGNS_OF_CURVE) @ _CHANGE_OF_CURVE)
# The functions of z at the nodes, (Z, Q), and their sums over the lattice beyond, (Z,).
NODES = Table(_KERNEL.node_functions.numpy())
TAIL = Table(_KERNEL.tail.numpy())
# [z > 0] at the nodes, (Q,).
UNIT_STEP = Table(_KERNEL.unit_step.numpy())
# The polynomials at the largest class, (N_SUMS,).
AT_TOP = Table(np.linalg.solve(_CHANGE, _POLYNOMIALS_AT_TOP))
