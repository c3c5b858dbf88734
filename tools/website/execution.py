"""Run the code of a page, and write the page with what the code prints and draws.

usage: python -m tools.website.execution PAGE FOLDER

Python blocks share one namespace, and the commands of shell blocks run in the same empty folder. A
block with a title becomes the file of that name there. A warning is an error, as in the tests.
FOLDER then holds ``page.md`` and the figures.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

BLOCK = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<file>[^"\n]+)")?\n(?P<code>.*?)^```\n',
    re.DOTALL | re.MULTILINE,
)
OUTPUT = "```{{.text .output{}}}\n{}\n```\n"
COLUMNS = re.compile(r"\||\S  +\S")


def render(page: Path, folder: Path) -> str:
    """Return the text of a page with output after each block of code.

    Args:
        page: The Markdown file.
        folder: An empty folder for the files that the page makes. Figures are written there too.
    """
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    parts = []
    end = 0
    with contextlib.chdir(folder):
        for block in BLOCK.finditer(text):
            parts.append(text[end : block.end()])
            end = block.end()
            printed = run(block, page, namespace)
            if printed.strip():
                parts.append("\n" + output(printed))
            parts += [f"\n{figure}\n" for figure in save_figures(page.stem)]
    parts.append(text[end:])
    return "".join(parts)


def output(printed: str) -> str:
    """Return what a block has printed as Markdown. Lines are wrapped if nothing is in columns.

    Args:
        printed: The text.
    """
    wrapped = ""
    if not COLUMNS.search(printed):
        wrapped = " .wrapped"
    return OUTPUT.format(wrapped, printed.strip("\n"))


def run(block: re.Match[str], page: Path, namespace: dict[str, Any]) -> str:
    """Run a block, or write it to its file, and return what it prints.

    Args:
        block: A match of BLOCK.
        page: The Markdown file.
        namespace: The names that the blocks of a page share.
    """
    code = block["code"]
    if block["file"]:
        Path(block["file"]).write_text(code, encoding="utf-8")
        return ""
    if block["language"] == "sh":
        return run_shell(code)
    if block["language"] == "python":
        # Empty lines before the code, so that a traceback names the line of the page.
        before = "\n" * block.string.count("\n", 0, block.start("code"))
        return run_python(compile(before + code, str(page), "exec"), namespace)
    return ""


def run_python(code: Any, namespace: dict[str, Any]) -> str:
    """Run a block and return what it prints.

    Args:
        code: The compiled block.
        namespace: The names that the blocks of a page share.
    """
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    return printed.getvalue()


def run_shell(commands: str) -> str:
    """Run commands and return what they print.

    Args:
        commands: Lines for bash. The first that fails ends the page with an error.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PATH": path},
    )
    return done.stdout


def save_figures(stem: str) -> list[str]:
    """Save the open figures of matplotlib, close them and return them as Markdown.

    Args:
        stem: The beginning of the names of the files.
    """
    if "matplotlib.pyplot" not in sys.modules:
        return []
    pyplot = sys.modules["matplotlib.pyplot"]
    found = []
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        index = len(list(Path().glob(f"{stem}-figure-*.png"))) + 1
        name = f"{stem}-figure-{index}.png"
        figure.savefig(name, dpi=120, bbox_inches="tight")
        titles = [axes.get_title() or axes.get_ylabel() for axes in figure.axes]
        found.append(f"![{'; '.join(title for title in titles if title)}]({name})")
    pyplot.close("all")
    return found


def main(page: str, folder: str) -> None:
    """Write the page with its output to ``page.md`` in the folder.

    Args:
        page: The Markdown file.
        folder: An empty folder.
    """
    warnings.simplefilter("error", UserWarning)
    os.environ["MPLBACKEND"] = "Agg"
    # Several threads wait for each other where other work is done (benchmarks/fit_threads.py).
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    target = Path(folder).resolve()
    text = render(Path(page).resolve(), target)
    (target / "page.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
