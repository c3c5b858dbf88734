"""The library names arguments; the command line names flags."""

import warnings

import numpy as np
import pytest
import typer
from helpers.command_line import error_of, simplexcal

from simplexcal.cli import COMMANDS, _app
from simplexcal.cli._flags import flags_of, name_flags

SENTENCE = "`output`, `kind`, `network`, `restart`, `calibrator`, `labels` and `probs`."


def flags(command: str) -> dict[str, str]:
    group = typer.main.get_command(_app())
    return flags_of(group.commands[command].params)  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_its_own_flag(command: str) -> None:
    found = flags(command)
    assert found["json"] == "--json"
    assert all(flag.startswith("--") or flag.isupper() for flag in found.values())


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "predict",
            "--output, --kind, --model, `restart`, CALIBRATOR, `labels` and `probs`.",
        ),
        (
            "evaluate",
            "`output`, --kind, --model, `restart`, --calibrator, `labels` and `probs`.",
        ),
        (
            "score",
            "--output, --kind, --model, --restart, CALIBRATOR, `labels` and `probs`.",
        ),
    ],
)
def test_arguments_become_the_flags_of_the_command(command: str, expected: str) -> None:
    assert name_flags(SENTENCE, flags(command)) == expected


def test_a_switch_that_is_to_be_passed_becomes_its_flag() -> None:
    text = name_flags("Pass `restart=True`, not `dtype=True`.", flags("score"))
    assert text == "Pass --restart, not `dtype=True`."


def test_a_value_and_the_name_of_an_array_become_flags() -> None:
    sentence = 'Pass `kind="logits"` or `names["labels"]`, not `labels`, `id` or `dtype="x"`.'
    for command in ("evaluate", "score"):
        found = name_flags(sentence, flags(command))
        assert found == 'Pass --kind logits or --labels, not `labels`, `id` or `dtype="x"`.'


@pytest.mark.usefixtures("folder")
def test_an_error_of_the_library_names_flags(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_source(*_: object, **__: object) -> None:
        raise ValueError("Pass `kind`, or `network`, not `mixup`.")

    monkeypatch.setattr("simplexcal.cli.calibrate.read_data", read_source)
    error = error_of(capsys, "calibrate val.npz -o net.safetensors")
    assert error == "Pass --kind, or --model, not --mixup.\n"


@pytest.mark.usefixtures("fitted")
def test_a_warning_of_the_library_names_flags(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_predictions(*_: object, **__: object) -> None:
        warnings.warn("`output` is large.", stacklevel=2)

    monkeypatch.setattr("simplexcal.cli.predict.write_predictions", write_predictions)
    assert simplexcal("predict net.safetensors val.npz -o out.npz") == 0
    assert capsys.readouterr().err == "warning: --output is large.\n"


@pytest.mark.usefixtures("folder")
def test_a_network_that_cannot_be_found_is_named_by_its_flag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    np.savez("inputs.npz", inputs=np.zeros((2, 3), np.float32), labels=np.arange(2))
    error = error_of(capsys, "calibrate inputs.npz --model nowhere:make -o net.safetensors")
    assert error.startswith("--model names the module 'nowhere', which cannot be imported")
