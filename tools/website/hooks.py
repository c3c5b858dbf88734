"""What mkdocs calls while it builds the site; mkdocs.yml names this file."""

import logging
import os
import posixpath
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
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
CODE = re.compile(r"(<pre\b.*?</pre>|<code\b.*?</code>)", re.DOTALL)
SIGN_SPACE = re.compile(r"(?<=\d) (?=%)|(?<=±) ")
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
    pages = [f for f in files.documentation_pages() if EXECUTED.fullmatch(f.src_uri)]
    # A page uses one core, so as many run at the same time as there are cores.
    with tempfile.TemporaryDirectory() as root, ThreadPoolExecutor(os.cpu_count()) as pool:
        folders = [Path(root, str(number)) for number in range(len(pages))]
        for file, made, _ in zip(pages, folders, pool.map(run_page, pages, folders), strict=True):
            file.content_string = (made / "page.md").read_text(encoding="utf-8")
            for path in [*made.glob("*.png"), *made.glob("*.html")]:
                target = posixpath.join(posixpath.dirname(file.src_uri), path.name)
                files.append(File.generated(config, target, content=path.read_bytes()))


def run_page(file: File, folder: Path) -> None:
    """Run the code of a page in a process of its own.

    Args:
        file: The page.
        folder: A folder to make; it then holds the page with its output, and its figures.
    """
    folder.mkdir()
    start = time.perf_counter()
    command = [sys.executable, "-m", "tools.website.execution", str(file.abs_src_path), str(folder)]
    subprocess.run(command, check=True, cwd=ROOT)
    log.info("%s ran in %.0f s", file.src_uri, time.perf_counter() - start)


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
    """Typeset the formulas, and keep numbers on one line with their signs.

    Args:
        html: The body of a page.
    """
    return keep_together(mathematics.typeset(html))


def keep_together(html: str) -> str:
    """Return a page on which no line ends after ± or before a % sign.

    Args:
        html: The body of a page. Code in it stays as it is.
    """
    parts = CODE.split(html)
    parts[::2] = [SIGN_SPACE.sub("\N{NO-BREAK SPACE}", part) for part in parts[::2]]
    return "".join(parts)
