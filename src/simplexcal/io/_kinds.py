"""What a file holds, by the names in it: logits, probabilities or predictions. Never a guess."""

from collections.abc import Sequence
from pathlib import Path

from simplexcal.io._columns import Names, quote_names

OUTPUTS = ("logits", "probs")
PREDICTIONS = "predictions"
ARRAY_FORMATS = (".npz", ".safetensors", ".pt")
KINDS = (*OUTPUTS, PREDICTIONS)
# How a message names what a file holds.
SPELLINGS = {"logits": "`logits`", "probs": "`probs`", PREDICTIONS: "predictions"}


def check_kind(kind: str, kinds: Sequence[str]) -> None:
    """Raise ValueError unless a kind is one of those that are possible.

    Args:
        kind: What the user says that a file holds.
        kinds: What is possible.
    """
    if kind not in kinds:
        expected = " or ".join(f'"{own}"' for own in kinds)
        raise ValueError(f"`kind` must be {expected}, as the file holds them; got {kind!r}.")


def choose_kind(
    path: Path,
    array_names: Sequence[str],
    names: Names,
    kinds: Sequence[str],
    column_names: Sequence[str],
) -> str:
    """Return what a file holds.

    Args:
        path: The file.
        array_names: The names of the arrays in the file.
        names: What the file calls an array, where it has another name.
        kinds: What is possible.
        column_names: The names as the file spells them, for errors.

    Raises:
        ValueError: If the names leave a choice, or none of ``kinds``.
    """
    held = _held(array_names, names)
    if len(held) > 1:
        spelt = " and ".join(SPELLINGS[kind] for kind in held)
        raise ValueError(f"'{path}' holds {spelt}. Say which are meant: pass {_options(kinds)}.")
    if not held:
        raise _holds_nothing(path, array_names, column_names)
    if held[0] not in kinds:
        raise ValueError(
            f"'{path}' holds predictions, and a network's outputs are needed. "
            'Pass `kind="probs"` to take its probabilities as such.'
        )
    return held[0]


def kind_is_needed(path: Path, kinds: Sequence[str]) -> ValueError:
    """Return the error that nothing in a file says what its one array is.

    Args:
        path: The file.
        kinds: What is possible.
    """
    return ValueError(
        f"'{path}' holds one array without a name. Say what it is: pass {_options(kinds)}."
    )


def _held(array_names: Sequence[str], names: Names) -> list[str]:
    """Return what a file holds; an array that the user names is meant, whatever else there is."""
    held = [kind for kind in OUTPUTS if kind in names]
    if not held:
        held = [kind for kind in OUTPUTS if kind in array_names]
    if "predicted" in array_names:
        # Only predictions have a predicted class beside their probabilities.
        held = [kind.replace("probs", PREDICTIONS) for kind in held]
    return held


def _options(kinds: Sequence[str]) -> str:
    return " or ".join(f'`kind="{kind}"`' for kind in kinds)


def _holds_nothing(
    path: Path, array_names: Sequence[str], column_names: Sequence[str]
) -> ValueError:
    if "inputs" in array_names:
        return ValueError(
            f"'{path}' holds the `inputs` of a network. Pass `network`, which takes them."
        )
    expected = "`logits` or `probs`"
    if path.suffix.lower() not in ARRAY_FORMATS:
        expected = "columns logit_0, logit_1, … or prob_0, …"
    if path.suffix.lower() == ".csv":
        expected += ", named in its first line with commas between them"
    return ValueError(
        f"'{path}' must hold {expected}; found {quote_names(column_names)}. "
        'If they have another name, pass `names["logits"]` or `names["probs"]`.'
    )
