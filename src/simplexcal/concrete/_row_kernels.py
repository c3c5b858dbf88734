"""Triton kernels in which a thread holds a row: for many rows with few classes on a GPU.

A thread goes through the classes, the kernel at ρ and the nodes in its registers, with the numbers
of ``_row_tables`` as constants of the code, so that nearly every instruction is a fused
multiply-add: a third of the instructions of ``_triton_kernels``, no barrier and no exchange between
threads.

The formulas are those of ``_potential``. Every product is float32, out of reach of TF32. A tuple
holds a number of each row for each polynomial, function or node.

Where a pointer moves with a loop, Triton compiles fast; any other it compares with the whole
kernel, for some seconds. So a program goes through blocks of rows, though mostly there is one.
"""

# Triton's language is no typed Python, and knows no starred tuple.
# mypy: ignore-errors
# ruff: noqa: RUF005

import math

import triton
import triton.language as tl

from simplexcal.concrete import _chebyshev, _row_tables
from simplexcal.concrete._gumbel_sum import LAST_RATIO

_RESOLUTION = _row_tables.RESOLUTION
DEPTH = tl.constexpr(float(_RESOLUTION.depth))
STRETCH = tl.constexpr(_RESOLUTION.stretch)
BEND = tl.constexpr(_chebyshev.BEND)
TOP = tl.constexpr(_chebyshev.TOP)
FADING = tl.constexpr(_chebyshev.FADING)
R = tl.constexpr(_RESOLUTION.rank)
Z = tl.constexpr(_RESOLUTION.node_rank)
RZ = tl.constexpr(_RESOLUTION.rank * _RESOLUTION.node_rank)
T = tl.constexpr(_RESOLUTION.terms)
Q = tl.constexpr(_row_tables.N_NODES)
N_SUMS = tl.constexpr(_row_tables.N_SUMS)
N_BLOCKS = tl.constexpr(-(-_row_tables.N_SUMS // _row_tables.N_IN_BLOCK))
SPACING = tl.constexpr(_row_tables.SPACING)
LOG_SPACING = tl.constexpr(math.log(_row_tables.SPACING))
TO_UNIT = tl.constexpr(2.0 / LAST_RATIO)
SERIES = tl.constexpr(_row_tables.SERIES)
COLLECT = tl.constexpr(_row_tables.COLLECT)
SHARE = tl.constexpr(_row_tables.SHARE)
CURVE = tl.constexpr(_row_tables.CURVE)
NODES = tl.constexpr(_row_tables.NODES)
TAIL = tl.constexpr(_row_tables.TAIL)
UNIT_STEP = tl.constexpr(_row_tables.UNIT_STEP)
AT_TOP = tl.constexpr(_row_tables.AT_TOP)


# --- the classes ----------------------------------------------------------------------------------


@triton.jit
def _temperatures(at, row_mask):
    """Return 1/s with s = max(1, λ), and ρ = min(λ, 1/λ)."""
    lam = tl.load(at, mask=row_mask, other=1.0)
    # A comparison, not a maximum, since that would drop NaN.
    scale = tl.where(lam > 1.0, lam, 1.0)
    return 1.0 / scale, lam / scale / scale


@triton.jit
def _place(x, largest, inverse_scale):
    """Return weight and variable of the polynomials."""
    a = (x - largest) * inverse_scale
    near = tl.maximum(a, -DEPTH)
    return tl.exp(a - FADING * near), near * -STRETCH / (near - BEND) + TOP


@triton.jit
def _chebyshev_up_to_4(u):
    second = (u + u) * u - 1.0
    third = (u + u) * second - u
    fourth = (second + second) * second - 1.0
    return second, third, fourth


@triton.jit
def _add_polynomials(sums, weight, u):
    """Add weight · T_4j(u) T_i(u) to each of the sums."""
    second, third, fourth = _chebyshev_up_to_4(u)
    twice = fourth + fourth
    before = weight
    this = weight * fourth
    result = (
        sums[0] + weight,
        sums[1] + weight * u,
        sums[2] + weight * second,
        sums[3] + weight * third,
    )
    for j in tl.static_range(1, N_BLOCKS):
        result = result + (sums[4 * j] + this,)
        if 4 * j + 1 < N_SUMS:
            result = result + (sums[4 * j + 1] + this * u,)
        if 4 * j + 2 < N_SUMS:
            result = result + (sums[4 * j + 2] + this * second,)
        if 4 * j + 3 < N_SUMS:
            result = result + (sums[4 * j + 3] + this * third,)
        after = twice * this - before
        before = this
        this = after
    return result


@triton.jit
def _block(c, j: tl.constexpr, u, second, third, n: tl.constexpr):
    """Return Σ_i c_(4j+i) T_i(u)."""
    value = c[4 * j]
    if 4 * j + 1 < n:
        value = value + c[4 * j + 1] * u
    if 4 * j + 2 < n:
        value = value + c[4 * j + 2] * second
    if 4 * j + 3 < n:
        value = value + c[4 * j + 3] * third
    return value


@triton.jit
def _value(c, u, n: tl.constexpr):
    """Return Σ c_(4j+i) T_4j(u) T_i(u) over n coefficients, by Clenshaw's rule in j."""
    second, third, fourth = _chebyshev_up_to_4(u)
    twice = fourth + fourth
    before = _block(c, N_BLOCKS - 1, u, second, third, n)
    this = _block(c, N_BLOCKS - 2, u, second, third, n) + twice * before
    for j in tl.static_range(3, N_BLOCKS):
        after = _block(c, N_BLOCKS - j, u, second, third, n) - before + twice * this
        before = this
        this = after
    return _block(c, 0, u, second, third, n) - before + fourth * this


@triton.jit
def _mean_of_classes(c, weight, u, x, largest, best):
    """Return the mean of each class, below that of the largest."""
    found = weight * _value(c, u, N_SUMS)
    below = best - best * 1.1920929e-07
    # Comparisons let NaN through, a minimum would not.
    found = tl.where(found > below, below, found)
    return tl.where(x == largest, best, found)


# --- a row ----------------------------------------------------------------------------------------


@triton.jit
def _product(values, table, start: tl.constexpr, step: tl.constexpr, n: tl.constexpr):
    """Return Σ_i values_i table[start + i step], of a table of constants or of numbers of rows."""
    total = values[0] * table[start]
    for i in tl.static_range(1, n):
        total += values[i] * table[start + i * step]
    return total


@triton.jit
def _products(
    values,
    table,
    apart: tl.constexpr,
    step: tl.constexpr,
    n: tl.constexpr,
    n_results: tl.constexpr,
):
    """Return the sums of ``_product`` from 0, apart, 2 apart and so on."""
    result = (_product(values, table, 0, step, n), _product(values, table, apart, step, n))
    for j in tl.static_range(2, n_results):
        result = result + (_product(values, table, j * apart, step, n),)
    return result


@triton.jit
def _kernel_at(ratio):
    """Return the kernel at ρ, R·Z numbers."""
    u = ratio * TO_UNIT - 1.0
    twice = u + u
    result = (u * SERIES[RZ] + SERIES[0], u * SERIES[RZ + 1] + SERIES[1])
    for i in tl.static_range(2, RZ):
        result = result + (u * SERIES[RZ + i] + SERIES[i],)
    before = tl.full(u.shape, 1.0, tl.float32)
    this = u
    for t in tl.static_range(2, T):
        after = twice * this - before
        before = this
        this = after
        more = (result[0] + this * SERIES[t * RZ], result[1] + this * SERIES[t * RZ + 1])
        for i in tl.static_range(2, RZ):
            more = more + (result[i] + this * SERIES[t * RZ + i],)
        result = more
    return result


@triton.jit
def _project(functions):
    """Return Σ_q Φ_q times each function of z, and Σ_q ([z_q > 0] - Φ_q).

    Beyond the nodes Φ is 1 in the first sum, and S is small in the second.
    """
    value = _product(functions, TAIL, 0, 1, Z)
    none = tl.zeros(value.shape, tl.float32)
    projected = (none + TAIL[0], none + TAIL[1])
    for z in tl.static_range(2, Z):
        projected = projected + (none + TAIL[z],)
    for q in tl.static_range(0, Q):
        cdf = tl.exp(-_product(functions, NODES, q, Q, Z))
        value += UNIT_STEP[q] - cdf
        more = (projected[0] + cdf * NODES[q], projected[1] + cdf * NODES[Q + q])
        for z in tl.static_range(2, Z):
            more = more + (projected[z] + cdf * NODES[z * Q + q],)
        projected = more
    return projected, value


@triton.jit
def _slope(collected, projected, ratio):
    """Return the derivative of the potential in ρ, but for the spacing."""
    u = ratio * TO_UNIT - 1.0
    twice = u + u
    # The derivative of T_t is t U_(t-1).
    before = tl.full(u.shape, 1.0, tl.float32)
    this = twice
    derivatives = (before, 2.0 * this)
    for t in tl.static_range(3, T):
        after = twice * this - before
        before = this
        this = after
        derivatives = derivatives + (this * t,)
    total = tl.zeros(u.shape, tl.float32)
    for r in tl.static_range(0, R):
        of_line = tl.zeros(u.shape, tl.float32)
        for z in tl.static_range(0, Z):
            of_line += projected[z] * _product(derivatives, SERIES, RZ + r * Z + z, RZ, T - 1)
        total += collected[r] * of_line
    return total * TO_UNIT


@triton.jit
def _integrate(sums, kernel):
    """Return Σ_k e^a_k φ(a_k), the integrals for each function of z and each φ, and the value."""
    collected = _products(sums, COLLECT, 1, R, N_SUMS, R)
    projected, value = _project(_products(collected, kernel, 1, Z, R, Z))
    adjoint = _products(projected, kernel, Z, 1, Z, R)
    return collected, projected, adjoint, value


@triton.jit
def _normalised(c, sums):
    """Return the coefficients of the mean, and the largest class's mean."""
    total = c[0] * sums[0]
    for p in tl.static_range(1, N_SUMS):
        total += c[p] * sums[p]
    inverse = 1.0 / total
    result = (c[0] * inverse, c[1] * inverse)
    for p in tl.static_range(2, N_SUMS):
        result = result + (c[p] * inverse,)
    best = _product(result, AT_TOP, 0, 1, N_SUMS)
    return result, tl.where(best > 1.0, 1.0, best)


# --- the moments ----------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["n_rows", "n_classes", "row_stride", "temperature_stride"])
def few_classes_kernel(
    logits,
    temperature,
    mean,
    value,
    slope,
    n_rows,
    n_classes,
    row_stride,
    temperature_stride,
    with_slope: tl.constexpr,
    block_rows: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    at_temperature = temperature + row * temperature_stride
    at_value = value + row
    at_slope = slope + row
    apart = tl.num_programs(0).to(tl.int64) * block_rows
    for _block in range(tl.program_id(0), tl.cdiv(n_rows, block_rows), tl.num_programs(0)):
        row_mask = row < n_rows
        inverse_scale, ratio = _temperatures(at_temperature, row_mask)
        at = logits + row * row_stride
        largest = tl.full((block_rows,), float("-inf"), tl.float32)
        for _ in range(n_classes):
            largest = tl.maximum(largest, tl.load(at, mask=row_mask, other=0.0))
            at += 1
        zero = tl.zeros((block_rows,), tl.float32)
        sums = (zero, zero)
        for _ in tl.static_range(2, N_SUMS):
            sums = sums + (zero,)
        # Two classes at a time: what one waits for, the other does.
        at = logits + row * row_stride
        at_next = at + 1
        for k in range(0, n_classes, 2):
            x = tl.load(at, mask=row_mask, other=0.0)
            y = tl.load(at_next, mask=row_mask & (k + 1 < n_classes), other=float("-inf"))
            weight, u = _place(x, largest, inverse_scale)
            weight_next, u_next = _place(y, largest, inverse_scale)
            sums = _add_polynomials(sums, weight, u)
            sums = _add_polynomials(sums, weight_next, u_next)
            at += 2
            at_next += 2
        collected, projected, adjoint, total = _integrate(sums, _kernel_at(ratio))
        c = _products(adjoint, SHARE, 1, N_SUMS, R, N_SUMS)
        if with_slope:
            tl.store(at_value, SPACING * total, mask=row_mask)
            tl.store(at_slope, SPACING * _slope(collected, projected, ratio), mask=row_mask)
        c, best = _normalised(c, sums)
        at = logits + row * row_stride
        at_next = at + 1
        to = mean + row * n_classes
        to_next = to + 1
        for k in range(0, n_classes, 2):
            next_mask = row_mask & (k + 1 < n_classes)
            x = tl.load(at, mask=row_mask, other=0.0)
            y = tl.load(at_next, mask=next_mask, other=0.0)
            weight, u = _place(x, largest, inverse_scale)
            weight_next, u_next = _place(y, largest, inverse_scale)
            tl.store(to, _mean_of_classes(c, weight, u, x, largest, best), mask=row_mask)
            found = _mean_of_classes(c, weight_next, u_next, y, largest, best)
            tl.store(to_next, found, mask=next_mask)
            at += 2
            at_next += 2
            to += 2
            to_next += 2
        row += apart
        at_temperature += apart * temperature_stride
        at_value += apart
        at_slope += apart


# --- the inversion --------------------------------------------------------------------------------


@triton.jit
def _start(log_mean, ratio):
    """Return the first approximation of a, as ``_inversion._start`` does."""
    slowness = tl.maximum(1.0 - ratio, 1e-3)
    depth = (1.0 - tl.exp(0.72 * slowness * log_mean)) / slowness
    return log_mean - tl.log(1.0 + 1.04 * (ratio * ratio) * depth)


@triton.jit
def _sums_of_locations(location, n_classes, row_mask, top):
    """Return the sums over the classes at the locations, which are relative to the largest."""
    sums = (top * 0.0, top * 0.0)
    for _ in tl.static_range(2, N_SUMS):
        sums = sums + (top * 0.0,)
    at = location
    for _ in range(n_classes):
        weight, u = _place(tl.load(at, mask=row_mask, other=0.0), top, 1.0)
        sums = _add_polynomials(sums, weight, u)
        at += 1
    return sums


@triton.jit(do_not_specialize=["n_rows", "n_classes", "row_stride", "temperature_stride"])
def invert_few_classes_kernel(
    log_mean,
    temperature,
    location,
    value,
    slope,
    n_rows,
    n_classes,
    row_stride,
    temperature_stride,
    n_steps: tl.constexpr,
    masked: tl.constexpr,
    block_rows: tl.constexpr,
):
    """Find the location by Newton's method. Between the steps it waits in the result."""
    row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    at_temperature = temperature + row * temperature_stride
    at_value = value + row
    at_slope = slope + row
    apart = tl.num_programs(0).to(tl.int64) * block_rows
    for _block in range(tl.program_id(0), tl.cdiv(n_rows, block_rows), tl.num_programs(0)):
        row_mask = row < n_rows
        _inverse_scale, ratio = _temperatures(at_temperature, row_mask)
        largest = tl.full((block_rows,), float("-inf"), tl.float32)
        at = log_mean + row * row_stride
        for _ in range(n_classes):
            largest = tl.maximum(largest, tl.load(at, mask=row_mask, other=0.0))
            at += 1
        at = log_mean + row * row_stride
        to = location + row * n_classes
        for _ in range(n_classes):
            below = _clamp(tl.load(at, mask=row_mask, other=0.0) - largest, masked)
            tl.store(to, _start(below, ratio), mask=row_mask)
            at += 1
            to += 1
        kernel = _kernel_at(ratio)
        # The largest of the stored locations.
        top = tl.zeros((block_rows,), tl.float32)
        for _ in range(n_steps):
            sums = _sums_of_locations(location + row * n_classes, n_classes, row_mask, top)
            _collected, _projected, adjoint, _total = _integrate(sums, kernel)
            c = _products(adjoint, SHARE, 1, N_SUMS, R, N_SUMS)
            e = _products(adjoint, CURVE, 1, N_SUMS + 1, R, N_SUMS + 1)
            highest = tl.full((block_rows,), float("-inf"), tl.float32)
            at = log_mean + row * row_stride
            to = location + row * n_classes
            for _k in range(n_classes):
                below = _clamp(tl.load(at, mask=row_mask, other=0.0) - largest, masked)
                a = tl.load(to, mask=row_mask, other=0.0) - top
                near = tl.maximum(a, -DEPTH)
                u = near * -STRETCH / (near - BEND) + TOP
                tilted = _value(c, u, N_SUMS)
                bent = _value(e, u, N_SUMS + 1)
                log_found = tl.log(tilted) + (a - FADING * near) + LOG_SPACING
                a += (below + largest - log_found) * tilted / bent
                highest = tl.maximum(highest, a)
                tl.store(to, a, mask=row_mask)
                at += 1
                to += 1
            top = highest
        sums = _sums_of_locations(location + row * n_classes, n_classes, row_mask, top)
        collected, projected, _adjoint, total = _integrate(sums, kernel)
        tl.store(at_value, SPACING * total, mask=row_mask)
        tl.store(at_slope, SPACING * _slope(collected, projected, ratio), mask=row_mask)
        to = location + row * n_classes
        for _ in range(n_classes):
            tl.store(to, tl.load(to, mask=row_mask, other=0.0) - top, mask=row_mask)
            to += 1
        row += apart
        at_temperature += apart * temperature_stride
        at_value += apart
        at_slope += apart


@triton.jit
def _clamp(x, least):
    # NaN stays.
    return tl.where(x < least, least, x)
