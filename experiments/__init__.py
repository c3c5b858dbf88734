"""The paper's tables and figures; uses public names only."""
