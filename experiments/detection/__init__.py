"""`epistemic` beside the detectors of out-of-distribution inputs that are in use."""
