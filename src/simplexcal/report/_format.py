"""How numbers and methods are written on the page."""

from collections.abc import Mapping

from simplexcal.calibrators import CALIBRATORS
from simplexcal.evaluation import describe_changes

SPACE = "\u202f"  # narrow and unbreakable: it keeps a number and its unit on one line


def percent(share: float, digits: int = 1) -> str:
    """Return 0.897 as "89.7 %".

    Args:
        share: A fraction.
        digits: Digits after the point.
    """
    return f"{100 * share:.{digits}f}{SPACE}%"


def count(n: int) -> str:
    """Return 12345 as "12 345".

    Args:
        n: A whole number.
    """
    return f"{n:,}".replace(",", SPACE)


def method_title(name: str) -> str:
    """Return the abbreviation of a method of the library, and other names as they are.

    Args:
        name: Key of a method, or any other name.
    """
    if name in CALIBRATORS:
        return CALIBRATORS[name].abbreviation
    return name


def method_description(name: str) -> str:
    """Return the full title of a method of the library, and "" for other names.

    Args:
        name: Key of a method, or any other name.
    """
    if name in CALIBRATORS:
        return CALIBRATORS[name].title
    return ""


def change_facts(counts: Mapping[str, int]) -> dict[str, object]:
    """Return what the page says of changed predictions.

    Args:
        counts: Number of predictions that each method changes, by its name; 0 where the network's
            own are not known.
    """
    changed = [describe_changes(method_title(name), n) for name, n in counts.items() if n > 0]
    known = [CALIBRATORS[name] for name in counts if name in CALIBRATORS]
    keeps_all = all(method.keeps_predictions for method in known)
    return {"changed": changed, "keeps_predictions": keeps_all and not changed}
