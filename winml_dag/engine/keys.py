"""Cache keys: equal keys mean equal work.

A key is made from the *contents* of the inputs, not from how they were made, so a re-run with identical output stops
there. Not in a key: verbosity, output folder, number of jobs, time, host name, absolute paths. Keys use sha256 because
they are looked up in stores that others write to; the hashed data is small.

Keys have the versions of installed distributions. Importing ``importlib.metadata`` costs 20 to 40 ms. The name of a
``.dist-info`` folder contains the version (the packaging specification for recording installed projects defines the
name), so listing ``sys.path`` once is enough. Their digests are not in keys; a build records them.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject, json_hash

if TYPE_CHECKING:
    from winml_dag.engine.stage import Node
    from winml_dag.store.records import KeyInputs


# Increased when the key format changes: old records are then never found.
KEY_FORMAT = 1


def config_hash(config: JsonObject) -> str:
    """64 hex digits over the canonical JSON of the fields that a stage reads."""
    return json_hash(config)


def cache_key(key_inputs: KeyInputs) -> str:
    """64 hex digits over everything that the outputs depend on."""
    return json_hash(
        {
            "key_format": KEY_FORMAT,
            "stage": key_inputs.stage,
            "version": key_inputs.version,
            "config_hash": key_inputs.config_hash,
            "inputs": key_inputs.inputs,
            "toolchain": key_inputs.toolchain,
        }
    )


def key_inputs_of(node: Node, inputs: Mapping[str, str]) -> KeyInputs:
    """The key inputs of *node*; *inputs* has the artifact digest of each of its slots."""
    from winml_dag.store.records import KeyInputs

    return KeyInputs(node.stage.name, node.stage.version, node.config, inputs, node.toolchain)


ABSENT = "not installed"


@cache
def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions_in(path: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Name, version and metadata folder of each distribution in the folders *path*."""
    for folder in path:
        try:
            entries = os.listdir(folder or ".")  # noqa: PTH208 - names are enough, and twice as fast
        except OSError:
            continue
        for entry in entries:
            stem, dot, suffix = entry.rpartition(".")
            if dot and suffix in ("dist-info", "egg-info") and "-" in stem:
                name, version = stem.split("-")[:2]
                yield normalised(name), version, f"{folder or '.'}{os.sep}{entry}"


def _listed(path: Iterable[str]) -> dict[str, str]:
    versions: dict[str, str] = {}
    for name, version, _ in distributions_in(path):
        versions.setdefault(name, version)
    return versions


@cache
def _listed_here(path: tuple[str, ...]) -> dict[str, str]:
    return _listed(path)


def installed_distributions(path: Sequence[Path] | None = None) -> dict[str, str]:
    """Every distribution installed in the folders *path*, with its version.

    By default in those of this Python, where the first one wins, as it does for imports.
    """
    return _listed_here(tuple(sys.path)) if path is None else _listed(map(str, path))


def forget_installed() -> None:
    """Clear the cache: for a process during whose lifetime packages are installed and removed."""
    _listed_here.cache_clear()


def distribution_version(name: str) -> str | None:
    """The version that is installed here, or None."""
    return installed_distributions().get(normalised(name))


def versions(names: Iterable[str], path: Sequence[Path] | None = None) -> dict[str, str]:
    """Versions by name for a key. A missing one has a value too, so that installing it changes the key."""
    return versions_in(installed_distributions(path), names)


def versions_in(present: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """The same for the installed distributions *present*."""
    return {name: present.get(normalised(name), ABSENT) for name in names}


# One digest of what a wheel installed: over the lines of its RECORD that are the same wherever it is installed.
#
# After installation the digest of the wheel itself is unknown. Its RECORD remains, with the SHA-256 of every file in
# the wheel. Lines that the installer adds are skipped: byte code, scripts outside of the folder, and its own metadata.
# See https://packaging.python.org/en/latest/specifications/recording-installed-packages/.

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
