"""The browser that the tests of HTML pages run in. ``make browser`` asks here, as the tests do, so that it cannot say
that there is one which they would not find, and be skipped for it.

Run as a script, it prints where the browser is, and ends with 1 when there is none. It needs nothing but Python.
"""

from __future__ import annotations

import os
import shutil
import sys

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")


def chromium() -> str | None:
    """Where a browser of that family is, as the environment or ``PATH`` says; None when there is none."""
    named = os.environ.get("WINML_DAG_TEST_BROWSER")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, _NAMES)), None)


if __name__ == "__main__":
    found = chromium()
    print(found or "There is no Chromium.")
    sys.exit(found is None)
