"""The command line: a command parses, calls the library, writes one file and says where it is."""

from collections.abc import Callable
from typing import Annotated

import typer

import simplexcal
from simplexcal.cli import _console, calibrate, demo, evaluate, export, predict, report, score
from simplexcal.cli._console import say

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "calibrate": calibrate.calibrate,
    "predict": predict.predict,
    "evaluate": evaluate.evaluate,
    "report": report.report,
    "export": export.export,
    "score": score.score,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code: 0, or 2 for bad input."""
    command = typer.main.get_command(_app())
    return _console.run(
        lambda: command.main(arguments, prog_name="simplexcal", standalone_mode=False)
    )


def _app() -> typer.Typer:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.callback(invoke_without_command=True)(_options)
    for name, command in COMMANDS.items():
        app.command(name)(command)
    return app


def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Calibrate a trained classifier's confidence without changing one prediction."""
    if version:
        say(f"simplexcal {simplexcal.__version__}", {}, as_json=False)
    elif context.invoked_subcommand is None:
        say(context.get_help(), {}, as_json=False)
