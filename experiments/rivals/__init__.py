"""STS against the calibration methods of other packages, on identical data."""
