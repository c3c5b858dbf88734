"""Builds the packages and tries them as a user would: `make release-check`.

    python -m tools.release.check [--python python3.11 ...] [--extras cli ...]
        [--repository URL] [--tag v0.2.0]

It builds sdist and wheel, checks their metadata and contents, and installs the wheel into a fresh
environment without extras, and into one with each extra. There it runs the quickstart, the demo,
and something of every extra (smoke.py).
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.release.metadata import (
    archive_faults,
    metadata_faults,
    publication_faults,
    text_faults,
)
from tools.release.smoke import CHECKS

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
TOOLS = ("build", "twine")


def main() -> int:
    """Run all checks and return the number of faults, at most 1."""
    options = _options()
    with TemporaryDirectory(prefix="release-") as name:
        folder = Path(name)
        wheel, sdist = build(folder, ROOT / "dist")
        faults = [
            *text_faults(ROOT),
            *metadata_faults(wheel),
            *archive_faults(wheel, sdist),
            *publication_faults(ROOT, wheel, options.repository, options.tag),
        ]
        for python in options.python:
            faults += try_wheel(wheel, python, options.extras, folder / Path(python).name)
    for fault in faults:
        print(f"FAULT: {fault}")
    if faults:
        return 1
    print(f"{wheel.name} and {sdist.name} in dist/ can be released.")
    return 0


def build(folder: Path, output: Path) -> tuple[Path, Path]:
    """Return the wheel and the sdist, built in isolation and checked by twine.

    Args:
        folder: Folder for the environment of the tools.
        output: Folder of the packages, which is emptied first.
    """
    python = make_environment(sys.executable, folder / "tools")
    install(python, *TOOLS)
    shutil.rmtree(output, ignore_errors=True)
    run([python, "-m", "build", "--outdir", output, ROOT], env=os.environ | _constraints())
    (wheel,) = output.glob("*.whl")
    (sdist,) = output.glob("*.tar.gz")
    run([python, "-m", "twine", "check", "--strict", wheel, sdist])
    return wheel, sdist


def try_wheel(wheel: Path, python: str, checks: Sequence[str], folder: Path) -> list[str]:
    """Return what fails in fresh environments with the wheel.

    Args:
        wheel: The wheel.
        python: The interpreter.
        checks: The extras of each environment, keys of CHECKS.
        folder: Folder for the environments, which need several GB.
    """
    environment = folder / "environment"
    bare = folder / "bare"
    own_python = make_environment(python, environment)
    install(own_python, str(wheel))
    environment.rename(bare)
    faults = []
    for extras in checks:
        # The copy has the name of the original, which its scripts hold. Files are shared by hard
        # links; pip replaces files, and changes none.
        run(["cp", "-al", bare, environment])
        start = time.perf_counter()
        if extras:
            install(own_python, f"simplexcal[{extras}] @ {wheel.as_uri()}")
        fault = _smoke(own_python, extras, folder / "work")
        seconds = time.perf_counter() - start
        print(f"{python} [{extras}]: {fault or 'passed'}, {seconds:.0f} s", flush=True)
        if fault:
            faults.append(f"{python}, extras [{extras}]: {fault}")
        shutil.rmtree(environment)
    return faults


def make_environment(python: str, folder: Path) -> Path:
    """Return the interpreter of a new virtual environment without any package.

    Args:
        python: The interpreter that it is made with.
        folder: Its folder.
    """
    run([python, "-m", "venv", "--without-pip", folder])
    return folder / "bin" / "python"


def install(python: Path, *requirements: str) -> None:
    """Install requirements in the versions of constraints.txt.

    Args:
        python: The interpreter of an environment, which needs no pip of its own.
        *requirements: What to install.
    """
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    run([*pip, "--disable-pip-version-check", "--constraint", CONSTRAINTS, *requirements])


def run(command: Sequence[str | Path], **settings: object) -> None:
    """Run a command, whose failure is an error.

    Args:
        command: The words of the command.
        **settings: Arguments of ``subprocess.run``.
    """
    subprocess.run([str(word) for word in command], check=True, **settings)  # type: ignore[call-overload]


def _smoke(python: Path, extras: str, work: Path) -> str | None:
    """Return the last line of what fails in an empty folder, or None."""
    work.mkdir()
    script = Path(__file__).with_name("smoke.py")
    environment = {name: x for name, x in os.environ.items() if not name.startswith("PYTHON")}
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment['PATH']}"
    command = [str(python), "-I", str(script), extras, str(ROOT)]
    done = subprocess.run(
        command, cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    shutil.rmtree(work)
    if done.returncode == 0:
        return None
    print(done.stdout + done.stderr)
    return (done.stderr.strip().splitlines() or ["it failed silently"])[-1]


def _constraints() -> dict[str, str]:
    return {"PIP_CONSTRAINT": str(CONSTRAINTS)}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Builds the packages and tries them.")
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="Interpreters.")
    parser.add_argument("--extras", nargs="+", default=list(CHECKS), choices=CHECKS, help="All.")
    parser.add_argument("--repository", help="Address that the metadata must name as the source.")
    parser.add_argument("--tag", help="Tag of the release, which must be that of the version.")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
