"""A small trained network and its data, embedded, to show what the library does: ``simplexcal demo``."""
