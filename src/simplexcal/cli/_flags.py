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

# A message that names one of these means the array in a file, not the option called the same.
ARRAYS = {"logits", "probs", "labels", "features", "id"}

# `argument`, `argument=True`, `argument="value"`, or `names["array"]`, which has a flag of its own.
NAMED = re.compile(r'`(?:(\w+)(?:=True|="(\w+)")?|names\["(\w+)"\])`')

TYPE = " <path>"  # what typer writes behind the name of a positional argument

Flags = dict[str, str]


class FlagCommand(TyperCommand):
    """A command whose errors and warnings name its flags where the library names arguments."""

    def get_help(self, ctx: Any) -> str:
        """Return the help, with positional arguments by their plain names.

        Args:
            ctx: Typer's context.
        """
        text: str = super().get_help(ctx)
        text = text.replace(TYPE, " " * len(TYPE))
        return re.sub(r"\{([A-Z]+)\}", r"\1", text)

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
    """Return a message with each `argument` in backticks replaced by its flag.

    So are `argument=True`, `argument="value"`, and the name of an array, `names["array"]`.

    Args:
        text: The library's message.
        flags: The flag of each argument; other words in backticks stay.
    """

    def flag(match: re.Match[str]) -> str:
        name, value, array = match.groups()
        if array is not None:
            return f"--{array}"
        if name in ARRAYS or name not in flags:
            return match[0]
        if value is not None:
            return f"{flags[name]} {value}"
        return flags[name]

    return NAMED.sub(flag, text)


def _show_warning(flags: Flags, message: Warning | str, *_: object, **__: object) -> None:
    echo_line("warning", name_flags(str(message), flags))
