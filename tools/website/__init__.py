"""What makes the documentation site from docs/: ``make docs``."""
