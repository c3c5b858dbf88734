"""The moments by fused GPU kernels: no array of rows × polynomials or rows × nodes.

In the kernels of ``_row_kernels`` a thread holds a row; they are for many rows of few classes. In
those of ``_triton_kernels`` the threads of a warp share some rows; they are for all others, and for
gradients. Here are the tables that the latter read, and the calls of both.

The kernel at ρ, a small matrix (R, Z), is a polynomial in each of some pieces of [0, 1], which are
shorter towards 0, where it changes fastest.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.polynomial.chebyshev import chebpts1, chebvander
from torch import Tensor

from simplexcal.concrete import (
    _chebyshev,
    _fused,
    _inversion,
    _row_kernels,
    _row_tables,
    _triton_kernels,
)
from simplexcal.concrete._gumbel_sum import LAST_RATIO, Array
from simplexcal.concrete._kernel import RESOLUTIONS, Kernel, kernel_for

# Rank of the kernel in a, and in z, both padded; the least side of a product in Triton.
SIDE = 16
# At least P + 2.
COLUMNS = 32
N_PIECES: int = _triton_kernels.N_PIECES.value
N_COEFFICIENTS: int = _triton_kernels.N_COEFS.value
# Rows of a program, and classes at a time. More of either would not fit into the registers.
BLOCK_ROWS = 16
BLOCK_CLASSES = 16
# From so many classes on, twice as many at a time.
MANY_CLASSES = 256
N_WARPS = 4
# Rows of a warp, each in a thread.
WARP_ROWS = 32


class Tables(NamedTuple):
    """What the fused kernel reads, float32; rows and columns of zeros pad R and Z to SIDE.

    Args:
        spacing: Distance between two nodes.
        pieces: Polynomials of the kernel in ρ, (N_PIECES, N_COEFFICIENTS, SIDE²).
        collect: φ_r as coefficients of T_p, (P, SIDE).
        share: The coefficients of the mean likewise, transposed, (SIDE, COLUMNS).
        curve: Those of its derivative, (SIDE, COLUMNS).
        nodes: The functions of z, (SIDE, Q), Q a multiple of SIDE.
        nodes_t: Transposed, (Q, SIDE).
        unit_step: [z > 0], and 1 where nodes are padded, (Q,).
        tail: The sums of the functions of z over the rest of the lattice, (SIDE,).
    """

    spacing: float
    pieces: Tensor
    collect: Tensor
    share: Tensor
    curve: Tensor
    nodes: Tensor
    nodes_t: Tensor
    unit_step: Tensor
    tail: Tensor


@cache
def tables(n_classes: int, device: torch.device) -> Tables:
    """Return the tables for a number of classes, on a device.

    Args:
        n_classes: K.
        device: Where they are to be.
    """
    like = torch.empty(0, n_classes, dtype=torch.float32, device="cpu")
    kernel = kernel_for(like, torch.float64)
    n = len(kernel.collect)
    n_nodes = len(kernel.unit_step)
    padded_nodes = SIDE * math.ceil(n_nodes / SIDE)
    unit_step = np.ones(padded_nodes)
    unit_step[:n_nodes] = kernel.unit_step.numpy()
    nodes = _padded(kernel.node_functions.numpy(), (SIDE, padded_nodes))
    signs = _chebyshev.signs(n + 2)
    arrays = [
        _pieces(_halves(kernel)),
        _padded(signs[:n, None] * kernel.collect.numpy(), (n, SIDE)),
        _padded(kernel.share.numpy() * signs[: n + 1], (SIDE, COLUMNS)),
        _padded(kernel.curve.numpy() * signs, (SIDE, COLUMNS)),
        nodes,
        np.ascontiguousarray(nodes.T),
        unit_step,
        _padded(kernel.tail.numpy()[None], (1, SIDE))[0],
    ]
    tensors = _chebyshev.as_tensors(device, torch.float32, *arrays)
    return Tables(kernel.spacing, *tensors)


def _halves(kernel: Kernel) -> Array:
    """Return the kernel as a Chebyshev series in ρ, (T, SIDE²).

    It is in two halves, of the functions of z with even and with odd number; in each, R is the last
    axis.
    """
    rank = len(kernel.share)
    node_rank = len(kernel.node_functions)
    series = (kernel.ratio_functions @ kernel.core).numpy()
    square = np.zeros((len(series), SIDE, SIDE))
    square[:, :rank, :node_rank] = series.reshape(-1, rank, node_rank)
    halves = square.reshape(-1, SIDE, SIDE // 2, 2).transpose(0, 3, 2, 1)
    return halves.reshape(len(series), -1)


def _padded(array: Array, shape: tuple[int, int]) -> Array:
    result = np.zeros(shape)
    result[: array.shape[0], : array.shape[1]] = array
    return result


def _pieces(series: Array) -> Array:
    """Return polynomials in the pieces [(i/n)², ((i+1)/n)²] of a Chebyshev series in ρ (T, C)."""
    edges = (np.arange(N_PIECES + 1) / N_PIECES) ** 2
    centre = (edges[1:] + edges[:-1]) / 2
    half = np.diff(edges) / 2
    t = chebpts1(N_COEFFICIENTS)
    ratio = centre[:, None] + half[:, None] * t
    values = chebvander(ratio * (2 / LAST_RATIO) - 1, len(series) - 1) @ series
    inverse = np.linalg.inv(np.vander(t, increasing=True))
    return np.asarray(inverse @ values, np.float64)


# --- calls ----------------------------------------------------------------------------------------


def moments(logits: Tensor, temperature: Tensor, with_slope: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean (N, K), value (N,) and slope (N,); without the slope, the latter two are empty.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
        with_slope: Whether value and slope are wanted.
    """
    mean = logits.new_empty(logits.shape)
    n_values = 0
    if with_slope:
        n_values = len(logits)
    value = logits.new_empty(n_values)
    slope = logits.new_empty(n_values)
    rows = _with_adjacent_classes(logits)
    if _suits_threads(logits):
        results = {"mean": mean, "value": value, "slope": slope, "with_slope": with_slope}
        _launch_rows(_row_kernels.few_classes_kernel, rows, temperature, logits=rows, **results)
        return mean, value, slope
    t = tables(logits.shape[1], logits.device)
    _launch(
        _triton_kernels.moments_kernel,
        rows,
        temperature,
        t,
        mean=mean,
        value=value,
        slope=slope,
        with_slope=with_slope,
    )
    return mean, value, slope


def _suits_threads(rows: Tensor) -> bool:
    """Return whether a thread shall hold a row: with many rows of few classes."""
    return len(rows) >= _fused.MANY_ROWS and rows.shape[1] <= _row_tables.MOST_CLASSES


def log_mean_at(logits: Tensor, temperature: Tensor, labels: Tensor) -> Tensor:
    """Return ln ∂m/∂a_y, (N, M).

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
        labels: M classes y of each row, (N, M).
    """
    labels = labels.contiguous()
    found = logits.new_empty(labels.shape)
    t = tables(logits.shape[1], logits.device)
    _launch(
        _triton_kernels.log_mean_kernel,
        _with_adjacent_classes(logits),
        temperature,
        t,
        labels=labels,
        log_mean=found,
        n_labels=labels.shape[1],
        log_spacing=math.log(t.spacing),
    )
    return found


def mean_backward(grad: Tensor, logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the mean in logits and temperature.

    Args:
        grad: That of the mean, (N, K).
        logits: Location, (N, K).
        temperature: λ, (N,).
    """
    d_logits = logits.new_empty(logits.shape)
    d_temperature = logits.new_empty(len(logits))
    t = tables(logits.shape[1], logits.device)
    _launch(
        _triton_kernels.mean_backward_kernel,
        _with_adjacent_classes(logits),
        temperature,
        t,
        d_logits=d_logits,
        d_temperature=d_temperature,
        grad=grad.contiguous(),
        block_classes=BLOCK_CLASSES,
    )
    return d_logits, d_temperature


def log_mean_backward(
    grad: Tensor,
    logits: Tensor,
    temperature: Tensor,
    labels: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``log_mean_at`` in logits and temperature.

    Args:
        grad: That of the logarithms, (N, M).
        logits: Location, (N, K).
        temperature: λ, (N,).
        labels: M classes y of each row, (N, M).
    """
    d_logits = logits.new_empty(logits.shape)
    d_temperature = logits.new_empty(len(logits))
    t = tables(logits.shape[1], logits.device)
    _launch(
        _triton_kernels.log_mean_backward_kernel,
        _with_adjacent_classes(logits),
        temperature,
        t,
        labels=labels.contiguous(),
        d_logits=d_logits,
        d_temperature=d_temperature,
        grad=grad.contiguous(),
        n_labels=labels.shape[1],
        most_labels=_fused.MOST_LABELS,
        block_classes=BLOCK_CLASSES,
    )
    return d_logits, d_temperature


def invert(log_mean: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return shifted logits (N, K) with this mean, and value and slope (N,) there.

    Args:
        log_mean: ln p with Σ_k p_k = 1, (N, K).
        temperature: λ, (N,).
    """
    n, k = log_mean.shape
    location = log_mean.new_empty(n, k)
    value = log_mean.new_empty(n)
    slope = log_mean.new_empty(n)
    if _suits_threads(log_mean):
        rows = _with_adjacent_classes(log_mean)
        _launch_rows(
            _row_kernels.invert_few_classes_kernel,
            rows,
            temperature,
            log_mean=rows,
            location=location,
            value=value,
            slope=slope,
            n_steps=_inversion.N_STEPS[torch.float32],
            masked=_inversion.MASKED,
        )
        return location, value, slope
    t = tables(k, log_mean.device)
    r = RESOLUTIONS[torch.float32]
    points = _point_tables(log_mean.device)
    n_points = 0
    if k > COLUMNS:
        n_points = r.degree + 2
    last_point = _inversion._last_point(r)
    _launch(
        _triton_kernels.invert_kernel,
        _with_adjacent_classes(log_mean),
        temperature,
        t,
        location=location,
        value=value,
        slope=slope,
        **points,
        log_spacing=math.log(t.spacing),
        n_steps=_inversion.N_STEPS[torch.float32],
        n_points=n_points,
        last_point=last_point,
        lowest=r.variable(last_point),
        masked=_inversion.MASKED,
        block_classes=2 * BLOCK_CLASSES,
    )
    return location, value, slope


@cache
def _point_tables(device: torch.device) -> dict[str, Tensor]:
    """Return ln p at the points (COLUMNS,), and the matrices to multiplicities and coefficients."""
    r = RESOLUTIONS[torch.float32]
    found = _inversion._chebyshev_points(r, torch.float64, torch.device("cpu"))
    points, to_multiplicity, to_coefficients = (x.double().numpy() for x in found)
    signs = _chebyshev.signs(len(points))
    arrays = [
        _padded(points[None], (1, COLUMNS))[0],
        _padded(signs[:, None] * to_multiplicity, (COLUMNS, COLUMNS)),
        _padded(to_coefficients * signs, (COLUMNS, COLUMNS)),
    ]
    names = ("points", "to_multiplicity", "to_coefficients")
    tensors = _chebyshev.as_tensors(device, torch.float32, *arrays)
    return dict(zip(names, tensors, strict=True))


def _with_adjacent_classes(logits: Tensor) -> Tensor:
    if logits.stride(1) == 1:
        return logits
    return logits.contiguous()


def _launch(
    kernel: Any,
    rows: Tensor,
    temperature: Tensor,
    t: Tables,
    **others: Any,
) -> None:
    """Run a kernel; what it is compiled for does not depend on N, and on K only in few steps."""
    n, k = rows.shape
    if n == 0:
        return
    settings: dict[str, Any] = {"block_rows": BLOCK_ROWS, "block_classes": BLOCK_CLASSES}
    if k >= MANY_CLASSES:
        settings["block_classes"] = 2 * BLOCK_CLASSES
    settings.update(others)
    tables = {name: x for name, x in t._asdict().items() if name in kernel.arg_names}
    rows_name = "logits"
    if rows_name not in kernel.arg_names:
        rows_name = "log_mean"
    settings[rows_name] = rows
    # Triton launches on the current device, which need not be that of the rows.
    with torch.cuda.device_of(rows):
        kernel[(math.ceil(n / BLOCK_ROWS),)](
            temperature=temperature,
            n_rows=n,
            n_classes=k,
            row_stride=rows.stride(0),
            temperature_stride=temperature.stride(0),
            n_nodes=t.nodes.shape[1],
            num_warps=N_WARPS,
            **tables,
            **settings,
        )


def _launch_rows(kernel: Any, rows: Tensor, temperature: Tensor, **others: Any) -> None:
    """Run a kernel in which a thread holds a row, and goes through its classes."""
    n, k = rows.shape
    if n == 0:
        return
    with torch.cuda.device_of(rows):
        kernel[(math.ceil(n / WARP_ROWS),)](
            temperature=temperature,
            n_rows=n,
            n_classes=k,
            row_stride=rows.stride(0),
            temperature_stride=temperature.stride(0),
            block_rows=WARP_ROWS,
            num_warps=1,
            **others,
        )
