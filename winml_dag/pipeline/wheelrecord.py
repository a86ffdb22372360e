"""What is installed of a distribution, as one digest: over those lines of its wheel's RECORD that are the same wherever
this wheel is installed.

The digest of the wheel itself is not known any more once it is installed. Its RECORD is, with the SHA-256 of every file
that the wheel had; an installer adds lines of its own, and none of these count: byte code, scripts outside of the
folder, and what it notes about itself. See
https://packaging.python.org/en/latest/specifications/recording-installed-packages/.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from winml_dag.engine.toolchain import distributions_in, normalised

_DIST_INFO = ".dist-info"
# Below the folder dist-info: what an installer writes there of itself.
_OF_INSTALLERS = frozenset({"INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_build.json", "uv_cache.json"})


def wheel_records(versions: Mapping[str, str]) -> dict[str, str]:
    """By distribution, 64 hex digits over what is installed here of it; those that are not, or in another version than
    *versions* says, are left out.
    """
    places = _installed(tuple(sys.path))
    found = {
        name: _digest_of(place)
        for name, version in sorted(versions.items())
        if (place := places.get((normalised(name), version))) is not None
    }
    return {name: digest for name, digest in found.items() if digest is not None}


# Once in a process: a sweep has hundreds of builds, and torch has 10,000 lines.
@cache
def _digest_of(record: Path) -> str | None:
    try:
        return record_digest(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def record_digest(text: str) -> str:
    """64 hex digits over the lines of the RECORD *text* that its wheel had, sorted, each with its end."""
    lines = sorted(f"{line}\n" for line in text.replace("\\", "/").splitlines() if _is_of_the_wheel(line))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _is_of_the_wheel(line: str) -> bool:
    # Taken apart by hand: there are 10,000 lines for torch, and a name with a comma is quoted and stays as it is.
    path, _, rest = line.rpartition(",")[0].rpartition(",")
    folder, _, name = path.rpartition("/")
    if not rest or "__pycache__/" in path or path.startswith(("../", "/")):
        return False
    return not (folder.endswith(_DIST_INFO) and name in _OF_INSTALLERS)


@cache
def _installed(path: tuple[str, ...]) -> dict[tuple[str, str], Path]:
    """The RECORD of each distribution in the folders *path*, by normalised name and version; the first one wins."""
    found: dict[tuple[str, str], Path] = {}
    for name, version, folder in distributions_in(path):
        if folder.endswith(_DIST_INFO):
            found.setdefault((name, version), Path(folder, "RECORD"))
    return found
