"""One digest of what a wheel installed: over the lines of its RECORD that are the same wherever it is installed.

After installation the digest of the wheel itself is unknown. Its RECORD remains, with the SHA-256 of every file in the
wheel. Lines that the installer adds are skipped: byte code, scripts outside of the folder, and its own metadata. See
https://packaging.python.org/en/latest/specifications/recording-installed-packages/.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from winml_dag.engine.keys import distributions_in, normalised

_DIST_INFO = ".dist-info"
# Files that an installer writes to the dist-info folder.
_OF_INSTALLERS = frozenset({"INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_build.json", "uv_cache.json"})


def wheel_records(versions: Mapping[str, str]) -> dict[str, str]:
    """Return a digest (64 hex digits) of each installed distribution by its name.

    Distributions that are not installed, or not in the version in *versions*, are skipped.
    """
    places = _installed(tuple(sys.path))
    found = {
        name: _digest_of(place)
        for name, version in sorted(versions.items())
        if (place := places.get((normalised(name), version))) is not None
    }
    return {name: digest for name, digest in found.items() if digest is not None}


# Once per process: a sweep has hundreds of builds, and torch has 10,000 lines.
@cache
def _digest_of(record: Path) -> str | None:
    try:
        return record_digest(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def record_digest(text: str) -> str:
    """Return 64 hex digits over the lines of the RECORD *text* that come from the wheel, sorted, with line ends."""
    lines = sorted(f"{line}\n" for line in text.replace("\\", "/").splitlines() if _is_of_the_wheel(line))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _is_of_the_wheel(line: str) -> bool:
    # Split without the csv module for speed: torch has 10,000 lines. A quoted name with a comma stays intact.
    path, _, rest = line.rpartition(",")[0].rpartition(",")
    folder, _, name = path.rpartition("/")
    if not rest or "__pycache__/" in path or path.startswith(("../", "/")):
        return False
    return not (folder.endswith(_DIST_INFO) and name in _OF_INSTALLERS)


@cache
def _installed(path: tuple[str, ...]) -> dict[tuple[str, str], Path]:
    """Return the RECORD of each distribution in the folders *path*, by normalised name and version; the first wins."""
    found: dict[tuple[str, str], Path] = {}
    for name, version, folder in distributions_in(path):
        if folder.endswith(_DIST_INFO):
            found.setdefault((name, version), Path(folder, "RECORD"))
    return found
