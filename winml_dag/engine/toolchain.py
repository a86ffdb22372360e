"""Versions of installed distributions, for cache keys, without importing or even opening them.

``importlib.metadata`` costs 20 to 40 ms to import; the name of a ``.dist-info`` folder has the version in it (the
name is fixed by the packaging specification for recording installed projects), so listing ``sys.path`` once is
enough.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from functools import cache

ABSENT = "not installed"


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def _installed(path: tuple[str, ...]) -> dict[str, str]:
    versions: dict[str, str] = {}
    for folder in path:
        try:
            entries = os.listdir(folder or ".")  # noqa: PTH208 - names are enough, and twice as fast
        except OSError:
            continue
        for entry in entries:
            stem, dot, suffix = entry.rpartition(".")
            if dot and suffix in ("dist-info", "egg-info") and "-" in stem:
                name, version = stem.split("-")[:2]
                versions.setdefault(normalised(name), version)
    return versions


def installed_distributions() -> dict[str, str]:
    """Every installed distribution with its version."""
    return _installed(tuple(sys.path))


def distribution_version(name: str) -> str | None:
    """The installed version, or None. The first folder on ``sys.path`` wins, as it does for imports."""
    return installed_distributions().get(normalised(name))


def versions(names: Iterable[str]) -> dict[str, str]:
    """Name to version for a key; one that is missing is said to be, so that installing it changes the key."""
    return {name: distribution_version(name) or ABSENT for name in names}
