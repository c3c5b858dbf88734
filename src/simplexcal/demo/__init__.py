"""What the library does, shown on a handful of numbers: ``python -m simplexcal.demo``."""
