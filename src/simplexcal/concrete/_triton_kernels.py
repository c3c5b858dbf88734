"""The Triton kernels of ``_triton``, and their parts.

A program holds a block of rows. It sums the polynomials over the classes, block by block, goes
through kernel, nodes and back in registers, and evaluates the mean at the classes. The formulas are
those of ``_potential``; the polynomials are plain Chebyshev polynomials T_p. Every product is
float32 fused multiply-add, out of reach of TF32.

A tuple holds a number or a tile for each polynomial. Minima and maxima drop NaN, so comparisons
stand where NaN is to stay. In a loop a name keeps its type, also one that is not used.
"""

# Triton's language is no typed Python, and knows no starred tuple.
# mypy: ignore-errors
# ruff: noqa: RUF005

import torch
import triton
import triton.language as tl

from simplexcal.concrete import _chebyshev
from simplexcal.concrete._kernel import RESOLUTIONS

_RESOLUTION = RESOLUTIONS[torch.float32]
DEPTH = tl.constexpr(float(_RESOLUTION.depth))
STRETCH = tl.constexpr(_RESOLUTION.stretch)
BEND = tl.constexpr(_chebyshev.BEND)
TOP = tl.constexpr(_chebyshev.TOP)
FADING = tl.constexpr(_chebyshev.FADING)
P = tl.constexpr(_RESOLUTION.degree + 1)
# Pieces of the kernel as a function of ρ, and coefficients in each.
N_PIECES = tl.constexpr(32)
N_COEFS = tl.constexpr(6)


@triton.jit
def _scale(temperature):
    # A comparison, not a maximum, since that would drop NaN: it is left to the ratio.
    return tl.where(temperature > 1.0, temperature, 1.0)


@triton.jit
def _piece(ratio):
    """Return the number of the piece, the place in it, and half its length."""
    index = (tl.sqrt(ratio) * N_PIECES).to(tl.int32)
    index = tl.minimum(tl.maximum(index, 0), N_PIECES - 1)
    low = index.to(tl.float32) / N_PIECES
    high = (index + 1).to(tl.float32) / N_PIECES
    half = (high * high - low * low) * 0.5
    place = (ratio - (high * high + low * low) * 0.5) / half
    return index, place, half


@triton.jit
def _half(pieces, ratio, block_rows: tl.constexpr):
    """Return half the kernel at ρ, (block_rows, 8, 16)."""
    index, place, _length = _piece(ratio)
    at = pieces + index[:, None] * (N_COEFS * 256) + tl.arange(0, 128)[None, :]
    value = tl.load(at + (N_COEFS - 1) * 256)
    for j in tl.static_range(1, N_COEFS):
        value = value * place[:, None] + tl.load(at + (N_COEFS - 1 - j) * 256)
    return tl.reshape(value, (block_rows, 8, 16))


@triton.jit
def _slope_half(pieces, ratio, block_rows: tl.constexpr):
    """Return half its derivative in ρ, (block_rows, 8, 16)."""
    index, place, half = _piece(ratio)
    at = pieces + index[:, None] * (N_COEFS * 256) + tl.arange(0, 128)[None, :]
    value = tl.load(at + (N_COEFS - 1) * 256) * (N_COEFS - 1)
    for j in tl.static_range(1, N_COEFS - 1):
        term = tl.load(at + (N_COEFS - 1 - j) * 256) * (N_COEFS - 1 - j)
        value = value * place[:, None] + term
    return tl.reshape(value / half[:, None], (block_rows, 8, 16))


@triton.jit
def _at_ratio(pieces, ratio, block_rows: tl.constexpr):
    """Return the kernel at ρ: in two halves, for a warp holds a row of one half."""
    even = _half(pieces, ratio, block_rows)
    odd = _half(pieces + 128, ratio, block_rows)
    return even, odd


@triton.jit
def _slope_at_ratio(pieces, ratio, block_rows: tl.constexpr):
    """Return its derivative in ρ likewise."""
    even = _slope_half(pieces, ratio, block_rows)
    odd = _slope_half(pieces + 128, ratio, block_rows)
    return even, odd


@triton.jit
def _largest(at_row, row_mask, n_classes, block_rows: tl.constexpr, block_classes: tl.constexpr):
    """Return the largest logit of each row."""
    largest = tl.full((block_rows, block_classes), float("-inf"), tl.float32)
    for start in range(0, n_classes, block_classes):
        k = start + tl.arange(0, block_classes)
        x = _load(at_row, row_mask, k, n_classes, float("-inf"))
        largest = tl.maximum(largest, x)
    return tl.where(row_mask, tl.max(largest, 1), 0.0)


@triton.jit
def _log_weight(a):
    return a - FADING * tl.maximum(a, -DEPTH)


@triton.jit
def _variable(a):
    near = tl.maximum(a, -DEPTH)
    return near * -STRETCH / (near - BEND) + TOP


@triton.jit
def _add_polynomials(sums, weight, u, n: tl.constexpr):
    """Add weight · T_p(u) for p < n to each of n sums."""
    before = weight
    this = weight * u
    twice = u + u
    result = (sums[0] + before, sums[1] + this)
    for p in tl.static_range(2, n):
        after = twice * this - before
        before = this
        this = after
        result = result + (sums[p] + this,)
    return result


@triton.jit
def _zeros(block_rows: tl.constexpr, block_classes: tl.constexpr, n: tl.constexpr):
    zero = tl.zeros((block_rows, block_classes), tl.float32)
    result = (zero, zero)
    for _ in tl.static_range(2, n):
        result = result + (zero,)
    return result


@triton.jit
def _reduce(tiles, n: tl.constexpr):
    result = (tl.sum(tiles[0], 1), tl.sum(tiles[1], 1))
    for p in tl.static_range(2, n):
        result = result + (tl.sum(tiles[p], 1),)
    return result


@triton.jit
def _combine(sums, matrix, n: tl.constexpr):
    """Return Σ_p sums_p times row p of a matrix (n, 16)."""
    r = tl.arange(0, 16)
    result = sums[0][:, None] * tl.load(matrix + r)[None, :]
    for p in tl.static_range(1, n):
        result += sums[p][:, None] * tl.load(matrix + p * 16 + r)[None, :]
    return result


@triton.jit
def _column(matrix, p: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, 32)[None, :] == p, matrix, 0.0), 1)


@triton.jit
def _coefficients(rows, matrix, n: tl.constexpr):
    """Return n columns of the product of rows (block_rows, 16) and a matrix (16, 32)."""
    at = matrix + tl.arange(0, 16)[:, None] * 32 + tl.arange(0, 32)[None, :]
    product = tl.dot(rows, tl.load(at), input_precision="ieee")
    result = (_column(product, 0), _column(product, 1))
    for p in tl.static_range(2, n):
        result = result + (_column(product, p),)
    return result


@triton.jit
def _dot_product(left, right, n: tl.constexpr):
    result = left[0] * right[0]
    for p in tl.static_range(1, n):
        result += left[p] * right[p]
    return result


@triton.jit
def _value(c, u, n: tl.constexpr):
    """Return Σ_p c_p T_p(u), (block_rows, block_classes), by Clenshaw's rule."""
    twice = u + u
    before = c[n - 1][:, None]
    this = c[n - 2][:, None] + twice * before
    for j in tl.static_range(3, n):
        after = c[n - j][:, None] - before + twice * this
        before = this
        this = after
    return c[0][:, None] - before + u * this


@triton.jit
def _apply(rows, matrices):
    """Return rows (rows, R) times the kernel, (block_rows, Z)."""
    even = tl.sum(matrices[0] * rows[:, None, :], 2)
    odd = tl.sum(matrices[1] * rows[:, None, :], 2)
    return tl.reshape(tl.join(even, odd), (rows.shape[0], 16))


@triton.jit
def _apply_transposed(matrices, rows):
    """Return the kernel times rows (block_rows, Z), (rows, R)."""
    even, odd = tl.split(tl.reshape(rows, (rows.shape[0], 8, 2)))
    return tl.sum(matrices[0] * even[:, :, None] + matrices[1] * odd[:, :, None], 1)


@triton.jit
def _project(
    functions,
    nodes,
    nodes_t,
    unit_step,
    tail,
    block_rows: tl.constexpr,
    n_nodes: tl.constexpr,
):
    """Return Σ_q Φ_q times each function of z, (block_rows, 16), and Σ_q ([z_q > 0] - Φ_q).

    Beyond the nodes Φ is 1 in the first sum, and S is small in the second.
    """
    z = tl.arange(0, 16)
    rest = tl.load(tail + z)[None, :]
    projected = tl.zeros((block_rows, 16), tl.float32) + rest
    value = functions * rest
    for q in range(0, n_nodes, 16):
        block = tl.load(nodes + z[:, None] * n_nodes + q + z[None, :])
        cdf = tl.exp(-tl.dot(functions, block, input_precision="ieee"))
        value += tl.load(unit_step + q + z)[None, :] - cdf
        block_t = tl.load(nodes_t + (q + z)[:, None] * 16 + z[None, :])
        projected = tl.dot(cdf, block_t, projected, input_precision="ieee")
    return projected, tl.sum(value, 1)


@triton.jit
def _integrate(
    sums,
    matrices,
    collect,
    nodes,
    nodes_t,
    unit_step,
    tail,
    block_rows: tl.constexpr,
    n_nodes: tl.constexpr,
):
    """Return Σ_k e^a_k φ(a_k), the factors of S for each function of z, and the integrals."""
    collected = _combine(sums, collect, P)
    functions = _apply(collected, matrices)
    projected, value = _project(functions, nodes, nodes_t, unit_step, tail, block_rows, n_nodes)
    return collected, functions, projected, value


@triton.jit
def _place(x, largest, scale):
    """Return shifted logits, and weight and variable of the polynomials."""
    a = (x - largest[:, None]) / scale[:, None]
    return a, tl.exp(_log_weight(a)), _variable(a)


@triton.jit
def _load(at_row, row_mask, k, n_classes, other):
    """Return numbers of a block of classes; beyond the last row or class, another number."""
    mask = row_mask[:, None] & (k < n_classes)[None, :]
    return tl.load(at_row[:, None] + k[None, :], mask=mask, other=other)


@triton.jit
def _sums(
    at_row,
    row_mask,
    largest,
    scale,
    n_classes,
    block_rows: tl.constexpr,
    block_classes: tl.constexpr,
):
    """Return Σ_k w_k T_p(u_k) for p ≤ P."""
    tiles = _zeros(block_rows, block_classes, P + 1)
    for start in range(0, n_classes, block_classes):
        k = start + tl.arange(0, block_classes)
        x = _load(at_row, row_mask, k, n_classes, float("-inf"))
        _a, weight, u = _place(x, largest, scale)
        tiles = _add_polynomials(tiles, weight, u, P + 1)
    return _reduce(tiles, P + 1)


@triton.jit
def _temperatures(temperature, row, row_mask, stride):
    """Return λ, s = max(1, λ) and ρ = min(λ, 1/λ)."""
    lam = tl.load(temperature + row * stride, mask=row_mask, other=1.0)
    scale = _scale(lam)
    return lam, scale, lam / scale / scale


# --- the moments ----------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["n_rows", "n_classes", "temperature_stride"])
def moments_kernel(
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
    tail,
    n_rows,
    n_classes,
    row_stride,
    temperature_stride,
    spacing,
    n_nodes: tl.constexpr,
    with_slope: tl.constexpr,
    block_rows: tl.constexpr,
    block_classes: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    row_mask = row < n_rows
    _lam, scale, ratio = _temperatures(temperature, row, row_mask, temperature_stride)
    at_row = logits + row * row_stride
    largest = _largest(at_row, row_mask, n_classes, block_rows, block_classes)
    sums = _sums(at_row, row_mask, largest, scale, n_classes, block_rows, block_classes)
    matrices = _at_ratio(pieces, ratio, block_rows)
    collected, _functions, projected, total_value = _integrate(
        sums, matrices, collect, nodes, nodes_t, unit_step, tail, block_rows, n_nodes
    )
    adjoint = _apply_transposed(matrices, projected)
    c = _coefficients(adjoint, share, P + 1)
    if with_slope:
        moved = _apply(collected, _slope_at_ratio(pieces, ratio, block_rows))
        tl.store(value + row, spacing * total_value, mask=row_mask)
        tl.store(slope + row, spacing * tl.sum(moved * projected, 1), mask=row_mask)
    inverse = 1.0 / _dot_product(c, sums, P + 1)
    top = tl.zeros((block_rows, 1), tl.float32) + TOP
    best = _value(c, top, P + 1) * inverse[:, None]
    best = tl.where(best > 1.0, 1.0, best)
    below = best - best * 1.1920929e-07
    at_mean = mean + row * n_classes
    for start in range(0, n_classes, block_classes):
        k = start + tl.arange(0, block_classes)
        mask = row_mask[:, None] & (k < n_classes)[None, :]
        x = tl.load(at_row[:, None] + k[None, :], mask=mask, other=float("-inf"))
        _a, weight, u = _place(x, largest, scale)
        found = weight * _value(c, u, P + 1) * inverse[:, None]
        # Comparisons let NaN through, a minimum would not.
        found = tl.where(found > below, below, found)
        found = tl.where(x == largest[:, None], best, found)
        tl.store(at_mean[:, None] + k[None, :], found, mask=mask)


@triton.jit(do_not_specialize=["n_rows", "n_classes", "n_labels", "temperature_stride"])
def log_mean_kernel(
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
    tail,
    n_rows,
    n_classes,
    n_labels,
    row_stride,
    temperature_stride,
    log_spacing,
    n_nodes: tl.constexpr,
    block_rows: tl.constexpr,
    block_classes: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    row_mask = row < n_rows
    _lam, scale, ratio = _temperatures(temperature, row, row_mask, temperature_stride)
    at_row = logits + row * row_stride
    largest = _largest(at_row, row_mask, n_classes, block_rows, block_classes)
    sums = _sums(at_row, row_mask, largest, scale, n_classes, block_rows, block_classes)
    matrices = _at_ratio(pieces, ratio, block_rows)
    _collected, _functions, projected, _total = _integrate(
        sums, matrices, collect, nodes, nodes_t, unit_step, tail, block_rows, n_nodes
    )
    c = _coefficients(_apply_transposed(matrices, projected), share, P + 1)
    for start in range(0, n_labels, 16):
        j = start + tl.arange(0, 16)
        mask = row_mask[:, None] & (j < n_labels)[None, :]
        at_label = row[:, None] * n_labels + j[None, :]
        label = tl.load(labels + at_label, mask=mask, other=0)
        inside = mask & (label >= 0) & (label < n_classes)
        x = tl.load(at_row[:, None] + label, mask=inside, other=float("nan"))
        a = (x - largest[:, None]) / scale[:, None]
        tilted = _value(c, _variable(a), P + 1)
        found = tl.log(tilted) + _log_weight(a) + log_spacing
        tl.store(log_mean + at_label, found, mask=mask)


# --- their gradients ------------------------------------------------------------------------------


@triton.jit
def _combine_columns(sums, matrix, n: tl.constexpr):
    """Return Σ_p sums_p times column p of a matrix (16, 32)."""
    r = tl.arange(0, 16)
    result = sums[0][:, None] * tl.load(matrix + r * 32)[None, :]
    for p in tl.static_range(1, n):
        result += sums[p][:, None] * tl.load(matrix + r * 32 + p)[None, :]
    return result


@triton.jit
def _moved_nodes(functions, moved, nodes, nodes_t, n_nodes: tl.constexpr):
    """Return Σ_q Φ_q dS_q times each function of z."""
    z = tl.arange(0, 16)
    result = tl.zeros((functions.shape[0], 16), tl.float32)
    for q in range(0, n_nodes, 16):
        block = tl.load(nodes + z[:, None] * n_nodes + q + z[None, :])
        cdf = tl.exp(-tl.dot(functions, block, input_precision="ieee"))
        change = cdf * tl.dot(moved, block, input_precision="ieee")
        block_t = tl.load(nodes_t + (q + z)[:, None] * 16 + z[None, :])
        result = tl.dot(change, block_t, result, input_precision="ieee")
    return result


@triton.jit
def _gradient_of_ratio(slopes, of_classes, projected, collected, change):
    """Return the gradient in ρ, given that in the classes' sums and the change of the integrals."""
    of_ratio = of_classes * _apply_transposed(slopes, projected)
    of_ratio -= collected * _apply_transposed(slopes, change)
    return tl.sum(of_ratio, 1)


@triton.jit
def _sums_with_ties(
    at_row,
    row_mask,
    largest,
    scale,
    n_classes,
    block_rows: tl.constexpr,
    block_classes: tl.constexpr,
):
    """Return Σ_k w_k T_p(u_k) for p ≤ P, and how many classes have the largest logit."""
    tiles = _zeros(block_rows, block_classes, P + 1)
    n_largest = tl.zeros((block_rows, block_classes), tl.float32)
    for start in range(0, n_classes, block_classes):
        k = start + tl.arange(0, block_classes)
        x = _load(at_row, row_mask, k, n_classes, float("-inf"))
        _a, weight, u = _place(x, largest, scale)
        tiles = _add_polynomials(tiles, weight, u, P + 1)
        n_largest += tl.where(x == largest[:, None], 1.0, 0.0)
    return _reduce(tiles, P + 1), tl.sum(n_largest, 1)


@triton.jit
def _sums_with_gradient(
    at_row,
    at_grad,
    row_mask,
    largest,
    scale,
    n_classes,
    block_rows: tl.constexpr,
    block_classes: tl.constexpr,
):
    """Return Σ_k w_k T_p(u_k) and Σ_k g_k w_k T_p(u_k) for p ≤ P + 1, and the number of ties."""
    tiles = _zeros(block_rows, block_classes, P + 2)
    with_grad = _zeros(block_rows, block_classes, P + 2)
    n_largest = tl.zeros((block_rows, block_classes), tl.float32)
    for start in range(0, n_classes, block_classes):
        k = start + tl.arange(0, block_classes)
        x = _load(at_row, row_mask, k, n_classes, float("-inf"))
        g = _load(at_grad, row_mask, k, n_classes, 0.0)
        _a, weight, u = _place(x, largest, scale)
        tiles = _add_polynomials(tiles, weight, u, P + 2)
        with_grad = _add_polynomials(with_grad, g * weight, u, P + 2)
        n_largest += tl.where(x == largest[:, None], 1.0, 0.0)
    return _reduce(tiles, P + 2), _reduce(with_grad, P + 2), tl.sum(n_largest, 1)


@triton.jit
def _store_gradient_of_temperature(at, row_mask, lam, scale, of_scale, of_ratio):
    """Store the gradient in λ, given those in s = max(1, λ) and ρ = min(λ, 1/λ)."""
    hot = lam >= 1.0
    slope = tl.where(hot, -1.0 / (scale * scale), 1.0)
    tl.store(at, of_ratio * slope + tl.where(hot, of_scale, 0.0), mask=row_mask)


@triton.jit(do_not_specialize=["n_rows", "n_classes", "temperature_stride"])
def mean_backward_kernel(
    grad,
    logits,
    temperature,
    d_logits,
    d_temperature,
    pieces,
    collect,
    share,
    curve,
    nodes,
    nodes_t,
    unit_step,
    tail,
    n_rows,
    n_classes,
    row_stride,
    temperature_stride,
    n_nodes: tl.constexpr,
    block_rows: tl.constexpr,
    block_classes: tl.constexpr,
):
    """Multiply a gradient by the Hessian of m; with f the unnormalised mean, L = Σ_k g_k f_k."""
    row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    row_mask = row < n_rows
    lam, scale, ratio = _temperatures(temperature, row, row_mask, temperature_stride)
    at_row = logits + row * row_stride
    at_grad = grad + row * n_classes
    largest = _largest(at_row, row_mask, n_classes, block_rows, block_classes)
    sums, of_grad, n_largest = _sums_with_gradient(
        at_row, at_grad, row_mask, largest, scale, n_classes, block_rows, block_classes
    )
    matrices = _at_ratio(pieces, ratio, block_rows)
    collected, functions, projected, _total = _integrate(
        sums, matrices, collect, nodes, nodes_t, unit_step, tail, block_rows, n_nodes
    )
    adjoint = _apply_transposed(matrices, projected)
    c = _coefficients(adjoint, share, P + 1)
    # The mean is f / Σ f, so its gradient is that of L with g less its mean, divided by Σ f.
    inverse = 1.0 / _dot_product(c, sums, P + 1)
    expected = _dot_product(c, of_grad, P + 1) * inverse
    centred = _centre(of_grad, sums, expected, inverse, P + 2)
    of_classes = _combine_columns(centred, share, P + 1)
    change = _moved_nodes(functions, _apply(of_classes, matrices), nodes, nodes_t, n_nodes)
    d = _coefficients(-_apply_transposed(matrices, change), share, P + 1)
    e = _coefficients(adjoint, curve, P + 2)
    slopes = _slope_at_ratio(pieces, ratio, block_rows)
    of_ratio = _gradient_of_ratio(slopes, of_classes, projected, collected, change)
    # All a fall with the largest logit.
    total = _dot_product(d, sums, P + 1) + _dot_product(e, centred, P + 2)
    of_largest = total / n_largest
    of_scale = tl.zeros((block_rows, block_classes), tl.float32)
    at_result = d_logits + row * n_classes
    for start in range(0, n_classes, block_classes):
        k = start + tl.arange(0, block_classes)
        mask = row_mask[:, None] & (k < n_classes)[None, :]
        x = _load(at_row, row_mask, k, n_classes, float("-inf"))
        g = _load(at_grad, row_mask, k, n_classes, 0.0)
        a, weight, u = _place(x, largest, scale)
        g = (g - expected[:, None]) * inverse[:, None]
        found = weight * (_value(d, u, P + 1) + g * _value(e, u, P + 2))
        of_scale -= tl.where(weight == 0.0, 0.0, found * a)
        found -= tl.where(x == largest[:, None], of_largest[:, None], 0.0)
        tl.store(at_result[:, None] + k[None, :], found / scale[:, None], mask=mask)
    of_scale = tl.sum(of_scale, 1) / scale
    at = d_temperature + row
    _store_gradient_of_temperature(at, row_mask, lam, scale, of_scale, of_ratio)


@triton.jit
def _centre(of_grad, sums, expected, inverse, n: tl.constexpr):
    result = (
        (of_grad[0] - expected * sums[0]) * inverse,
        (of_grad[1] - expected * sums[1]) * inverse,
    )
    for p in tl.static_range(2, n):
        result = result + ((of_grad[p] - expected * sums[p]) * inverse,)
    return result


@triton.jit
def _labels(
    labels,
    grad,
    at_row,
    row,
    row_mask,
    largest,
    scale,
    n_labels,
    n_classes,
    most_labels: tl.constexpr,
):
    """Return the labels, their gradients and shifted logits, (block_rows, most_labels).

    Where there is no label, it is -1, and the largest logit stands for it, with gradient 0.
    """
    j = tl.arange(0, most_labels)
    at_label = row[:, None] * n_labels + j[None, :]
    mask = row_mask[:, None] & (j < n_labels)[None, :]
    label = tl.load(labels + at_label, mask=mask, other=-1)
    g = tl.load(grad + at_label, mask=mask, other=0.0)
    inside = (label >= 0) & (label < n_classes)
    x = tl.load(at_row[:, None] + label, mask=inside, other=0.0)
    a = tl.where(inside, (x - largest[:, None]) / scale[:, None], 0.0)
    return label, tl.where(inside, g, 0.0), a


@triton.jit(do_not_specialize=["n_rows", "n_classes", "n_labels", "temperature_stride"])
def log_mean_backward_kernel(
    grad,
    logits,
    temperature,
    labels,
    d_logits,
    d_temperature,
    pieces,
    collect,
    share,
    curve,
    nodes,
    nodes_t,
    unit_step,
    tail,
    n_rows,
    n_classes,
    n_labels,
    row_stride,
    temperature_stride,
    n_nodes: tl.constexpr,
    most_labels: tl.constexpr,
    block_rows: tl.constexpr,
    block_classes: tl.constexpr,
):
    """Return the gradients of Σ_j g_j ln f(a_y_j); a tile holds all labels of a row."""
    row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    row_mask = row < n_rows
    lam, scale, ratio = _temperatures(temperature, row, row_mask, temperature_stride)
    at_row = logits + row * row_stride
    largest = _largest(at_row, row_mask, n_classes, block_rows, block_classes)
    sums, n_largest = _sums_with_ties(
        at_row, row_mask, largest, scale, n_classes, block_rows, block_classes
    )
    matrices = _at_ratio(pieces, ratio, block_rows)
    collected, functions, projected, _total = _integrate(
        sums, matrices, collect, nodes, nodes_t, unit_step, tail, block_rows, n_nodes
    )
    adjoint = _apply_transposed(matrices, projected)
    c = _coefficients(adjoint, share, P + 1)
    e = _coefficients(adjoint, curve, P + 2)
    label, g, label_a = _labels(
        labels, grad, at_row, row, row_mask, largest, scale, n_labels, n_classes, most_labels
    )
    label_u = _variable(label_a)
    tilted = _value(c, label_u, P + 1)
    # The gradient in a for fixed Φ. Beyond the depth f is e^a times a constant.
    own = g * tl.where(label_a < -DEPTH, 1.0, _value(e, label_u, P + 2) / tilted)
    zeros = _zeros(block_rows, most_labels, P + 1)
    of_labels = _reduce(_add_polynomials(zeros, g / tilted, label_u, P + 1), P + 1)
    of_classes = _combine_columns(of_labels, share, P + 1)
    change = _moved_nodes(functions, _apply(of_classes, matrices), nodes, nodes_t, n_nodes)
    d = _coefficients(-_apply_transposed(matrices, change), share, P + 1)
    slopes = _slope_at_ratio(pieces, ratio, block_rows)
    of_ratio = _gradient_of_ratio(slopes, of_classes, projected, collected, change)
    # All a fall with the largest logit.
    total = _dot_product(d, sums, P + 1) + tl.sum(own, 1)
    of_largest = total / n_largest
    of_scale = tl.zeros((block_rows, block_classes), tl.float32)
    at_result = d_logits + row * n_classes
    for start in range(0, n_classes, block_classes):
        k = start + tl.arange(0, block_classes)
        mask = row_mask[:, None] & (k < n_classes)[None, :]
        x = _load(at_row, row_mask, k, n_classes, float("-inf"))
        a, weight, u = _place(x, largest, scale)
        is_label = label[:, None, :] == k[None, :, None]
        found = weight * _value(d, u, P + 1)
        found += tl.sum(tl.where(is_label, own[:, None, :], 0.0), 2)
        of_scale -= tl.where(x == float("-inf"), 0.0, found * a)
        found -= tl.where(x == largest[:, None], of_largest[:, None], 0.0)
        tl.store(at_result[:, None] + k[None, :], found / scale[:, None], mask=mask)
    of_scale = tl.sum(of_scale, 1) / scale
    at = d_temperature + row
    _store_gradient_of_temperature(at, row_mask, lam, scale, of_scale, of_ratio)


# --- the inversion --------------------------------------------------------------------------------


@triton.jit
def _start(log_mean, ratio):
    """Return the first approximation of a, as ``_inversion._start`` does."""
    slowness = tl.maximum(1.0 - ratio, 1e-3)[:, None]
    depth = (1.0 - tl.exp(0.72 * slowness * log_mean)) / slowness
    return log_mean - tl.log(1.0 + 1.04 * (ratio * ratio)[:, None] * depth)


@triton.jit
def _sums_at_points(a, multiplicity, block_rows: tl.constexpr):
    """Return the sums over the points, each as often as the classes for which it stands."""
    weight = multiplicity * tl.exp(_log_weight(a))
    tiles = _add_polynomials(_zeros(block_rows, 32, P), weight, _variable(a), P)
    return _reduce(tiles, P)


@triton.jit
def _stretched(below, last: tl.constexpr, lowest: tl.constexpr):
    """Return the variable in which a - ln p is a polynomial."""
    near = tl.maximum(below, last)
    u = near * -STRETCH / (near - BEND) + TOP
    return (u - lowest) * (2.0 / (TOP - lowest)) - 1.0


@triton.jit
def _mean_at_points(adjoint, a, share, curve, log_spacing):
    """Return ln f(a) and d ln f / da for fixed Φ."""
    u = _variable(a)
    tilted = _value(_coefficients(adjoint, share, P + 1), u, P + 1)
    bent = _value(_coefficients(adjoint, curve, P + 2), u, P + 2)
    return tl.log(tilted) + _log_weight(a) + log_spacing, bent / tilted


@triton.jit
def _count(
    at_row,
    row_mask,
    largest,
    n_classes,
    n_points: tl.constexpr,
    last_point: tl.constexpr,
    lowest: tl.constexpr,
    masked: tl.constexpr,
    block_rows: tl.constexpr,
    block_classes: tl.constexpr,
):
    """Return the sums over the classes that tell for how many of them each point stands."""
    tiles = _zeros(block_rows, block_classes, n_points)
    for start in range(0, n_classes, block_classes):
        k = start + tl.arange(0, block_classes)
        x = _load(at_row, row_mask, k, n_classes, float("-inf"))
        mask = row_mask[:, None] & (k < n_classes)[None, :]
        under = _clamp(x - largest[:, None], masked)
        weight = tl.where(mask, tl.exp(_log_weight(under)), 0.0)
        at_point = _stretched(under, last_point, lowest)
        tiles = _add_polynomials(tiles, weight, at_point, n_points)
    return _reduce(tiles, n_points)


@triton.jit
def _multiplicity(counts, matrix, n: tl.constexpr):
    """Return Σ_p counts_p times row p of a matrix (n, 32)."""
    j = tl.arange(0, 32)
    result = counts[0][:, None] * tl.load(matrix + j)[None, :]
    for p in tl.static_range(1, n):
        result += counts[p][:, None] * tl.load(matrix + p * 32 + j)[None, :]
    return result


@triton.jit
def _coefficients_of_change(change, matrix, n: tl.constexpr):
    """Return n columns of the product of the change (block_rows, 32) and a matrix (32, 32)."""
    j = tl.arange(0, 32)
    at_matrix = matrix + j[:, None] * 32 + j[None, :]
    product = tl.dot(change, tl.load(at_matrix), input_precision="ieee")
    result = (_column(product, 0), _column(product, 1))
    for p in tl.static_range(2, n):
        result = result + (_column(product, p),)
    return result


@triton.jit
def _store_locations(
    at_result,
    c,
    at_row,
    row_mask,
    largest,
    n_classes,
    n_points: tl.constexpr,
    last_point: tl.constexpr,
    lowest: tl.constexpr,
    masked: tl.constexpr,
    block_rows: tl.constexpr,
    block_classes: tl.constexpr,
):
    """Store a of every class, given a - ln p as coefficients c."""
    top = _value(c, tl.zeros((block_rows, 1), tl.float32) + 1.0, n_points)
    for start in range(0, n_classes, block_classes):
        k = start + tl.arange(0, block_classes)
        mask = row_mask[:, None] & (k < n_classes)[None, :]
        x = _load(at_row, row_mask, k, n_classes, float("-inf"))
        under = _clamp(x - largest[:, None], masked)
        found = under + (_value(c, _stretched(under, last_point, lowest), n_points) - top)
        # NaN stays.
        found = tl.where(found > 0.0, 0.0, found)
        found = tl.where(x == largest[:, None], 0.0 * found, found)
        tl.store(at_result[:, None] + k[None, :], found, mask=mask)


@triton.jit(do_not_specialize=["n_rows", "n_classes", "temperature_stride"])
def invert_kernel(
    log_mean,
    temperature,
    location,
    value,
    slope,
    points,
    to_multiplicity,
    to_coefficients,
    pieces,
    collect,
    share,
    curve,
    nodes,
    nodes_t,
    unit_step,
    tail,
    n_rows,
    n_classes,
    row_stride,
    temperature_stride,
    spacing,
    log_spacing,
    n_nodes: tl.constexpr,
    n_steps: tl.constexpr,
    n_points: tl.constexpr,
    last_point: tl.constexpr,
    lowest: tl.constexpr,
    masked: tl.constexpr,
    block_rows: tl.constexpr,
    block_classes: tl.constexpr,
):
    """Find the location, at the classes themselves or, where n_points > 0, at so many points."""
    row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    row_mask = row < n_rows
    _lam, _s, ratio = _temperatures(temperature, row, row_mask, temperature_stride)
    at_row = log_mean + row * row_stride
    largest = _largest(at_row, row_mask, n_classes, block_rows, block_classes)
    j = tl.arange(0, 32)
    if n_points == 0:
        valid = (j < n_classes)[None, :]
        x = _load(at_row, row_mask, j, n_classes, 0.0)
        below = _clamp(tl.where(valid & row_mask[:, None], x - largest[:, None], 0.0), masked)
        multiplicity = tl.where(valid & row_mask[:, None], 1.0, 0.0)
    else:
        valid = (j < n_points)[None, :]
        counts = _count(
            at_row,
            row_mask,
            largest,
            n_classes,
            n_points,
            last_point,
            lowest,
            masked,
            block_rows,
            block_classes,
        )
        multiplicity = _multiplicity(counts, to_multiplicity, n_points)
        below = tl.zeros((block_rows, 32), tl.float32) + tl.load(points + j)[None, :]
    matrices = _at_ratio(pieces, ratio, block_rows)
    a = _start(below, ratio)
    for _ in range(n_steps):
        sums = _sums_at_points(a, multiplicity, block_rows)
        _collected, _functions, projected, _total = _integrate(
            sums, matrices, collect, nodes, nodes_t, unit_step, tail, block_rows, n_nodes
        )
        adjoint = _apply_transposed(matrices, projected)
        log_mean_there, log_slope = _mean_at_points(adjoint, a, share, curve, log_spacing)
        a += (below + largest[:, None] - log_mean_there) / log_slope
        top = tl.max(tl.where(valid, a, float("-inf")), 1)
        a -= top[:, None]
    sums = _sums_at_points(a, multiplicity, block_rows)
    collected, _functions, projected, total = _integrate(
        sums, matrices, collect, nodes, nodes_t, unit_step, tail, block_rows, n_nodes
    )
    tl.store(value + row, spacing * total, mask=row_mask)
    moved = _apply(collected, _slope_at_ratio(pieces, ratio, block_rows))
    tl.store(slope + row, spacing * tl.sum(moved * projected, 1), mask=row_mask)
    at_result = location + row * n_classes
    if n_points == 0:
        mask = row_mask[:, None] & (j < n_classes)[None, :]
        tl.store(at_result[:, None] + j[None, :], a, mask=mask)
    else:
        change = tl.where(valid, a - below, 0.0)
        c = _coefficients_of_change(change, to_coefficients, n_points)
        _store_locations(
            at_result,
            c,
            at_row,
            row_mask,
            largest,
            n_classes,
            n_points,
            last_point,
            lowest,
            masked,
            block_rows,
            block_classes,
        )


@triton.jit
def _clamp(x, least):
    return tl.where(x < least, least, x)
