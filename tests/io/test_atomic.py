import os
from pathlib import Path

import pytest

from simplexcal.io._atomic import check_output_path


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


def test_an_output_whose_name_is_too_long_is_rejected(tmp_path: Path) -> None:
    # The name has 128 letters, of two bytes each.
    with pytest.raises(ValueError, match=r"The name of '.*' has 260 bytes; .* most 255"):
        check_output_path(tmp_path / f"{'é' * 128}.npz", [".npz"])
