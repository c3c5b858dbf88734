"""What mkdocs calls while it builds the site; mkdocs.yml names this file."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from tools.website import mathematics, navigation, reference

ROOT = Path(__file__).parents[2]
# Pages that lie outside docs/ in the repository.
OUTSIDE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
OUTSIDE_IF_THERE = {"SECURITY.md": "security.md"}
LINK = re.compile(r"\]\((?!\w+:|#)([^)#]+)(#[^)]*)?\)")

HEADING = re.compile(r"^# (.+)$", re.MULTILINE)
# A link that shows the name of a file, as is useful in the repository.
FILE_LINK = re.compile(r"\[([\w./-]+\.md|docs/[\w./-]+)\]\(([\w./-]+\.md)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files in docs/, and complete the navigation.

    Args:
        files: The files in docs/.
        config: The configuration.
    """
    for name, target in (OUTSIDE | OUTSIDE_IF_THERE).items():
        path = ROOT / name
        if path.exists() or name in OUTSIDE:
            content = move_links(path.read_text(encoding="utf-8"))
            files.append(File.generated(config, target, content=content))
    for section in reference.sections((ROOT / "docs" / "api.md").read_text(encoding="utf-8")):
        if section.names:
            # The text of the section links to pages in docs/, one folder up.
            content = re.sub(r"\]\((\w+\.md)", r"](../\1", section.reference)
            files.append(File.generated(config, section.page, content=content))
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    config.nav = navigation.expand(config.nav or [], texts)
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """Return the text of a page with links as the site needs them.

    Args:
        markdown: The text of the page.
        page: The page.
        files: All files of the site.
    """
    if page.file.src_uri == "api.md":
        markdown = link_names(markdown)
    for name, target in (OUTSIDE | OUTSIDE_IF_THERE).items():
        markdown = markdown.replace(f"../{name}", target)
    return name_titles(markdown, page.file, files)


def name_titles(markdown: str, file: File, files: Files) -> str:
    """Return a page in which links that show the name of a file show the title of its page.

    Args:
        markdown: The text of the page.
        file: The page.
        files: All files of the site.
    """

    def titled(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(file.src_uri), found[2]))
        target = files.get_file_from_path(path)
        heading = target and HEADING.search(target.content_string)
        if not heading:
            return found[0]
        return f"[{heading[1]}]({found[2]}"

    return FILE_LINK.sub(titled, markdown)


def link_names(markdown: str) -> str:
    """Return docs/api.md with each name linked to its docstring.

    Args:
        markdown: Its text.
    """
    before, _, _ = markdown.partition("\n## ")
    parts = [before]
    for section in reference.sections(markdown):
        title = section.title
        if section.names:
            title = f"[{title}]({section.page})"
        parts.append(f"## {title}\n{section.text}")
    return "\n".join(parts)


def on_page_content(html: str, **_: Any) -> str:
    """Typeset the formulas.

    Args:
        html: The body of a page.
    """
    return mathematics.typeset(html)


def move_links(text: str) -> str:
    """Return a page of the repository's root as a page of docs/.

    Links to docs/ lead to its pages. Other files of the repository are not on the site: of links to
    them the words are kept.

    Args:
        text: The Markdown of the page.
    """

    def moved(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        inside = OUTSIDE | OUTSIDE_IF_THERE
        if target in inside:
            return f"]({inside[target]}{anchor})"
        if target.startswith("docs/"):
            return f"]({target.removeprefix('docs/')}{anchor})"
        return f"](:{target})"

    text = LINK.sub(moved, text)
    return re.sub(r"\[([^\]]+)\]\(:[^)]*\)", r"\1", text)
