"""Translates the library's messages: an argument that they name becomes the command's flag."""

import re
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

from typer.core import TyperCommand

from simplexcal.cli._console import BadInputError, echo_line, explain

# Arguments of the library that a command takes as the option on the right.
OTHER_NAMES = {"net": "model", "network": "model"}

# A message that names one of these means the column in a file, not the option called the same.
COLUMNS = {"probs"}

Flags = dict[str, str]


class FlagCommand(TyperCommand):
    """A command whose errors and warnings name its flags where the library names arguments."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Args:
            ctx: Typer's context.

        Raises:
            BadInputError: The library rejected what the user passed.
        """
        flags = flags_of(self.params)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("default", UserWarning)
                warnings.showwarning = partial(_show_warning, flags)
                return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except Exception as error:
            sentence = explain(error)
            if sentence is None:
                raise
            raise BadInputError(name_flags(sentence, flags)) from error


def flags_of(parameters: Sequence[Any]) -> Flags:
    """Return what a command's user types for each argument of the library.

    Args:
        parameters: Typer's parameters of the command. An option is typed as its longest flag, a
            positional argument as the name that the help shows. An argument of the library is
            called as the parameter or as the flag.
    """
    flags: Flags = {}
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            flags[parameter.name] = parameter.metavar or parameter.name.upper()
        else:
            flag = max(parameter.opts, key=len)
            flags[parameter.name] = flag
            flags[flag.removeprefix("--").replace("-", "_")] = flag
    for argument, option in OTHER_NAMES.items():
        if option in flags:
            flags.setdefault(argument, flags[option])
    return flags


def name_flags(text: str, flags: Flags) -> str:
    """Return a message with each `argument` or `argument=True` in backticks replaced by its flag.

    Args:
        text: The library's message.
        flags: The flag of each argument; other words in backticks stay.
    """

    def flag(match: re.Match[str]) -> str:
        name = match[1]
        if name in COLUMNS:
            return match[0]
        return flags.get(name, match[0])

    return re.sub(r"`(\w+)(=True)?`", flag, text)


def _show_warning(flags: Flags, message: Warning | str, *_: object, **__: object) -> None:
    echo_line("warning", name_flags(str(message), flags))
