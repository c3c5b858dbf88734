"""Pages whose code runs while the site is built: what is shown is what the code gives."""

import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from tools.website import execution
from tools.website.hooks import EXECUTED

WIDTH = 84  # columns that a page of the site shows without scrolling
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [p for p in sorted(DOCS.rglob("*.md")) if EXECUTED.fullmatch(str(p.relative_to(DOCS)))]


def rendered(text: str, tmp_path: Path) -> str:
    folder = tmp_path / "made"
    folder.mkdir(parents=True)
    page = tmp_path / "page.md"
    page.write_text(text)
    return execution.render(page, folder)


def test_output_follows_its_block_and_names_are_kept(tmp_path: Path) -> None:
    text = rendered(
        "A\n```python\nx = 2\n```\nB\n```python\nprint(x + 1)\n```\n"
        "```sh\necho four > file; cat file\n```\n```console\nnot run\n```\n",
        tmp_path,
    )
    assert text == (
        "A\n```python\nx = 2\n```\nB\n```python\nprint(x + 1)\n```\n\n"
        "```{.text .output .wrapped}\n3\n```\n"
        "```sh\necho four > file; cat file\n```\n\n```{.text .output .wrapped}\nfour\n```\n"
        "```console\nnot run\n```\n"
    )


@pytest.mark.parametrize("printed", ["| a | b |", "name  1", "a: 1\nb    2"])
def test_columns_are_not_wrapped(printed: str) -> None:
    assert execution.output(printed) == f"```{{.text .output}}\n{printed}\n```\n"


def test_a_block_with_a_title_becomes_a_file(tmp_path: Path) -> None:
    page = '```python title="two.py"\nprint(1 + 1)\n```\n```sh\npython two.py\n```\n'
    assert "```{.text .output .wrapped}\n2\n```" in rendered(page, tmp_path)
    assert (tmp_path / "made" / "two.py").read_text() == "print(1 + 1)\n"


def test_the_container_of_the_service_has_what_the_service_imports() -> None:
    text = (DOCS / "tutorials" / "serving.md").read_text()
    files = {b["file"]: b["code"] for b in execution.BLOCK.finditer(text) if b["file"]}
    modules = re.findall(r"^(?:import|from) (\w+)", files["serve.py"], re.MULTILINE)
    installed = re.findall(r"^RUN pip install .*?((?: \w+)+)$", files["Dockerfile"], re.MULTILINE)
    assert set(modules) - sys.stdlib_module_names == set(installed[0].split())
    assert "COPY serve.py net.onnx ./" in files["Dockerfile"]
    assert 'InferenceSession("net.onnx")' in files["serve.py"]


def test_figures_are_saved_with_their_titles(tmp_path: Path) -> None:
    block = "import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\n"
    text = rendered(f"```python\n{block}plt.figure().gca().set_title('T')\n```\n", tmp_path)
    assert "![T](page-figure-1.png)" in text
    assert (tmp_path / "made" / "page-figure-1.png").read_bytes().startswith(b"\x89PNG")


def test_an_error_names_the_line_of_the_page(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as error:
        rendered("A\n\n```python\nx = 1\nx / 0\n```\n", tmp_path)
    assert error.traceback[-1].lineno == 4  # counted from 0
    with pytest.raises(subprocess.CalledProcessError):
        rendered("```sh\nfalse\n```\n", tmp_path / "again")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_each_page_is_python(page: Path) -> None:
    blocks = re.findall(r"^```python\b.*?\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for block in blocks:
            compile(block, page.name, "exec")
            assert max(map(len, block.splitlines())) <= WIDTH


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_page_runs_without_a_warning(page: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.website.execution", str(page), str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT)
    assert "```{.text .output" in (tmp_path / "page.md").read_text()
