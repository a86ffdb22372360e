"""The environment of a build: all outside of its files that its plan depends on. That is this program's code, what is
installed, where home is, and the variables that say where to look.
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

# Where the hub cache is and whether the hub may be asked; where the programs of the user's own stages are; which
# environments there are for execution providers.
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
    """One look at the environment. Who compares many entries with it looks once: it takes longer than all else."""

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
        """Whether it is what *fingerprint* was made of."""
        if any(fingerprint.get(name) != value for name, value in self.told.items()):
            return False
        at_ns = fingerprint.get("at_ns")
        # A folder's time says that no distribution came or went since; one that was just changed may change again
        # without showing it, and one that did change may have got anything: then their names are read.
        if self.folders == fingerprint.get("folders") and isinstance(at_ns, int):
            latest = max((int(folder[0]) for folder in self.folders if isinstance(folder, list)), default=0)
            if latest <= at_ns - changetime.SETTLED_NS:
                return True
        return fingerprint.get("installed") == _installed()


def environment_fingerprint(now_ns: int) -> dict[str, JsonValue]:
    """What :meth:`Environment.is_as` compares; *now_ns* is the time of day."""
    now = Environment.now()
    return {**now.told, "installed": _installed(), "folders": now.folders, "at_ns": now_ns}


def _machine() -> str:
    """Another one where the machine may be another, because some models are compiled for the one that we run on. What
    it is takes longer to ask: a cache that is carried to another machine meets another start, or another name.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return os.environ.get("COMPUTERNAME", "") if sys.platform == "win32" else os.uname().nodename


def _code_state() -> str:
    """Size and time of each file of this package: a plan does not outlive the code that made it."""
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
    # Imported here: it takes 3 ms, and is only asked when a folder of packages has changed.
    from winml_dag.engine.toolchain import installed_distributions

    return short_hash(installed_distributions())


def _time_of(path: str) -> JsonValue:
    """Time and inode of a folder that packages are found in."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_mtime_ns, status.st_ino]


def short_hash(value: JsonValue) -> str:
    """32 hex digits over *value*: to notice a change, not to withstand anybody."""
    return xxhash.xxh3_128_hexdigest(canonical_json(value).encode("utf-8", "surrogatepass"))
