"""What the README and the guide say runs as it stands there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch
from helpers.user_files import write

from simplexcal.demo import run as showcase
from simplexcal.demo.fashion_mnist import images_and_labels
from simplexcal.demo.lenet5 import normalise

mpl.use("Agg")

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs" / "guide.md").read_text() + (ROOT / "docs" / "serving.md").read_text()
PYTHON = re.findall(
    r"```python\n(.*?)```", README + (ROOT / "docs" / "guide.md").read_text(), re.DOTALL
)
SHELL = re.findall(r"```sh\n(.*?)```", README + GUIDE, re.DOTALL)
COMMANDS = [block for block in SHELL if block.startswith("simplexcal ")]


@pytest.mark.parametrize("block", PYTHON)
def test_python_blocks_run(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(block, "README.md", "exec"), {})


@pytest.fixture
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that the commands take for granted: outputs and inputs of the demo's network."""
    data, (images, labels) = showcase.prepare(), images_and_labels()
    halves = {"val": (data.fit, data.fit_labels), "test": (data.test, data.test_labels)}
    for name, (outputs, y) in halves.items():
        np.savez(
            tmp_path / f"{name}.npz", logits=outputs.logits[:500].numpy(), labels=y[:500].numpy()
        )
    write(tmp_path / "rows.parquet", {"logits": data.test.logits[:500].numpy()})
    np.savez(
        tmp_path / "inputs.npz", inputs=normalise(images[:500]).numpy(), labels=labels[:500].numpy()
    )
    shutil.copy(Path(showcase.__file__).with_name("lenet5.safetensors"), tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as tests/conftest.py has it for this process
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.long
@pytest.mark.usefixtures("own_files")
def test_commands_run_as_they_stand() -> None:
    for block in COMMANDS:
        done = subprocess.run(["bash", "-ec", block], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), block
    assert Path("report.html").exists()


def test_the_commands_are_there() -> None:
    assert PYTHON
    shown = {line.split()[1] for block in COMMANDS for line in block.splitlines() if line}
    assert shown == {"calibrate", "predict", "evaluate", "report", "export", "score"}
    assert all(
        line.split()[0] in ("simplexcal", "make")
        for block in SHELL
        for line in block.splitlines()
        if line
    )


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make (\w+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_links_lead_somewhere() -> None:
    for folder, text in ((ROOT, README), (ROOT / "docs", GUIDE)):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            assert (folder / target).exists(), target
