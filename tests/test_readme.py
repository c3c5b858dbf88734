"""The documentation: its code runs as it stands, its links lead somewhere, its API map is whole."""

import importlib
import re
import shlex
from pathlib import Path

import matplotlib as mpl
import pytest
import torch
from tools.website.hooks import EXECUTED

import simplexcal
from simplexcal import cli

mpl.use("Agg")

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted(DOCS.rglob("*.md")),
]
README = (ROOT / "README.md").read_text()
GUIDE = sorted((DOCS / "guide").glob("*.md"))
SERVING = DOCS / "serving.md"
API = (DOCS / "api.md").read_text()
PYTHON = {
    f"{page.stem}-{i}": block
    for page in [ROOT / "README.md", *GUIDE]
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL), 1)
}
SHELL = [
    block
    for page in [ROOT / "README.md", *GUIDE, SERVING]
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
]
# Pages with blocks that nothing runs, and why.
ILLUSTRATIONS = {
    "docs/installation.md": "they install the package, which `make` does before any test",
    "docs/results/dense.md": "they train a network on data that are fetched",
    "docs/results/ood.md": "they train networks on data that are fetched",
    "docs/results/rivals.md": "they compare packages on data that are fetched",
    "docs/results/shift.md": "they run networks on data that are fetched",
    "docs/results/third-party.md": "they are what scripts in examples/ have printed",
    "docs/results/text.md": "they are what scripts in examples/ have printed",
}
# A network that the reader has: tests/cli/test_cli_dense.py runs such commands.
OWN_NETWORK = "streets:UNet"
COMMANDS = [
    block for block in SHELL if block.startswith("simplexcal ") and OWN_NETWORK not in block
]
LIBRARIES = ["huggingface", "lightning", "mlflow", "torchmetrics"]
DOCUMENTED = ["", ".metrics", ".io", ".plots", ".onnx", ".sklearn", ".report", ".scoring", ".demo"]
DOCUMENTED += [f".integrations.{name}" for name in LIBRARIES]


def lines_of(blocks: list[str]) -> list[str]:
    """Return the commands of shell blocks, each with its continuation lines."""
    joined = "\n".join(blocks).replace("\\\n", " ")
    return [line for line in joined.splitlines() if line]


@pytest.mark.parametrize("block", PYTHON.values(), ids=PYTHON)
def test_python_blocks_run(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(block, "README.md", "exec"), {})


@pytest.mark.long
def test_commands_run_as_they_stand_from_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in lines_of(COMMANDS):
        # In this process, since an import of torch takes longer than most commands.
        assert cli.main(shlex.split(line, comments=True)[1:]) == 0, line
        printed = capfd.readouterr()
        assert printed.err == "", line
        assert printed.out, line
    assert Path("report.html").exists()


def test_the_commands_are_there() -> None:
    assert PYTHON
    shown = {line.split()[1] for line in lines_of(COMMANDS)}
    assert shown == set(cli.COMMANDS)
    assert {line.split()[0] for line in lines_of(SHELL)} == {"simplexcal", "make"}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_of_code_is_run_or_an_illustration(page: Path) -> None:
    kinds = set(re.findall(r"^```(.*)\n(?:.*\n)*?```$", page.read_text(), re.MULTILINE))
    is_run_here = page in [ROOT / "README.md", *GUIDE]
    is_run_by_the_site = DOCS in page.parents and EXECUTED.fullmatch(
        page.relative_to(DOCS).as_posix()
    )
    if is_run_by_the_site:  # A block with a title becomes a file of that name.
        kinds = {kind for kind in kinds if "title=" not in kind}
    if is_run_here or is_run_by_the_site or page == SERVING:  # tests/cli/test_export.py
        kinds -= {"python", "sh"}
    assert bool(kinds) == (page.relative_to(ROOT).as_posix() in ILLUSTRATIONS)
    assert not kinds & {"python", "sh"}


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make (\w+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        is_made_by_the_page = f"-o {target}" in text
        assert is_made_by_the_page or (page.parent / target).exists(), target


@pytest.mark.parametrize("module", DOCUMENTED)
def test_the_api_map_names_every_public_name(module: str) -> None:
    public = importlib.import_module(f"simplexcal{module}")
    names = [name for name in vars(public) if not name.startswith("_")]
    own = [name for name in names if is_own(getattr(public, name), public.__name__)]
    assert own
    assert [name for name in own if not re.search(rf"\b{name}\b", API)] == []


def is_own(value: object, module: str) -> bool:
    """Return whether a function or class is defined in the package or module that exports it."""
    home = getattr(value, "__module__", "")
    return callable(value) and home.startswith(module) and simplexcal.__name__ in home
