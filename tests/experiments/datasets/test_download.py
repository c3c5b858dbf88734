"""Downloads without a network: a stand-in for pooch fetches from a folder and checks the files."""

import hashlib
import io
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest
from experiments.datasets import download, loading


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that stands for the web."""
    files = tmp_path / "web"
    files.mkdir()

    def retrieve(url: str, known_hash: str, fname: str, path: Path, progressbar: bool) -> str:
        assert not progressbar
        source, target = files / PurePosixPath(url).name, Path(path) / fname
        assert known_hash == f"md5:{hashlib.md5(source.read_bytes()).hexdigest()}"
        target.parent.mkdir(parents=True, exist_ok=True)
        return str(shutil.copy(source, target))

    monkeypatch.setattr(download, "find_spec", lambda _: True)
    monkeypatch.setattr(download, "import_module", lambda _: SimpleNamespace(retrieve=retrieve))
    return files


def publish(path: Path, content: bytes, remote: download.RemoteFile) -> download.RemoteFile:
    """Put a file on the stand-in web, and return where it is to be had."""
    path.write_bytes(content)
    return remote._replace(url=f"http://x/{path.name}", md5=hashlib.md5(content).hexdigest())


def archive(members: dict[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return raw.getvalue()


def test_an_archive_is_unpacked_where_load_reads_it(
    web: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (known,) = download.FILES["stl10"]
    content = {
        "stl10_binary/train_X.bin": bytes(3 * 96 * 96),
        "stl10_binary/train_y.bin": b"\x01",
        "stl10_binary/test_X.bin": bytes(3 * 96 * 96),
        "stl10_binary/test_y.bin": b"\x02",
        "stl10_binary/unlabeled_X.bin": b"large",
    }
    remote = publish(web / "stl10_binary.tar.gz", archive(content), known)
    monkeypatch.setitem(download.FILES, "stl10", (remote,))
    download.download("stl10", tmp_path / "data")
    assert loading.load("stl10", tmp_path / "data").test_labels.tolist() == [1]
    assert not (tmp_path / "data" / "stl10_binary" / "unlabeled_X.bin").exists()


def test_single_files_come_where_load_reads_them(
    web: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = [publish(web / "test_32x32.mat", b"digits", known) for known in download.FILES["svhn"]]
    monkeypatch.setitem(download.FILES, "svhn", tuple(digits))
    download.download("svhn", tmp_path)
    assert (tmp_path / "svhn" / "test_32x32.mat").read_bytes() == b"digits"


def test_every_file_that_load_reads_is_fetched() -> None:
    names = {PurePosixPath(remote.url).name for remote in download.FILES["fashion-mnist"]}
    parts = ("images-idx3", "labels-idx1")
    assert names == {f"{split}-{part}-ubyte.gz" for split in ("train", "t10k") for part in parts}
    assert set(download.FILES) == {*loading.DATASETS, "svhn"}
    assert len({remote.md5 for remotes in download.FILES.values() for remote in remotes}) == 8


def test_what_has_no_fixed_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="one of fashion-mnist, cifar10, cifar100, stl10, svhn; got 'lsun'"
    ):
        download.download("lsun", tmp_path)


def test_without_pooch_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match="pip install pooch"):
        download.download("svhn", tmp_path)
