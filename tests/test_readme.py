"""What the README and the guide say runs as it stands there."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs" / "guide.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README + GUIDE, re.DOTALL)


@pytest.mark.parametrize("block", PYTHON)
def test_python_blocks_run(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(block, "README.md", "exec"), {})


def test_there_is_a_quickstart() -> None:
    assert PYTHON


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make (\w+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_links_lead_somewhere() -> None:
    for folder, text in ((ROOT, README), (ROOT / "docs", GUIDE)):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            assert (folder / target).exists(), target
