"""How numbers and methods are written on the page."""

from simplexcal.calibrators import CALIBRATORS

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
