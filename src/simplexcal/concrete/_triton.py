"""The moments by one fused GPU kernel: one pass over the logits, no array of polynomials or nodes.

A program holds a block of rows. It sums the polynomials over the classes, block by block, goes
through kernel, nodes and back in registers, and evaluates the mean at the classes. The formulas are
those of ``_potential``; the polynomials are plain Chebyshev polynomials T_p. Every product is
float32 fused multiply-add, out of reach of TF32.

The kernel at ρ, a small matrix (R, Z), is a polynomial in each of some pieces of [0, 1], which are
shorter towards 0, where it changes fastest.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.polynomial.chebyshev import chebpts1, chebvander
from torch import Tensor

from simplexcal.concrete import _chebyshev
from simplexcal.concrete._chebyshev import BEND, FADING, TOP, Resolution
from simplexcal.concrete._gumbel_sum import LAST_RATIO, Array
from simplexcal.concrete._kernel import RESOLUTIONS, _factors, kernel_for

# Rank of the kernel in a, and in z, both padded; the least side of a product in Triton.
SIDE = 16
# At least P + 2.
COLUMNS = 32
N_PIECES = 32
N_COEFFICIENTS = 6
BLOCK_ROWS = 32
BLOCK_CLASSES = 16
# With so many classes a program has half as many rows and twice as many classes at a time.
MANY_CLASSES = 256


class Tables(NamedTuple):
    """What the fused kernel reads, float32; rows and columns of zeros pad R and Z to SIDE.

    Args:
        pieces: Polynomials of the kernel in ρ, (N_PIECES, N_COEFFICIENTS, SIDE²).
        collect: φ_r as coefficients of T_p, (P+1, SIDE).
        share: The coefficients of the mean likewise, transposed, (SIDE, COLUMNS).
        curve: Those of its derivative, (SIDE, COLUMNS).
        nodes: The functions of z, (SIDE, Q), Q a multiple of SIDE.
        nodes_t: Transposed, (Q, SIDE).
        unit_step: [z > 0], and 1 where nodes are padded, (Q,).
        n_polynomials: P.
        spacing: Distance between two nodes.
    """

    pieces: Tensor
    collect: Tensor
    share: Tensor
    curve: Tensor
    nodes: Tensor
    nodes_t: Tensor
    unit_step: Tensor
    n_polynomials: int
    spacing: float


@cache
def tables(n_classes: int, device: torch.device) -> Tables:
    """Return the tables for a number of classes, on a device.

    Args:
        n_classes: K.
        device: Where they are to be.
    """
    kernel = kernel_for(torch.empty(0, n_classes))
    r = kernel.resolution
    n = len(kernel.collect)
    n_nodes = len(kernel.unit_step)
    padded_nodes = SIDE * math.ceil(n_nodes / SIDE)
    nodes = r.first_node + kernel.spacing * np.arange(n_nodes, dtype=np.float64)
    core, node_functions = _compress(r, nodes)
    unit_step = np.ones(padded_nodes)
    unit_step[:n_nodes] = kernel.unit_step.numpy()
    node_functions = _padded(node_functions, (SIDE, padded_nodes))
    signs = _chebyshev.signs(n + 2)[:, None]
    arrays = [
        _pieces(_chebyshev.series_in_ratio(core)),
        _padded(signs[:n] * kernel.collect.double().numpy(), (n + 1, SIDE)),
        _padded(kernel.share.double().numpy() * signs[: n + 1, 0], (SIDE, COLUMNS)),
        _padded(kernel.curve.double().numpy() * signs[:, 0], (SIDE, COLUMNS)),
        node_functions,
        np.ascontiguousarray(node_functions.T),
        unit_step,
    ]
    tensors = _chebyshev.as_tensors(device, torch.float32, *arrays)
    return Tables(*tensors, n, kernel.spacing)


def _compress(r: Resolution, nodes: Array) -> tuple[Array, Array]:
    """Return the kernel at each tabulated ρ (ρ, SIDE²) and SIDE functions of z (SIDE, Q).

    Their product is e^-z ψ, in least squares. An error at z counts e^z-fold, up to the number of
    classes, since as many classes share it: so rounding to float32 does no harm.
    """
    _, psi = _factors(r, nodes)
    n_classes = np.exp(nodes[-1] - r.reach)
    weight = 1 / (np.exp(-nodes) + 1 / n_classes)
    weighted = psi * weight
    by_node = weighted.transpose(2, 0, 1).reshape(len(nodes), -1)
    of_node = np.linalg.svd(by_node, full_matrices=False)[0][:, :SIDE]
    core = np.zeros((len(psi), SIDE, SIDE))
    core[:, : r.rank] = weighted @ of_node
    # Two halves, of the functions with even and with odd number; in each, R is the last axis.
    halves = core.reshape(-1, SIDE, SIDE // 2, 2).transpose(0, 3, 2, 1)
    return halves.reshape(len(psi), -1), (of_node / weight[:, None]).T


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


# --- parts of the kernels -------------------------------------------------------------------------


@triton.jit
def _scale(temperature):
    # A comparison, not a maximum, since that would drop NaN: it is left to the ratio.
    return tl.where(temperature > 1.0, temperature, 1.0)


@triton.jit
def _piece(ratio, N_PIECES: tl.constexpr):
    """Return the number of the piece, the place in it, and half its length."""
    index = (tl.sqrt(ratio) * N_PIECES).to(tl.int32)
    index = tl.minimum(tl.maximum(index, 0), N_PIECES - 1)
    low = index.to(tl.float32) / N_PIECES
    high = (index + 1).to(tl.float32) / N_PIECES
    half = (high * high - low * low) * 0.5
    place = (ratio - (high * high + low * low) * 0.5) / half
    return index, place, half


@triton.jit
def _half(pieces, ratio, ROWS: tl.constexpr, N_PIECES: tl.constexpr, N_COEFS: tl.constexpr):
    """Return half the kernel at ρ, (ROWS, 8, 16)."""
    index, place, _ = _piece(ratio, N_PIECES)
    at = pieces + index[:, None] * (N_COEFS * 256) + tl.arange(0, 128)[None, :]
    value = tl.load(at + (N_COEFS - 1) * 256)
    for j in tl.static_range(1, N_COEFS):
        value = value * place[:, None] + tl.load(at + (N_COEFS - 1 - j) * 256)
    return tl.reshape(value, (ROWS, 8, 16))


@triton.jit
def _slope_half(pieces, ratio, ROWS: tl.constexpr, N_PIECES: tl.constexpr, N_COEFS: tl.constexpr):
    """Return half its derivative in ρ, (ROWS, 8, 16)."""
    index, place, half = _piece(ratio, N_PIECES)
    at = pieces + index[:, None] * (N_COEFS * 256) + tl.arange(0, 128)[None, :]
    value = tl.load(at + (N_COEFS - 1) * 256) * (N_COEFS - 1)
    for j in tl.static_range(1, N_COEFS - 1):
        term = tl.load(at + (N_COEFS - 1 - j) * 256) * (N_COEFS - 1 - j)
        value = value * place[:, None] + term
    return tl.reshape(value / half[:, None], (ROWS, 8, 16))


@triton.jit
def _at_ratio(pieces, ratio, ROWS: tl.constexpr, N_PIECES: tl.constexpr, N_COEFS: tl.constexpr):
    """Return the kernel at ρ: in two halves, for a warp holds a row of one half."""
    even = _half(pieces, ratio, ROWS, N_PIECES, N_COEFS)
    odd = _half(pieces + 128, ratio, ROWS, N_PIECES, N_COEFS)
    return even, odd


@triton.jit
def _slope_at_ratio(
    pieces, ratio, ROWS: tl.constexpr, N_PIECES: tl.constexpr, N_COEFS: tl.constexpr
):
    """Return its derivative in ρ likewise."""
    even = _slope_half(pieces, ratio, ROWS, N_PIECES, N_COEFS)
    odd = _slope_half(pieces + 128, ratio, ROWS, N_PIECES, N_COEFS)
    return even, odd


@triton.jit
def _largest(at_row, row_mask, n_classes, ROWS: tl.constexpr, CLASSES: tl.constexpr):
    """Return the largest logit of each row."""
    largest = tl.full((ROWS, CLASSES), float("-inf"), tl.float32)
    for start in range(0, n_classes, CLASSES):
        k = start + tl.arange(0, CLASSES)
        mask = row_mask[:, None] & (k < n_classes)[None, :]
        x = tl.load(at_row[:, None] + k[None, :], mask=mask, other=float("-inf"))
        largest = tl.maximum(largest, x)
    return tl.where(row_mask, tl.max(largest, 1), 0.0)


@triton.jit
def _log_weight(a, DEPTH: tl.constexpr, FADING: tl.constexpr):
    return a - FADING * tl.maximum(a, -DEPTH)


@triton.jit
def _variable(a, DEPTH: tl.constexpr, BEND: tl.constexpr, STRETCH: tl.constexpr, TOP: tl.constexpr):
    near = tl.maximum(a, -DEPTH)
    return near / (BEND - near) * STRETCH + TOP


@triton.jit
def _add_polynomials(sums, weight, u, N: tl.constexpr):
    """Add weight · T_p(u) for p < N to each of N sums."""
    before = weight
    this = weight * u
    twice = u + u
    result = (sums[0] + before, sums[1] + this)
    for p in tl.static_range(2, N):
        after = twice * this - before
        before = this
        this = after
        result = result + (sums[p] + this,)
    return result


@triton.jit
def _zeros(ROWS: tl.constexpr, CLASSES: tl.constexpr, N: tl.constexpr):
    zero = tl.zeros((ROWS, CLASSES), tl.float32)
    result = (zero, zero)
    for _ in tl.static_range(2, N):
        result = result + (zero,)
    return result


@triton.jit
def _reduce(tiles, N: tl.constexpr):
    result = (tl.sum(tiles[0], 1), tl.sum(tiles[1], 1))
    for p in tl.static_range(2, N):
        result = result + (tl.sum(tiles[p], 1),)
    return result


@triton.jit
def _combine(sums, matrix, N: tl.constexpr):
    """Return Σ_p sums_p · matrix_p, (ROWS, 16)."""
    r = tl.arange(0, 16)
    result = sums[0][:, None] * tl.load(matrix + r)[None, :]
    for p in tl.static_range(1, N):
        result += sums[p][:, None] * tl.load(matrix + p * 16 + r)[None, :]
    return result


@triton.jit
def _column(matrix, p: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, 32)[None, :] == p, matrix, 0.0), 1)


@triton.jit
def _coefficients(rows, matrix, N: tl.constexpr):
    """Return N columns of the product of rows (ROWS, 16) and a matrix (16, 32)."""
    at = matrix + tl.arange(0, 16)[:, None] * 32 + tl.arange(0, 32)[None, :]
    product = tl.dot(rows, tl.load(at), input_precision="ieee")
    result = (_column(product, 0), _column(product, 1))
    for p in tl.static_range(2, N):
        result = result + (_column(product, p),)
    return result


@triton.jit
def _dot_product(left, right, N: tl.constexpr):
    result = left[0] * right[0]
    for p in tl.static_range(1, N):
        result += left[p] * right[p]
    return result


@triton.jit
def _value(c, u, N: tl.constexpr):
    """Return Σ_p c_p T_p(u), (ROWS, CLASSES), by Clenshaw's rule."""
    twice = u + u
    before = c[N - 1][:, None]
    this = c[N - 2][:, None] + twice * before
    for j in tl.static_range(3, N):
        after = c[N - j][:, None] - before + twice * this
        before = this
        this = after
    return c[0][:, None] - before + u * this


@triton.jit
def _apply(rows, matrices):
    """Return rows (ROWS, R) times the kernel, (ROWS, Z)."""
    even = tl.sum(matrices[0] * rows[:, None, :], 2)
    odd = tl.sum(matrices[1] * rows[:, None, :], 2)
    return tl.reshape(tl.join(even, odd), (rows.shape[0], 16))


@triton.jit
def _apply_transposed(matrices, rows):
    """Return the kernel times rows (ROWS, Z), (ROWS, R)."""
    even, odd = tl.split(tl.reshape(rows, (rows.shape[0], 8, 2)))
    return tl.sum(matrices[0] * even[:, :, None] + matrices[1] * odd[:, :, None], 1)


@triton.jit
def _project(functions, nodes, nodes_t, unit_step, ROWS: tl.constexpr, NODES: tl.constexpr):
    """Return Σ_q Φ_q times each function of z, (ROWS, 16), and Σ_q ([z_q > 0] - Φ_q)."""
    z = tl.arange(0, 16)
    projected = tl.zeros((ROWS, 16), tl.float32)
    value = tl.zeros((ROWS, 16), tl.float32)
    for q in range(0, NODES, 16):
        block = tl.load(nodes + z[:, None] * NODES + q + z[None, :])
        cdf = tl.exp(-tl.dot(functions, block, input_precision="ieee"))
        value += tl.load(unit_step + q + z)[None, :] - cdf
        block_t = tl.load(nodes_t + (q + z)[:, None] * 16 + z[None, :])
        projected = tl.dot(cdf, block_t, projected, input_precision="ieee")
    return projected, tl.sum(value, 1)


@triton.jit
def _sums(
    at_row,
    row_mask,
    largest,
    scale,
    n_classes,
    P: tl.constexpr,
    DEPTH: tl.constexpr,
    FADING: tl.constexpr,
    BEND: tl.constexpr,
    STRETCH: tl.constexpr,
    TOP: tl.constexpr,
    ROWS: tl.constexpr,
    CLASSES: tl.constexpr,
):
    """Return Σ_k w_k T_p(u_k) for p ≤ P."""
    tiles = _zeros(ROWS, CLASSES, P + 1)
    for start in range(0, n_classes, CLASSES):
        k = start + tl.arange(0, CLASSES)
        mask = row_mask[:, None] & (k < n_classes)[None, :]
        x = tl.load(at_row[:, None] + k[None, :], mask=mask, other=float("-inf"))
        a = tl.where(mask, (x - largest[:, None]) / scale[:, None], float("-inf"))
        weight = tl.exp(_log_weight(a, DEPTH, FADING))
        u = _variable(a, DEPTH, BEND, STRETCH, TOP)
        tiles = _add_polynomials(tiles, weight, u, P + 1)
    return _reduce(tiles, P + 1)


# --- the moments ----------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["n_rows", "n_classes"])
def _moments_kernel(
    logits,
    temperature,
    mean,
    value,
    slope,
    pieces,
    collect,
    share,
    nodes,
    nodes_t,
    unit_step,
    n_rows,
    n_classes,
    row_stride,
    temperature_stride,
    spacing,
    NODES: tl.constexpr,
    P: tl.constexpr,
    DEPTH: tl.constexpr,
    FADING: tl.constexpr,
    BEND: tl.constexpr,
    STRETCH: tl.constexpr,
    TOP: tl.constexpr,
    N_PIECES: tl.constexpr,
    N_COEFS: tl.constexpr,
    SLOPE: tl.constexpr,
    ROWS: tl.constexpr,
    CLASSES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_mask = row < n_rows
    lam = tl.load(temperature + row * temperature_stride, mask=row_mask, other=1.0)
    scale = _scale(lam)
    ratio = lam / scale / scale
    at_row = logits + row * row_stride
    largest = _largest(at_row, row_mask, n_classes, ROWS, CLASSES)
    sums = _sums(
        at_row,
        row_mask,
        largest,
        scale,
        n_classes,
        P,
        DEPTH,
        FADING,
        BEND,
        STRETCH,
        TOP,
        ROWS,
        CLASSES,
    )
    collected = _combine(sums, collect, P)
    matrices = _at_ratio(pieces, ratio, ROWS, N_PIECES, N_COEFS)
    functions = _apply(collected, matrices)
    projected, total_value = _project(functions, nodes, nodes_t, unit_step, ROWS, NODES)
    adjoint = _apply_transposed(matrices, projected)
    c = _coefficients(adjoint, share, P + 1)
    if SLOPE:
        moved = _apply(collected, _slope_at_ratio(pieces, ratio, ROWS, N_PIECES, N_COEFS))
        tl.store(value + row, spacing * total_value, mask=row_mask)
        tl.store(slope + row, spacing * tl.sum(moved * projected, 1), mask=row_mask)
    inverse = 1.0 / _dot_product(c, sums, P + 1)
    top = tl.zeros((ROWS, 1), tl.float32) + TOP
    best = _value(c, top, P + 1) * inverse[:, None]
    best = tl.where(best > 1.0, 1.0, best)
    below = best - best * 1.1920929e-07
    at_mean = mean + row * n_classes
    for start in range(0, n_classes, CLASSES):
        k = start + tl.arange(0, CLASSES)
        mask = row_mask[:, None] & (k < n_classes)[None, :]
        x = tl.load(at_row[:, None] + k[None, :], mask=mask, other=float("-inf"))
        a = (x - largest[:, None]) / scale[:, None]
        weight = tl.exp(_log_weight(a, DEPTH, FADING))
        u = _variable(a, DEPTH, BEND, STRETCH, TOP)
        found = weight * _value(c, u, P + 1) * inverse[:, None]
        # Comparisons let NaN through, a minimum would not.
        found = tl.where(found > below, below, found)
        found = tl.where(x == largest[:, None], best, found)
        tl.store(at_mean[:, None] + k[None, :], found, mask=mask)


@triton.jit(do_not_specialize=["n_rows", "n_classes", "n_labels"])
def _log_mean_kernel(
    logits,
    temperature,
    labels,
    log_mean,
    pieces,
    collect,
    share,
    nodes,
    nodes_t,
    unit_step,
    n_rows,
    n_classes,
    n_labels,
    row_stride,
    temperature_stride,
    log_spacing,
    NODES: tl.constexpr,
    P: tl.constexpr,
    DEPTH: tl.constexpr,
    FADING: tl.constexpr,
    BEND: tl.constexpr,
    STRETCH: tl.constexpr,
    TOP: tl.constexpr,
    N_PIECES: tl.constexpr,
    N_COEFS: tl.constexpr,
    ROWS: tl.constexpr,
    CLASSES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_mask = row < n_rows
    lam = tl.load(temperature + row * temperature_stride, mask=row_mask, other=1.0)
    scale = _scale(lam)
    ratio = lam / scale / scale
    at_row = logits + row * row_stride
    largest = _largest(at_row, row_mask, n_classes, ROWS, CLASSES)
    sums = _sums(
        at_row,
        row_mask,
        largest,
        scale,
        n_classes,
        P,
        DEPTH,
        FADING,
        BEND,
        STRETCH,
        TOP,
        ROWS,
        CLASSES,
    )
    collected = _combine(sums, collect, P)
    matrices = _at_ratio(pieces, ratio, ROWS, N_PIECES, N_COEFS)
    functions = _apply(collected, matrices)
    projected, _ = _project(functions, nodes, nodes_t, unit_step, ROWS, NODES)
    c = _coefficients(_apply_transposed(matrices, projected), share, P + 1)
    for start in range(0, n_labels, 16):
        j = start + tl.arange(0, 16)
        mask = row_mask[:, None] & (j < n_labels)[None, :]
        at_label = row[:, None] * n_labels + j[None, :]
        label = tl.load(labels + at_label, mask=mask, other=0)
        inside = mask & (label >= 0) & (label < n_classes)
        x = tl.load(at_row[:, None] + label, mask=inside, other=float("nan"))
        a = (x - largest[:, None]) / scale[:, None]
        tilted = _value(c, _variable(a, DEPTH, BEND, STRETCH, TOP), P + 1)
        found = tl.log(tilted) + _log_weight(a, DEPTH, FADING) + log_spacing
        tl.store(log_mean + at_label, found, mask=mask)


# --- calls ----------------------------------------------------------------------------------------


def moments(logits: Tensor, temperature: Tensor, with_slope: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean (N, K), value (N,) and slope (N,); without the slope, the latter two are empty.

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
        with_slope: Whether value and slope are wanted.
    """
    n, k = logits.shape
    mean = logits.new_empty(n, k)
    n_values = n if with_slope else 0
    value = logits.new_empty(n_values)
    slope = logits.new_empty(n_values)
    if n == 0:
        return mean, value, slope
    t = tables(k, logits.device)
    logits = _with_adjacent_classes(logits)
    settings = _settings(t, k)
    _moments_kernel[_grid(n, settings)](
        logits,
        temperature,
        mean,
        value,
        slope,
        *_of_mean(t),
        n,
        k,
        logits.stride(0),
        temperature.stride(0),
        t.spacing,
        SLOPE=with_slope,
        **settings,
    )
    return mean, value, slope


def log_mean_at(logits: Tensor, temperature: Tensor, labels: Tensor) -> Tensor:
    """Return ln ∂m/∂a_y, (N, M).

    Args:
        logits: Location, (N, K).
        temperature: λ, (N,).
        labels: M classes y of each row, (N, M).
    """
    n, k = logits.shape
    labels = labels.contiguous()
    found = logits.new_empty(labels.shape)
    if found.numel() == 0:
        return found
    t = tables(k, logits.device)
    logits = _with_adjacent_classes(logits)
    settings = _settings(t, k)
    _log_mean_kernel[_grid(n, settings)](
        logits,
        temperature,
        labels,
        found,
        *_of_mean(t),
        n,
        k,
        labels.shape[1],
        logits.stride(0),
        temperature.stride(0),
        math.log(t.spacing),
        **settings,
    )
    return found


def _with_adjacent_classes(logits: Tensor) -> Tensor:
    if logits.stride(1) == 1:
        return logits
    return logits.contiguous()


def _of_mean(t: Tables) -> tuple[Tensor, ...]:
    return t.pieces, t.collect, t.share, t.nodes, t.nodes_t, t.unit_step


def _grid(n: int, settings: dict[str, Any]) -> tuple[int]:
    return (triton.cdiv(n, settings["ROWS"]),)


def _settings(t: Tables, n_classes: int) -> dict[str, Any]:
    """Return what a kernel is compiled for; it does not depend on N, and on K only in two steps."""
    r = RESOLUTIONS[torch.float32]
    rows = BLOCK_ROWS
    classes = BLOCK_CLASSES
    if n_classes >= MANY_CLASSES:
        rows = BLOCK_ROWS // 2
        classes = 2 * BLOCK_CLASSES
    return {
        "NODES": t.nodes.shape[1],
        "P": t.n_polynomials,
        "DEPTH": float(r.depth),
        "FADING": FADING,
        "BEND": BEND,
        "STRETCH": r.stretch,
        "TOP": TOP,
        "N_PIECES": N_PIECES,
        "N_COEFS": N_COEFFICIENTS,
        "ROWS": rows,
        "CLASSES": classes,
        "num_warps": 4,
    }
