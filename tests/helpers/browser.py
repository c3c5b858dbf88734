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
ABSENT = (
    "No Chromium was found: the pages are NOT tested. "
    "Install it (apt install chromium) or name it in $CHROMIUM."
)


def find(playwright: Playwright) -> str | None:
    """Return the path of a Chromium: $CHROMIUM, one on the PATH, or Playwright's own."""
    named = os.environ.get("CHROMIUM")
    if named:
        return named
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    own = playwright.chromium.executable_path
    if Path(own).exists():
        return own
    return None


@contextmanager
def started() -> Iterator[Browser]:
    """Run a browser.

    Without one, the test is skipped, or fails if SIMPLEXCAL_BROWSER=required or CI is set.
    """
    with sync_playwright() as playwright:
        path = find(playwright)
        if path is None:
            if REQUIRED:
                pytest.fail(ABSENT)
            pytest.skip(ABSENT)
        # Root has no sandbox.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
