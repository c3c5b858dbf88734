"""Runs the command line in this process, as a user types it."""

import shlex

import pytest

from simplexcal.cli import main


def simplexcal(command: str) -> int:
    """Run `simplexcal command` and return the exit code."""
    return main(shlex.split(command))


def error_of(capsys: pytest.CaptureFixture[str], command: str) -> str:
    """Return the one line that bad input gives, without its prefix."""
    assert simplexcal(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err.removeprefix("error: ")
