"""Numbers that judge a prediction."""

from simplexcal.metrics.calibration import ece as ece
