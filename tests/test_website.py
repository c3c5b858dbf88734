"""The documentation site: its navigation, its reference, its links."""

import importlib
from pathlib import Path
from typing import Any

import griffe
import pytest
from tools.website import check, hooks, links, mathematics, navigation, reference

import simplexcal

ROOT = Path(__file__).parents[1]
SECTIONS = reference.sections((ROOT / "docs" / "api.md").read_text())
NAMES = [name for section in SECTIONS for name in section.names]


def test_the_reference_has_every_public_name_of_the_package_and_no_other() -> None:
    top = [name.removeprefix("simplexcal.") for name in NAMES if name.count(".") == 1]
    assert sorted(top) == sorted(simplexcal.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_each_name_of_the_reference_exists(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)


@pytest.fixture(scope="module")
def parsed() -> Any:
    """The package as mkdocstrings reads it."""
    return griffe.load("simplexcal", search_paths=[ROOT / "src"], docstring_parser="google")


@pytest.mark.parametrize("name", NAMES)
def test_the_entry_of_each_name_describes_all_its_arguments(name: str, parsed: Any) -> None:
    entry = parsed[name.removeprefix("simplexcal.")]
    shown = [m for key, m in entry.members.items() if m.is_function and key[0] != "_"]
    for function in [entry, *shown]:
        assert undescribed(function) == set(), function.path


def undescribed(entry: Any) -> set[str]:
    """Return the arguments that the entry of a function or class shows without a description."""
    if entry.is_attribute:
        return set()
    sections = entry.docstring.parsed
    tables = [s.value for s in sections if s.kind.value in ("parameters", "attributes")]
    described = {argument.name.lstrip("*") for table in tables for argument in table}
    return {argument.name for argument in entry.parameters} - described - {"self", "cls"}


def test_an_argument_without_a_description_is_found() -> None:
    code = 'def f(a, b):\n    """Do.\n\n    Args:\n        a: One.\n    """\n'
    with griffe.temporary_visited_module(code, docstring_parser="google") as module:
        assert undescribed(module["f"]) == {"b"}


def test_each_name_has_one_entry() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert len({section.page for section in SECTIONS}) == len(SECTIONS)


def test_a_section_becomes_a_page_with_docstrings() -> None:
    (section,) = reference.sections(
        "# API\n\n## Some things\n\n`from some.where import …`\n\n| `a`, `B` | two `c` |\n"
    )
    assert section.page == "api/some-things.md"
    assert section.names == ["some.where.a", "some.where.B"]
    assert "| [`a`][some.where.a], [`B`][some.where.B] | two `c` |" in section.reference
    assert "::: some.where.a\n" in section.reference


def test_a_folder_stands_for_its_pages_and_nothing_is_left_out() -> None:
    pages = {
        "index.md": "",
        "new.md": "",
        "r/a.md": "",
        "r/b.md": "",
        "r/c.md": "",
        "r/index.md": "[c](c.md) and [b](b.md#place), [the home](../index.md)",
        "s.md": "[two](s/two.md)",
        "s/one.md": "",
        "s/two.md": "",
    }
    nav = ["index.md", {"Results": ["r/"]}, {"S": ["s.md", "s/"]}]
    assert navigation.expand(nav, pages) == [
        "index.md",
        {"Results": ["r/index.md", "r/c.md", "r/b.md", "r/a.md"]},
        {"S": ["s.md", "s/two.md", "s/one.md"]},
        {"More": ["new.md"]},
    ]


def test_links_lead_to_the_site_or_are_words() -> None:
    text = "[a](docs/a.md#x) [src](src/a.py) [log](CHANGELOG.md) [web](https://a.b) [here](#x)"
    expected = "[a](a.md#x) src [log](changelog.md) [web](https://a.b) [here](#x)"
    assert links.for_site(text, "README.md") == expected
    text = "[b.md](../b.md) [`x`](../../src/x.py) [log](../../CHANGELOG.md) ![c](c.png)"
    adapted = links.for_site(text, "docs/results/a.md", {"b.md": "Bees"}.get)
    assert adapted == "[Bees](../b.md) `x` [log](../changelog.md) ![c](c.png)"


def test_formulas_become_mathml() -> None:
    page = '<p><span class="arithmatex">\\(a &lt; b\\)</span></p>'
    assert mathematics.typeset(page).count("<math") == 1
    assert "arithmatex" not in mathematics.typeset(page)
    page = '<div class="arithmatex">\\[\nE[\\pi]\n\\]</div>'
    assert 'display="block"' in mathematics.typeset(page)


def test_broken_links_and_other_hosts_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="#here">1</a> <a href="#there">2</a> <a href="b.html#x">3</a>'
        '<a href="c.html">4</a> <a href="https://a.b">5</a> <img src="https://a.b/c.png">'
    )
    (tmp_path / "b.html").write_text('<p id="x"><a href="a.html#here">1</a>')
    found = list(check.faults(tmp_path))
    assert len(found) == 3
    assert "#there" in found[0]
    assert "c.html" in found[1]
    assert "loads https://a.b/c.png" in found[2]


def test_names_in_formulas_have_thin_spaces() -> None:
    assert mathematics.SPACE in mathematics.mathml(r"K \ln \lambda")
    assert mathematics.mathml(r"\ln x").count(mathematics.SPACE) == 1
    assert mathematics.SPACE not in mathematics.mathml(r"\ln(x)")
    assert "<msub><mi>max</mi><mi>i</mi></msub>" in mathematics.mathml(r"\max_i (x)")


def test_numbers_stay_with_their_signs_but_code_is_not_touched() -> None:
    space = "\N{NO-BREAK SPACE}"
    page = "<td>95 % or 1 ± 2 % of a</td><pre><code>5 % 2</code></pre><p>3 % <code>3 % 2</code>"
    kept = page.replace("95 %", f"95{space}%").replace("1 ± 2 %", f"1 ±{space}2{space}%")
    assert hooks.keep_together(page) == kept.replace("<p>3 %", f"<p>3{space}%")
