"""The shape of the code base: import order, cost of an import, documented parameters."""

import ast
import importlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import pytest
from helpers.docstrings import faults, public_objects

import simplexcal

ROOT = Path(simplexcal.__file__).parent
ORDER = [
    "_version",
    "_arrays",
    "_validation",
    "_chunking",
    "_progress",
    "types",
    "dense",
    "concrete",
    "metrics",
    "drift",
    "thresholds",
    "facts",
    "backbone",
    "mixup",
    "calibrators",
    "io",
    "evaluation",
    "dense_evaluation",
    "plots",
    "report",
    "comparison",
    "card",
    "onnx",
    "model",
    "accuracy_estimation",
    "monitoring",
    "sklearn",
    "integrations",
    "network_spec",
    "scoring",
    "demo",
    "cli",
    "__main__",
]  # a module imports only from modules above it
API = [
    "simplexcal",
    "simplexcal.metrics",
    "simplexcal.io",
    "simplexcal.onnx",
    "simplexcal.report",
    "simplexcal.scoring",
    "simplexcal.plots",
    "simplexcal.sklearn",
    "simplexcal.demo",
    "simplexcal.integrations.huggingface",
    "simplexcal.integrations.lightning",
    "simplexcal.integrations.mlflow",
    "simplexcal.integrations.torchmetrics",
]


def imported(path: Path) -> set[str]:
    """Return the first-level modules of the package that a file imports.

    A public name counts as imported from the module that defines it.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "simplexcal":
            homes = {alias.name: getattr(simplexcal, alias.name, None) for alias in node.names}
            names |= {
                getattr(value, "__module__", f"simplexcal.{name}") for name, value in homes.items()
            }
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("simplexcal.")}


MODULES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_downstream_is_imported_upstream(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert own in ORDER, f"{own} has no place in the dependency order"
    allowed = {*ORDER[: ORDER.index(own)], own}
    assert imported(path) <= allowed


def test_import_needs_torch_numpy_and_safetensors_only() -> None:
    code = (
        "import sys, torch, numpy, safetensors.torch; before = set(sys.modules);"
        "import simplexcal;"
        "new = {m.split('.')[0] for m in set(sys.modules) - before};"
        "known = {'torch', 'numpy', 'safetensors', 'simplexcal'};"
        "print(*sorted(new - set(sys.stdlib_module_names) - known))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_public_names_are_documented() -> None:
    public = {name: value for name, value in vars(simplexcal).items() if callable(value)}
    assert {
        "Backbone",
        "Concrete",
        "Outputs",
        "SimplexTemperatureScaling",
        "calibrate",
        "load",
    } <= set(public)
    assert all(value.__doc__ for value in public.values())


def test_every_public_name_is_listed_in_a_group() -> None:
    public = public_objects(simplexcal, "simplexcal")
    assert {*public, "CALIBRATORS", "__version__"} == set(simplexcal.__all__)
    assert len(simplexcal.__all__) == len(set(simplexcal.__all__))


@pytest.mark.parametrize("name", API)
def test_every_parameter_of_the_api_is_documented(name: str) -> None:
    objects = public_objects(importlib.import_module(name), "simplexcal")
    assert objects
    found = [fault for key, value in objects.items() for fault in faults(key, value, "simplexcal")]
    assert found == []


# --- the check of docstrings, on docstrings with known faults ---


class Undocumented:
    """A class.

    Args:
        first: Is named.
        third: Does not exist.

    Raises:
        second: Is named in another section.
    """

    def __init__(self, first: int, second: int) -> None: ...

    def method(self, x: int, *rest: int, y: int = 0) -> int:
        """Return a number.

        Args:
            x: Is named, and so is y: but not as an entry.
            *rest: Is named.
        """
        return x

    @classmethod
    def make(cls, x: int) -> Self:
        """Return one; x is named, but not in a section."""
        return cls(x, x)

    @property
    def value(self) -> int:
        """A number."""
        return 0

    @property
    def silent(self) -> int:
        return 0

    def _private(self, x: int) -> None: ...


class Inheriting(Undocumented):
    """A class whose constructor is its parent's.

    Args:
        first: Is named.
        second: Is named.
    """


class Row(NamedTuple):
    """A record.

    Attributes:
        first: Is named.
    """

    first: int
    second: int


@dataclass
class Point:
    """A record.

    Args:
        x: Is named.
    """

    x: int
    y: int


def documented(first: int, **rest: int) -> None:
    """Do nothing.

    Args:
        first: Is named,
            here: in two lines.
        rest: Is named.

    Returns:
        nothing: No parameter.
    """


METHOD_FAULTS = ["method does not name `y`", "make does not name `x`", "silent has no docstring"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            Undocumented,
            [
                "A does not name `second`",
                "A has no parameter `third`",
                *(f"A.{fault}" for fault in METHOD_FAULTS),
            ],
        ),
        (Inheriting, [f"A.{fault}" for fault in METHOD_FAULTS]),
        (Row, ["A does not name `second`"]),
        (Point, ["A does not name `y`"]),
        (documented, []),
        (lambda x: x, ["A has no docstring"]),
    ],
)
def test_the_check_finds_what_is_not_documented(value: object, expected: list[str]) -> None:
    assert faults("A", value, __name__.split(".")[0]) == expected
