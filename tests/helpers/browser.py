"""A real browser for the tests of pages: found, started headless, and closed again."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Playwright, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
REQUIRED = os.environ.get("SIMPLEXCAL_BROWSER") == "required" or bool(os.environ.get("CI"))
ABSENT = "No Chromium was found: the pages are NOT tested. Install it (apt install chromium) or name it in $CHROMIUM."


def find(playwright: Playwright) -> str | None:
    """Return the path of a Chromium: $CHROMIUM, one on the PATH, or Playwright's own."""
    named = os.environ.get("CHROMIUM")
    if named:
        return named
    own = playwright.chromium.executable_path
    return next(filter(None, map(shutil.which, NAMES)), own if Path(own).exists() else None)


@contextmanager
def started() -> Iterator[Browser]:
    """Run a browser; where there is none, skip and say so, or fail if SIMPLEXCAL_BROWSER=required or CI is set."""
    with sync_playwright() as playwright:
        path = find(playwright)
        if path is None:
            (pytest.fail if REQUIRED else pytest.skip)(ABSENT)
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"]
        )  # root has no sandbox
        try:
            yield browser
        finally:
            browser.close()
