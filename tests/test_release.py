"""What a release states: one version, the Pythons, and a check for each extra."""

import zipfile
from pathlib import Path

import pytest
import yaml
from tools.release import metadata, smoke

import simplexcal

ROOT = Path(__file__).parents[1]
FOR_DEVELOPERS = {"dev", "docs", "examples", "experiments", "rivals"}
VALID = f"""Metadata-Version: 2.4
Name: simplexcal
Summary: S
License-Expression: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.11
Description-Content-Type: text/markdown
Project-URL: Homepage, https://a.b
Project-URL: Paper, https://a.b/c
Project-URL: Source, https://a.b/d
{"".join(f"Classifier: Programming Language :: Python :: {p}{chr(10)}" for p in metadata.PYTHONS)}
Text
"""


def make_wheel(folder: Path, text: str) -> Path:
    wheel = folder / "simplexcal-0.2.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("simplexcal-0.2.0.dist-info/METADATA", text)
    return wheel


def test_the_version_is_the_same_everywhere(tmp_path: Path) -> None:
    assert metadata.text_faults(ROOT) == []
    assert metadata.own_version(ROOT) == simplexcal.__version__
    (tmp_path / "src" / "simplexcal").mkdir(parents=True)
    (tmp_path / "src" / "simplexcal" / "_version.py").write_text('__version__ = "9.9"\n')
    for name in ("CITATION.cff", "CHANGELOG.md", "LICENSE"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    assert metadata.text_faults(tmp_path) == [
        "CITATION.cff does not have version 9.9",
        "CHANGELOG.md does not begin with version 9.9",
        "SECURITY.md is missing",
    ]


def test_every_extra_for_users_is_tried() -> None:
    tried = {extra for extras in smoke.CHECKS for extra in extras.split(",") if extra}
    assert tried == set(metadata.extras(ROOT)) - FOR_DEVELOPERS
    assert "" in smoke.CHECKS


def test_whole_metadata_have_no_fault(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, VALID)
    assert metadata.metadata_faults(wheel) == []
    assert metadata.publication_faults(ROOT, wheel, "https://a.b/d", None) == []
    assert metadata.publication_faults(ROOT, wheel, None, None) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (":: 3.14", ":: 3.15", "no classifier for Python 3.14"),
        (">=3.11", ">=3.9", "Requires-Python is >=3.9, not >=3.11"),
        ("Paper,", "Book,", "no project URL Paper"),
        ("Summary: S\n", "", "no Summary"),
    ],
)
def test_faults_of_metadata_are_found(tmp_path: Path, old: str, new: str, fault: str) -> None:
    assert metadata.metadata_faults(make_wheel(tmp_path, VALID.replace(old, new))) == [fault]


def test_what_stands_against_publishing_is_found(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, VALID)
    (fault,) = metadata.publication_faults(ROOT, wheel, "https://x.y", None)
    assert "Source is https://a.b/d, not https://x.y" in fault
    faults = metadata.publication_faults(ROOT, wheel, None, "v9.9")
    assert f"the tag is v9.9, not v{simplexcal.__version__}" in faults


def test_the_workflows_run_all_pythons() -> None:
    folder = ROOT / ".github" / "workflows"
    ci = yaml.safe_load((folder / "ci.yml").read_text())
    assert ci["jobs"]["test"]["strategy"]["matrix"]["python"] == list(metadata.PYTHONS)
    release = yaml.safe_load((folder / "release.yml").read_text())
    (command,) = [step["run"] for step in release["jobs"]["check"]["steps"] if "run" in step]
    assert [word[6:] for word in command.split() if word.startswith("python3")] == list(
        metadata.PYTHONS
    )
    publish = release["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert "password" not in str(publish)
