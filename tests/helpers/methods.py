"""Every method with settings for a short fit, and the state that a fit must not change."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch import nn

from simplexcal.calibrators import (
    AdaptiveTemperatureScaling,
    Calibrator,
    DiagonalIntraOrderPreserving,
    DirichletCalibration,
    DirichletTemperatureScaling,
    EnsembleTemperatureScaling,
    IsotonicCalibration,
    ParameterizedTemperatureScaling,
    SimplexTemperatureScaling,
    TemperatureScaling,
    Uncalibrated,
    VectorScaling,
)

METHODS: dict[str, Callable[[], Calibrator]] = {
    "none": Uncalibrated,
    "ts": TemperatureScaling,
    "ets": lambda: EnsembleTemperatureScaling("nll"),
    "pts": lambda: ParameterizedTemperatureScaling(n_steps=20, learning_rate=1e-3),
    "adats": lambda: AdaptiveTemperatureScaling(n_epochs=1),
    "dirichlet-ts": lambda: DirichletTemperatureScaling(n_steps=20, widths=(8,)),
    "sts": lambda: SimplexTemperatureScaling(
        betas=(1.0, 2.0), n_steps=20, pool_size=200, widths=(8,)
    ),
    "iop-diag": DiagonalIntraOrderPreserving,
    "isotonic": lambda: IsotonicCalibration(max_pools=16),
    "vector": lambda: VectorScaling(strength=10.0),
    "dirichlet": lambda: DirichletCalibration(strength=1.0),
}
KEEPING = [name for name, make in METHODS.items() if make().keeps_predictions]


def state(net: nn.Module) -> list[Any]:
    """Return all that must not change, in a form that == compares bit for bit."""
    tensors = {
        name: (value.dtype, value.numpy().tobytes()) for name, value in net.state_dict().items()
    }
    flags = [(name, p.requires_grad, p.grad is None) for name, p in net.named_parameters()]
    modes = [(name, module.training) for name, module in net.named_modules()]
    hooks = [
        [list(x.items()) for x in vars(m).values() if isinstance(x, OrderedDict)]
        for m in net.modules()
    ]
    return [tensors, flags, modes, hooks]
