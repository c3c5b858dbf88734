"""The minimum of a convex, smooth function of a vector: L-BFGS (Liu and Nocedal 1989).

Nothing is random, and the function is called on the CPU in float64, so a fit is the same on every
device.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

HISTORY = 12  # steps that are remembered
SUFFICIENT = 1e-4  # share of the decrease that the slope predicts, which a step must reach
SHORTEST = 1e-10  # A step shorter than so many proposed ones gains nothing but rounding.


class Step(NamedTuple):
    """A step that was taken.

    Attributes:
        change: Difference of the points.
        change_of_slope: Difference of the gradients.
        curvature: Their inner product, positive.
    """

    change: Tensor
    change_of_slope: Tensor
    curvature: Tensor


class Place(NamedTuple):
    """A point, with the value and the gradient there.

    Attributes:
        point: (P,).
        value: Value of the function.
        slope: Its gradient, (P,).
    """

    point: Tensor
    value: float
    slope: Tensor


def minimise_convex(
    function: Callable[[Tensor], tuple[float, Tensor]],
    start: Tensor,
    precondition: Callable[[Tensor], Tensor],
    *,
    n_steps: int,
    tolerance: float,
) -> Tensor:
    """Return the point at which a convex function is smallest.

    Args:
        function: Takes a point (P,); returns the value and the gradient (P,).
        start: First point.
        precondition: Multiplies a gradient by an estimate of the inverse of the Hessian.
        n_steps: Steps at most.
        tolerance: Ends when the next step would lower the value by less than this.
    """
    point = start
    value, slope = function(point)
    history: deque[Step] = deque(maxlen=HISTORY)
    for _ in range(n_steps):
        direction = -_times_inverse_hessian(slope, history, precondition)
        along = torch.dot(slope, direction).item()
        if not along < -2 * tolerance:  # A quadratic function falls by half of this.
            break
        found = _search(function, point, value, direction, along)
        if found is None:
            break
        change = found.point - point
        last_slope = slope
        point, value, slope = found
        change_of_slope = slope - last_slope
        curvature = torch.dot(change, change_of_slope)
        if curvature > 0:
            history.append(Step(change, change_of_slope, curvature))
    return point


def _times_inverse_hessian(
    slope: Tensor, history: deque[Step], precondition: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the gradient times the estimate of the inverse Hessian: the two-loop recursion."""
    rest = slope.clone()
    shares = []
    for step in reversed(history):
        share = torch.dot(step.change, rest) / step.curvature
        rest -= share * step.change_of_slope
        shares.append(share)
    found = precondition(rest)
    for step, share in zip(history, reversed(shares), strict=True):
        found = found + (share - torch.dot(step.change_of_slope, found) / step.curvature) * (
            step.change
        )
    return found


def _search(
    function: Callable[[Tensor], tuple[float, Tensor]],
    point: Tensor,
    value: float,
    direction: Tensor,
    along: float,
) -> Place | None:
    """Return a place with a sufficient decrease (Armijo 1966), or None if there is none.

    A step that is too long is replaced by the one to the minimum of the parabola through what is
    known.
    """
    length = 1.0
    while length > SHORTEST:
        new = point + length * direction
        new_value, new_slope = function(new)
        if new_value <= value + SUFFICIENT * length * along:
            return Place(new, new_value, new_slope)
        excess = new_value - value - length * along
        wanted = 0.0
        if excess > 0:
            wanted = -along * length**2 / (2 * excess)
        length = min(max(wanted, 0.1 * length), 0.5 * length)
    return None
