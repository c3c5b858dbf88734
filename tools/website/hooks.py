"""What mkdocs calls while it builds the site; mkdocs.yml names this file."""

import logging
import posixpath
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from tools.website import links, mathematics, navigation, reference

log = logging.getLogger("mkdocs.hooks")
ROOT = Path(__file__).parents[2]

# Pages whose code runs while the site is built. The tests run that of the others.
EXECUTED = re.compile(r"index\.md|quickstart\.md|tutorials/(?!index).*\.md")
HEADING = re.compile(r"^# (.+)$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files in docs/, and complete the navigation.

    Args:
        files: The files in docs/.
        config: The configuration.
    """
    for name, target in links.OUTSIDE.items():
        path = ROOT / name
        if path.exists():
            content = links.for_site(path.read_text(encoding="utf-8"), name)
            files.append(File.generated(config, target, content=content))
    for section in reference.sections((ROOT / "docs" / "api.md").read_text(encoding="utf-8")):
        if section.names:
            # The text of the section links to pages in docs/, one folder up.
            content = re.sub(r"\]\((\w+\.md)", r"](../\1", section.reference)
            files.append(File.generated(config, section.page, content=content))
    if config.extra["run_code"]:
        run_pages(files, config)
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    config.nav = navigation.expand(config.nav or [], texts)
    return files


def run_pages(files: Files, config: MkDocsConfig) -> None:
    """Run the code of the executed pages and put in what it prints and draws.

    Args:
        files: The files of the site; figures are added.
        config: The configuration.
    """
    for file in list(files.documentation_pages()):
        if not EXECUTED.fullmatch(file.src_uri):
            continue
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            page = str(file.abs_src_path)
            command = [sys.executable, "-m", "tools.website.execution", page, folder]
            subprocess.run(command, check=True, cwd=ROOT)
            log.info("%s ran in %.0f s", file.src_uri, time.perf_counter() - start)
            made = Path(folder)
            file.content_string = (made / "page.md").read_text(encoding="utf-8")
            for path in [*made.glob("*.png"), *made.glob("*.html")]:
                target = posixpath.join(posixpath.dirname(file.src_uri), path.name)
                files.append(File.generated(config, target, content=path.read_bytes()))


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """Return the text of a page with links as the site needs them.

    Args:
        markdown: The text of the page.
        page: The page.
        files: All files of the site.
    """
    if page.file.src_uri == "api.md":
        markdown = link_names(markdown)
    if page.file.src_uri in links.OUTSIDE.values():
        return markdown  # Its links are those of the site since on_files.

    def title_of(path: str) -> str | None:
        target = files.get_file_from_path(path)
        heading = target and HEADING.search(target.content_string)
        return heading[1] if heading else None

    return links.for_site(markdown, f"docs/{page.file.src_uri}", title_of)


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
