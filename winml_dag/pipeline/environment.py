"""The environment of a build: everything other than its files that its plan depends on.

That is this program's code, installed distributions, the home folder, and the variables that configure search paths.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import xxhash

from winml_dag.canonical import JsonObject, JsonValue, canonical_json
from winml_dag.ep.configuration import CONFIGURATION_VARIABLES
from winml_dag.store import changetime

# Variables for the location of the hub cache and offline mode, for the programs of the user's own stages, and for
# environments of execution providers.
_VARIABLES = (
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_HOME",
    "XDG_CACHE_HOME",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "PATH",
    "PATHEXT",
    *CONFIGURATION_VARIABLES,
)


@dataclass(frozen=True)
class Environment:
    """A snapshot of the environment. Take it once to compare many entries: it takes longer than all other checks."""

    told: Mapping[str, JsonValue]
    folders: list[JsonValue]

    @classmethod
    def now(cls) -> Environment:
        told: JsonObject = {
            "code": _code_state(),
            "python": sys.version,
            "search_path": list(sys.path),
            "home": os.path.expanduser("~"),
            "machine": _machine(),
            "variables": {name: os.environ.get(name) for name in _VARIABLES},
        }
        return cls(told, [_time_of(path or ".") for path in sys.path])

    def is_as(self, fingerprint: Mapping[str, JsonValue]) -> bool:
        """Whether it matches *fingerprint*."""
        if any(fingerprint.get(name) != value for name, value in self.told.items()):
            return False
        at_ns = fingerprint.get("at_ns")
        # Unchanged folder times mean that no distribution was installed or removed since. A folder that changed
        # recently may change again without a new time, and a changed folder may have any new content: then compare the
        # names of distributions.
        if self.folders == fingerprint.get("folders") and isinstance(at_ns, int):
            latest = max((int(folder[0]) for folder in self.folders if isinstance(folder, list)), default=0)
            if latest <= at_ns - changetime.SETTLED_NS:
                return True
        return fingerprint.get("installed") == _installed()


def environment_fingerprint(now_ns: int) -> dict[str, JsonValue]:
    """Return the fingerprint that :meth:`Environment.is_as` compares; *now_ns* is the current time."""
    now = Environment.now()
    return {**now.told, "installed": _installed(), "folders": now.folders, "at_ns": now_ns}


def _machine() -> str:
    """Return an id that changes when the machine may be another one, because some models are compiled for the host.

    The boot id or host name stands in for the hardware, which takes longer to query: a cache that moves to another
    machine sees another boot or host name.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return os.environ.get("COMPUTERNAME", "") if sys.platform == "win32" else os.uname().nodename


def _code_state() -> str:
    """Return a hash over size and time of each file of this package: a plan is only valid for the code that made it."""
    state: list[JsonValue] = []
    folders = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    status = entry.stat()
                    state.append([entry.path, status.st_size, status.st_mtime_ns])
                elif entry.name != "__pycache__" and entry.is_dir():
                    folders.append(entry.path)
    return short_hash(sorted(state, key=str))


def _installed() -> str:
    # Imported here: it takes 3 ms, and is only needed when a package folder has changed.
    from winml_dag.engine.toolchain import installed_distributions

    return short_hash(installed_distributions())


def _time_of(path: str) -> JsonValue:
    """Return time and inode of a folder on the module search path."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_mtime_ns, status.st_ino]


def short_hash(value: JsonValue) -> str:
    """Return 32 hex digits over *value*: detects changes, but is not cryptographic."""
    return xxhash.xxh3_128_hexdigest(canonical_json(value).encode("utf-8", "surrogatepass"))
