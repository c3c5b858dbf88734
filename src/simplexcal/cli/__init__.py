"""The command line: a command reads its options, calls the library, and prints the result."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

import simplexcal
from simplexcal.cli import (
    calibrate,
    demo,
    evaluate,
    export,
    info,
    monitor,
    ood,
    predict,
    report,
    score,
    threshold,
)
from simplexcal.cli._console import DEBUG_VARIABLE, echo_result, run
from simplexcal.cli._flags import FlagCommand

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "calibrate": calibrate.calibrate,
    "predict": predict.predict,
    "evaluate": evaluate.evaluate,
    "report": report.report,
    "threshold": threshold.threshold,
    "ood": ood.ood,
    "monitor": monitor.monitor,
    "info": info.info,
    "export": export.export,
    "score": score.score,
}
EXAMPLES = {
    "demo": "simplexcal demo",
    "calibrate": "simplexcal calibrate val.npz -o net.safetensors",
    "predict": "simplexcal predict net.safetensors test.npz -o predictions.csv",
    "evaluate": "simplexcal evaluate test.npz --calibrator net.safetensors",
    "report": "simplexcal report test.npz --calibrator net.safetensors -o report.html",
    "threshold": "simplexcal threshold net.safetensors test.npz --coverage 0.9 --save",
    "ood": "simplexcal ood test.npz ood.npz --calibrator net.safetensors",
    "monitor": "simplexcal monitor reference.parquet batch.parquet -o monitor.html",
    "info": "simplexcal info net.safetensors",
    "export": "simplexcal export net.safetensors -o calibrator.onnx",
    "score": "simplexcal score net.safetensors rows.parquet -o scored.parquet",
}
# What the help calls the value of an option without a metavar of its own.
VALUES = {Path: "FILE", int: "NUMBER", float: "NUMBER", str: "TEXT"}
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
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        epilog=EPILOGUE,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_show_version_or_help)
    for name, command in COMMANDS.items():
        epilogue = None
        if name in EPILOGUES:
            epilogue = EPILOGUES[name]()
        help_text = f"{_help(command)}\n\n\b\nExample:\n  {EXAMPLES[name]}"
        _name_values(command)
        register = app.command(name, cls=FlagCommand, help=help_text, epilog=epilogue)
        register(command)
    return app


def _name_values(command: Callable[..., None]) -> None:
    """Give the values of a command's options names in plain words instead of types."""
    for hint in get_type_hints(command, include_extras=True).values():
        if get_origin(hint) is not Annotated:
            continue
        kind, option = get_args(hint)
        types = {kind, *get_args(kind), *(x for own in get_args(kind) for x in get_args(own))}
        if isinstance(option, typer.models.OptionInfo) and option.metavar is None:
            option.metavar = next((VALUES[own] for own in VALUES if own in types), None)


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
