"""What the packages and the texts beside them must say."""

import re
import tarfile
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
URLS = ("Homepage", "Paper")
# Files that a wheel must hold, and folders of the repository that it must not.
NEEDED = ("simplexcal/py.typed", "simplexcal/report/report.html.j2")
SDIST_NEEDED = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md")
MAX_MB = 10


def text_faults(root: Path) -> list[str]:
    """Return where the version is not the same everywhere, and which texts are missing.

    Args:
        root: The repository.
    """
    version = own_version(root)
    faults = []
    citation = (root / "CITATION.cff").read_text()
    if f"\nversion: {version}\n" not in citation:
        faults.append(f"CITATION.cff does not have version {version}")
    newest = re.search(r"^## (\S+)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if newest is None or newest[1] != version:
        faults.append(f"CHANGELOG.md does not begin with version {version}")
    missing = [name for name in ("SECURITY.md", "LICENSE") if not (root / name).exists()]
    return faults + [f"{name} is missing" for name in missing]


def metadata_faults(wheel: Path) -> list[str]:
    """Return what is wrong with the metadata of a wheel.

    Args:
        wheel: The wheel.
    """
    metadata = read_metadata(wheel)
    classifiers = metadata.get_all("Classifier") or []
    named = [x.removeprefix("Programming Language :: Python :: ") for x in classifiers]
    faults = [f"no classifier for Python {x}" for x in PYTHONS if x not in named]
    if metadata["Requires-Python"] != f">={PYTHONS[0]}":
        faults.append(f"Requires-Python is {metadata['Requires-Python']}, not >={PYTHONS[0]}")
    faults += [f"no project URL {name}" for name in URLS if name not in project_urls(metadata)]
    for name in ("Summary", "License-Expression", "License-File", "Description-Content-Type"):
        if not metadata[name]:
            faults.append(f"no {name}")
    return faults


def archive_faults(wheel: Path, sdist: Path) -> list[str]:
    """Return what the packages lack, or should not hold.

    Args:
        wheel: The wheel.
        sdist: The source distribution.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    with tarfile.open(sdist) as archive:
        sources = [name.partition("/")[2] for name in archive.getnames()]
    faults = [f"the wheel lacks {name}" for name in NEEDED if name not in names]
    faults += [f"the sdist lacks {name}" for name in SDIST_NEEDED if name not in sources]
    top = {name.partition("/")[0] for name in names}
    others = sorted(name for name in top if not name.startswith("simplexcal"))
    faults += [f"the wheel holds {name}" for name in others]
    for path in (wheel, sdist):
        size = path.stat().st_size / 1e6
        if size > MAX_MB:
            faults.append(f"{path.name} has {size:.1f} MB, more than {MAX_MB}")
    return faults


def publication_faults(
    root: Path, wheel: Path, repository: str | None, tag: str | None
) -> list[str]:
    """Return what stands against publishing a wheel; nothing is checked that is not known.

    Args:
        root: The repository.
        wheel: The wheel.
        repository: The address of the repository, to which the metadata must lead.
        tag: The tag of the release, such as v0.2.0.
    """
    faults = []
    source = project_urls(read_metadata(wheel)).get("Source")
    if repository is not None and source != repository:
        faults.append(f"the project URL Source is {source}, not {repository}: see pyproject.toml")
    if tag is None:
        return faults
    version = own_version(root)
    if tag != f"v{version}":
        faults.append(f"the tag is {tag}, not v{version}")
    if f"\n## {version} - unreleased\n" in (root / "CHANGELOG.md").read_text():
        faults.append(f"CHANGELOG.md calls {version} unreleased: give it its date")
    return faults


def read_metadata(wheel: Path) -> Message:
    """Return the metadata of a wheel.

    Args:
        wheel: The wheel.
    """
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [x for x in archive.namelist() if x.endswith(".dist-info/METADATA")]
        return message_from_string(archive.read(name).decode())


def project_urls(metadata: Message) -> dict[str, str]:
    """Return the project's addresses by their labels.

    Args:
        metadata: The metadata.
    """
    pairs = [url.partition(", ") for url in metadata.get_all("Project-URL") or []]
    return {label: url for label, _, url in pairs}


def own_version(root: Path) -> str:
    """Return the version that the package states.

    Args:
        root: The repository.
    """
    text = (root / "src" / "simplexcal" / "_version.py").read_text()
    found = re.search(r'__version__ = "([^"]+)"', text)
    if found is None:
        raise ValueError("src/simplexcal/_version.py states no version.")
    return found[1]


def extras(root: Path) -> list[str]:
    """Return the names of all extras.

    Args:
        root: The repository.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"])
