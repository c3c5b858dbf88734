"""A small trained network and its data, embedded: what ``simplexcal demo`` runs on."""

from simplexcal.demo._example import Example as Example
from simplexcal.demo._example import load_example as load_example
