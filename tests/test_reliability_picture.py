"""The README's picture shows the demo's figures, as the README says them."""

import importlib
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

mpl.use("Agg")

# A plain import would give mypy the file under two names.
picture: Any = importlib.import_module("benchmarks.reliability_picture")
README = (Path(__file__).parents[1] / "README.md").read_text()


@pytest.mark.long
def test_the_picture_has_the_figures_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture, "PICTURE", tmp_path / "picture.png")
    titles: list[str] = []
    draw = picture.draw

    def draw_and_keep(ax: Any, *rest: Any) -> None:
        draw(ax, *rest)
        titles.append(ax.get_title(loc="left"))

    monkeypatch.setattr(picture, "draw", draw_and_keep)
    picture.main()
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    text = README.split("The network's ECE is")[1].split("On one network")[0]
    shown = [float(x) for x in re.findall(r"0\.\d{4}|\d\.\d\d(?= %)", text.replace("\n", " "))]
    eces, nlls = shown[:4], shown[4:]
    assert len(nlls) == 4
    for title, ece, nll in zip(titles, (eces[0], eces[3]), (nlls[0], nlls[3]), strict=True):
        found = re.search(r"ECE ([\d.]+)%, NLL ([\d.]+)$", title)
        assert found is not None
        # Another processor may change the last digit.
        assert float(found[1]) == pytest.approx(ece, abs=0.03)
        assert float(found[2]) == pytest.approx(nll, abs=3e-4)
