"""The shape of the code base: who may import whom, and what an import costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import simplexcal

ROOT = Path(simplexcal.__file__).parent
ORDER = [
    "_version",
    "_validation",
    "_chunking",
    "_progress",
    "types",
    "concrete",
    "metrics",
    "backbone",
    "mixup",
    "calibrators",
    "io",
    "evaluation",
    "plots",
    "report",
    "onnx",
    "model",
    "sklearn",
    "network_spec",
    "scoring",
    "demo",
    "cli",
    "__main__",
]  # a module imports only from its left


def imported(path: Path) -> set[str]:
    """Return the first-level modules of the package that a file imports; public names come from where they live."""
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
        "import sys, torch, numpy, safetensors.torch; before = set(sys.modules); import simplexcal;"
        "new = {m.split('.')[0] for m in set(sys.modules) - before};"
        "print(*sorted(new - set(sys.stdlib_module_names) - {'torch', 'numpy', 'safetensors', 'simplexcal'}))"
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
