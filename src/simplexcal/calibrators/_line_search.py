"""Searches along one line: where a function changes sign, and where it is smallest."""

import math
from collections.abc import Callable
from itertools import pairwise

GOLDEN = (math.sqrt(5) - 1) / 2


def root(increasing: Callable[[float], float], low: float, high: float) -> float:
    """Return where an increasing function changes sign, by Ridders' method; an end of the interval where it does not.

    Every round halves the interval at least and, in the end, squares the error (Ridders 1979).
    """
    at_low, at_high, last = increasing(low), increasing(high), math.inf
    if not at_low < 0 < at_high:
        return low if at_low >= 0 else high
    while True:
        middle = (low + high) / 2
        at_middle = increasing(middle)
        new = middle - (middle - low) * at_middle / math.sqrt(at_middle**2 - at_low * at_high)
        at_new = increasing(new)
        if (
            at_new == 0 or abs(new - last) < 1e-12
        ):  # the next would differ by about the square of that
            return new
        last, points = (
            new,
            sorted([(low, at_low), (middle, at_middle), (new, at_new), (high, at_high)]),
        )
        (low, at_low), (high, at_high) = next(
            pair for pair in pairwise(points) if pair[0][1] < 0 <= pair[1][1]
        )


def minimise_on_grid(
    function: Callable[[float], float], low: float, high: float, n_points: int = 47
) -> float:
    """Return the minimum of a function: the best of equally spaced points, refined between its neighbours."""
    grid = [low + i * (high - low) / (n_points - 1) for i in range(n_points)]
    best = min(range(n_points), key=lambda i: function(grid[i]))
    return golden_section(function, grid[max(best - 1, 0)], grid[min(best + 1, n_points - 1)])


def golden_section(
    function: Callable[[float], float], low: float, high: float, steps: int = 40
) -> float:
    """Return the minimum of a function with one valley (Kiefer 1953)."""
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(steps):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = function(right)
    return (low + high) / 2
