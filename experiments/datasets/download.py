"""Fetch the data sets that have a fixed address from their authors' own sites, and check what came.

The checksums are those that the authors publish, and for SVHN and STL-10 those on which public libraries agree.
notMNIST, Tiny-ImageNet and LSUN have no such file: put them where ``experiments.data`` says.
"""

import tarfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
TORONTO = "https://www.cs.toronto.edu/~kriz"
STANFORD = "http://ai.stanford.edu/~acoates/stl10"


class Remote(NamedTuple):
    """A file on the web, where it belongs, and what is wanted of it if it is an archive."""

    url: str
    md5: str
    folder: str = "."
    members: tuple[str, ...] = ()


FILES: dict[str, tuple[Remote, ...]] = {
    "fashion-mnist": tuple(
        Remote(f"{FASHION}/{name}-ubyte.gz", md5, "fashion-mnist")
        for name, md5 in {
            "train-images-idx3": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1": "bb300cfdad3c16e7a12a480ee83cd310",
        }.items()
    ),
    "cifar10": (
        Remote(
            f"{TORONTO}/cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            members=(
                *(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)),
                "cifar-10-batches-bin/test_batch.bin",
            ),
        ),
    ),
    "cifar100": (
        Remote(
            f"{TORONTO}/cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
            members=tuple(
                f"cifar-100-binary/{name}"
                for name in ("train.bin", "test.bin", "fine_label_names.txt")
            ),
        ),
    ),
    "stl10": (
        Remote(
            f"{STANFORD}/stl10_binary.tar.gz",
            "91f7769df0f17e558f3565bffb0c7dfb",
            members=tuple(
                f"stl10_binary/{name}.bin" for name in ("train_X", "train_y", "test_X", "test_y")
            ),
        ),
    ),
    "svhn": (
        Remote(
            "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
            "eb5a983be6a315427106f1b164d9cef3",
            "svhn",
        ),
    ),
}


def download(name: str, folder: Path) -> None:
    """Fetch a data set into the layout of ``experiments.data``; what is there already and whole is kept."""
    if name not in FILES:
        raise ValueError(f"`name` must be one of {', '.join(FILES)}; got {name!r}.")
    if find_spec("pooch") is None:
        raise ImportError("Downloading needs pooch, which is not installed. Run: pip install pooch")
    for remote in FILES[name]:
        path = _retrieve(remote, folder / remote.folder)
        if remote.members:
            _unpack(path, folder, remote.members)


def _retrieve(remote: Remote, folder: Path) -> Path:
    pooch: Any = import_module("pooch")
    name = PurePosixPath(remote.url).name
    return Path(
        pooch.retrieve(
            remote.url, known_hash=f"md5:{remote.md5}", fname=name, path=folder, progressbar=False
        )
    )


def _unpack(archive: Path, folder: Path, members: tuple[str, ...]) -> None:
    """Write these members of an archive, and no others: of STL-10's 2.9 GB the unlabelled images are most."""
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name.removeprefix("./") in members:
                tar.extract(member, folder, filter="data")
