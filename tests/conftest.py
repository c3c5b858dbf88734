import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

# The tensors are small, and two threads only wait for each other on a busy machine.
torch.set_num_threads(1)
settings.register_profile("default", deadline=None, max_examples=100)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(scope="session")
def golden() -> list[dict[str, Any]]:
    """Reference moments, good to 1e-12, made by an independent implementation."""
    cases: list[dict[str, Any]] = json.loads(
        (Path(__file__).parent / "concrete" / "golden.json").read_text()
    )
    return cases


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
