"""The likelihood head as one GPU kernel: temperature scaling, head, softmax, kept prediction.

The formulas are those of ``_likelihood_head``, which has some sixty kernels. Importing this module
imports triton.
"""

# Triton's language is no typed Python.
# mypy: ignore-errors

import torch
import triton
import triton.language as tl
from torch import Tensor

from simplexcal.calibrators import _likelihood_head
from simplexcal.calibrators._likelihood_head import LikelihoodHead

X_MIN = tl.constexpr(_likelihood_head.X_MIN)
N_CELLS = tl.constexpr(_likelihood_head.N_CELLS)
N_LEVELS = tl.constexpr(_likelihood_head.N_LEVELS)
# Numbers of a program, and its warps.
BLOCK = 2048
N_WARPS = 4


def calibrated(
    head: LikelihoodHead, logits: Tensor, log_temperature: Tensor, label: Tensor
) -> Tensor:
    """Return the probabilities (N, K).

    Args:
        head: A fitted head.
        logits: The network's logits, (N, K), float32.
        log_temperature: ln T of temperature scaling.
        label: Predicted classes, (N,).
    """
    n, k = logits.shape
    probs = torch.empty_like(logits, memory_format=torch.contiguous_format)
    if n == 0:
        return probs
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    block_classes = triton.next_power_of_2(k)
    block_rows = max(1, BLOCK // block_classes)
    with torch.cuda.device_of(logits):
        head_kernel[(triton.cdiv(n, block_rows),)](
            logits,
            log_temperature,
            label.contiguous(),
            head.low,
            head.cell_width,
            head.margins,
            head.table,
            head.top_knots,
            head.top_changes,
            head.bias,
            head.confusion,
            head.class_slope,
            head.predicted_slope,
            probs,
            n,
            k,
            logits.stride(0),
            head.settings.max_depth,
            n_margins=len(head.margins),
            n_top=len(head.top_knots),
            has_class_terms=head.has_class_terms,
            block_rows=block_rows,
            block_classes=block_classes,
            num_warps=N_WARPS,
        )
    return probs


@triton.jit
def _at_label(values, is_label):
    return tl.sum(tl.where(is_label, values, 0.0), 1)


@triton.jit
def _divided(logits, log_temperature, max_depth):
    """Return the logits after temperature scaling, up to a constant in each row."""
    temperature = tl.exp(tl.load(log_temperature))
    largest = tl.max(logits, 1)
    is_far = tl.abs(largest) > max_depth * temperature
    return tl.where(is_far[:, None], logits - largest[:, None], logits) / temperature


@triton.jit
def _shifted(logits, kept):
    """Return the logits less the mean of their lower half, and 0 for a class that is left out."""
    n_kept = tl.sum(kept.to(tl.float32), 1)
    largest = tl.max(logits, 1)
    z = tl.where(kept, logits - largest[:, None], 0.0)
    mean = tl.sum(z, 1) / n_kept
    # A comparison lets NaN through, a minimum would not.
    lower = tl.where(z > mean[:, None], mean[:, None], z)
    centre = tl.sum(tl.where(kept, lower, 0.0), 1) / n_kept
    return tl.where(kept, z - centre[:, None], 0.0)


@triton.jit
def _interval(margin, margins, n_margins: tl.constexpr):
    """Return between which margins a margin lies, and where between them, in [0, 1]."""
    interval = tl.zeros_like(margin).to(tl.int32)
    for j in tl.static_range(1, n_margins - 1):
        interval += (margin >= tl.load(margins + j)).to(tl.int32)
    left = tl.load(margins + interval)
    right = tl.load(margins + interval + 1)
    between = (margin - left) / (right - left)
    between = tl.where(between < 0.0, 0.0, between)
    return interval, tl.where(between > 1.0, 1.0, between)


@triton.jit
def _curve(x, interval, between, low, cell_width, table):
    """Return m(x; s): a bilinear function of x and s in each cell of the table."""
    first = tl.load(low)
    width = tl.load(cell_width)
    cell = tl.floor((x - first) / width)
    # The comparisons turn NaN into a cell; x itself stays NaN.
    cell = tl.where(cell >= 0.0, cell, 0.0)
    cell = tl.where(cell < N_CELLS, cell, N_CELLS - 1)
    right = x - (first + cell * width)
    at = table + 4 * (cell.to(tl.int32) + interval[:, None] * N_CELLS)
    start = tl.load(at) + tl.load(at + 2) * between[:, None]
    slope = tl.load(at + 1) + tl.load(at + 3) * between[:, None]
    return start + slope * right


@triton.jit
def _keep_prediction(probs, is_label):
    """Return the closest probabilities in which no class exceeds the predicted one."""
    own = _at_label(probs, is_label)
    others = tl.where(is_label, 0.0, probs)
    level = own
    for _ in tl.static_range(N_LEVELS):
        above = tl.where(others > level[:, None], others - level[:, None], 0.0)
        number = tl.sum((above > 0.0).to(tl.float32), 1)
        level += (own + tl.sum(above, 1) - level) / (1.0 + number)
    above = tl.where(others > level[:, None], others - level[:, None], 0.0)
    raised = own + tl.sum(above, 1)
    raised = tl.where(raised < level, level, raised)
    kept = tl.where(others > level[:, None], level[:, None], others)
    return tl.where(is_label, raised[:, None], kept)


@triton.jit(do_not_specialize=["n_rows"])
def head_kernel(
    logits,
    log_temperature,
    labels,
    low,
    cell_width,
    margins,
    table,
    top_knots,
    top_changes,
    bias,
    confusion,
    class_slope,
    predicted_slope,
    probs,
    n_rows,
    n_classes,
    row_stride,
    max_depth,
    n_margins: tl.constexpr,
    n_top: tl.constexpr,
    has_class_terms: tl.constexpr,
    block_rows: tl.constexpr,
    block_classes: tl.constexpr,
):
    """Write the probabilities of a block of rows, all classes of a row at once."""
    row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    k = tl.arange(0, block_classes)
    is_class = (k < n_classes)[None, :]
    mask = (row < n_rows)[:, None] & is_class
    given = tl.load(logits + row[:, None] * row_stride + k[None, :], mask=mask, other=0.0)
    z = _divided(tl.where(is_class, given, float("-inf")), log_temperature, max_depth)
    label = tl.load(labels + row, mask=row < n_rows, other=0)
    is_label = k[None, :] == label[:, None]
    depth = _at_label(z, is_label)[:, None] - z
    kept = is_class & ~(depth >= max_depth)
    x = _shifted(z, kept)
    margin = tl.min(tl.where(is_label | ~is_class, float("inf"), depth), 1)
    margin = tl.where(margin > max_depth, max_depth, margin)
    interval, between = _interval(margin, margins, n_margins)
    values = _curve(x, interval, between, low, cell_width, table)
    top = tl.zeros_like(margin)
    for j in tl.static_range(n_top):
        ramp = margin - tl.load(top_knots + j)
        top += tl.where(ramp > 0.0, ramp, 0.0) * tl.load(top_changes + j)
    values += tl.where(is_label, top[:, None], 0.0)
    if has_class_terms:
        slope = tl.load(class_slope + k, mask=k < n_classes, other=0.0)[None, :]
        slope += tl.load(predicted_slope + label)[:, None]
        constant = tl.load(bias + k, mask=k < n_classes, other=0.0)[None, :]
        at_pair = confusion + label[:, None] * n_classes + k[None, :]
        constant += tl.load(at_pair, mask=is_class, other=0.0)
        values += constant + slope * tl.where(x < X_MIN, X_MIN, x)
    least = _at_label(values, is_label) - max_depth
    values = tl.where(kept, values, least[:, None])
    values = tl.where(is_class, values, float("-inf"))
    exponential = tl.exp(values - tl.max(values, 1)[:, None])
    found = exponential / tl.sum(exponential, 1)[:, None]
    at_result = probs + row[:, None] * n_classes + k[None, :]
    tl.store(at_result, _keep_prediction(found, is_label), mask=mask)
