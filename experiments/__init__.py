"""The paper's experiments, run from a clone of the repository: `python -m experiments`."""
