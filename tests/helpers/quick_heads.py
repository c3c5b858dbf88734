"""Likelihood heads that are trained in a moment."""

import inspect
from collections.abc import Mapping
from typing import Any

import pytest

from simplexcal.calibrators import simplex
from simplexcal.calibrators._likelihood_head import HeadSettings


def quick_heads(patch: pytest.MonkeyPatch, n_steps: int) -> None:
    """Let every STS that is made from now on train its head for ``n_steps``, and its branch for as
    many on few mixup samples, if not told otherwise."""

    original = simplex._head_settings

    def settings(given: HeadSettings | Mapping[str, Any] | None) -> HeadSettings:
        if isinstance(given, HeadSettings):
            return given
        return original({"n_steps": n_steps, **(given or {})})

    patch.setattr(simplex, "_head_settings", settings)
    make = simplex.SimplexTemperatureScaling.__init__
    defaults = inspect.signature(make).parameters.values()
    quick = {"n_steps": n_steps, "pool_size": 1000}
    values = tuple(quick.get(p.name, p.default) for p in defaults if p.name != "self")
    patch.setattr(make, "__defaults__", values)
