"""Which parameters a docstring does not name, and which it names that do not exist."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

SECTION = re.compile(r"^(\w[\w ]*):$")
ENTRY = re.compile(r"^    \*{0,2}(\w+)(?: \([^)]*\))?:")
CONSTRUCTORS = ("__init__", "__new__")


def public_objects(module: ModuleType, package: str) -> dict[str, Any]:
    """Return the public functions and classes of a module: of a package, what it re-exports."""
    found = {}
    for name, value in vars(module).items():
        if inspect.isclass(value) or inspect.isfunction(value):
            if hasattr(module, "__path__"):
                is_ours = value.__module__.split(".")[0] == package
            else:
                is_ours = value.__module__ == module.__name__
            if is_ours and not name.startswith("_"):
                found[name] = value
    return found


def faults(name: str, value: Any, package: str) -> list[str]:
    """Return what is missing or wrong in the docstrings of a function, or of a class."""
    if not inspect.isclass(value):
        return list(_function_faults(name, value))
    found = list(_class_faults(name, value, package))
    for method_name, method in _methods(value, package).items():
        found += _function_faults(f"{name}.{method_name}", method)
    return found


def _function_faults(name: str, function: Callable[..., Any]) -> Iterator[str]:
    text = function.__doc__
    if not text:
        yield f"{name} has no docstring"
        return
    names = _parameters(function)
    documented = _entries(text, "Args")
    yield from _differences(name, names, documented, documented)


def _class_faults(name: str, value: type, package: str) -> Iterator[str]:
    text = value.__doc__
    if not text:
        yield f"{name} has no docstring"
        return
    arguments = _entries(text, "Args")
    documented = arguments | _entries(text, "Attributes")
    yield from _differences(name, _constructor_parameters(value, package), documented, arguments)


def _differences(
    name: str, parameters: list[str], documented: set[str], arguments: set[str]
) -> Iterator[str]:
    for parameter in parameters:
        if parameter not in documented:
            yield f"{name} does not name `{parameter}`"
    for argument in sorted(arguments - set(parameters)):
        yield f"{name} has no parameter `{argument}`"


def _entries(text: str, section: str) -> set[str]:
    """Return the names that a section of a Google-style docstring describes."""
    names = set()
    current = ""
    for line in inspect.cleandoc(text).splitlines():
        header = SECTION.match(line)
        entry = ENTRY.match(line)
        if header:
            current = header[1]
        elif entry and current == section:
            names.add(entry[1])
    return names


def _parameters(function: Callable[..., Any]) -> list[str]:
    names = list(inspect.signature(inspect.unwrap(function)).parameters)
    return [name for name in names if name not in ("self", "cls")]


def _constructor_parameters(value: type, package: str) -> list[str]:
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value) if field.init]
    if hasattr(value, "_fields"):
        return list(value._fields)
    for ancestor in _own_classes(value, package):
        for constructor in CONSTRUCTORS:
            if constructor in vars(ancestor):
                return _parameters(vars(ancestor)[constructor])
    return []


def _methods(value: type, package: str) -> dict[str, Callable[..., Any]]:
    """Return the public methods of a class that the package defines, and properties as well."""
    found: dict[str, Callable[..., Any]] = {}
    for ancestor in _own_classes(value, package):
        for name, member in vars(ancestor).items():
            function = _function_of(member)
            if function is not None and not name.startswith("_"):
                found.setdefault(name, function)
    return found


def _function_of(member: Any) -> Callable[..., Any] | None:
    """Return the function behind a method, a property or scikit-learn's `available_if`."""
    if isinstance(member, property):
        return member.fget
    for attribute in ("__func__", "fn"):
        member = getattr(member, attribute, member)
    if inspect.isfunction(member):
        return member
    return None


def _own_classes(value: type, package: str) -> list[type]:
    return [c for c in value.__mro__ if c.__module__.split(".")[0] == package]
