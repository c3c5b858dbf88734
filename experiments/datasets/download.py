"""Downloads of the data sets that have a fixed address, from their authors' own sites.

The checksums are those that the authors publish, and for SVHN and STL-10 those on which public
libraries agree. notMNIST, Tiny-ImageNet and LSUN have no such file: put them where
``experiments.datasets.loading`` expects them.
"""

import tarfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
TORONTO = "https://www.cs.toronto.edu/~kriz"
STANFORD = "http://ai.stanford.edu/~acoates/stl10"


class RemoteFile(NamedTuple):
    """A file on the web.

    Args:
        url: Its address.
        md5: Its checksum.
        folder: Where it belongs, relative to the folder of the data sets.
        members: The files to take out of it, if it is an archive.
    """

    url: str
    md5: str
    folder: str = "."
    members: tuple[str, ...] = ()


def _fashion_mnist(name: str, md5: str) -> RemoteFile:
    return RemoteFile(f"{FASHION}/{name}-ubyte.gz", md5, "fashion-mnist")


FILES: dict[str, tuple[RemoteFile, ...]] = {
    "fashion-mnist": (
        _fashion_mnist("train-images-idx3", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        _fashion_mnist("train-labels-idx1", "25c81989df183df01b3e8a0aad5dffbe"),
        _fashion_mnist("t10k-images-idx3", "bef4ecab320f06d8554ea6380940ec79"),
        _fashion_mnist("t10k-labels-idx1", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    "cifar10": (
        RemoteFile(
            f"{TORONTO}/cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            members=(
                "cifar-10-batches-bin/data_batch_1.bin",
                "cifar-10-batches-bin/data_batch_2.bin",
                "cifar-10-batches-bin/data_batch_3.bin",
                "cifar-10-batches-bin/data_batch_4.bin",
                "cifar-10-batches-bin/data_batch_5.bin",
                "cifar-10-batches-bin/test_batch.bin",
            ),
        ),
    ),
    "cifar100": (
        RemoteFile(
            f"{TORONTO}/cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
            members=(
                "cifar-100-binary/train.bin",
                "cifar-100-binary/test.bin",
                "cifar-100-binary/fine_label_names.txt",
            ),
        ),
    ),
    "stl10": (
        RemoteFile(
            f"{STANFORD}/stl10_binary.tar.gz",
            "91f7769df0f17e558f3565bffb0c7dfb",
            members=(
                "stl10_binary/train_X.bin",
                "stl10_binary/train_y.bin",
                "stl10_binary/test_X.bin",
                "stl10_binary/test_y.bin",
            ),
        ),
    ),
    "svhn": (
        RemoteFile(
            "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
            "eb5a983be6a315427106f1b164d9cef3",
            "svhn",
        ),
    ),
}


def download(name: str, folder: Path) -> None:
    """Fetch a data set into the layout of ``experiments.datasets.loading``.

    Args:
        name: A key of ``FILES``.
        folder: The folder of the data sets. Whole files that are there already are kept.

    Raises:
        ImportError: If pooch is not installed.
        ValueError: If the name is unknown.
    """
    if name not in FILES:
        raise ValueError(f"`name` must be one of {', '.join(FILES)}; got {name!r}.")
    if find_spec("pooch") is None:
        raise ImportError("Downloading needs pooch, which is not installed. Run: pip install pooch")
    for remote in FILES[name]:
        path = _retrieve(remote, folder / remote.folder)
        if remote.members:
            _extract(path, folder, remote.members)


def _retrieve(remote: RemoteFile, folder: Path) -> Path:
    """Return the local copy of a file, after its checksum was compared."""
    pooch: Any = import_module("pooch")
    path = pooch.retrieve(
        remote.url,
        known_hash=f"md5:{remote.md5}",
        fname=PurePosixPath(remote.url).name,
        path=folder,
        progressbar=False,
    )
    return Path(path)


def _extract(archive: Path, folder: Path, members: tuple[str, ...]) -> None:
    """Write these members of an archive; most of STL-10's 2.9 GB are unlabelled images."""
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name.removeprefix("./") in members:
                tar.extract(member, folder, filter="data")
