"""How the command line speaks: one line for an error, one for a warning, JSON where it is asked for, no traceback."""

import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130  # exit codes
EXPECTED = (
    ValueError,
    TypeError,
    OSError,
    ImportError,
    MemoryError,
    RuntimeError,
)  # each with a sentence of its own


def run(command: Callable[[], object]) -> int:
    """Run ``command`` and return the exit code; what goes wrong is said in one line on stderr."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = _show_warning
            code = command()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (
        BrokenPipeError,
        SystemExit,
    ) as error:  # the reader of our output has seen enough; typer then exits
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _explain(error)
    if code == INTERRUPTED:  # as typer says it
        return _fail("interrupted", INTERRUPTED)
    return code if isinstance(code, int) else 0


def say(text: str, record: Mapping[str, Any], as_json: bool) -> None:
    """Print ``text`` for people or ``record`` for machines, where JSON has no number as null."""
    sys.stdout.write((json.dumps(_finite(record), allow_nan=False) if as_json else text) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(x) for name, x in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def stderr_is_tty() -> bool:
    """Return whether a person is looking on, to whom progress may be shown."""
    return sys.stderr.isatty()


def _explain(error: Exception) -> int:
    if format_usage := getattr(
        error, "format_message", None
    ):  # a mistake in the arguments, found by typer
        return _fail(format_usage(), BAD_INPUT)
    if isinstance(error, OSError) and error.filename is not None:
        return _fail(f"'{error.filename}': {error.strerror}.", BAD_INPUT)
    if isinstance(error, MemoryError):
        return _fail(
            "there is not enough memory for this input; score it in smaller files.", BAD_INPUT
        )
    if isinstance(error, EXPECTED):
        return _fail(str(error) or type(error).__name__, BAD_INPUT)
    return _fail(f"{error!r}, which is a defect of simplexcal; please report it.", FAILED)


def _fail(text: str, code: int) -> int:
    sys.stderr.write(f"error: {' '.join(text.split())}\n")
    return code


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    sys.stderr.write(f"warning: {' '.join(str(message).split())}\n")
