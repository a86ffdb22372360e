"""Headless Chromium, one for all tests of the folder, with the report's pages opened from disk.

A test fails if its page logs an error to the console, throws, or requests anything but its own file.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import report_samples as samples
from chromium import chromium

from winml_dag.report.page import html_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# No background activity of the browser, and no sandbox, which containers do not allow.
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the files to open; ``small`` is a report with everything it may contain."""
    folder = tmp_path_factory.mktemp("pages")
    small = samples.small_report()
    written = {
        "small": html_of(small),
        "compared": html_of(small, samples.comparison_with(small)),
        "large": html_of(samples.large_report()),
        "hostile": html_of(samples.hostile_report()),
        "bare": html_of(samples.bare_report()),
    }
    for name, text in written.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    found = chromium()
    if found is None:
        # Not pytest.skip, for which the summary has a line per test.
        raise unittest.SkipTest("no Chromium on PATH or in WINML_DAG_TEST_BROWSER; to get it: make browser")
    playwright = pytest.importorskip(
        "playwright.sync_api", exc_type=ImportError, reason="playwright drives the browser"
    )
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found, args=list(_FLAGS))
        yield started
        started.close()


@pytest.fixture(scope="module")
def window(browser: Browser) -> Iterator[Page]:
    """One window for all tests of a module, with a memory of its own: another for each would cost as much as a test."""
    page = browser.new_page()
    yield page
    page.close()


@pytest.fixture
def opened(window: Page, pages: Path) -> Iterator[Callable[..., Page]]:
    """Opens a page by name, at a fragment, with a window width and light or dark theme."""
    wrong: list[str] = []
    allowed = ["about:blank"]
    listeners: dict[str, Callable[[Any], object]] = {
        "console": lambda message: wrong.append(message.text) if message.type == "error" else None,
        "pageerror": lambda error: wrong.append(str(error)),
        "request": lambda asked: None if asked.url.startswith(tuple(allowed)) else wrong.append(asked.url),
    }
    for event, listener in listeners.items():
        window.on(event, listener)

    def open_(name: str, at: str = "", *, width: int = 1400, scheme: str = "light") -> Page:
        address = (pages / f"{name}.html").as_uri()
        allowed.append(address)
        window.goto("about:blank")
        window.set_viewport_size({"width": width, "height": 900})
        window.emulate_media(color_scheme=scheme, media="screen")
        window.goto(address + at)
        return window

    yield open_
    for event, listener in listeners.items():
        window.remove_listener(event, listener)
    assert wrong == []
