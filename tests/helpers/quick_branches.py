"""Branches that are trained in a moment."""

import inspect

import pytest

from simplexcal.calibrators import simplex


def quick_branches(patch: pytest.MonkeyPatch, n_steps: int) -> None:
    """Let every STS that is made from now on train its branch for ``n_steps`` on few mixup samples,
    if not told otherwise."""

    make = simplex.SimplexTemperatureScaling.__init__
    defaults = inspect.signature(make).parameters.values()
    quick = {"n_steps": n_steps, "pool_size": 1000}
    values = tuple(quick.get(p.name, p.default) for p in defaults if p.name != "self")
    patch.setattr(make, "__defaults__", values)
