"""The calibration methods, one a file, all with the same interface."""

from simplexcal.calibrators.adaptive import AdaptiveTemperatureScaling as AdaptiveTemperatureScaling
from simplexcal.calibrators.base import Calibrator as Calibrator
from simplexcal.calibrators.dirichlet import DirichletCalibration as DirichletCalibration
from simplexcal.calibrators.dirichlet_temperature import (
    DirichletTemperatureScaling as DirichletTemperatureScaling,
)
from simplexcal.calibrators.ensemble import EnsembleTemperatureScaling as EnsembleTemperatureScaling
from simplexcal.calibrators.isotonic import IsotonicCalibration as IsotonicCalibration
from simplexcal.calibrators.order_preserving import (
    DiagonalIntraOrderPreserving as DiagonalIntraOrderPreserving,
)
from simplexcal.calibrators.parameterized import (
    ParameterizedTemperatureScaling as ParameterizedTemperatureScaling,
)
from simplexcal.calibrators.simplex import SimplexTemperatureScaling as SimplexTemperatureScaling
from simplexcal.calibrators.temperature import TemperatureScaling as TemperatureScaling
from simplexcal.calibrators.uncalibrated import Uncalibrated as Uncalibrated
from simplexcal.calibrators.vector import VectorScaling as VectorScaling

METHODS: tuple[type[Calibrator], ...] = (
    Uncalibrated,
    TemperatureScaling,
    EnsembleTemperatureScaling,
    ParameterizedTemperatureScaling,
    AdaptiveTemperatureScaling,
    DirichletTemperatureScaling,
    SimplexTemperatureScaling,
    DiagonalIntraOrderPreserving,
    IsotonicCalibration,
    VectorScaling,
    DirichletCalibration,
)
CALIBRATORS: dict[str, type[Calibrator]] = {method.key: method for method in METHODS}
