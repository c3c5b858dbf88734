"""The command line: a command reads its options, calls the library, and prints the result."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

import simplexcal
from simplexcal.cli import calibrate, demo, evaluate, export, predict, report, score, threshold
from simplexcal.cli._console import DEBUG_VARIABLE, echo_result, run
from simplexcal.cli._flags import FlagCommand

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "calibrate": calibrate.calibrate,
    "predict": predict.predict,
    "evaluate": evaluate.evaluate,
    "threshold": threshold.threshold,
    "report": report.report,
    "export": export.export,
    "score": score.score,
}
EPILOGUES: dict[str, Callable[[], str]] = {"calibrate": calibrate.list_methods}
EPILOGUE = (
    "The exit code is 0, 2 for bad input, 1 for a defect of simplexcal, 130 after an interruption. "
    f"{DEBUG_VARIABLE}=1 in the environment shows the traceback of every error."
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Args:
        arguments: Words after ``simplexcal``; None takes those of this process.

    Returns:
        0, or 2 for bad input, 1 for a defect of simplexcal, 130 after an interruption.
    """

    def invoke() -> Any:
        command = typer.main.get_command(_app())
        return command.main(arguments, prog_name="simplexcal", standalone_mode=False)

    return run(invoke)


def _app() -> typer.Typer:
    """Build the app when it is run, so that a method added to CALIBRATORS until then is listed."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, epilog=EPILOGUE)
    app.callback(invoke_without_command=True)(_show_version_or_help)
    for name, command in COMMANDS.items():
        epilogue = None
        if name in EPILOGUES:
            epilogue = EPILOGUES[name]()
        register = app.command(name, cls=FlagCommand, help=_help(command), epilog=epilogue)
        register(command)
    return app


def _help(command: Callable[..., None]) -> str:
    """Return a command's docstring without its `Args:`, which the options' own help replaces."""
    docstring = inspect.getdoc(command) or ""
    return docstring.partition("\n\nArgs:")[0]


def _show_version_or_help(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Calibrate a trained classifier's confidence without changing one prediction."""
    if version:
        echo_result(f"simplexcal {simplexcal.__version__}", {}, as_json=False)
    elif context.invoked_subcommand is None:
        echo_result(context.get_help(), {}, as_json=False)
