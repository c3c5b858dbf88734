"""Calibrate a trained classifier's confidence on the probability simplex, without changing one prediction."""

from simplexcal.concrete import Concrete as Concrete
from simplexcal.concrete import Moments as Moments

__version__ = "0.1.0"
