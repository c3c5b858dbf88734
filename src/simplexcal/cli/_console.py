"""What the command line prints: results on stdout, errors of one line on stderr, exit codes."""

import io
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from simplexcal._validation import NotFittedError

# Exit codes.
DEFECT = 1
BAD_INPUT = 2
INTERRUPTED = 130

DEBUG_VARIABLE = "SIMPLEXCAL_DEBUG"

# The library explains bad input by these, in a sentence; any other error is a defect of ours.
INPUT_ERRORS = (ValueError, TypeError, OSError, ImportError, NotFittedError)


class BadInputError(Exception):
    """A sentence for the user about what they passed."""


class InterruptionError(Exception):
    """A sentence for the user about what an interruption left."""


def run(command: Callable[[], object]) -> int:
    """Run a command and return the exit code; an error becomes one line on stderr.

    Args:
        command: Called without arguments; it may return an exit code of its own.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A file's name that stdout cannot show is no error after the work is done.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = command()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        return _end_quietly()
    except SystemExit as error:
        # Typer exits by itself where the reader of our output has closed the pipe.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        return _end_quietly()
    except Exception as error:
        return _report(error)
    if code == INTERRUPTED:
        return _fail("interrupted", INTERRUPTED)
    if isinstance(code, int):
        return code
    return 0


def explain(error: Exception) -> str | None:
    """Return the sentence about bad input in an error, or None if the error is a defect.

    Args:
        error: What a command raised.
    """
    if _is_out_of_memory(error):
        return "there is not enough memory for this input; score it in smaller files."
    if isinstance(error, OSError) and error.filename is not None:
        return f"'{error.filename}': {error.strerror}."
    if isinstance(error, INPUT_ERRORS):
        return str(error) or type(error).__name__
    return None


@contextmanager
def interruptions_explained() -> Iterator[None]:
    """Keep what the library says at an interruption, which typer would drop."""
    try:
        yield
    except KeyboardInterrupt as error:
        if not str(error):
            raise
        raise InterruptionError(str(error)) from error


def echo_result(text: str, record: Mapping[str, Any], as_json: bool) -> None:
    """Print the result of a command.

    Args:
        text: For people.
        record: For programs. Numbers that JSON lacks (NaN, infinity) become null.
        as_json: Print ``record`` as one JSON object instead of ``text``.
    """
    if as_json:
        text = json.dumps(_finite(record), allow_nan=False)
    sys.stdout.write(f"{text}\n")


def echo_line(label: str, text: str) -> None:
    """Print one line on stderr.

    Args:
        label: "error" or "warning".
        text: The message; its line breaks become spaces.
    """
    line = " ".join(text.split())
    sys.stderr.write(f"{label}: {line}\n")


def stderr_is_tty() -> bool:
    """Return whether stderr is a terminal, on which progress can be shown."""
    return sys.stderr.isatty()


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(x) for x in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out, for which torch raises a plain RuntimeError on the CPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def _report(error: Exception) -> int:
    if os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
        traceback.print_exception(error)
    if isinstance(error, BadInputError):
        return _fail(str(error), BAD_INPUT)
    if isinstance(error, InterruptionError):
        return _fail(f"interrupted; {error}", INTERRUPTED)
    format_usage = getattr(error, "format_message", None)
    if format_usage is not None:  # typer found a mistake in the options
        return _fail(format_usage(), BAD_INPUT)
    return _fail(
        f"{error!r}. This is a defect of simplexcal; please report it, "
        f"with the traceback that {DEBUG_VARIABLE}=1 in the environment shows.",
        DEFECT,
    )


def _fail(text: str, code: int) -> int:
    echo_line("error", text)
    return code


def _end_quietly() -> int:
    """Drop what is still to be written to a pipe that its reader has closed, which is no error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    return 0
