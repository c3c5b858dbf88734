"""Other libraries: Hugging Face, Lightning, torchmetrics and MLflow, each an extra of its own.

A module is imported by its name, since it imports its library.
"""
