import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from simplexcal.backbone import extract
from simplexcal.io._atomic import atomic_write, check_output_path


def test_an_output_that_can_be_written_is_accepted(tmp_path: Path) -> None:
    data = tmp_path / "x.npz"
    data.touch()
    earlier = tmp_path / "y.csv"
    earlier.touch()
    for name in ("y.csv", "new.csv", "new.npz"):
        check_output_path(tmp_path / name, [".csv", ".npz"], [data])


def test_an_output_with_another_suffix_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^`output` must end in \.csv or \.npz; got '.*y\.txt'\.$"
    ):
        check_output_path(tmp_path / "y.txt", [".csv", ".npz"])


def test_an_output_without_a_place_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"^`output`: '.*nowhere' is no folder, .* Make it first\.$"
    ):
        check_output_path(tmp_path / "nowhere" / "y.csv", [".csv"])
    (tmp_path / "y.csv").mkdir()
    with pytest.raises(
        IsADirectoryError, match=r"^`output`: '.*y\.csv' is a folder\. Give the name of a file\.$"
    ):
        check_output_path(tmp_path / "y.csv", [".csv"])


def test_an_output_in_a_folder_that_is_read_only_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(PermissionError, match=r"^`output`: you may not write to '.*'\.$"):
        check_output_path(tmp_path / "y.csv", [".csv"])


def test_an_output_that_is_an_input_is_rejected_under_any_name(tmp_path: Path) -> None:
    data = tmp_path / "x.csv"
    data.touch()
    link = tmp_path / "link.csv"
    link.symlink_to(data)
    for output in (data, link):
        with pytest.raises(ValueError, match=r"^`output` '.*csv' is read by this call"):
            check_output_path(output, [".csv"], [data])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_device_or_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    with pytest.raises(FileExistsError, match=r"pipe\.csv' is a device or a pipe"):
        atomic_write(pipe, b"1")
    with pytest.raises(FileExistsError, match=r"^`output`: .*pipe\.csv' is a device or a pipe"):
        check_output_path(pipe, [".csv"])
    assert pipe.is_fifo()


def test_an_output_whose_name_is_too_long_is_rejected(tmp_path: Path) -> None:
    # The name has 128 letters, of two bytes each.
    with pytest.raises(ValueError, match=r"The name of '.*' has 260 bytes; .* most 255"):
        check_output_path(tmp_path / f"{'é' * 128}.npz", [".npz"])


@contextmanager
def small_files_only() -> Iterator[None]:
    """Let the system refuse to write more than 1000 bytes to a file, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_for_which_there_is_no_space_is_named(tmp_path: Path) -> None:
    path = tmp_path / "y.bin"
    with small_files_only(), pytest.raises(OSError, match="File too large") as caught:
        atomic_write(path, bytes(2000))
    assert caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []


def test_a_column_for_which_there_is_no_space_is_named(tmp_path: Path) -> None:
    data = torch.zeros(600, 4), torch.zeros(600, dtype=torch.long)
    with small_files_only(), pytest.raises(OSError, match=r"logits.bin' could not be written"):
        extract(nn.Linear(4, 3), data, storage=tmp_path)
