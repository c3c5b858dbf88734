import sys

import pytest

from simplexcal._progress import track


def test_items_pass_through_and_the_bar_is_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track(range(3), "Working")) == [0, 1, 2]
    out, err = capsys.readouterr()
    assert out == ""
    assert "Working" in err


def test_there_is_no_bar_where_rich_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    assert list(track(range(3), "Working")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")
