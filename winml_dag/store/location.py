"""Where the cache folder is when nobody says: apart from the store, so that asking costs nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from winml_dag.errors import UsageError

CACHE_DIR_VARIABLE = "WINML_DAG_CACHE_DIR"


def default_cache_dir() -> Path:
    """The folder that WINML_DAG_CACHE_DIR names, else the user's cache folder of this system.

    Raises:
        UsageError: where that is in a home folder that nobody knows, as in a container whose user has none.
    """
    if named := os.environ.get(CACHE_DIR_VARIABLE):
        return _expanded(named)
    if sys.platform == "linux":
        # What platformdirs answers here; importing it takes 6 ms of the 90 that an up-to-date build does.
        given = os.environ.get("XDG_CACHE_HOME", "").strip()
        return (Path(given) if os.path.isabs(given) else _expanded("~/.cache")) / "winml_dag"  # noqa: PTH117
    else:  # noqa: RET505 - mypy knows a platform by its branch
        import platformdirs

        return platformdirs.user_cache_path("winml_dag", appauthor=False)


def _expanded(text: str) -> Path:
    path = os.path.expanduser(text)  # noqa: PTH111 - Path's own function raises another error
    if path.startswith("~"):
        raise UsageError(
            f"The cache would be in {text}, and this user has no such folder.",
            advice=f"Give --cache-dir, or set {CACHE_DIR_VARIABLE}.",
        )
    return Path(path)
