"""The calibration methods, one a file, all with the same interface."""

from simplexcal.calibrators.base import Calibrator as Calibrator
from simplexcal.calibrators.base import Uncalibrated as Uncalibrated
from simplexcal.calibrators.temperature import TemperatureScaling as TemperatureScaling

CALIBRATORS: dict[str, type[Calibrator]] = {
    "none": Uncalibrated,
    "ts": TemperatureScaling,
}
