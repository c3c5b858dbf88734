"""Searches along one line: where a function changes sign, and where it is smallest."""

import math
from collections.abc import Callable
from itertools import pairwise

GOLDEN = (math.sqrt(5) - 1) / 2


def root(
    increasing: Callable[[float], float],
    low: float,
    high: float,
) -> float:
    """Return where an increasing function changes sign, by Ridders' method (1979).

    Every round halves the interval at least and, in the end, squares the error. Where the function
    does not change sign, an end of the interval is returned.

    Args:
        increasing: The function.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """
    at_low = increasing(low)
    at_high = increasing(high)
    if at_low >= 0:
        return low
    if not at_low < 0 < at_high:
        return high
    last = math.inf
    while True:
        middle = (low + high) / 2
        at_middle = increasing(middle)
        denominator = math.sqrt(at_middle**2 - at_low * at_high)
        new = middle - (middle - low) * at_middle / denominator
        at_new = increasing(new)
        # The next value would differ by about the square of the last difference.
        if at_new == 0 or abs(new - last) < 1e-12:
            return new
        last = new
        points = sorted([(low, at_low), (middle, at_middle), (new, at_new), (high, at_high)])
        for lower, upper in pairwise(points):
            if lower[1] < 0 <= upper[1]:
                low, at_low = lower
                high, at_high = upper
                break


def minimise_on_grid(
    function: Callable[[float], float],
    low: float,
    high: float,
    n_points: int = 47,
) -> float:
    """Return the minimum: the best of equally spaced points, refined between its neighbours.

    Args:
        function: The function.
        low: Lower end of the interval.
        high: Upper end of the interval.
        n_points: Number of points.
    """
    grid = [low + i * (high - low) / (n_points - 1) for i in range(n_points)]
    best = min(range(n_points), key=lambda i: function(grid[i]))
    left = grid[max(best - 1, 0)]
    right = grid[min(best + 1, n_points - 1)]
    return golden_section(function, left, right)


def golden_section(
    function: Callable[[float], float],
    low: float,
    high: float,
    steps: int = 40,
) -> float:
    """Return the minimum of a function with one valley (Kiefer 1953).

    Args:
        function: The function.
        low: Lower end of the interval.
        high: Upper end of the interval.
        steps: Number of steps; each shortens the interval by the golden ratio.
    """
    left = high - GOLDEN * (high - low)
    right = low + GOLDEN * (high - low)
    at_left = function(left)
    at_right = function(right)
    for _ in range(steps):
        if at_left <= at_right:
            high = right
            right = left
            at_right = at_left
            left = high - GOLDEN * (high - low)
            at_left = function(left)
        else:
            low = left
            left = right
            at_left = at_right
            right = low + GOLDEN * (high - low)
            at_right = function(right)
    return (low + high) / 2
