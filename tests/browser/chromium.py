"""Finds the browser for the tests of HTML pages.

``make browser`` uses it as well, so that both agree whether one exists.

As a script it prints the path of the browser, and exits with 1 without one. It needs only Python.
"""

from __future__ import annotations

import os
import shutil
import sys

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")


def chromium() -> str | None:
    """Return the path of a Chromium-based browser from the environment or ``PATH``; None without one."""
    named = os.environ.get("WINML_DAG_TEST_BROWSER")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, _NAMES)), None)


if __name__ == "__main__":
    found = chromium()
    print(found or "There is no Chromium.")
    sys.exit(found is None)
